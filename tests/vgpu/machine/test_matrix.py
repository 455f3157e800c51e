"""ldmatrix, stmatrix and movmatrix against the fragments of PTX ISA 9.1 sections 9.7.14.5.15 to 9.7.14.5.17."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.machine.warp_text import SMEM, run_warp
from warpwright.errors import MemoryFault


def rows_and_image(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns random shared memory, and for each lane the place of a row of 16 bytes, no two the same."""
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, SMEM, dtype=np.uint8)
    return (random.permutation(SMEM // 16)[:32] * 16).astype(np.uint32), image


def names(count: int, name: str = "%o") -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
def test_ldmatrix_loads_fragments(count: int, trans: str, space: str) -> None:
    rows, image = rows_and_image(count)
    line = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {names(count)}, [%r0];"
    if not space:
        line = f"cvt.u64.u32 %q0, %r0; cvta.shared.u64 %q0, %q0; {line.replace('%r0', '%q0')}"
    found = run_warp(f"add.u32 %r0, %r0, %smem; {line}", rows[:, None], count, image.copy())
    halves = image.view(np.uint16)
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for j in range(count):
            if trans:
                low, high = (halves[rows[8 * j + 2 * q + h] // 2 + g] for h in (0, 1))
            else:
                low, high = (halves[rows[8 * j + g] // 2 + 2 * q + h] for h in (0, 1))
            assert found[lane, j] == int(high) << 16 | int(low)


@pytest.mark.parametrize("count", [1, 2])
def test_ldmatrix_loads_fragments_of_bytes(count: int) -> None:
    rows, image = rows_and_image(7)
    line = f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {names(2 * count)}, [%r0];"
    found = run_warp(f"add.u32 %r0, %r0, %smem; {line}", rows[:, None], 2 * count, image.copy(), target="sm_100a")
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for j in range(2 * count):
            expected = bytes(image[rows[16 * (j // 2) + 4 * q + k] + g + 8 * (j % 2)] for k in range(4))
            assert found[lane, j] == int.from_bytes(expected, "little")


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_stores_fragments(count: int, trans: str) -> None:
    rows, image = rows_and_image(3)
    values = np.random.default_rng(4).integers(0, 2**32, (32, count), dtype=np.uint32)
    line = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r0], {names(count, '%r').replace('%r', '%r1')};"
    moves = " ".join(f"mov.b32 %r1{i}, %r{i + 1};" for i in range(count))
    memory = image.copy()
    run_warp(f"add.u32 %r0, %r0, %smem; {moves} {line}", np.column_stack([rows, values]), 0, memory)
    halves = image.view(np.uint16)
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for j in range(count):
            for h in (0, 1):
                at = rows[8 * j + 2 * q + h] // 2 + g if trans else rows[8 * j + g] // 2 + 2 * q + h
                halves[at] = int(values[lane, j]) >> 16 * h & 0xFFFF
    assert np.array_equal(memory, image)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_stores_fragments_of_bytes(count: int) -> None:
    rows, image = rows_and_image(5)
    values = np.random.default_rng(6).integers(0, 2**32, (32, count), dtype=np.uint32)
    line = f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r0], {names(count, '%r').replace('%r', '%r1')};"
    moves = " ".join(f"mov.b32 %r1{i}, %r{i + 1};" for i in range(count))
    memory = image.copy()
    registers = np.column_stack([rows, values])
    run_warp(f"add.u32 %r0, %r0, %smem; {moves} {line}", registers, 0, memory, target="sm_100a")
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for j in range(count):
            for k in range(4):
                image[rows[8 * j + 2 * q + (k & 1)] + g + 8 * (k >> 1)] = int(values[lane, j]) >> 8 * k & 0xFF
    assert np.array_equal(memory, image)


def test_movmatrix_transposes() -> None:
    matrix = np.random.default_rng(8).integers(0, 2**16, (8, 8), dtype=np.uint16)
    registers = matrix.reshape(8, 4, 2).view(np.uint32).reshape(32, 1)
    found = run_warp("movmatrix.sync.aligned.m8n8.trans.b16 %o0, %r0;", registers, 1)
    assert np.array_equal(found.reshape(8, 4).view(np.uint16), matrix.T)


def test_ldmatrix_checks_only_the_addresses_it_reads() -> None:
    """x1 reads the addresses of lanes 0 to 7; the other lanes' addresses have no meaning."""
    rows, image = rows_and_image(9)
    rows[8:] = 0xFFFF_FFF3
    line = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%r0];"
    found = run_warp(f"add.u32 %r0, %r0, %smem; {line}", rows[:, None], 1, image.copy())
    assert found[5, 0] == image[rows[1] + 4 : rows[1] + 8].view(np.uint32)[0]


def test_ldmatrix_reads_the_row_of_a_lane_that_has_exited() -> None:
    """The address of such a lane is what its register holds, and is checked: no memory outside is read."""
    rows, image = rows_and_image(11)
    line = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%r0];"
    text = f"add.u32 %r0, %r0, %smem; mov.u32 %r1, %laneid; setp.eq.u32 %p0, %r1, 0; @%p0 exit; {line}"
    found = run_warp(text, rows[:, None], 1, image.copy())
    assert found[1, 0] == image[rows[0] + 4 : rows[0] + 8].view(np.uint32)[0]
    rows[0] = SMEM
    with pytest.raises(MemoryFault, match=r"lane 0: address 0x1400 is outside shared memory"):
        run_warp(text, rows[:, None], 1)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (8, "address 0x408 is not aligned to the size of the access."),
        (SMEM, "address 0x1400 is outside shared memory, bytes 0x400 to 0x1400 of each CTA."),
    ],
)
def test_ldmatrix_refuses_bad_addresses(place: int, what: str) -> None:
    rows, _ = rows_and_image(10)
    rows[3] = place
    with pytest.raises(MemoryFault) as caught:
        run_warp(
            "add.u32 %r0, %r0, %smem; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%o0, %o1}, [%r0];", rows[:, None], 2
        )
    assert str(caught.value).endswith(
        f"`ldmatrix.sync.aligned.m8n8.x2.shared.b16`: kernel k, CTA (0, 0, 0), warp 0, lane 3: {what}"
    )
