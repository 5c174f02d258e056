"""A run over ranks that is saved and continued is bitwise the same."""

import pytest

import wavelet
from wavelet.exchange import AllReduce

from .. import models
from .ranks import run
from .training import sgd, wide

pytestmark = pytest.mark.distributed


def resume(rank, size, compress, update, cut):
    """Weights of an undisturbed run, and of one that was saved after ``cut`` batches and continued."""
    data = models.batches(24, seed=rank)

    def engine():
        model = wide()
        options = {"update": update, "exchange": AllReduce(compress=compress), "accumulate": 2}
        return model, wavelet.Wavelet(model, sgd(model.parameters()), models.loss, **options)

    model, whole = engine()
    with whole:
        for batch in data:
            whole.step(batch)
    undisturbed = models.trained_weights(model)
    _, first = engine()
    with first:
        for batch in data[:cut]:
            first.step(batch)
        state = first.state_dict()
    model, second = engine()
    with second:
        second.load_state_dict(state)
        for batch in data[cut:]:
            second.step(batch)
    return undisturbed, models.trained_weights(model)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize("compress", [None, "bf16"])
def test_a_run_that_is_continued_is_bitwise_the_same(compress, update):
    for undisturbed, continued in run(resume, 2, compress, update, 9):
        models.assert_same(undisturbed, continued)


def test_powersgd_is_continued_bitwise():
    for undisturbed, continued in run(resume, 2, "powersgd", "neighbour", 23):
        models.assert_same(undisturbed, continued)
