"""Where the time of a kernel would go on a chip: one run on the virtual GPU, replayed in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpwright import targets
from warpwright.errors import UsageError
from warpwright.gpu import Device
from warpwright.lang import Kernel
from warpwright.lang.trace import Traced
from warpwright.run.arguments import pass_arguments
from warpwright.run.devices import resolve
from warpwright.run.launch import Entry, arranged
from warpwright.vgpu import Device as VirtualDevice
from warpwright.vgpu.timing.capture import Capture
from warpwright.vgpu.timing.device import choose_clusters, profile_of
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
) -> Profile:
    """Predict the time of a launch and say what its warps wait for; the arguments are those of ``ww.launch``.

    ``fast``: clusters of the first two waves run and stand for all others, engines move no data and multiply nothing,
    and the arrays in ``args`` stay as they are. Otherwise every cluster runs, and the arrays hold the results.
    ``sustained``: the clock is that of a board under such launches for more than some 50 ms, when its power limit
    acts; without, that of launches after a rest.
    ``device``: a virtual device or its name; without one, the virtual one that runs the PTX's target.

    Raises UsageError for a real GPU, and what ``ww.launch`` raises.
    """
    entry, shape, args = arranged(kernel, grid, block, cluster, args)
    target = resolve(device, entry.target, virtual=True)
    if not isinstance(target, VirtualDevice):
        raise UsageError(f"cannot profile on {target.name}; expected a virtual device, such as device='b200'")
    capture = Capture(targets.timing_of(target.spec.name), choose_clusters if fast else lambda launch, timing: None)
    with pass_arguments(entry.name, entry.function.params, args) as passed:
        target.launch(
            entry.module,
            entry.name,
            shape["grid"],
            shape["block"],
            shape["cluster"],
            smem=entry.smem if smem is None else smem,
            args=passed,
            numerics="none" if fast else None,
            listener=capture,
        )
    return profile_of(capture, fast, sustained)
