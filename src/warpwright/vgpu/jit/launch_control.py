"""Queries of cluster launch control: fields of a 128-bit response of `engines.launch_control`."""

from __future__ import annotations

from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.program.program import Inst

__all__: list[str] = []

AXES = "xyz"


def _word(lanes: Lanes, response: str, index: int) -> str:
    """The ``index``-th 32 bits."""
    shifted = lanes.op(f"lshr <32 x i128> {response}, {lanes.splat(32 * index, 128)}") if index else response
    return lanes.resize(shifted, 128, 32)


@meaning("clusterlaunchcontrol.query_cancel")
def query_cancel(lanes: Lanes, inst: Inst) -> None:
    """Whether a cluster was granted, or the coordinates of its first CTA; the fourth coordinate is undefined."""
    response = lanes.integer(inst.operand("a"), 128)
    if inst["query"] == "is_canceled":
        granted = lanes.op(f"icmp eq <32 x i32> {_word(lanes, response, 3)}, {lanes.splat(1, 32)}")
        lanes.write(inst.operand("p"), granted, "pred")
    elif inst["query"] == "get_first_ctaid":
        for index, register in enumerate(inst.items("d")):
            lanes.write(register, _word(lanes, response, index), "b32")
    else:
        lanes.write(inst.operand("d"), _word(lanes, response, AXES.index(inst["query"][-1])), "b32")
