"""Exchange between the lanes of a warp, with full and partial member masks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import out

LANE = np.arange(32)
SOME = 0x00F0_F137
SAME_MOD_5 = [SOME & sum(1 << j for j in range(32) if j % 5 == i % 5) for i in range(32)]


def shuffle(mode: str, value: np.ndarray, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the result of shfl by PTX ISA 9.7.9.6, lane by lane."""
    result, inside = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    for lane in range(32):
        clamp, segment = c & 31, c >> 8 & 31
        first = lane & segment
        last = first | clamp & ~segment & 31
        if mode == "up":
            source, ok = lane - b, lane - b >= last
        elif mode == "down":
            source, ok = lane + b, lane + b <= last
        elif mode == "bfly":
            source, ok = lane ^ b, lane ^ b <= last
        else:
            source = first | b & ~segment & 31
            ok = source <= last
        result[lane], inside[lane] = value[source if ok else lane], ok
    return result, inside


@pytest.mark.parametrize("c", [31, 0x1000 | 15, 0x1C03, 0x1800, 20])
@pytest.mark.parametrize("b", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_follows_the_isa(mode: str, b: int, c: int) -> None:
    c = c & ~31 if mode == "up" else c
    body = f"""
      mul.lo.u32 %r3, %lane, 77; mov.u32 %r4, {b}; mov.u32 %r5, {c};
      shfl.sync.{mode}.b32 %r10|%p0, %r3, %r4, %r5, 0xffffffff;
      selp.u32 %r11, 1, 0, %p0;
      shl.b32 %r11, %r11, 16; or.b32 %r10, %r10, %r11;
      st.global.u32 [%o], %r10; ret;"""
    found = out(body)
    result, inside = shuffle(mode, 77 * LANE, b, c)
    assert np.array_equal(found & 0xFFFF, result)
    assert np.array_equal(found >> 16, inside)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("vote.sync.ballot.b32 %r10, %p0, M;", 0x2492_4924 & SOME),
        ("vote.sync.ballot.b32 %r10, !%p0, M;", ~0x2492_4924 & SOME),
        ("vote.sync.any.pred %p1, %p2, M; selp.u32 %r10, 1, 0, %p1;", 0),
        ("vote.sync.any.pred %p1, %p0, M; selp.u32 %r10, 1, 0, %p1;", 1),
        ("vote.sync.all.pred %p1, %p0, M; selp.u32 %r10, 1, 0, %p1;", 0),
        ("vote.sync.all.pred %p1, !%p2, M; selp.u32 %r10, 1, 0, %p1;", 1),
        ("vote.sync.uni.pred %p1, %p0, M; selp.u32 %r10, 1, 0, %p1;", 0),
        ("vote.sync.uni.pred %p1, %p2, M; selp.u32 %r10, 1, 0, %p1;", 1),
        ("activemask.b32 %r10;", SOME),
        ("elect.sync %r10|%p1, M;", 0),
        ("elect.sync _|%p1, M; selp.u32 %r10, 1, 0, %p1;", LANE == 0),
        ("redux.sync.add.u32 %r10, %lane, M;", sum(i for i in range(32) if SOME >> i & 1)),
        ("redux.sync.min.u32 %r10, %r4, M;", 7),
        ("redux.sync.max.u32 %r10, %r4, M;", 0xFFFF_FFFE),
        ("redux.sync.min.s32 %r10, %r4, M;", 0xFFFF_FFFE),
        ("redux.sync.max.s32 %r10, %r4, M;", 30),
        ("redux.sync.and.b32 %r10, %r5, M;", 0x100),
        ("redux.sync.or.b32 %r10, %r5, M;", 0x100 | 23 | 8),
        ("redux.sync.xor.b32 %r10, %lane, M;", np.bitwise_xor.reduce([i for i in range(32) if SOME >> i & 1])),
        ("match.any.sync.b32 %r10, %r6, M;", SAME_MOD_5),
        ("match.all.sync.b32 %r10|%p1, %r6, M;", 0),
        ("match.all.sync.b32 %r10|%p1, 5, M; selp.u32 %r11, 1, 0, %p1; add.u32 %r10, %r10, %r11;", SOME + 1),
        ("""cvt.u64.u32 %d1, %r6; shl.b64 %d1, %d1, 40; match.any.sync.b64 %r10, %d1, M;""", SAME_MOD_5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mask", ["constant", "register"])
def test_a_mask_selects_members(code: str, expected: int | list[int], mask: str) -> None:
    """Lanes outside the mask are in another branch."""
    body = f"""
      mov.u32 %r9, {SOME}; shr.u32 %r3, %r9, %lane; and.b32 %r3, %r3, 1; setp.eq.u32 %p9, %r3, 0;
      rem.u32 %r7, %lane, 3; setp.eq.u32 %p0, %r7, 2; setp.gt.u32 %p2, %lane, 50;
      add.u32 %r4, %lane, 7; setp.eq.u32 %p3, %lane, 5; @%p3 mov.u32 %r4, -2;
      or.b32 %r5, %lane, 0x100; rem.u32 %r6, %lane, 5;
      @%p9 bra OUTSIDE;
      {code.replace(" M;", f" {SOME};" if mask == "constant" else " %r9;")}
      st.global.u32 [%o], %r10; ret;
    OUTSIDE: mov.u32 %r10, 0xdead; st.global.u32 [%o], %r10; ret;"""
    inside = (SOME >> LANE & 1).astype(bool)
    wanted = np.broadcast_to(np.array(expected, np.int64) & 0xFFFF_FFFF, 32)
    assert np.array_equal(out(body), np.where(inside, wanted, 0xDEAD))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("vote.sync.ballot.b32 %r10, %p0, %r9;", [0x5555_5555 & (0xFF << 8 * (i // 8)) for i in LANE]),
        ("redux.sync.add.u32 %r10, %lane, %r9;", [sum(range(i // 8 * 8, i // 8 * 8 + 8)) for i in LANE]),
        ("elect.sync %r10|%p1, %r9;", LANE // 8 * 8),
        ("match.any.sync.b32 %r10, %r3, %r9;", [0x0101_0101 * (0x55 << i % 2) & (0xFF << 8 * (i // 8)) for i in LANE]),
        ("shfl.sync.bfly.b32 %r10, %lane, 5, 31, %r9;", LANE ^ 5),
        ("bar.warp.sync %r9; mov.u32 %r10, %lane;", LANE),
    ],
)
def test_tiles_execute_one_instruction(code: str, expected: list[int]) -> None:
    """Tiles of a cooperative group: lanes execute it together, with masks that differ from tile to tile."""
    body = f"""
      and.b32 %r3, %lane, 1; setp.eq.u32 %p0, %r3, 0;
      and.b32 %r4, %lane, 24; mov.u32 %r9, 255; shl.b32 %r9, %r9, %r4;
      {code} st.global.u32 [%o], %r10; ret;"""
    assert out(body).tolist() == [int(value) for value in expected]


def test_lane_masks_have_their_definition() -> None:
    body = "".join(
        f"mov.u32 %r10, %lanemask_{name}; st.global.u32 [%o+{128 * i}], %r10;"
        for i, name in enumerate(["eq", "lt", "le", "gt", "ge"])
    )
    found = out(body + "ret;", 160).reshape(5, 32)
    for i, inside in enumerate([np.equal, np.less, np.less_equal, np.greater, np.greater_equal]):
        assert found[i].tolist() == [sum(1 << j for j in range(32) if inside(j, lane)) for lane in range(32)]
