"""Configurations of the Blackwell attention for few queries as data; a launch is planned as on Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from warpwright.kernels.attention.problem import Problem
from warpwright.kernels.attention.sm90 import decode_plan
from warpwright.kernels.attention.sm100.plan import CONTROL_BYTES, ROWS

__all__ = ["CONFIGS", "DecodeConfig", "plan", "suits"]


@dataclass(frozen=True, slots=True)
class DecodeConfig(decode_plan.DecodeConfig):
    """One configuration of `warpwright.kernels.attention.sm100.decode.attention`: of tiles of 128 rows. ``stages`` are
    blocks of keys or values. A row max is updated only when it grows by more than ``lazy`` powers of two."""

    rows: ClassVar[int] = ROWS
    lazy: ClassVar[float] = 8.0

    @property
    def q_stages(self) -> int:
        """Stages of the ring of Q: two, if they fit."""
        return decode_plan.Q_STAGES if self.head_dim <= ROWS else 1

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA, bytes, at most."""
        return 2 * CONTROL_BYTES + 2 * self.head_dim * (self.q_stages * ROWS + self.stages * self.keys)


CONFIGS = {
    64: DecodeConfig(64, 128, 8),
    96: DecodeConfig(96, 128, 6),
    128: DecodeConfig(128, 128, 4),
    192: DecodeConfig(192, 128, 3),
    256: DecodeConfig(256, 128, 2),
}


def plan(
    problem: Problem, *, sms: int, config: DecodeConfig | None = None, ctas: int | None = None
) -> decode_plan.DecodePlan:
    """Returns the launch for ``problem`` on a device of ``sms`` SMs, see `sm90.decode_plan.plan`."""
    return decode_plan.plan(problem, sms=sms, config=config, ctas=ctas, known=CONFIGS, pairs={})


def suits(problem: Problem, *, sms: int) -> bool:
    """Returns whether this kernel is faster than `sm100.kernel` on a device of ``sms`` SMs: if the queries that share a
    head of keys fit into one tile."""
    together = problem.q_len * problem.group <= ROWS
    return together and plan(problem, sms=sms).tiles * sms < decode_plan.MOST
