"""What the ranks of a group share on their GPUs: memory that all address, flags, a barrier, and streams."""

from __future__ import annotations

import ctypes
import functools
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symm_mem
from torch.distributed import distributed_c10d as c10d

from warpwright import cuda
from warpwright.cuda.driver import call, require
from warpwright.distributed.agreement import Agreement, time_limit
from warpwright.distributed.context_problem import ContextProblem
from warpwright.distributed.launches import launch_at
from warpwright.distributed.problem import Problem
from warpwright.distributed.watch import POLL, Watch, keep_watch
from warpwright.errors import UsageError
from warpwright.kernels.barrier import barrier, stop
from warpwright.layout.peers import ADDRESS_BYTES, RANKS, pack_peers

__all__ = ["BESIDE", "FLAGS", "Workspace", "workspace_of"]

FLAGS = 1 << 16  # words
MARK_BYTES = 8 * RANKS
FLAG_BYTES = 4
WORD, COPY = 16, 64  # bytes: between two words of the host, up to the copy of the flags
MOST_NS = 1 << 62
LEAST_BYTES = 64 << 20
MAX_PITCH = 2**31 - 1  # bytes between two rows of a copy, of all GPUs so far (CU_DEVICE_ATTRIBUTE_MAX_PITCH)
BESIDE = 4  # streams for kernels of a call that run at once
ORDER, START, READY = -1, -2, -3  # events: between calls of two streams, at the start of a call, after its barrier


class Workspace:
    """The memory, flags and streams that the ranks of ``group`` share; no other group uses them.

    ``data`` is memory of this rank, ``pointers`` has the addresses of that of all ranks, ``flags`` likewise. A call
    begins with `start`, a barrier: then every rank has ended its calls before, and the flags of this rank are 0.
    ``begun`` and ``calls`` are for kernels that send by themselves (`warpwright.kernels.node`), and ``limit`` has the
    parameters of their waits. ``side`` has streams for kernels of a call that run beside each other.
    """

    def __init__(self, group: Any) -> None:
        self.group, self.rank, self.ranks = group, group.rank(), group.size()
        if self.ranks > RANKS:
            raise UsageError(f"given a group of {self.ranks} ranks; expected at most {RANKS}, of one host")
        _MADE[group.group_name] += 1  # a group that is made again may find the keys of the last one in its store
        store = c10d.PrefixStore(f"warpwright {_MADE[group.group_name]}", c10d._get_process_group_store(group))
        self.agreement = Agreement(store, self.rank, self.ranks, time_limit(timeout_of(group)))
        self.gpu = cuda.device(f"cuda:{torch.cuda.current_device()}")
        self.device = torch.device("cuda", self.gpu.ordinal)
        self.bindings = require()
        self.bound: dict[Any, Any] = {}  # engines of problems, with the memory of now
        self._digests: dict[Problem | ContextProblem, int] = {}
        self.kept: list[Any] = []  # memory that captured graphs may use
        self.control, self.marks = self._share(MARK_BYTES + FLAG_BYTES * (RANKS + FLAGS))
        self.begun = tuple(pointer + MARK_BYTES for pointer in self.marks)
        self.flags = tuple(pointer + FLAG_BYTES * RANKS for pointer in self.begun)
        self.counters = torch.zeros(8, dtype=torch.int32, device=self.device)
        self.calls = self.counters[4:].data_ptr()
        self.data = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.pointers: tuple[int, ...] = ()
        self.streams = [torch.cuda.Stream(self.device) for _ in range(2 + BESIDE)]
        self.sends, self.receives, *self.side = (int(stream.cuda_stream) for stream in self.streams)
        self._events: dict[int, Any] = {}
        self._barrier = functools.lru_cache(256)(self._bind_barrier)
        self.host = HostWords(self.gpu, self.control, self.flags[self.rank])
        words = self.host.report, self.host.running
        self.watch = Watch(
            self.rank, self.agreement.limit, words, self.agreement.text, self.host.read_flags, self.host.stop
        )
        keep_watch(self.watch)
        self.limit = {"report": self.host.report, "limit_ns": int(min(self.agreement.limit * 1e9, MOST_NS))}

    def digest(self, problem: Problem | ContextProblem) -> int:
        """Returns the digest of a problem that all ranks agree on. Raises the errors of `Agreement.digest`."""
        found = self._digests.get(problem)
        if found is None:
            found = self._digests[problem] = self.agreement.digest(problem.text)
        return found

    def reserve(self, nbytes: int) -> None:
        """Let ``data`` have at least ``nbytes`` on every rank. All ranks call it, with the same ``nbytes``."""
        if self.data.numel() >= nbytes:
            return
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                f"given a call that needs {nbytes:,} bytes of shared memory while a CUDA graph is captured; expected "
                "memory from an earlier call: call it once with these shapes before the capture"
            )
        self.kept.append((self.data, self.bound))
        self.bound = {}
        self.data, self.pointers = self._share(max(LEAST_BYTES, 1 << (nbytes - 1).bit_length()))

    def _share(self, nbytes: int) -> tuple[Tensor, tuple[int, ...]]:
        """Returns memory of zeros that all ranks address, and its address on each of them."""
        tensor = symm_mem.empty(nbytes, dtype=torch.uint8, device=self.device)
        handle = symm_mem.rendezvous(tensor, self.group.group_name)
        self.kept.append(handle)
        tensor.zero_()
        torch.cuda.synchronize(self.device)
        self.agreement.exchange(f"sharing {nbytes} bytes")
        offset = tensor.data_ptr() - handle.buffer_ptrs[self.rank]
        return tensor, tuple(pointer + offset for pointer in handle.buffer_ptrs)

    def block(self, pointers: tuple[int, ...]) -> bytes:
        """Returns a parameter ``Peers`` with these addresses."""
        return pack_peers([pointer.to_bytes(ADDRESS_BYTES, "little") for pointer in pointers], self.rank)

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns a tensor over this rank's ``data``."""
        count = functools.reduce(int.__mul__, shape, dtype.itemsize)
        return self.data[offset : offset + count].view(dtype).view(shape)

    def start(self, digest: int, flags: int, stream: int, beside: bool = False) -> None:
        """Start a call on ``stream``: set ``flags`` flags of this rank to 0, and wait until all ranks have come here.

        With ``beside`` the stream of copies waits, beside the work of ``stream``; `ready` lets ``stream`` wait too.

        Calls of all groups follow one another on a GPU, on any stream: two kernels that wait for two other ranks could
        each occupy the SMs that the other's peer needs.
        """
        self.watch.begin(digest)
        if flags > FLAGS:
            raise UsageError(f"given a call that needs {flags} flags; expected at most {FLAGS}; give it fewer rows")
        last = _LAST_STREAMS.setdefault(self.gpu.ordinal, stream)
        if last != stream and not torch.cuda.is_current_stream_capturing():
            self.order(last, stream, ORDER)
        _LAST_STREAMS[self.gpu.ordinal] = stream
        if beside:
            self.order(stream, self.sends, START)
        self._barrier(digest, flags, self.sends if beside else stream)()
        if beside:
            self.record(READY, self.sends)

    def ready(self, stream: int) -> None:
        """Let ``stream`` wait for the barrier of a call that was started beside it: flags before that are old."""
        self.follow(READY, stream)

    def _bind_barrier(self, digest: int, flags: int, stream: int) -> cuda.Launch:
        values = {
            "marks": self.block(self.marks),
            "epoch": self.counters.data_ptr(),
            "counters": self.flags[self.rank],
            "count": flags,
            "digest": digest,
            "running": self.host.running,
            **self.limit,
        }
        return launch_at(self.gpu, barrier, (1, 1, 1), values, stream)

    @staticmethod
    def stream() -> int:
        """Returns the handle of torch's current stream."""
        return int(torch.cuda.current_stream().cuda_stream)

    def beside(self, number: int) -> AbstractContextManager[Any]:
        """Returns a context in which a stream of ``side`` is torch's current stream."""
        found: AbstractContextManager[Any] = torch.cuda.stream(self.streams[2 + number])
        return found

    def receiving(self) -> AbstractContextManager[Any]:
        """Returns a context in which the stream ``receives`` is torch's current stream."""
        found: AbstractContextManager[Any] = torch.cuda.stream(self.streams[1])
        return found

    def event(self, number: int) -> Any:
        """Returns one of the events of this workspace."""
        if number not in self._events:
            flag = self.bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._events[number] = call(self.bindings.cuEventCreate(flag))
        return self._events[number]

    def order(self, before: int, after: int, event: int) -> None:
        """Let the stream ``after`` wait for the work of the stream ``before`` so far."""
        self.record(event, before)
        self.follow(event, after)

    def record(self, event: int, stream: int) -> None:
        """Let ``event`` stand for the work of a stream so far."""
        call(self.bindings.cuEventRecord(self.event(event), stream))

    def follow(self, event: int, stream: int) -> None:
        """Let a stream wait for the work that ``event`` stands for."""
        call(self.bindings.cuStreamWaitEvent(stream, self.event(event), 0))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Start a copy by a copy engine."""
        call(self.bindings.cuMemcpyAsync(target, source, nbytes, stream))

    def copy_rows(self, target: tuple[int, int], source: tuple[int, int], nbytes: int, rows: int, stream: int) -> None:
        """Start copies of ``rows`` rows of ``nbytes`` by a copy engine; ``target`` and ``source`` are addresses and
        distances of rows."""
        (to, to_pitch), (of, of_pitch) = target, source
        if rows == 1 or max(to_pitch, of_pitch) > MAX_PITCH:
            for row in range(rows):
                self.copy(to + row * to_pitch, of + row * of_pitch, nbytes, stream)
            return
        copies = self.bindings.CUDA_MEMCPY2D()
        copies.srcMemoryType = copies.dstMemoryType = self.bindings.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copies.srcDevice, copies.srcPitch, copies.dstDevice, copies.dstPitch = of, of_pitch, to, to_pitch
        copies.WidthInBytes, copies.Height = nbytes, rows
        call(self.bindings.cuMemcpy2DAsync(copies, stream))

    def signal(self, rank: int, flag: int, value: int, stream: int) -> None:
        """Store ``value`` to a flag of ``rank`` after the copies of ``stream`` so far."""
        call(self.bindings.cuStreamWriteValue32(stream, self.flags[rank] + FLAG_BYTES * flag, value, 0))

    def wait(self, flag: int, value: int, source: int, stream: int) -> None:
        """Let ``stream`` wait until rank ``source`` has set a flag of this rank to ``value`` at least."""
        self.watch.expect(flag, value, source)
        call(self.bindings.cuStreamWaitValue32(stream, self.flags[self.rank] + FLAG_BYTES * flag, value, 0))


class HostWords:
    """Words of the host that a GPU writes, which outlive its errors, and what a watch asks of the GPU: to read the
    ``flags`` of a call that does not go on, which are in ``control``, and to stop. Work of other streams may wait for
    ever meanwhile.
    """

    def __init__(self, gpu: cuda.Device, control: Tensor, flags: int) -> None:
        self.gpu, self.control, self.flags, self.bindings = gpu, control, flags, require()
        self.memory = torch.zeros(COPY + FLAG_BYTES * FLAGS, dtype=torch.uint8, pin_memory=True)
        self.report, self.running, self.request = (self.memory.data_ptr() + number * WORD for number in range(3))
        self.stream = urgent_stream(gpu.ordinal)
        values = {"request": self.request, "report": self.report}
        self.end = launch_at(gpu, stop, (1, 1, 1), values, self.stream)
        self.end()  # does nothing, but loads the kernel: later the driver may wait for all work before it does

    def read_flags(self, count: int) -> Sequence[int]:
        """Returns the first ``count`` flags."""
        self._enter()
        copy = self.memory[COPY : COPY + FLAG_BYTES * count]
        call(self.bindings.cuMemcpyAsync(copy.data_ptr(), self.flags, copy.numel(), self.stream))
        while not self._idle():
            time.sleep(POLL)
        found: list[int] = copy.view(torch.uint32).tolist()
        return found

    def stop(self, report: int) -> None:
        """Let the GPU store a report and trap."""
        self._enter()
        ctypes.c_uint32.from_address(self.request).value = report
        self.end()

    def _enter(self) -> None:
        """Prepare a thread: no call of it concerns a capture of another thread."""
        call(self.bindings.cuCtxSetCurrent(self.gpu.context))
        relaxed = self.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call(self.bindings.cuThreadExchangeStreamCaptureMode(relaxed))

    def _idle(self) -> bool:
        (status,) = self.bindings.cuStreamQuery(self.stream)
        if status == self.bindings.CUresult.CUDA_ERROR_NOT_READY:
            return False
        call((status,))
        return True


@functools.cache
def urgent_stream(ordinal: int) -> int:
    """Returns a stream of the current GPU, with this number, that waits for no other stream."""
    bindings = require()
    _, highest = call(bindings.cuCtxGetStreamPriorityRange())
    return int(call(bindings.cuStreamCreateWithPriority(bindings.CUstream_flags.CU_STREAM_NON_BLOCKING, highest)))


def timeout_of(group: Any) -> float:
    """Returns the timeout of a ProcessGroup in seconds, that of ``init_process_group`` or ``new_group``."""
    options = group._get_backend(torch.device("cuda")).options
    return float(options._timeout.total_seconds())


_MADE = Counter[str]()  # workspaces for each name of a group
_LAST_STREAMS: dict[int, int] = {}  # of each GPU, the stream of the last call
_WORKSPACES: dict[str, Workspace] = {}


def workspace_of(group: Any) -> Workspace:
    """Returns the workspace of a ProcessGroup; the first call is collective.

    A group that was destroyed and made again under its old name gets a workspace of its own. Raises DistributedTimeout
    if an earlier call has stopped the GPU because a rank was missing.
    """
    known = _WORKSPACES.get(group.group_name)
    if known is None or known.group is not group:
        known = _WORKSPACES[group.group_name] = Workspace(group)
    known.watch.require()
    return known
