"""Small clusters and layers, and an independent reference: the recurrence of the graph, rank by rank."""

from wavelet.planning.cluster import Cluster
from wavelet.planning.costs import Link
from wavelet.planning.layers import Layers
from wavelet.profiling.profile import NO_CONTENTION

# Two ranks over links of one byte a second without latency: a ring takes as many seconds as there are bytes.
PAIR = Cluster(hosts=2, inter=Link(1.0, 0.0))

# Layer 2 goes down first: backward 4, exchange 6; then layer 1: backward 3, exchange 5.
TWO = Layers((1.0, 2.0), (3.0, 4.0), (5.0, 6.0), update=1.0, input=1.0, copy=1.0, contention=NO_CONTENTION)


def reference(tasks, slowdowns):
    """When each task ends on each rank: after what it waits for, and after the task before it on its lane.

    For work that nothing slows down: exchanges start when the last rank is ready, one after the other.
    """
    num_ranks = slowdowns.shape[1]
    ends, lanes, links = [], {}, 0.0
    for task in tasks:
        ready = [max([0.0, *(ends[number][rank] for number in task.after)]) for rank in range(num_ranks)]
        if task.kind == "exchange":
            links = max(links, *ready) + task.seconds
            ends.append([links] * num_ranks)
            continue
        free = lanes.setdefault(task.lane, [0.0] * num_ranks)
        slow = slowdowns[task.iteration] if task.kind not in ("input", "copy") else [1.0] * num_ranks
        lanes[task.lane] = [
            max(first, second) + task.seconds * factor for first, second, factor in zip(ready, free, slow, strict=True)
        ]
        ends.append(lanes[task.lane])
    return ends
