"""Fair comparison: every system in turn, each run in a fresh process, the same batches and allocator for all."""
