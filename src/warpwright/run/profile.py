"""`profile`: the predicted time of a launch, from one run on the virtual GPU that is replayed in order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from warpwright import targets
from warpwright.errors import Deadlock, UsageError
from warpwright.gpu import Device
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.ptx import nodes
from warpwright.run.arguments import check_ranks, memory_arrays, pass_arguments
from warpwright.run.devices import resolve
from warpwright.run.launch import Entry, check_host, check_limit, prepare_launch
from warpwright.vgpu import Device as VirtualDevice
from warpwright.vgpu.machine.launch import Launch
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.device import profile_of
from warpwright.vgpu.timing.places import choose_clusters
from warpwright.vgpu.timing.result import Profile

__all__ = ["profile"]

_ACQUIRES = "ld.acquire.gpu", "ld.acquire.sys"

Choose = Callable[[Launch, targets.Timing], Sequence[int] | None]


def profile(
    kernel: Entry | Traced | Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int | None = None,
    args: Sequence[Any] = (),
    device: Device | str | None = None,
    *,
    fast: bool = True,
    sustained: bool = False,
    warm: bool = False,
    limit: int | None = None,
    memory: Sequence[Any] | None = None,
) -> Profile:
    """Predict the time of a launch and the stalls of its warps; the arguments are those of ``ww.launch``.

    ``fast``: only clusters of the first two waves run and represent all others, engines neither copy nor multiply data,
    and the arrays in ``args`` are not written. Only a kernel that deadlocks so, because a warp laps an mbarrier, copies
    and multiplies. Otherwise every cluster runs, and the arrays have the results.
    All clusters run too where some may wait for others: in a kernel with ``ld.acquire.gpu`` or ``ld.acquire.sys``, and
    on a node. A node's profile is that of the slowest rank, and ``ranks`` has one for each.
    ``sustained``: predict with the clock that the power limit of the board allows after about 50 ms of such launches;
    otherwise with the clock after idle time.
    ``warm``: predict one launch of many in a loop, as benchmarks measure: L2 has the data that the launch before left
    there, and the stream has the launch already. Otherwise L2 is full of other data, part of it dirty.
    ``device``: a virtual device or its name; the default is the virtual device that runs the PTX's target. ``limit``
    and ``memory``: as of ``ww.launch``.

    Raises UsageError for a real GPU, and as ``ww.launch``.
    """
    check_limit(limit)
    entry, shape, args = prepare_launch(kernel, grid, block, cluster, args)
    target = resolve(device, entry.target, virtual=True)
    if not isinstance(target, VirtualDevice):
        raise UsageError(f"cannot profile on {target.name}; expected a virtual device, such as device='b200'")
    arrays = memory_arrays(memory)
    check_host([*args, *(arrays or ())], target)
    check_ranks(entry.name, args, target.spec)
    some = fast and target.spec.gpus == 1 and not _awaits_clusters(entry.function.body)
    choose = choose_clusters if some else lambda launch, timing: None
    launch = partial(target.launch, entry.module, entry.name, shape["grid"], shape["block"], shape["cluster"])
    how: dict[str, Any] = {"smem": entry.smem if smem is None else smem, "numerics": "none" if fast else None}
    how |= {"limit": limit, "memory": arrays, "discard": fast}
    with pass_arguments(entry.name, entry.function.params, args, arrays) as passed:
        record = partial(_record, targets.timing_of(target.spec.name), choose)
        try:
            capture = record(partial(launch, args=passed, **how))
        except Deadlock:
            if not fast or arrays is not None:  # a kernel that computes would write arrays at their host addresses
                raise
            # Copies and MMAs that only signal complete at their issue, so a warp may lap an mbarrier for which others
            # still wait. Those that compute complete after the warps have come to their waits, as on a GPU.
            capture = record(partial(launch, args=passed, **how | {"numerics": None}))
    return profile_of(capture, some, sustained, warm)


def _awaits_clusters(block: nodes.Block | None) -> bool:
    """Returns whether a thread may wait for what another cluster writes, without which it would never end."""
    items = block.items if block else ()
    return any(
        _awaits_clusters(item)
        if isinstance(item, nodes.Block)
        else isinstance(item, nodes.Instruction) and item.opcode.startswith(_ACQUIRES)
        for item in items
    )


def _record(timing: targets.Timing, choose: Choose, launch: Callable[..., Any]) -> Capture:
    """Returns the recorded clusters of a launch; more launches run those that the ones before left out in vain."""
    capture = Capture(timing, choose)
    launch(listener=capture)
    while not capture.complete():
        launch(listener=capture)
    return capture
