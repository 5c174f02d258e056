"""Public failures: copies of models."""

import pytest
from torch import nn

from ..models import batches
from .engines import make, small


def test_accelerate_1835_a_wrapped_forward_does_not_train_the_original():
    """A decorator around forward kept calling the model it was made for, so the copy's weights never moved."""
    model = small()
    original = model.forward

    def timed(x):
        return original(x)

    model.forward = timed
    with pytest.raises(ValueError, match=r"original.*replicate="):
        with make(model)[1] as engine:
            for batch in batches(4):
                engine.step(batch)


def test_65051_lazy_and_meta_modules_are_named():
    """They failed far from their cause, when a shape or a value was missing."""
    for model, word in ((nn.Sequential(nn.LazyLinear(4)), "lazy"), (nn.Linear(8, 4, device="meta"), "meta")):
        with pytest.raises(ValueError, match=word):
            make(model)
