"""Public failures of neighbouring projects, one story a test: what happened there, and what we owe instead.

A bare # is PyTorch's. Failures that have a file of tests of their own are told there: autocast and recomputation in
tests/waves/test_recompute.py, copies in tests/waves/test_replica.py, the compiler in tests/test_compile.py, sparse and
complex gradients in tests/updates/test_gradients.py, Ctrl-C and forked loaders in tests/test_failure.py, resuming in
tests/test_saving.py.
"""
