"""Failures: the first error rises with its own traceback, no thread is left, the process stays usable."""

import os
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch

import wavelet

from .models import assert_same, batches, loss, mlp, trained_weights


class Boom(Exception):
    pass


def make(model=None, loss_function=loss, **options):
    model = model or mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, wavelet.Wavelet(model, optimizer, loss_function, **options)


def fail_at(number):
    """A loss whose backward raises at the given batch."""
    count = iter(range(1000))

    def failing(model, batch):
        value = loss(model, batch)
        if next(count) == number:
            value.register_hook(raise_boom)
        return value

    return failing


def raise_boom(gradient):
    raise Boom("in backward")


def run(engine, count=12):
    steps = []
    try:
        for batch in batches(count):
            steps.append(engine.step(batch))
        engine.drain()
    except BaseException as error:
        return steps, error
    return steps, None


@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_in_backward_rises_with_its_own_traceback(rule, at):
    _, _, engine = make(loss_function=fail_at(at), update=rule)
    steps, error = run(engine)
    assert isinstance(error, Boom)
    assert "raise_boom" in "".join(traceback.format_tb(error.__traceback__))
    assert at <= len(steps) <= at + 3, "the error rises at the next calls, not at the end"
    for step in steps[at:]:
        with pytest.raises(wavelet.LostBatchError) as lost:
            step.wait()
        assert isinstance(lost.value.__cause__, Boom)
        with pytest.raises(wavelet.LostBatchError):
            _ = step.loss
    assert at < 2 or len(steps) > at, "a wave's first batch runs alone, and its error rises at once"
    if at:
        assert steps[at - 1].loss > 0 or rule == "synchronous"
    with pytest.raises(RuntimeError, match="make a new one"):
        engine.step(batches(1)[0])
    engine.close()


def test_the_error_says_where_it_happened():
    _, _, engine = make(loss_function=fail_at(3))
    _, error = run(engine)
    if sys.version_info >= (3, 11):
        assert any("backward of batch 3 on the tock-wave" in note for note in error.__notes__)


def test_an_error_in_the_optimizer_keeps_the_last_whole_update():
    model, optimizer, engine = make(mlp(dropout=0.0), update="delayed")
    count = iter(range(100))

    def fail(*_):
        if next(count) == 6:
            raise Boom("in the optimizer")

    optimizer.register_step_post_hook(fail)
    _, error = run(engine)
    assert isinstance(error, Boom)
    other, _, engine = make(mlp(dropout=0.0), update="delayed")
    with engine:
        for batch in batches(6):
            engine.step(batch)
    assert_same(trained_weights(model), trained_weights(other))


def test_weights_after_a_failure_are_those_of_the_update_before():
    model, _, engine = make(mlp(dropout=0.0), fail_at(6), update="neighbour")
    run(engine)
    other, _, engine = make(mlp(dropout=0.0), update="neighbour")
    with engine:
        for batch in batches(6):
            engine.step(batch)
    assert_same(trained_weights(model), trained_weights(other))


def test_an_error_in_forward_leaves_everything_as_before():
    data = batches(10)
    torch.manual_seed(3)
    model, _, engine = make()
    with engine:
        expected = [engine.step(batch).loss for batch in data]
    expected_weights, expected_buffers = trained_weights(model), list(model.buffers())

    broken = False

    def sometimes(model, batch):
        value = loss(model, batch)
        if broken:
            raise Boom("in forward")
        return value

    torch.manual_seed(3)
    model, _, engine = make(loss_function=sometimes)
    losses = []
    with engine:
        for index, batch in enumerate(data):
            if index in (0, 4, 7):
                broken = True
                with pytest.raises(Boom):
                    engine.step(batch)
                broken = False
            losses.append(engine.step(batch).loss)
    assert losses == expected
    assert_same(trained_weights(model), expected_weights)
    assert_same(list(model.buffers()), expected_buffers)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda value: value.item(), "gave a float"),
        (lambda value: value.detach(), "does not require a gradient"),
        (lambda value: value.expand(3), r"shape \(3,\)"),
        (lambda value: {"value": value}, "without 'loss'"),
        (lambda value: None, "gave a NoneType"),
    ],
)
def test_a_loss_that_cannot_be_trained(result, message):
    _, _, engine = make(loss_function=lambda model, batch: result(loss(model, batch)))
    with engine, pytest.raises(ValueError, match=message):
        engine.step(batches(1)[0])


def test_a_loss_of_the_wrong_model_is_found():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = wavelet.Wavelet(model, optimizer, lambda _, batch: loss(model, batch))
    with pytest.raises(ValueError, match="original model"):
        for batch in batches(3):
            engine.step(batch)
    engine.close()


def test_nan_is_reported_and_not_swallowed():
    _, _, engine = make(loss_function=lambda model, batch: loss(model, batch) * float("nan"))
    with engine:
        step = engine.step(batches(1)[0])
    assert step.loss != step.loss


def test_leaving_by_an_exception_discards_and_joins():
    model, _, engine = make()
    with pytest.raises(Boom), engine:
        steps = [engine.step(batch) for batch in batches(5)]
        raise Boom
    assert threading.active_count() == 1 or not any(t.name.startswith("wavelet") for t in threading.enumerate())
    assert steps[0].loss > 0
    with pytest.raises(RuntimeError, match="closed"):
        engine.step(batches(1)[0])
    loss(model, batches(1)[0]).backward()


def test_keyboard_interrupt_in_forward_is_fatal():
    def interrupted(model, batch):
        value = loss(model, batch)
        if batch is data[3]:
            raise KeyboardInterrupt
        return value

    data = batches(5)
    _, _, engine = make(loss_function=interrupted)
    with pytest.raises(KeyboardInterrupt), engine:
        for batch in data:
            engine.step(batch)
    with pytest.raises(RuntimeError):
        engine.step(data[0])


INTERRUPTED = """
import os, signal, sys, threading, time, torch
sys.path.insert(0, {root!r})
from tests.models import mlp, loss, batches
import wavelet
model = mlp()
def slow(model, batch):
    value = loss(model, batch)
    value.register_hook(lambda g: time.sleep(0.3))
    return value
engine = wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), slow)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
with engine:
    for batch in batches(1000):
        engine.step(batch)
"""


def test_ctrl_c_while_waiting(pytestconfig):
    code = INTERRUPTED.format(root=str(pytestconfig.rootpath))
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (130, -2), done.stderr
    assert done.stderr.count("Traceback") == 1 and "KeyboardInterrupt" in done.stderr
    assert time.monotonic() - started < 50


def test_a_wave_that_sleeps_for_ever_is_named():
    wake = threading.Event()

    def sleeping(model, batch):
        value = loss(model, batch)
        if batch is data[3]:
            value.register_hook(lambda g: wake.wait(20) and None)
        return value

    data = batches(8)
    _, _, engine = make(loss_function=sleeping, timeout=1.0)
    started = time.monotonic()
    with pytest.raises(wavelet.NoProgressError, match="tock-wave is in the backward of batch 3") as alarm:
        for batch in data:
            engine.step(batch)
    assert time.monotonic() - started < 15
    assert "wake.wait" in str(alarm.value), "the stacks of all threads are shown"
    wake.set()
    for thread in threading.enumerate():
        if thread.name.startswith("wavelet"):
            thread.join(10)


def test_slow_user_code_between_steps_is_no_lack_of_progress():
    _, _, engine = make(timeout=0.5)
    with engine:
        for batch in batches(3):
            engine.step(batch)
            time.sleep(0.7)


def test_two_engines_one_after_the_other():
    for _ in range(2):
        _, _, engine = make()
        with engine:
            for batch in batches(4):
                engine.step(batch)


def test_an_engine_that_is_forgotten_ends_its_threads():
    _, _, engine = make()
    engine.step(batches(1)[0])
    engine.drain()
    threads = [wave.thread for wave in engine._waves.waves]
    del engine
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


FORGOTTEN = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.models import mlp, loss, batches
import wavelet
model = mlp()
engine = wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
for batch in batches(5):
    engine.step(batch)
print("end")
"""


def test_a_script_that_forgets_to_close_ends(pytestconfig):
    code = FORGOTTEN.format(root=str(pytestconfig.rootpath))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_data_loader_workers_forked_beside_waves():
    loader = torch.utils.data.DataLoader(batches(8), batch_size=None, num_workers=1, multiprocessing_context="fork")
    _, _, engine = make()
    with engine:
        for _ in range(3):
            for batch in loader:
                engine.step(batch)


def test_an_error_in_the_last_backward_rises_when_the_engine_is_left():
    for _ in range(5):
        _, _, engine = make(loss_function=fail_at(4))
        with pytest.raises(Boom), engine:
            for batch in batches(5):
                engine.step(batch)
            time.sleep(0.05)


def test_an_error_in_the_update_that_flush_makes_is_final():
    _, optimizer, engine = make(accumulate=2)
    optimizer.register_step_pre_hook(lambda *_: raise_boom(None))
    engine.step(batches(1)[0])
    with pytest.raises(Boom):
        engine.flush()
    with pytest.raises(RuntimeError, match="make a new one"):
        engine.drain()
    engine.close()


def test_a_draw_found_in_a_backward_is_final():
    """The batch has been counted and its update made: going on as if nothing were would hide it."""

    def noisy(model, batch):
        value = loss(model, batch)
        value.register_hook(lambda gradient: gradient * torch.rand(()))
        return value

    _, _, engine = make(loss_function=noisy)
    with pytest.raises(ValueError, match="draws random numbers"):
        engine.step(batches(1)[0])
    with pytest.raises(RuntimeError, match="make a new one"):
        engine.step(batches(1)[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_another_thread_does_not_lend_the_baton():
    """Lent in the middle of a forward, a wave's recomputation could swap the random state under that forward."""
    lent = []

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def forward_beside_fork(model, batch):
        thread = threading.Thread(target=fork)
        thread.start()
        while thread.is_alive():
            lent.append(engine._turns._lent)
        value = loss(model, batch)
        value.register_hook(lambda gradient: time.sleep(0.05))
        return value

    _, _, engine = make(loss_function=forward_beside_fork)
    with engine:
        for batch in batches(3):
            engine.step(batch)
    assert lent and not any(lent)
