"""Take one synchronising instruction after another out of a kernel's PTX, and check what is left of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from warpwright import ptx
from warpwright.check import check
from warpwright.gpu import LaunchResult
from warpwright.launch import Entry
from warpwright.ops import matmul
from warpwright.ptx import nodes
from warpwright.targets import DEVICES
from warpwright.vgpu import Device
from warpwright.vgpu.checks.findings import Verdict

__all__ = ["Removal", "Watched", "outcome", "product", "removals"]

SYNCHRONISES = re.compile(
    r"^\s*(?:@!?%p\d+ )?(mbarrier\.(?!inval)\S+|fence\S*|bar(?:rier)?\.\S+|\S+\.commit\S*|\S+\.wait\S*|"
    r"tcgen05\.(?:alloc|dealloc|relinquish\S*|fence\S*)|wgmma\.fence\S*|setmaxnreg\S*)"
)
TESTS = re.compile(r"(\s*)mbarrier\.(?:try|test)_wait\S* (%p\d+),")

Change = Callable[[str], str]


@dataclass(eq=False)
class Watched:
    """A virtual device that checks what it is given to launch, after ``change`` of its PTX."""

    device: Device
    change: Change | None = None
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
        **options: Any,
    ) -> LaunchResult:
        text = ptx.to_text(module)
        self.texts.append(text)
        module = ptx.parse(self.change(text)) if self.change else module
        function = next(item for item in module.items if isinstance(item, nodes.Function) and item.name == entry)
        self.verdicts.append(check(Entry(module, function), grid, block, cluster, smem, args, device=self.device))
        return LaunchResult()


@dataclass(frozen=True)
class Removal:
    """A line of PTX: its instruction, the role that it belongs to, and how many of them come before it there."""

    line: int
    role: str
    opcode: str
    number: int

    def __call__(self, text: str) -> str:
        """The text without the instruction; a test of a phase is true without having looked."""
        lines = text.split("\n")
        found = TESTS.match(lines[self.line])
        lines[self.line] = f"{found[1]}setp.eq.u32 {found[2]}, 0, 0;" if found else ""
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.role} {self.opcode} #{self.number}"


def removals(text: str) -> Iterator[Removal]:
    """Every synchronising instruction of a text."""
    role, seen = "kernel", Counter[tuple[str, str]]()
    for number, line in enumerate(text.split("\n")):
        label = re.match(r"\s*role_(\w+?)_\d+(_\w+)?:", line)
        if label:
            role = "kernel" if label[2] == "_end" else label[1] + " end" if label[2] == "_join" else label[1]
        found = SYNCHRONISES.match(line)
        if found:
            opcode = found[1].rstrip(";")
            yield Removal(number, role, opcode, seen[role, opcode])
            seen[role, opcode] += 1


def product(device: str, level: int, shape: tuple[int, int, int], sms: int, change: Change | None = None) -> Watched:
    """A bfloat16 product (M, N, K) under watch, on a device with few SMs, so that clusters compute several tiles."""
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    watched = Watched(Device(replace(DEVICES[device], sms=sms)), change)
    matmul(a, b.T, device=watched, level=level)
    return watched


def outcome(verdict: Verdict) -> frozenset[str]:
    """The rules that do not hold."""
    return frozenset(finding.rule.id for finding in verdict.findings)
