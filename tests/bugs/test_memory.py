"""Public failures: memory."""

import sys

import pytest
import torch

from ..models import Serial, assert_same, batches, loss, trained_weights
from .engines import make, momentum, small


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes on exceptions")
def test_composer_2117_out_of_memory_says_what_to_change_and_leaves_whole_weights():
    """Running out of memory in a backward left half an update on some ranks, and the message helped nobody."""

    def hungry(gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    def at_batch_3(model, batch):
        number, batch = batch
        value = loss(model, batch)
        if number == 3:
            value.register_hook(hungry)
        return value

    model, engine = make(loss_function=at_batch_3, update="delayed")
    with pytest.raises(torch.OutOfMemoryError) as error, engine:
        for batch in enumerate(batches(8, size=6)):
            engine.step(batch)
    assert any("waves=1 or smaller batches" in note for note in error.value.__notes__)
    serial = Serial(small(), momentum, rule="delayed", waves=2)
    for batch in batches(3, size=6):
        serial.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])
