"""`wavelet train --exchange`: what was typed becomes a strategy, or one sentence."""

import pytest
import torch.distributed as dist

from wavelet.cli.exchange import Strategy, make_exchange
from wavelet.cli.options import Refusal

DEFAULTS = {
    "period": None, "warmup": 0, "compress": None, "max_norm": None, "block_momentum": None, "nesterov": False,
}  # fmt: skip


@pytest.fixture
def two_ranks(tmp_path, monkeypatch):
    """As torchrun would have it, but alone."""
    monkeypatch.setattr("wavelet.cli.exchange.num_ranks", lambda: 2)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("strategy", "typed", "text"),
    [
        ("allreduce", {}, "AllReduce()"),
        ("allreduce", {"compress": "bf16"}, "AllReduce(compress='bf16')"),
        ("localsgd", {"period": 4, "warmup": 10}, "LocalSGD(period=4, warmup=10)"),
        ("celgc", {"period": 4, "max_norm": 0.5}, "CELGC(period=4, max_norm=0.5)"),
        ("bmuf", {"period": 4, "block_momentum": 0.9, "nesterov": True},
         "BMUF(period=4, block_momentum=0.9, nesterov=True)"),
        ("biasedlocalsgd", {"period": 32}, "BiasedLocalSGD(period=32)"),
        ("dreamddp", {"period": 10}, "DreamDDP(period=10)"),
    ],
)  # fmt: skip
def test_what_was_typed_is_the_strategy(two_ranks, strategy, typed, text):
    names = ["--exchange", *(f"--{name.replace('_', '-')}" for name in typed)]
    choice = make_exchange(Strategy(strategy), names, **{**DEFAULTS, **typed})
    assert str(choice) == text


def test_without_any_of_the_options_the_engine_chooses():
    assert make_exchange(Strategy.allreduce, [], **DEFAULTS) is None


@pytest.mark.parametrize(
    ("strategy", "typed", "sentence"),
    [
        ("dreamddp", {}, "--exchange dreamddp needs --period"),
        ("celgc", {"period": 4}, "--exchange celgc needs --max-norm"),
        (
            "dreamddp",
            {"period": 4, "warmup": 3},
            "--warmup belongs to --exchange localsgd, celgc, bmuf, biasedlocalsgd",
        ),
        ("allreduce", {"period": 4}, "--period belongs to"),
        ("allreduce", {"compress": "int8"}, "compress='int8' is not known"),
    ],
)
def test_what_makes_no_sense_is_refused(two_ranks, strategy, typed, sentence):
    names = ["--exchange", *(f"--{name.replace('_', '-')}" for name in typed)]
    with pytest.raises(Refusal, match=sentence):
        make_exchange(Strategy(strategy), names, **{**DEFAULTS, **typed})


def test_one_rank_has_nobody_to_agree_with():
    with pytest.raises(Refusal, match="--exchange and --period are for several ranks"):
        make_exchange(Strategy.dreamddp, ["--exchange", "--period"], **{**DEFAULTS, "period": 3})
