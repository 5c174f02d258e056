"""Plans of small chains, without a model."""

from wavelet.planning.plan import make_plan
from wavelet.profiling.profile import Profile, Timing
from wavelet.profiling.recorders import BlockBytes, BlockSeconds

MIB = 2**20


def profile(saved, transient=None, forward=None, backward=None, names=None, update=0.002, waves=(1, 2, 3), turn=0):
    num_blocks = len(saved)
    rising = [sum(saved[: j + 1]) for j in range(num_blocks)]
    falling = [sum(saved[: num_blocks - i]) + (transient or [0] * num_blocks)[i] for i in range(num_blocks)]
    seconds = BlockSeconds(tuple(forward or [0.01] * num_blocks), tuple(backward or [0.02] * num_blocks), update)
    return Profile(
        model="print",
        device="cpu",
        blocks=(None, *(names or [f"block.{j}" for j in range(2, num_blocks + 1)])),
        calls={},
        bytes=BlockBytes(tuple(saved), (0,) * num_blocks, tuple(rising), tuple(falling), turn),
        timings={count: Timing(threads=1, seconds=seconds) for count in waves},
        samples=8,
        shapes=(((8, 4),),),
        batch_bytes=1024,
        parameter_bytes=4096,
        gradient_bytes=4096,
        buffer_bytes=0,
        optimizer_bytes=8192,
    )


def plan(saved=(4 * MIB, 2 * MIB, 3 * MIB), budget="1.25x", waves=2, **options):
    update = options.pop("rule", "neighbour")
    return make_plan(profile(list(saved), **options), budget, waves, update=update)
