"""Virtual nodes: the ranks of one launch, their memory, what an error says of a rank, and how many clusters run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.helpers import text
from warpwright import targets
from warpwright.lang import (
    Break,
    Global,
    If,
    Peers,
    atom,
    bar,
    ctaid,
    elect_one,
    f32,
    fence,
    kernel,
    ld,
    loop,
    mbarrier,
    nctaid,
    smem,
    tid,
    tma,
    u32,
    warp,
)


def words(ranks: int, count: int = 1) -> ww.PerRank:
    return ww.PerRank([np.zeros(count, np.uint32) for _ in range(ranks)])


@kernel("sm_90a", threads=64)
def all_to_all(x: Peers[u32], y: Global[u32], factor: u32) -> None:
    """Every rank writes a word into the buffer of each rank."""
    with If((tid.x < x.ranks) & (ctaid.x == 0)):
        x[tid.x][x.rank] = x.rank * factor + tid.x
    y[ctaid.x] = x.rank * factor + ctaid.x


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_every_rank_runs_the_grid_with_its_arguments(ranks: int) -> None:
    x, y = words(ranks, ranks), words(ranks, 3)
    factors = ww.PerRank([100 + rank for rank in range(ranks)])
    ww.launch(all_to_all, 3, args=[x, y, factors], device=f"h200x{ranks}")
    for rank in range(ranks):
        assert x.values[rank].tolist() == [other * (100 + other) + rank for other in range(ranks)]
        assert y.values[rank].tolist() == [rank * (100 + rank) + cta for cta in range(3)]


@kernel("sm_90a", threads=64)
def exchange_tiles(x: tma.Map[f32], y: tma.PeerMaps[f32], z: tma.PeerMaps[f32]) -> None:
    """Each rank stores its tile in the block of rows of every rank, adds it to z of rank 0, and reads a peer's y."""
    tile, full = smem.tile(f32, (8, 32)), mbarrier(1, name="full")
    one = (warp.id == 0) & elect_one()
    with If(one):
        full.init()
        fence.mbarrier_init()
    bar.sync()
    with If(one):
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[0, 0], full)
    full.wait(0)
    with If(one):
        for rank in loop(y.ranks):
            tma.store(y[rank][y.rank * 8, 0], tile)
        tma.reduce(z[0][0, 0], tile)
        tma.commit_group()
        tma.wait_group(0)


def test_tma_stores_to_and_reduces_in_the_memory_of_peers() -> None:
    ranks = 3
    x = [np.random.default_rng(rank).integers(-8, 8, (8, 32)).astype(np.float32) for rank in range(ranks)]
    y = ww.PerRank([np.full((8 * ranks, 32), np.nan, np.float32) for _ in range(ranks)])
    z = ww.PerRank([np.zeros((8, 32), np.float32) for _ in range(ranks)])
    ww.launch(exchange_tiles, 1, args=[ww.PerRank(x), y, z], device="h200x3")
    for each in y.values:
        assert np.array_equal(each, np.concatenate(x))
    assert np.array_equal(z.values[0], sum(x)) and not z.values[1].any()


@kernel("sm_90a", threads=32)
def load_from_next(x: tma.PeerMaps[f32], y: Global[f32]) -> None:
    tile, full = smem.tile(f32, (8, 32)), mbarrier(1, name="full")
    with If((warp.id == 0) & elect_one()):
        full.init()
        fence.mbarrier_init()
        full.arrive_expect_tx(tile.nbytes)
        tma.load(tile, x[(x.rank + 1) % x.ranks][0, 0], full)
    warp.sync()
    full.wait(0)
    y[tid.x] = tile.at(0, tid.x)[0]


def test_tma_loads_from_the_memory_of_peers() -> None:
    x = ww.PerRank([np.full((8, 32), rank, np.float32) for rank in range(4)])
    y = ww.PerRank([np.zeros(32, np.float32) for _ in range(4)])
    ww.launch(load_from_next, 1, args=[x, y], device="h100x4")
    assert [each[0] for each in y.values] == [1, 2, 3, 0]


@kernel("sm_90a", threads=32)
def write_far(x: Peers[u32], y: Global[u32]) -> None:
    with If(x.rank == 1):
        y[1 << 20] = tid.x


def test_a_fault_names_the_rank() -> None:
    with pytest.raises(ww.MemoryFault) as caught:
        ww.launch(write_far, 2, args=[words(2), words(2)], device="h200x2")
    assert "kernel write_far, CTA (0, 0, 0) of rank 1, warp 0, lane 0: address 0x" in str(caught.value)


@kernel("sm_90a", threads=32)
def grid_barrier(count: Peers[u32], seen: Global[u32]) -> None:
    """All CTAs of all ranks wait for one another: they must be resident together."""
    with If(tid.x == 0):
        atom.add(count[0], 1, sem="release", scope="sys")
        for _ in loop():
            Break(when=ld(count[0], sem="acquire", scope="sys") == nctaid.x * count.ranks)
        seen[ctaid.x] = 1


def test_each_rank_has_room_for_the_clusters_of_its_gpu() -> None:
    """An H200 has room for 132 CTAs with 200 KB of shared memory; one more on any rank never starts."""
    room = 200 << 10
    seen = words(2, 132)
    ww.launch(grid_barrier, 132, smem=room, args=[words(2), seen], device="h200x2")
    assert all(each.all() for each in seen.values)
    with pytest.raises(ww.Deadlock, match=r"CTA \(0, 0, 0\) of rank 0, warp 0, lane 0: runs in circles"):
        ww.launch(grid_barrier, 133, smem=room, args=[words(2), words(2, 133)], device="h200x2")


def test_a_launch_on_a_node_takes_memory_at_host_addresses() -> None:
    x, y = words(2, 2), words(2, 1)
    ww.launch(all_to_all, 1, args=[x, y, 10], device="h200x2", memory=[*x.values])
    assert [each.tolist() for each in x.values] == [[0, 10], [1, 11]]


def test_a_read_only_array_of_a_rank_is_named() -> None:
    x, y = words(2, 2), words(2, 1)
    y.values[1].flags.writeable = False
    with pytest.raises(ww.UsageError, match=r"^kernel 'all_to_all' wrote argument 'y' of rank 1, an array that is"):
        ww.launch(all_to_all, 1, args=[x, y, 10], device="h200x2")


WRONG: list[tuple[list[Any], str, str]] = [
    (
        [np.zeros(2, np.uint32), words(2), 1],
        "h200x2",
        "launch of 'all_to_all' on h200x2: given one array for 2 ranks; expected an array of each rank: "
        "ww.PerRank([x0, x1, …])",
    ),
    (
        [words(2), words(2), 1],
        "h200x3",
        "launch of 'all_to_all' on h200x3: given PerRank of 2 values for 3 ranks; expected PerRank of 3",
    ),
    (
        [words(4), words(4), 1],
        "b200",
        "launch of 'all_to_all' on b200: given PerRank of 4 values for 1 rank; expected device='b200x4'",
    ),
    (
        [np.zeros(2, np.uint32), np.zeros(2, np.uint32), 1],
        "h200",
        "argument 'x' (.b8[72]) was given one array; expected one of every rank: ww.PerRank([x0, x1])",
    ),
    (
        [words(2), ww.PerRank([np.zeros((4, 4), np.uint32)[:, 0] for _ in range(2)]), 1],
        "h200x2",
        "argument 'y' (.u64) was given an array of a rank with strides of (16,) bytes; expected a C-contiguous one: "
        "np.ascontiguousarray(y)",
    ),
]


@pytest.mark.parametrize(("args", "device", "message"), WRONG, ids=range(len(WRONG)))
def test_arguments_that_do_not_fit_the_ranks(args: list[Any], device: str, message: str) -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.launch(all_to_all, 1, args=args, device=device)
    assert str(caught.value).startswith(message)


def test_values_per_rank_are_a_list() -> None:
    with pytest.raises(ww.UsageError) as caught:
        ww.PerRank(np.zeros(2))  # type: ignore[arg-type]
    assert str(caught.value) == "given PerRank(an ndarray); expected a list with a value for every rank"


def test_variables_in_global_memory_are_refused() -> None:
    module = ww.load_ptx(text("st.global.u32 [count], %r2;", top=".global .u32 count;", target="sm_90a"))
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(module["k"], 1, 32, device="h200x2")
    assert str(caught.value) == (
        "kernel k has the variable count in global memory, of which every GPU of a node has a copy of its own; h200x2 "
        "has one; pass an array of each rank as an argument"
    )


@pytest.mark.parametrize(
    ("body", "writes"), [("ld.global.u32 %r2, [count];", False), ("st.global.u32 [count], 8;", True)]
)
def test_a_variable_with_an_initial_value_may_only_be_read(body: str, writes: bool) -> None:
    module = ww.load_ptx(text(body, top=".global .u32 count = 7;", target="sm_90a"))
    if not writes:
        ww.launch(module["k"], 1, 32, device="h200x2")
        return
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(module["k"], 1, 32, device="h200x2")
    assert str(caught.value) == (
        "kernel k writes the variable count in global memory, of which every GPU of a node has a copy of its own; "
        "h200x2 has one; pass an array of each rank as an argument"
    )


def test_the_names_of_nodes() -> None:
    node = targets.device("H200x8")
    assert (node.name, node.chip, node.gpus, node.sms) == ("h200x8", "h200", 8, 132)
    assert targets.timing_of("h200x8") is targets.timing_of("h200")
    for name, message in (
        (
            "rtx5090x2",
            "given device 'rtx5090x2'; a rtx5090 has no NVLink to the GPUs of a node; expected a node of h200, h100, "
            "h20, gh200, b200, gb200, b300, gb300, such as 'h200x2'",
        ),
        ("h200x9", "given device 'h200x9'; expected a node of 2 to 8 GPUs, such as 'h200x2'"),
        ("b200x1", "given device 'b200x1'; expected a node of 2 to 8 GPUs, such as 'b200x2'"),
    ):
        with pytest.raises(ww.UsageError) as caught:
            ww.device(name)
        assert str(caught.value) == message
