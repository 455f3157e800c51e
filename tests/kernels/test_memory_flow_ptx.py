"""The four steps of memory_flow in its PTX: their threads and their order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.lang.ops.emission import instructions, opcodes
from warpwright.errors import UsageError
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.lang import f16, f32, tma
from warpwright.ptx.ptxas import assemble

LINES = instructions(memory_flow.ptx())
CODES = opcodes(LINES)


def first(opcode: str, after: int = 0) -> int:
    return next(i for i in range(after, len(CODES)) if CODES[i].startswith(opcode))


def role(name: str) -> list[str]:
    return CODES[LINES.index(f"role_{name}_0:") : LINES.index(f"role_{name}_0_end:")]


def test_ptxas_accepts_it_without_local_memory() -> None:
    result = assemble(memory_flow.ptx(), "sm_100a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log


def test_launch_facts() -> None:
    traced = memory_flow.trace()
    assert (traced.threads, traced.cluster) == ((128, 1, 1), (1, 1, 1))
    assert traced.smem_bytes == 1024 + 16_384 + 16_384 + 65_536 == 1024 + 98_304
    assert traced.maps == {
        "a": tma.MapUse((128, 64), 128, f16),
        "b": tma.MapUse((128, 64), 128, f16),
        "d": tma.MapUse((128, 128), 0, f32),
    }


def test_step_1_one_thread_expects_all_bytes_and_every_thread_waits() -> None:
    codes = role("load")
    expected = next(line for line in LINES if "arrive.expect_tx" in line)
    assert expected.endswith(f", {2 * 128 * 64 * 2}")
    assert sum(code.startswith("cp.async.bulk.tensor.2d.shared::cluster") for code in codes) == 2
    assert "elect.sync" in codes and "mbarrier.try_wait.parity.shared::cta.b64" not in codes
    assert LINES.index("role_load_0_end:") < LINES.index("wait_loaded_0:") < LINES.index("role_mma_0:")


def test_step_2_first_overwrites_then_accumulates_and_commits_in_one_thread() -> None:
    codes = role("mma")
    mma = [line for line in LINES if line.startswith("tcgen05.mma.cta_group::1.kind::f16 ")]
    assert [line[-1] for line in mma] == ["0", "1", "1", "1"]
    assert "elect.sync" in codes
    assert [code for code in codes if code.startswith("tcgen05")][-1].startswith("tcgen05.commit.cta_group::1.")


def test_step_3_all_warps_wait_fence_load_and_wait_for_the_registers() -> None:
    wait = LINES.index("wait_multiplied_0:")
    fence, load = first("tcgen05.fence::after", wait), first("tcgen05.ld.sync.aligned.32x32b.x32.b32", wait)
    done, use = first("tcgen05.wait::ld", load), first("st.shared", load)
    assert wait < fence < load < done < use
    assert not [code for code in CODES[wait + 2 : done] if code == "bra"][1:]
    loaded = re.findall(r"%f\d+", " ".join(line for line in LINES if line.startswith("tcgen05.ld")))
    assert loaded == [f"%f{i}" for i in range(128)]


def test_step_4_every_writer_fences_before_the_barrier_and_one_thread_stores_commits_and_waits() -> None:
    stores = [line for line in LINES if line.startswith("st.shared.v4.f32")]
    assert len(stores) == 32
    assert all(int(re.search(r"\+(\d+)\]", line)[1]) % 16 == 0 for line in stores)
    order = [
        first("st.shared"),
        first("fence.proxy.async.shared::cta"),
        first("bar.sync", first("st.shared")),
        first("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"),
        first("cp.async.bulk.commit_group"),
        first("cp.async.bulk.wait_group"),
    ]
    assert order == sorted(order)
    assert LINES[order[-1]] == "cp.async.bulk.wait_group 0"
    fence_to_barrier = CODES[order[1] : order[2]]
    assert "elect.sync" not in fence_to_barrier and "bra" not in fence_to_barrier


def test_tensor_memory_is_allocated_relinquished_and_deallocated_by_the_same_warp() -> None:
    alloc, free = role("alloc"), role("free")
    assert [code.rsplit(".cta_group", 1)[0] for code in alloc if code.startswith("tcgen05")] == [
        "tcgen05.alloc",
        "tcgen05.relinquish_alloc_permit",
    ]
    assert [code for code in free if code.startswith("tcgen05")] == ["tcgen05.dealloc.cta_group::1.sync.aligned.b32"]
    guards = {LINES[LINES.index(f"role_{name}_0:") - 1].split()[0] for name in ("alloc", "free")}
    assert len(guards) == 1
    columns = [line.rsplit(", ", 1)[1] for line in LINES if re.match(r"tcgen05\.(de)?alloc", line)]
    assert columns == ["128", "128"]


def test_arguments_are_the_kernels_tensor_maps() -> None:
    a, b, d = np.zeros((128, 64), np.float16), np.zeros((128, 64), np.float16), np.zeros((128, 128), np.float32)
    maps = memory_flow.trace().maps
    for made, use in zip(arguments(a, b, d), maps.values(), strict=True):
        assert (made.box[::-1], made.swizzle, made.dtype) == (use.box, use.swizzle, use.dtype)


def test_arguments_of_an_array_without_dense_rows_are_refused() -> None:
    a, d = np.zeros((128, 128), np.float16)[:, ::2], np.zeros((128, 128), np.float32)
    with pytest.raises(UsageError):
        arguments(a, a, d)
