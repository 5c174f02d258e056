"""PowerSGD draws random numbers at the first exchange of each bucket, which must not happen beside a forward."""

from types import SimpleNamespace

from wavelet.exchange.compression import LowRank


def test_every_bucket_draws_once_and_none_before_compression_starts():
    compression = object.__new__(LowRank)
    compression._state = SimpleNamespace(iter=LowRank.START - 1, q_memory_dict={})
    assert not compression.draws(0)
    compression._state.iter = LowRank.START
    assert compression.draws(0)
    compression._state.q_memory_dict[0] = object()
    assert not compression.draws(0)
    assert compression.draws(1)  # the first bucket's numbers are not the second's
