"""The interface of every device, virtual or real."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warpwright import display, targets
from warpwright.ptx import nodes

__all__ = ["Device", "LaunchResult"]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The text that the kernel of a launch printed, in order of clusters.

    A real GPU prints to standard output by itself; its results have an empty ``printed``.
    """

    printed: str = ""

    def __repr__(self) -> str:
        return f"LaunchResult(printed={reprlib.repr(self.printed)})"

    def _repr_html_(self) -> str:
        return display.html_of(self)


class Device(Protocol):
    """A GPU: ``vgpu.Device`` or ``cuda.Device``."""

    @property
    def name(self) -> str:
        """``"h200"`` (virtual) or ``"cuda:0"`` (real)."""

    @property
    def spec(self) -> targets.Device:
        """Target, limits and figures of the chip."""

    def launch(
        self,
        module: nodes.Module,
        entry: str,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        smem: int = 0,
        args: Sequence[Any] = (),
        observers: Sequence[Any] = (),
    ) -> LaunchResult:
        """Run ``entry`` of ``module``; NumPy arrays in ``args`` are written back before it returns."""
