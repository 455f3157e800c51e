"""The protocol of GEMM levels 1 to 3 in their PTX."""

from __future__ import annotations

import re

import pytest

from tests.lang.ops.emission import instructions, opcodes
from warpwright.kernels.gemm.sm100 import IMPROVED, LEVELS, config_of, kernel_of
from warpwright.lang import bf16, f16, f32, tma
from warpwright.layout import InstrDescriptor, SmemDescriptor
from warpwright.ptx.ptxas import assemble

ALL = (1, 2, 3)
BOTH = (*ALL, *(IMPROVED[level] for level in ALL))


def traced(level, **config):
    return kernel_of(config_of(level)).trace(**config)


def lines_of(level, **config):
    return instructions(traced(level, **config).ptx)


def block(lines: list[str], label: str) -> list[str]:
    """The lines of the loop or role that starts at ``label`` (``loop_0``), without its labels."""
    start, end = lines.index(f"{label}:"), lines.index(f"{label}_end:")
    return lines[start + 1 : end]


def count(lines: list[str], opcode: str) -> int:
    return sum(code.startswith(opcode) for code in opcodes(lines))


@pytest.mark.parametrize("level", BOTH)
@pytest.mark.parametrize(("dtype", "out"), [(bf16, None), (f16, None), (bf16, f32), (f16, bf16)])
def test_ptxas_accepts_every_variant_without_local_memory(level, dtype, out) -> None:
    result = assemble(traced(level, dtype=dtype, out=out).ptx, "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log


@pytest.mark.parametrize(("level", "smem"), [(1, 25_600), (2, 50_176), (3, 197_632)])
def test_launch_facts_are_the_published_ones(level, smem) -> None:
    kernel = traced(level)
    assert (kernel.threads, kernel.cluster, kernel.smem_bytes) == ((128, 1, 1), (2, 1, 1), smem)
    assert kernel.smem_bytes == LEVELS[level].smem_bytes < 232_448
    assert kernel.maps == {"a": tma.MapUse((128, 64), 128, bf16), "b": tma.MapUse((64, 64), 128, bf16)}
    columns = [line.rsplit(", ", 1)[1] for line in lines_of(level) if re.match(r"tcgen05\.(de)?alloc", line)]
    assert columns == ["128", "128"] == [str(LEVELS[level].tmem_columns)] * 2


@pytest.mark.parametrize("level", ALL)
def test_four_mma_of_a_pair_in_a_k_block_and_only_the_first_of_all_overwrites(level) -> None:
    mma = [line for line in lines_of(level) if line.startswith("tcgen05.mma")]
    idesc = InstrDescriptor("f16", "bf16", "bf16", "f32", 256, 128).encode()
    assert idesc == 0x10200490
    assert len(mma) == 4
    assert all(line.startswith("tcgen05.mma.cta_group::2.kind::f16 ") and f"0x{idesc:08x}" in line for line in mma)
    assert re.search(r", %p\d+$", mma[0])
    assert [line.rsplit(", ", 1)[1] for line in mma[1:]] == ["1", "1", "1"]


@pytest.mark.parametrize("level", ALL)
def test_descriptors_have_the_swizzle_of_the_tensor_maps_and_step_by_32_bytes(level) -> None:
    constants = [int(line.split()[-1], 16) for line in lines_of(level) if line.startswith("add.u64")]
    found = [SmemDescriptor.decode(value) for value in constants]
    assert {(desc.swizzle, desc.sbo, desc.version) for desc in found} == {(128, 1024, 1)}
    steps = [(a.start - 1024, b.start - 1024 - 16_384) for a, b in zip(found[::2], found[1::2], strict=True)]
    assert steps == [(k, k) for k in (0, 32, 64, 96)]


def test_level_1_synchronises_the_cluster_once_in_every_k_block() -> None:
    inside = block(lines_of(1), "loop_0")
    assert count(inside, "barrier.cluster.arrive") == count(inside, "barrier.cluster.wait") == 1
    assert count(inside, "cp.async.bulk.tensor.2d.shared::cluster") == 2


@pytest.mark.parametrize("level", [2, 3])
def test_no_cluster_barrier_in_the_k_loop(level) -> None:
    lines = lines_of(level)
    loops = [label[:-1] for label in lines if re.fullmatch(r"loop_\d+:", label)]
    assert loops
    for label in loops:
        end = f"{label}_end:"
        last = lines.index(end) if end in lines else max(i for i, line in enumerate(lines) if line.endswith(label))
        assert count(lines[lines.index(f"{label}:") : last], "barrier.cluster") == 0
    assert count(lines, "barrier.cluster.arrive") == count(lines, "barrier.cluster.wait") == 2


@pytest.mark.parametrize("level", [2, 3])
def test_bytes_count_at_the_leader_and_land_in_the_own_cta(level) -> None:
    lines = lines_of(level)
    loads = [line for line in lines if line.startswith("cp.async.bulk.tensor.2d.shared::cluster")]
    barrier = {re.search(r"\[(%r\d+)\]$", line).group(1) for line in loads}
    target = {re.search(r" \[(%r\d+)\+\d+\]", line).group(1) for line in loads}
    mapped = {line.split()[1].rstrip(",") for line in lines if line.startswith("mapa.") and line.endswith(", 0")}
    assert len(loads) == 2 and all(".cta_group::2 " in line for line in loads)
    assert len(barrier) == 1 and barrier <= mapped
    assert len(target) == 1 and not target & mapped


@pytest.mark.parametrize("level", [2, 3])
def test_the_leader_arrives_locally_and_the_peer_remotely_each_for_its_own_bytes(level) -> None:
    arrivals = [line for line in lines_of(level) if "arrive.expect_tx" in line]
    assert [(re.sub(r"^@%p\d+ ", "", line).split()[0], line.rsplit(" ", 1)[1]) for line in arrivals] == [
        ("mbarrier.arrive.expect_tx.shared::cta.b64", "24576"),
        ("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64", "24576"),
    ]
    assert all(line.startswith("@%p") for line in arrivals)


@pytest.mark.parametrize(("level", "full"), [(1, 1), (2, 2), (3, 2)])
def test_barrier_counts(level, full) -> None:
    stages = LEVELS[level].stages
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines_of(level) if line.startswith("mbarrier.init")]
    assert counts == [full] * stages + [1] * stages + [1]


@pytest.mark.parametrize("level", ALL)
def test_commits_reach_both_ctas(level) -> None:
    lines = lines_of(level)
    commits = [line for line in lines if line.startswith("tcgen05.commit")]
    masks = {line.split()[1].rstrip(","): line.split()[-1] for line in lines if line.startswith("mov.b16")}
    assert len(commits) == 2
    for line in commits:
        assert ".cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 " in line
        assert masks[line.split()[-1]] == "3"


def test_level_3_roles_have_loops_of_their_own() -> None:
    lines = lines_of(3)
    load, mma = block(lines, "role_loads_0"), block(lines, "role_mma_0")
    assert "loop_0:" in load and "loop_1:" in mma
    assert count(load, "tcgen05") == 0 and count(mma, "cp.async") == 0
    assert count(load, "mbarrier.try_wait") == 1 and count(mma, "mbarrier.try_wait") == 1
    guards = lines[lines.index("role_mma_0:") - 2 : lines.index("role_mma_0:")]
    assert all(re.fullmatch(r"@!%p\d+ bra role_mma_0_end", line) for line in guards)


def test_level_2_waits_for_full_in_the_loop_of_the_loads() -> None:
    inside = block(lines_of(2), "loop_0")
    assert count(inside, "cp.async") == 2
    assert [line[:-1] for line in inside if line.startswith("wait_")] == ["wait_ab_empty_0", "wait_ab_full_0"]


@pytest.mark.parametrize("level", BOTH)
def test_the_pair_is_alive_around_allocation_and_deallocation(level) -> None:
    codes = opcodes(lines_of(level))
    improved = [] if level in ALL else ["barrier.cluster.wait"]
    names = ["mbarrier.init", "fence.mbarrier_init", *improved, "tcgen05.alloc"]
    names += ["tcgen05.relinquish"] if improved else []
    order = [next(i for i, code in enumerate(codes) if code.startswith(name)) for name in names]
    assert order == sorted(order)
    after_alloc = codes[order[names.index("tcgen05.alloc")] :]
    assert after_alloc.index("barrier.cluster.wait.acquire.aligned") < after_alloc.index("ld.shared.u32")
    dealloc = next(i for i, code in enumerate(codes) if code.startswith("tcgen05.dealloc"))
    before = [code for code in codes[:dealloc] if "cluster" in code or code.startswith(("tcgen05.ld", "st.global"))]
    assert before[-2:] == ["barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned"]


@pytest.mark.parametrize("level", ALL)
def test_the_published_levels_keep_the_permit_to_allocate_and_the_improved_give_it_up(level) -> None:
    assert count(lines_of(level), "tcgen05.relinquish") == 0
    assert count(lines_of(IMPROVED[level]), "tcgen05.relinquish") == 1


def test_level_5_initialises_its_mbarriers_for_each_tile_and_improved_it_does_not() -> None:
    """8 full, 8 empty, 1 done; as published, two of four cluster barriers are between the tiles."""
    for level, again in ((5, 1), (IMPROVED[5], 0)):
        lines = lines_of(level)
        assert (count(lines, "mbarrier.init"), count(lines, "mbarrier.inval")) == (17 * (1 + again), 17 * again)
        assert count(lines, "barrier.cluster.wait") == 3 + again


@pytest.mark.parametrize("level", BOTH)
def test_whole_warps_load_tensor_memory_and_only_stores_are_predicated(level) -> None:
    lines = lines_of(level)
    loads = [line for line in lines if "tcgen05.ld." in line]
    stores = [line for line in lines if re.search(r" st\.\S*global", line)]
    columns, vector, number = (4, "", 4) if level in ALL else (32, r"\.v4", 16)
    assert len(loads) == (1 if level in ALL else 4)
    assert all(line.startswith(f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32") for line in loads)
    form = re.compile(rf"@%p\d+ st\.(relaxed\.cluster\.)?global{vector}\.b{32 if vector else 16} ")
    assert len(stores) == number and all(form.match(line) for line in stores)
    last_wait = max(i for i, line in enumerate(lines) if line.startswith("wait_done"))
    fence = lines.index("tcgen05.fence::after_thread_sync", last_wait)
    assert lines.index("bar.warp.sync 0xffffffff", last_wait) < fence < lines.index(loads[0])
    branches = [line for line in lines[fence : lines.index(stores[-1])] if "bra" in line]
    assert branches == []


@pytest.mark.parametrize("level", [2, 3])
def test_only_the_leader_stores(level) -> None:
    lines = lines_of(level)
    done = max(i for i, line in enumerate(lines) if line.endswith("bra wait_done_0"))
    skip = re.fullmatch(r"@!(%p\d+) bra (if_\d+_end)", lines[done + 2])
    leads = next(line for line in lines if line.startswith(f"setp.eq.u32 {skip[1]}, "))
    rank = leads.split(", ")[1]
    assert f"mov.u32 {rank}, %cluster_ctarank" in lines and leads.endswith(", 0")
    assert lines.index(f"{skip[2]}:") > max(i for i, line in enumerate(lines) if "st.global" in line)


def test_float32_output_stores_four_columns_at_a_time() -> None:
    lines = lines_of(IMPROVED[3], out=f32)
    assert count(lines, "cvt.rn.bf16x2") == 0
    assert sum("st.global.v4.f32" in line for line in lines) == 32


def test_every_line_of_the_kernel_is_in_its_source() -> None:
    text = traced(IMPROVED[3]).ptx
    files = {match[1]: match[2] for match in re.finditer(r'\.file (\d) ".*kernels/(?:gemm/sm100/)?(\w+)\.py"', text)}
    assert sorted(files.values()) == ["ladder", "setup", "steps", "tiles"]
    assert {match[1] for match in re.finditer(r"\.loc (\d+) ", text)} == set(files)
