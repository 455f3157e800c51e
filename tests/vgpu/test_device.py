"""Launches: refused launches, arguments, shared arrays, waves, determinism, errors of many clusters."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.vgpu.helpers import error_message, out, parse_once, run, text
from warpwright import targets
from warpwright.errors import LaunchError, MemoryFault, UsageError
from warpwright.vgpu import Device
from warpwright.vgpu.device import _checked_slice
from warpwright.vgpu.machine.tape import CAPACITY, ROWS_OF_ONE
from warpwright.vgpu.program.decode import decode

ONE = np.zeros(1, np.uint32)
ADD = "ld.global.u32 %r10, [%o]; add.u32 %r10, %r10, 1; st.global.u32 [%o], %r10; ret;"


@pytest.mark.parametrize(
    ("launch", "what"),
    [
        ({"block": 1025}, "block=(1025, 1, 1): expected 1 to 1024, 1 to 1024 and 1 to 64."),
        ({"block": (33, 32)}, "block=(33, 32, 1): 1056 threads; a CTA has at most 1024."),
        ({"block": (1, 1, 65)}, "block=(1, 1, 65): expected 1 to 1024, 1 to 1024 and 1 to 64."),
        ({"block": 0}, "block=(0, 1, 1): expected 1 to 1024, 1 to 1024 and 1 to 64."),
        ({"grid": 0}, "grid=(0, 1, 1): expected 1 to 2147483647, 1 to 65535 and 1 to 65535."),
        ({"grid": (1, 65536)}, "grid=(1, 65536, 1): expected 1 to 2147483647, 1 to 65535 and 1 to 65535."),
        ({"grid": (2, -1)}, "grid=(2, -1, 1): expected 1 to 2147483647, 1 to 65535 and 1 to 65535."),
        ({"grid": 6, "cluster": 4}, "grid=(6, 1, 1) is not a whole number of clusters (4, 1, 1); round the grid up."),
        ({"grid": 17, "cluster": 17}, "cluster=(17, 1, 1): 17 CTAs; b200 has at most 16 in a cluster."),
        ({"grid": 4, "cluster": 0}, "cluster=(0, 1, 1): expected 1 to 2147483647, 1 to 65535 and 1 to 65535."),
        ({"smem": -1}, "smem=-1: expected a number of bytes."),
        ({"smem": 232449}, "kernel k asks for 232449 bytes of shared memory; b200 has 232448 a CTA."),
        ({"smem": 232448, "top": ".shared .align 16 .b8 s[16];"}, "kernel k asks for 232464 bytes of shared "
            "memory; b200 has 232448 a CTA."),
        ({"heads": ".reqntid 64"}, "block=(32, 1, 1): kernel k requires (64, 1, 1) (.reqntid)."),
        ({"heads": ".maxntid 16"}, "block=(32, 1, 1): kernel k allows at most (16, 1, 1) (.maxntid)."),
        ({"heads": ".reqnctapercluster 2, 1, 1", "grid": 2}, "cluster=(1, 1, 1): kernel k requires (2, 1, 1) "
            "(.reqnctapercluster)."),
        ({"target": "sm_90a"}, "kernel k is for sm_90a; device b200 is sm_100a: compile it for that, or launch it on "
            "device 'h200'."),
        ({"target": "sm_120"}, "kernel k is for sm_120; device b200 is sm_100a: compile it for that, or launch it on "
            "device 'rtx5090'."),
    ],
)  # fmt: skip
def test_launch_refuses_bad_shapes(launch: dict, what: str) -> None:
    body = "mov.u32 %r3, s; st.shared.u32 [%r3], 0; ret;" if "top" in launch else "ret;"
    assert error_message(LaunchError, body, ONE, **launch) == what


@pytest.mark.parametrize(
    ("target", "device"),
    [("sm_90", "b200"), ("sm_100", "b200"), ("sm_100f", "b200"), ("sm_90", "h200"), ("sm_120", "rtx5090")],
)
def test_a_device_runs_targets_of_its_family(target: str, device: str) -> None:
    assert out(ADD, 32, target=target, device=device).tolist() == [1] * 32


def test_launch_refuses_an_unknown_entry() -> None:
    with pytest.raises(UsageError, match=r"^given entry 'j'; expected one of the module's entries: k\.$"):
        Device(targets.device("b200")).launch(parse_once(text("ret;")), "j", (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((), "kernel k takes 2 arguments (a0, a1); 0 are given."),
        ((ONE, 1, 2), "kernel k takes 2 arguments (a0, a1); 3 are given."),
        ((ONE, ONE), "argument a1 of kernel k is 4 bytes (.u32); array takes 8."),
        ((b"abc", 1), "argument a0 of kernel k is 8 bytes (.u64); bytes takes 3."),
        ((ONE, 1.5), "argument a1 of kernel k is 1.5; expected an integer (.u32)."),
    ],
)
def test_launch_refuses_wrong_arguments(args: tuple, what: str) -> None:
    with pytest.raises(LaunchError) as caught:
        Device(targets.device("b200")).launch(parse_once(text("ret;", (ONE, 1))), "k", (1, 1, 1), (1, 1, 1), args=args)
    assert str(caught.value) == what


def test_numbers_are_typed_by_the_parameters() -> None:
    module = parse_once(""".version 8.6
      .target sm_100a
      .address_size 64
      .visible .entry k(.param .u64 out, .param .s8 a, .param .f32 b,
        .param .align 8 .b8 c[12], .param .u16 d, .param .f64 e) {
      .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<3>; .reg .f64 %g<3>;
      ld.param.u64 %d0, [out]; ld.param.s8 %r0, [a]; ld.param.f32 %f0, [b]; ld.param.u32 %r1, [c+8];
      ld.param.u16 %r2, [d]; ld.param.f64 %g0, [e];
      st.global.u32 [%d0], %r0; st.global.f32 [%d0+4], %f0; st.global.u32 [%d0+8], %r1;
      st.global.u32 [%d0+12], %r2; st.global.f64 [%d0+16], %g0; ret; }""")
    array = np.zeros(6, np.uint32)
    args = (array, -3, 1.5, np.arange(3, dtype=np.int32).tobytes(), np.uint16(65535), -0.1)
    Device(targets.device("b200")).launch(module, "k", (1, 1, 1), (1, 1, 1), args=args)
    assert array.tolist()[:1] + array.tolist()[2:4] == [2**32 - 3, 2, 65535]
    assert array[1:2].view(np.float32)[0] == 1.5
    assert array[4:].view(np.float64)[0] == -0.1


def test_two_arguments_share_one_array() -> None:
    """Both pointers lead to the same memory."""
    array = np.arange(32, dtype=np.uint32)
    run(
        """ld.global.u32 %r10, [%o]; st.global.u32 [%a1], 77; add.u32 %r10, %r10, 1; st.global.u32 [%o], %r10;
            sub.u64 %d0, %a0, %a1; st.global.u64 [%a0+64], %d0; ret;""",
        array,
        array,
    )
    assert array[16:18].tolist() == [0, 0]
    assert array[20:].tolist() == list(range(21, 33))


@pytest.mark.parametrize("order", [1, -1])
def test_views_of_one_array_share_memory(order: int) -> None:
    """Overlapping slices: a read through one sees a write through the other, and both get all writes back."""
    base = np.arange(96, dtype=np.uint32)
    first, second = [base[:64], base[32:]][::order]
    low, high = ("%a0", "%a1")[::order]
    run(
        f"""mul.wide.u32 %d1, %t, 4; add.u64 %d2, {low}, %d1; add.u64 %d3, {high}, %d1;
      ld.global.u32 %r3, [%d3]; add.u32 %r3, %r3, 1000; st.global.u32 [%d2+128], %r3; st.global.u32 [%d2], 5;
      st.global.u32 [%d3+128], 6;
      sub.u64 %d4, {high}, {low}; cvt.u32.u64 %r4, %d4; setp.ne.u32 %p0, %r4, 128; @%p0 trap; ret;""",
        first,
        second,
    )
    assert base.tolist() == [5] * 32 + list(range(1032, 1064)) + [6] * 32


def test_launch_takes_strided_and_reversed_views() -> None:
    """The pointer is that of the first element; the kernel applies the strides; elements in between stay unchanged."""
    base = np.arange(64, dtype=np.uint32)
    run("mul.wide.u32 %d1, %t, 8; add.u64 %d1, %a0, %d1; st.global.u32 [%d1], 9; ret;", base[::2], block=16)
    assert base.tolist() == [9 if i % 2 == 0 and i < 32 else i for i in range(64)]
    base = np.arange(64, dtype=np.uint32)
    run("mul.wide.u32 %d1, %t, 4; sub.u64 %d1, %a0, %d1; st.global.u32 [%d1], %t; ret;", base[::-1])
    assert base.tolist() == list(range(32)) + list(range(31, -1, -1))
    columns = np.zeros((8, 8), np.float32)
    run(
        "mul.wide.u32 %d1, %t, 32; add.u64 %d1, %a0, %d1; st.global.f32 [%d1], 0f3F800000; ret;", columns[:, 3], block=8
    )
    assert np.array_equal(columns, np.eye(8)[3] * np.ones((8, 1), np.float32))


def test_launch_does_not_write_read_only_arrays() -> None:
    """A kernel can read them; a write is an error, after the other arrays have their results."""
    array, result = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    array.setflags(write=False)
    body = """mul.wide.u32 %d1, %t, 4; add.u64 %d1, %a1, %d1; ld.global.u32 %r3, [%d1]; st.global.u32 [%d1], 99;
            mul.wide.u32 %d1, %t, 4; add.u64 %d1, %a0, %d1; st.global.u32 [%d1], %r3; ret;"""
    assert error_message(UsageError, body, result, array) == (
        "kernel 'k' wrote argument 'a1', an array that is read-only or has several elements at one address; it is "
        "unchanged and all other results are stored; expected an array of its own: x.copy()"
    )
    assert array.tolist() == result.tolist() == list(range(32))


def test_a_writeable_view_of_a_read_only_array_is_written() -> None:
    array = np.zeros(32, np.uint32)
    frozen = array[:]
    frozen.setflags(write=False)
    run("mul.wide.u32 %d1, %t, 4; add.u64 %d1, %a1, %d1; st.global.u32 [%d1], 4; ret;", frozen, array)
    assert array.tolist() == [4] * 32


def test_launch_takes_empty_arrays_and_other_dtypes() -> None:
    run("ret;", np.zeros((0, 4), np.float32))
    assert "outside global memory" in error_message(
        MemoryFault, "ld.global.u32 %r3, [%a0]; ret;", np.zeros(0, np.uint32)
    )
    half = np.arange(32).astype(ml_dtypes.bfloat16)
    run(
        """mul.wide.u32 %d1, %t, 2; add.u64 %d1, %a0, %d1; ld.global.b16 %h0, [%d1]; xor.b16 %h0, %h0, 0x8000;
            st.global.b16 [%d1], %h0; ret;""",
        half,
    )
    assert half.tolist() == [-float(i) for i in range(32)]


def test_a_large_grid_runs_in_waves() -> None:
    """A grid of many more CTAs than the device has room for at once."""
    assert set(out(ADD, 3000 * 32, grid=3000).tolist()) == {1}
    body = """mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mad.lo.u32 %r3, %r3, %r4, %r0;
    mul.wide.u32 %o, %r3, 4; add.u64 %o, %a0, %o;
      red.global.add.u32 [%o], 1; ret;"""
    assert set(out(body, 21 * 30, grid=(21, 30), cluster=(3, 2), block=48).tolist()) == {48}


def test_shared_memory_does_not_outlive_a_cta() -> None:
    """Every CTA finds the same poison, not its predecessor's data."""
    body = "ld.shared.u32 %r10, [room]; st.shared.u32 [room], %t; st.global.u32 [%o], %r10; ret;"
    assert set(out(body, 64 * 32, grid=64, top=".shared .align 4 .u32 room;").tolist()) == {0xFFFF_FFFF}


def test_registers_do_not_outlive_a_cta() -> None:
    body = """setp.eq.u32 %p0, %lane, 40; @%p0 mov.u32 %r30, 1; bra NEXT; NEXT: st.global.u32 [%o], %r30;
        mov.u32 %r30, 5; bra LAST; LAST: ret;"""
    assert set(out(body, 64 * 32, grid=64).tolist()) == {0}


def test_a_second_run_has_equal_results() -> None:
    """A second run on several cores returns the same bits."""
    body = """mov.u32 %r10, 1; add.u32 %r11, %t, 77;
    AGAIN: mad.lo.u32 %r10, %r10, 1664525, %r11; shr.u32 %r11, %r11, 1; setp.ne.u32 %p0, %r11, 0; @%p0 bra AGAIN;
      st.global.u32 [%o], %r10; cvt.u64.u32 %d1, %r10; red.global.add.u64 [%a1], %d1; ret;"""
    totals = [np.zeros(1, np.uint64) for _ in range(2)]
    first, second = (out(body, 32 * 64, total, grid=64) for total in totals)
    assert np.array_equal(first, second)
    assert totals[0] == totals[1] == first.sum(dtype=np.uint64)


@pytest.mark.parametrize("bad", [[5], [3, 60], [63, 1], [0, 1, 2]])
def test_the_error_names_the_lowest_cluster_that_fails(bad: list[int]) -> None:
    """Also if it reaches its fault last."""
    tests = "".join(f"setp.eq.u32 %p1, %r0, {b}; or.pred %p0, %p0, %p1;" for b in bad)
    body = f"""setp.gt.u32 %p0, %r0, 1000; {tests} mov.u32 %r3, 0; setp.gt.u32 %p2, %r0, {min(bad)}; @%p2 bra OVER;
    COUNT: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 300000; @%p3 bra COUNT;
    OVER: @%p0 trap; ret;"""
    for _ in range(3):
        with pytest.raises(Exception, match=rf"CTA \({min(bad)}, 0, 0\)"):
            run(body, ONE, grid=64)


@pytest.mark.parametrize("count", [1, 2000])
def test_a_slice_has_room_for_its_rows(count: int) -> None:
    """The rows of one slice of a warp fit into the second half of the buffer, for blocks of any length."""
    program = decode(parse_once(text("st.global.u32 [%o], 3; " * count + "ret;", (np.zeros(1),))), "k")
    longest = max(len(block.insts) for block in program.blocks)
    assert 1 <= _checked_slice(program) <= 5_000
    assert _checked_slice(program) * longest * ROWS_OF_ONE <= CAPACITY // 2
