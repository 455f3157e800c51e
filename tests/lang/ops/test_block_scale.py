"""tcgen05.mma_block_scale: kernels of three formats against float64, their verdicts, and errors."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from tests.lang.ops.emission import emit
from tests.lang.ops.scaled_gemm import FORMATS, Problem, gemm
from warpwright import layout
from warpwright.errors import KernelError, UsageError
from warpwright.lang import e2m1x2, e4m3, f32, smem, tcgen05, tmem, u8, ue4m3, ue8m0
from warpwright.layout import InstrDescriptor


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("format", FORMATS)
def test_a_gemm_with_block_scales(format: str, cluster: int) -> None:
    """Scale factors by tcgen05.cp over those of the MMAs before."""
    problem = Problem(format, cluster, 3)
    kernel = gemm.configure(format=format, cluster=cluster)
    ww.launch(kernel, grid=cluster, args=problem.args)
    problem.check()
    verdict = ww.check(kernel, grid=cluster, args=problem.args)
    assert verdict.kind == "clean", str(verdict)


def test_the_hardware_model_agrees_within_its_truncation() -> None:
    """Each of 12 instructions cuts up to 33 terms of 25 fraction bits."""
    problem = Problem("mxfp8", 1, 3)
    ww.launch(gemm, grid=1, args=problem.args, numerics="hardware")
    first = problem.d.copy()
    ww.launch(gemm, grid=1, args=problem.args)
    size = np.abs(problem.a) @ np.abs(problem.b).T
    assert (np.abs(first - problem.d) <= 12 * 34 * 2.0**-23 * size).all() and (first != problem.d).any()


def test_a_verdict_names_scale_factors_that_nobody_copied() -> None:
    problem = Problem("mxfp8", 1, 1)
    verdict = ww.check(gemm.configure(copied=False), grid=1, args=problem.args)
    assert [finding.rule.id for finding in verdict.findings] == ["uninitialised"]
    assert "tcgen05.mma" in str(verdict)


def test_a_verdict_names_a_store_to_scale_factors_that_an_mma_reads() -> None:
    problem = Problem("mxfp8", 1, 1)
    verdict = ww.check(gemm.configure(copied=False, overwritten=True), grid=1, args=problem.args)
    races = [str(finding) for finding in verdict.findings if finding.rule.id == "race"]
    assert len(races) == 1 and "tcgen05.st" in races[0] and "tcgen05.mma" in races[0], str(verdict)


def test_4_bit_kinds_multiply_twice_as_many_elements_in_the_time_of_8_bit_kinds() -> None:
    problems = [Problem(format, 1, 8) for format in ("mxfp8", "mxfp4")]
    wide, narrow = (
        ww.profile(gemm.configure(format=format), grid=1, args=problem.args, device="b200")
        for format, problem in zip(("mxfp8", "mxfp4"), problems, strict=True)
    )
    assert narrow.flops == 2 * wide.flops == 2 * 128 * 64 * problems[1].a.shape[1]
    assert abs(narrow.time_us - wide.time_us) < 0.1 * wide.time_us


def operands(a_type=e4m3, b_type=e4m3, scale=ue8m0, n=128, rows_b=None):
    a, b = (smem.tile(type, (size, 128), swizzle=128)[:, :32] for type, size in ((a_type, 128), (b_type, n)))
    acc, factors = tmem.tile(f32, (128, n)), [tmem.scales(scale, 128), tmem.scales(scale, rows_b or n)]
    tmem.alloc()
    tmem.open()
    return acc, a, b, *factors


@pytest.mark.parametrize(
    ("types", "block", "first", "kind"),
    [
        ((e4m3, e4m3, ue8m0), 32, 3, "mxf8f6f4.block_scale.block32"),
        ((e2m1x2, e2m1x2, ue8m0), 32, 2, "mxf4.block_scale.block32"),
        ((e2m1x2, e2m1x2, ue8m0), 16, 0, "mxf4nvf4.block_scale.block16"),
        ((e2m1x2, e2m1x2, ue4m3), 16, 0, "mxf4nvf4.block_scale.block16"),
    ],
)
def test_the_kind_and_the_descriptor_follow_from_the_types(types, block: int, first: int, kind: str) -> None:
    def body(a, x, n):
        tcgen05.mma_block_scale(*operands(*types), accumulate=True, block=block, first=first)

    (line,) = [line for line in emit(body) if line.startswith("tcgen05.mma")]
    assert line.startswith(f"tcgen05.mma.cta_group::1.kind::{kind} [%r")
    left, right = (each.name.removesuffix("x2") for each in types[:2])
    expected = InstrDescriptor(
        kind.split(".")[0], left, right, "f32", 128, 128, sfa_id=first, sfb_id=first, scale_type=types[2].name
    )
    assert f", 0x{expected.encode():08x}, [%r" in line
    assert re.search(r"\[%r\d+ \+ 128\], \[%r\d+ \+ 132\], 1$|\[%r\d+\+128\], \[%r\d+\+132\], 1$", line), line


def test_a_copy_of_scale_factors_is_one_instruction_for_each_tile() -> None:
    def body(a, x, n):
        factors = tmem.scales(ue8m0, 256)
        tmem.alloc()
        tmem.open()
        tcgen05.cp_scales(factors, smem.tile(ue8m0, (64, 16)))

    lines = [line for line in emit(body) if line.startswith("tcgen05.cp")]
    assert [line.split()[0] for line in lines] == ["tcgen05.cp.cta_group::1.32x128b.warpx4"] * 2


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: tcgen05.mma_block_scale(*operands(e4m3, e2m1x2), accumulate=True),
            "given a of e4m3, b of e2m1x2 and scale factors of ue8m0 for 32 elements; expected e4m3 or e5m2 with ue8m0 "
            "for 32, or two of e2m1x2 with ue8m0 for 32 or 16, or ue4m3 for 16",
        ),
        (
            lambda: tcgen05.mma_block_scale(*operands(e2m1x2, e2m1x2), accumulate=True, first=1),
            "given first=1 for 2 scale factors of an instruction; expected a multiple of 2 below 4",
        ),
        (
            lambda: tcgen05.mma_block_scale(*operands(n=256), accumulate=True, first=4),
            "given sfa_id=4 with kind::mxf8f6f4; expected 0 to 3",
        ),
        (
            lambda: tcgen05.mma_block_scale(*operands(n=256, rows_b=128), accumulate=True),
            "given scale_b of ue8m0 for 128 rows; expected tmem.scales(ue8m0, 256)",
        ),
        (
            lambda: tmem.scales(e4m3, 128),
            "given tmem.scales of e4m3; expected ue8m0 or ue4m3",
        ),
        (
            lambda: tcgen05.cp_scales(tmem.scales(ue8m0, 256), smem.tile(u8, (32, 16))),
            "given a source of u8 (32, 16) with swizzle 0 to cp_scales; expected smem.tile(ue8m0, (64, 16))",
        ),
    ],
)
def test_misuse_is_named(call, sentence: str) -> None:
    with pytest.raises(KernelError) as raised:
        emit(lambda a, x, n: call())
    assert str(raised.value).split(": ", 1)[1] == sentence


def test_two_4_bit_elements_are_a_byte() -> None:
    values = np.array([[0.5, -6.0, 1.0, 0.0]]).astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(layout.pack_e2m1(values), [[0xF1, 0x02]])
    with pytest.raises(UsageError) as raised:
        layout.pack_e2m1(np.zeros((2, 4), np.float32))
    assert str(raised.value) == (
        "given an array of float32 and shape (2, 4); expected ml_dtypes.float4_e2m1fn with an even last dimension"
    )
