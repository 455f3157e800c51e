"""A device that checks the launches on it, after an edit of their PTX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpwright import ptx
from warpwright.gpu import LaunchResult
from warpwright.lang.trace import Traced
from warpwright.ptx import nodes
from warpwright.run.check import check
from warpwright.run.launch import Entry, launch
from warpwright.targets import DEVICES
from warpwright.vgpu import Device
from warpwright.vgpu.checks.findings import Verdict

Change = Callable[[str], str]
BETWEEN = "shifts", "means", "sums", "sums_at", "progress"  # arrays between the launches of gradients


@dataclass(eq=False)
class Watched:
    """A virtual device that checks its launches, after ``change`` of their PTX.

    ``modules`` caches parsed modules by their text, so that a repeated launch does not compile again.
    """

    device: Device
    change: Change | None = None
    depends_on: Sequence[int] = ()
    modules: dict[str, nodes.Module] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def spec(self) -> Any:
        return self.device.spec

    def launch(
        self,
        module: nodes.Module,
        entry: str,
        grid: Any,
        block: Any,
        cluster: Any = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] = (),
        observers: Sequence[Any] = (),
        **_: Any,
    ) -> LaunchResult:
        text = ptx.to_text(module)
        self.texts.append(text)
        if text not in self.modules:
            self.modules[text] = ptx.parse(self.change(text)) if self.change else module
        module = self.modules[text]
        function = next(item for item in module.items if isinstance(item, nodes.Function) and item.name == entry)
        options = {"device": self.device, "depends_on": self.depends_on, "update": True}
        self.verdicts.append(check(Entry(module, function), grid, block, cluster, smem, args, strict=True, **options))
        return LaunchResult()


def watched_device(device: str, change: Change | None, sms: int) -> Watched:
    """Returns a device with few SMs, so that clusters compute several tiles."""
    return Watched(Device(replace(DEVICES[device], sms=sms)), change)


def awaited(kernel: Traced) -> list[int]:
    """Returns the parameters of a kernel of gradients whose arrays the launch before writes, which it waits for."""
    if "griddepcontrol.wait" not in kernel.ptx:
        return []
    names = [name for name, _ in kernel.params]
    return [names.index(name) for name in BETWEEN if name in names and name not in kernel.maps]


def watch_launch(call: Iterable[Any], number: int, watched: Watched) -> None:
    """Run the launches of a call up to the ``number``-th, which is checked."""
    for index, found in zip(range(number + 1), call, strict=False):
        watched.depends_on = awaited(found.kernel)
        launch(found.kernel, found.grid, args=found.args, device=watched if index == number else watched.device)
