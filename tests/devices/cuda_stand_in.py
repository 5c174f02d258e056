"""The CUDA device without a GPU: a stand-in that launches nothing late, but checks that everything is ordered.

Each stream has a vector clock, which events carry to other streams. Every operation that torch dispatches is a launch
on its thread's current stream: what it reads must be ordered after the last write, what it writes after the last write
and all reads, and memory that is freed may only be taken again, on the stream that it came from, once everything that
touched it is ordered before. The numbers are computed at once on the CPU, so results are those of the CPU device.
"""

import collections
import contextlib
import sys
import threading
import types
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wavelet.devices.cuda
from wavelet.devices.cuda import Cuda

WAITS_FOR_DEVICE = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}


WRITES_WITHOUT_SAYING = {"aten::native_batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4)}


class Stream:
    def __init__(self, machine, device=None):
        self.machine = machine
        self.clock = collections.Counter()
        self.name = f"stream {len(machine.streams)}"
        machine.streams.append(self)

    def wait_event(self, event):
        with self.machine.lock:
            self.clock |= event.clock

    def wait_stream(self, other):
        with self.machine.lock:
            self.clock |= other.clock

    def synchronize(self):
        with self.machine.lock:
            self.machine.done |= self.clock


class Event:
    """``finished``: whether ``query`` says so."""

    def __init__(self, machine, *, finished=False):
        self.machine, self.finished = machine, finished
        self.clock = collections.Counter()

    def record(self, stream):
        with self.machine.lock:
            self.clock = stream.clock.copy()

    def synchronize(self):
        with self.machine.lock:
            self.machine.done |= self.clock

    def query(self):
        if self.finished:
            self.synchronize()
        return self.finished


class Block:
    """Memory: the stream it was taken on, the last write, and the reads since."""

    def __init__(self, stream):
        self.stream = stream
        self.write = None
        self.reads = {}
        self.recorded = set()  # streams that the allocator waits for before it gives the memory away again

    def accesses(self):
        return [*([self.write] if self.write else []), *self.reads.items()]


class Machine:
    def __init__(self, backend="native"):
        self.lock = threading.RLock()
        self.backend = backend
        self.streams = []
        self.done = collections.Counter()  # what the host has waited for
        self.blocks = {}
        self.freed = collections.defaultdict(list)
        self.faults = []
        self.num_launches = collections.Counter()
        self.default = Stream(self)
        self.here = threading.local()
        self.events_finish = False
        # What devices/cuda.py takes from torch.cuda.
        self.cuda = types.SimpleNamespace(
            Stream=lambda device=None: Stream(self),
            Event=lambda **options: Event(self, finished=self.events_finish),
            stream=self.on,
            current_stream=lambda device=None: self.current,
            set_device=lambda device: None,
            get_allocator_backend=lambda: self.backend,
            get_rng_state=lambda device: None,
            set_rng_state=lambda state, device: None,
            synchronize=lambda device=None: [stream.synchronize() for stream in self.streams],
        )

    @property
    def current(self):
        return getattr(self.here, "stream", self.default)

    @contextlib.contextmanager
    def on(self, stream):
        """Inside, this thread launches on ``stream``; its launches are seen."""
        before, watched = self.current, getattr(self.here, "watched", False)
        self.here.stream, self.here.watched = stream, True
        try:
            with contextlib.nullcontext() if watched else Watch(self):
                yield
        finally:
            self.here.stream, self.here.watched = before, watched

    def launch(self, name, reads, writes, taken):
        with self.lock:
            stream = self.current
            stream.clock[stream] += 1
            self.num_launches[stream] += 1
            now = stream.clock | self.done
            me = (stream, stream.clock[stream])
            for storage in reads:
                if block := self.blocks.get(storage._cdata):
                    self._check(now, [block.write] if block.write else [], f"{name} on {stream.name} reads what")
                    block.reads[stream] = me[1]
            for storage in writes:
                if block := self.blocks.get(storage._cdata):
                    self._check(now, block.accesses(), f"{name} on {stream.name} writes what")
                    block.write, block.reads = me, {}
            if taken:
                for accesses in self.freed.pop(stream, []):
                    self._check(now, accesses, f"{name} on {stream.name} takes memory that")
            for storage in taken:
                block = self.blocks[storage._cdata] = Block(stream)
                block.write = me
                weakref.finalize(storage, self._free, storage._cdata, block).atexit = False
            if name in WAITS_FOR_DEVICE:
                stream.synchronize()

    def _free(self, key, block):
        with self.lock:
            if self.blocks.get(key) is block:
                del self.blocks[key]
            self.freed[block.stream].append([a for a in block.accesses() if a[0] not in block.recorded])

    def record(self, tensor, stream):
        with self.lock:
            if block := self.blocks.get(tensor.untyped_storage()._cdata):
                block.recorded.add(stream)

    def _check(self, now, accesses, what):
        for stream, tick in accesses:
            if now[stream] < tick:
                self.faults.append(f"{what} {stream.name} still touches (wave code: {caller()})")


def caller():
    frame = sys._getframe(3)
    while frame is not None and "src/wavelet" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename.rsplit('/', 1)[1]}:{frame.f_lineno}"


class Watch(TorchDispatchMode):
    """Turns every operation into a launch."""

    def __init__(self, machine):
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = func._schema
        hidden = WRITES_WITHOUT_SAYING.get(schema.name, ())
        reads, writes = [], []
        named = {argument.name: argument for argument in schema.arguments}
        given = [*zip(schema.arguments, args, strict=False), *((named[name], value) for name, value in kwargs.items())]
        for index, (argument, value) in enumerate(given):
            written = index in hidden or (argument.alias_info is not None and argument.alias_info.is_write)
            for leaf in tree_leaves(value):
                if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                    (writes if written else reads).append(leaf.untyped_storage())
        view = schema.returns and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        result = func(*args, **kwargs)
        if view:
            return result
        seen = {storage._cdata for storage in [*reads, *writes]}
        taken = {}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                if storage._cdata not in seen and storage._cdata not in self.machine.blocks:
                    taken[storage._cdata] = storage
        self.machine.launch(schema.name, reads, writes, list(taken.values()))
        return result


def install(patch):
    """Let engines run on a machine that this makes, as long as ``patch``, a MonkeyPatch, holds."""
    made = Machine()

    def record_stream(tensor, stream):
        made.record(tensor, stream)

    class Torch:
        """torch, with the machine for a GPU."""

        cuda = made.cuda

        def __getattr__(self, name):
            return getattr(torch, name)

        def empty(self, *args, pin_memory=False, **kwargs):
            return torch.empty(*args, **kwargs)

    patch.setattr(wavelet.devices.cuda, "torch", Torch())
    patch.setattr("wavelet.lifecycle.make_device", Cuda)
    patch.setattr(torch.Tensor, "record_stream", record_stream, raising=False)
    torch.set_num_threads(1)
    return made
