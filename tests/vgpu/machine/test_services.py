"""The machine's services for a kernel: printing and assertions."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vgpu.helpers import error_message, parse_once, run
from warpwright import targets
from warpwright.errors import AssertionFault, DeviceError
from warpwright.vgpu import Device
from warpwright.vgpu.machine.services import format_printf

TOP = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 line[12] = {37, 100, 32, 111, 102, 32, 37, 108, 108, 117, 10, 0};
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.global .align 1 .b8 claim[6] = {120, 32, 62, 32, 48, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
"""
PRINT = """
  .local .align 8 .b8 pack[16]; mov.u64 %d1, pack; cvta.local.u64 %d2, %d1; mov.u64 %d3, line; cvta.global.u64 %d3, %d3;
  st.local.u32 [pack], %t; mov.u64 %d4, 1099511627776; st.local.u64 [pack+8], %d4;
  {{ .param .b64 p0; .param .b64 p1; .param .b32 r; st.param.b64 [p0], %d3; st.param.b64 [p1], %d2;
  {guard} call.uni (r), vprintf, (p0, p1); ld.param.b32 %r5, [r]; }}
"""


def test_printf_prints_for_some_lanes() -> None:
    body = "setp.gt.u32 %p0, %lane, 28;" + PRINT.format(guard="@%p0") + "ret;"
    printed = run(body, np.zeros(1), grid=2, top=TOP).printed
    assert printed == "".join(f"{t} of 1099511627776\n" for t in (29, 30, 31, 61, 62, 63))


def test_printf_without_a_lane_prints_nothing() -> None:
    body = "setp.gt.u32 %p0, %lane, 40;" + PRINT.format(guard="@%p0") + "ret;"
    assert run(body, np.zeros(1), top=TOP).printed == ""


def test_a_failed_assertion_ends_the_launch() -> None:
    body = """setp.ne.u32 %p0, %lane, 7; @%p0 ret; mov.u64 %d1, claim; mov.u64 %d2, file;
      { .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4; st.param.b64 [p0], %d1;
      st.param.b64 [p1], %d2;
      st.param.b32 [p2], 5; st.param.b64 [p3], %d1; st.param.b64 [p4], 1;
      call.uni __assertfail, (p0, p1, p2, p3, p4); } ret;"""
    assert error_message(AssertionFault, body, top=TOP).endswith(
        "kernel k, CTA (0, 0, 0), warp 0, lane 7: assertion `x > 0` failed in a.cu."
    )


def test_printf_prints_in_the_order_of_clusters() -> None:
    body = "setp.ne.u32 %p0, %lane, 0; @%p0 ret;" + PRINT.format(guard="") + "ret;"
    printed = run(body, np.zeros(1), grid=50, top=TOP).printed
    assert [int(line.split()[0]) for line in printed.splitlines()] == [32 * i for i in range(50)]


C = ctypes.CDLL(None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(["d", "i", "u", "x", "X", "o", "c", "lld", "llu", "ld", "f", "e", "g", "E", "G"]),
    st.sampled_from(["", "-", "+", " ", "0", "#"]),
    st.one_of(st.just(""), st.integers(1, 20).map(str)),
    st.one_of(st.just(""), st.integers(0, 9).map(lambda n: f".{n}")),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(-1e30, 1e30),
)
def test_printf_formats_as_c_does(kind: str, flag: str, width: str, precision: str, whole: int, real: float) -> None:
    if (
        kind == "c" or (flag == "#" and kind[-1] in "diuo") or kind[-1] in "diuxXo"
    ):  # undefined in C, or unsupported here
        precision, flag = "", "" if flag == "#" and kind not in ("x", "X") else flag
    text = f"<%{flag}{width}{precision}{kind}>"
    if kind == "c":
        given_, data = ctypes.c_int(whole % 94 + 33), struct.pack("<i", whole % 94 + 33)
    elif kind[-1] in "feEgG":
        given_, data = ctypes.c_double(real), struct.pack("<d", real)
    elif kind.startswith("l"):
        given_, data = ctypes.c_longlong(whole), struct.pack("<q", whole)
    else:
        small = whole % 2**32
        given_, data = ctypes.c_uint(small), struct.pack("<I", small)
    buffer = ctypes.create_string_buffer(400)
    C.snprintf(buffer, ctypes.c_size_t(400), text.encode(), given_)
    assert format_printf(text, data, lambda at: "") == buffer.value.decode()


def test_printf_writes_zero_without_a_prefix() -> None:
    assert format_printf("<%#x>", struct.pack("<I", 0), lambda at: "") == "<0>"
    assert format_printf("<%#x>", struct.pack("<I", 31), lambda at: "") == "<0x1f>"


def test_printf_formats_several_arguments() -> None:
    data = struct.pack("<iifxxxxdq", 3, -7, 0.0, 2.5, 64)
    found = format_printf("%*d|%d|%d%%|%5.1f|%s", data, lambda at: f"at {at}")
    assert found == " -7|0|0%|  2.5|at 64"


def test_a_module_may_have_no_entry() -> None:
    with pytest.raises(Exception, match="expected one of the module's entries: none"):
        Device(targets.device("b200")).launch(
            parse_once(".version 8.6\n.target sm_100a\n.address_size 64\n"), "k", (1, 1, 1), (1, 1, 1)
        )


@pytest.mark.parametrize(
    ("text", "data", "part"),
    [("%999999999d", b"", 999999999), ("%.5000f", b"", 5000), ("%*d", struct.pack("<i", -(1 << 30)), -(1 << 30))],
)
def test_a_huge_width_of_printf_is_an_error(text: str, data: bytes, part: int) -> None:
    with pytest.raises(ValueError) as caught:
        format_printf(text, data, lambda at: "")
    assert str(caught.value) == f"printf with a width or precision of {part}; expected at most 4096."


def test_a_huge_width_ends_the_launch() -> None:
    wide = ".global .align 1 .b8 wide[9] = {37, 57, 57, 57, 57, 57, 57, 100, 0};"
    body = PRINT.format(guard="").replace("line;", "wide;", 1) + "ret;"
    assert error_message(DeviceError, body, top=TOP + wide).endswith(
        "printf with a width or precision of 999999; expected at most 4096."
    )


def test_a_star_is_a_width_and_no_precision() -> None:
    """On an H200 ``printf("%.*f|%d", 2, 1.5, 7)`` prints 0.00 and a number that is not there."""
    with pytest.raises(ValueError) as caught:
        format_printf("%.*f", struct.pack("<iid", 2, 0, 1.5), lambda at: "")
    assert str(caught.value) == (
        "printf with a precision of *, which CUDA's printf does not read; expected digits: %.2f."
    )


@pytest.mark.parametrize("text", ["%a", "%A", "%20a", "%-20a|"])
@pytest.mark.parametrize("value", [1.5, 0.0, -1.0, 0.1, float("inf"), 4096.0])
def test_hexadecimal_floats_are_those_of_c(text: str, value: float) -> None:
    buffer = ctypes.create_string_buffer(100)
    C.snprintf(buffer, ctypes.c_size_t(100), text.encode(), ctypes.c_double(value))
    assert format_printf(text, struct.pack("<d", value), lambda at: "") == buffer.value.decode()
