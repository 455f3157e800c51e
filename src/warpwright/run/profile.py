"""`profile`: the predicted time of a launch, from one run on the virtual GPU that is replayed in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from warpwright import targets
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.run.arguments import check_ranks, memory_arrays, pass_arguments
from warpwright.run.devices import resolve
from warpwright.run.launch import Entry, check_host, check_limit, prepare_launch
from warpwright.vgpu import Device as VirtualDevice
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.device import profile_of
from warpwright.vgpu.timing.places import choose_clusters
from warpwright.vgpu.timing.result import Profile

__all__ = ["profile"]


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
    and the arrays in ``args`` are not written. Otherwise every cluster runs, and the arrays have the results.
    On a node every cluster runs; the profile is that of the slowest rank, and ``ranks`` has one for each.
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
    some = fast and target.spec.gpus == 1  # ranks wait for flags that any cluster may write
    capture = Capture(targets.timing_of(target.spec.name), choose_clusters if some else lambda launch, timing: None)
    launch = partial(target.launch, entry.module, entry.name, shape["grid"], shape["block"], shape["cluster"])
    how: dict[str, Any] = {"smem": entry.smem if smem is None else smem, "numerics": "none" if fast else None}
    how |= {"limit": limit, "memory": arrays}
    with pass_arguments(entry.name, entry.function.params, args, arrays) as passed:
        launch(args=passed, listener=capture, **how)
        while not capture.complete():
            launch(args=passed, listener=capture, **how)
    return profile_of(capture, some, sustained, warm)
