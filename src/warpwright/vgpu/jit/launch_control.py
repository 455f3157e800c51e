"""What a response of cluster launch control says: registers of 128 bits, as `engines.launch_control` writes them."""

from __future__ import annotations

from warpwright.ptx import nodes
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
    """Whether a cluster was granted, or the coordinates of its first CTA; of four, the last one says nothing."""
    target, response = inst.operands[0], lanes.integer(inst.operands[1], 128)
    if inst["query"] == "is_canceled":
        granted = lanes.op(f"icmp eq <32 x i32> {_word(lanes, response, 3)}, {lanes.splat(1, 32)}")
        lanes.write(target, granted, "pred")
    elif isinstance(target, nodes.Vector):
        for index, register in enumerate(target.items):
            lanes.write(register, _word(lanes, response, index), "b32")
    else:
        lanes.write(target, _word(lanes, response, AXES.index(inst["query"][-1])), "b32")
