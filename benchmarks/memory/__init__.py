"""The promise of memory, measured."""
