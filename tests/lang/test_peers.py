"""Parameters with the memory of all ranks: their PTX, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright.lang import Global, Peers, bf16, f32, kernel, ld, smem, st, tid, tma, u32
from warpwright.lang.context import current
from warpwright.layout.peers import PEER_MAPS_BYTES, PEERS_BYTES, pack_peers
from warpwright.ptx.ptxas import assemble, find_ptxas


@kernel("sm_90a", threads=32)
def swap(x: Peers[bf16], maps: tma.PeerMaps[f32], y: Global[u32]) -> None:
    tile = smem.tile(f32, (8, 32))
    peer = (x.rank + 1) % x.ranks
    st(x[peer] + tid.x, ld(x[0] + tid.x))
    tma.store(maps[peer][0, 0], tile)
    tma.store(maps[1][0, 0], tile)
    y[0] = maps.rank + maps.ranks


def test_the_block_has_a_value_for_each_of_eight_ranks() -> None:
    lines = [line.strip() for line in swap.ptx().splitlines()]
    assert ".param .align 8 .b8 x[72]," in lines and ".param .align 64 .b8 maps[1088]," in lines
    loads = [line.split(", ")[1] for line in lines if line.startswith("ld.param")]
    assert {"[x+64];", "[x+68];", "[x];", "[maps+1024];", "[maps+1028];"} <= set(loads)
    assert swap.trace().maps["maps"].box == (8, 32)


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_ptxas_accepts_a_rank_at_run_time() -> None:
    answer = assemble(swap.ptx(), "sm_90a")
    assert answer.ok, answer.log


def test_a_block_is_filled_with_zeros() -> None:
    block = pack_peers([bytes([n]) * 8 for n in (1, 2)], 1)
    assert block == b"\1" * 8 + b"\2" * 8 + bytes(48) + b"\1\0\0\0\2\0\0\0" and len(block) == PEERS_BYTES
    maps = pack_peers([bytes([n]) * 128 for n in (1, 2, 3)], 2)
    assert maps[1024:1032] == b"\2\0\0\0\3\0\0\0" and len(maps) == PEER_MAPS_BYTES


@pytest.mark.parametrize("rank", [8, -1, True, 0.5])
def test_a_rank_that_no_node_has(rank: object) -> None:
    @kernel("sm_90a", threads=32)
    def far(x: Peers[u32]) -> None:
        x[rank][0] = 1  # type: ignore[index]

    with pytest.raises(ww.KernelError, match=rf"given x\[{rank!r}\]; expected a rank: an int below 8, or a u32$"):
        far.ptx()


def test_a_block_is_not_iterated() -> None:
    @kernel("sm_90a", threads=32)
    def every(x: Peers[u32]) -> None:
        for each in x:
            each[0] = 1

    expected = r"Peers\[u32\] x has no end and cannot be iterated; write `for r in loop\(x.ranks\):`$"
    with pytest.raises(ww.KernelError, match=expected):
        every.ptx()


MULTIMEM = "multimem.ld_reduce.relaxed.sys.global.add.f32"
REASON = (
    "multimem uses multicast memory of NVSwitch, which kernels for any NVLink node cannot have; use the memory of each "
    "rank: ld, st, red or TMA with Peers and tma.PeerMaps"
)


def test_multimem_is_refused_with_the_reason() -> None:
    @kernel("sm_90a", threads=32)
    def reduce(x: Global[f32]) -> None:
        current().result(MULTIMEM, f32, x.node)

    with pytest.raises(ww.KernelError, match=f"given {MULTIMEM}; {REASON}$"):
        reduce.ptx()
    body = f"{MULTIMEM} %f0, [%a0];"
    module = ww.load_ptx(text(body, (np.zeros(1),), target="sm_90a"))
    with pytest.raises(ww.UnsupportedInstruction, match=f"the virtual GPU does not execute this instruction: {REASON}"):
        ww.launch(module["k"], 1, 32, args=[np.zeros(4, np.float32)], device="h200")
