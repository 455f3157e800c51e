"""The PTX text of whole kernels, for each target."""

from __future__ import annotations

import pytest

from warpwright import ptx
from warpwright.lang import Global, If, ctaid, f32, kernel, ntid, smem, tid, u32
from warpwright.ptx.ptxas import assemble

ARCHS = {"sm_90a": "8.6", "sm_100a": "8.6", "sm_103a": "8.8", "sm_120a": "8.7"}


@kernel(threads=128)
def saxpy(n: u32, a: f32, x: Global[f32], y: Global[f32]):
    i = ctaid.x * ntid.x + tid.x
    with If(i < n):
        y[i] = a * x[i] + y[i]


@kernel("sm_100a", threads=(32, 4), cluster=2)
def fill(x: Global[f32], unused: u32):
    cell = smem.array(f32, 128)
    cell[tid.x] = 1.5
    x[tid.x] = cell[tid.x]


SAXPY = """\
.version 8.6
.target sm_100a
.address_size 64

.file 1 "FILE"

.visible .entry saxpy(
    .param .u32 n,
    .param .f32 a,
    .param .u64 .ptr .global .align 16 x,
    .param .u64 .ptr .global .align 16 y
)
.reqntid 128, 1, 1
{
    .reg .pred %p<1>;
    .reg .b32 %r<4>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<4>;
    ld.param.u32 %r0, [n];
    ld.param.f32 %f0, [a];
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    .loc 1 16 0
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r1, 128, %r2;
    .loc 1 17 0
    setp.lt.u32 %p0, %r3, %r0;
    @!%p0 bra if_0_end;
    .loc 1 18 0
    mad.wide.u32 %rd2, %r3, 4, %rd0;
    ld.global.f32 %f1, [%rd2];
    mul.rn.f32 %f2, %f0, %f1;
    mad.wide.u32 %rd3, %r3, 4, %rd1;
    ld.global.f32 %f3, [%rd3];
    add.rn.f32 %f4, %f2, %f3;
    st.global.f32 [%rd3], %f4;
if_0_end:
    ret;
}
"""


def test_saxpy_reads_like_the_source():
    assert saxpy.ptx("sm_100a").replace(__file__, "FILE") == SAXPY


@pytest.mark.parametrize(("arch", "version"), ARCHS.items())
def test_every_target_assembles_with_its_lowest_version(arch, version):
    text = saxpy.ptx(arch)
    assert text.startswith(f".version {version}\n.target {arch}\n")
    assert assemble(text, arch).ok


def test_shape_cluster_and_shared_memory_are_declared():
    traced = fill.trace()
    text = traced.ptx
    assert ".reqntid 32, 4, 1\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n" in text
    assert ".extern .shared .align 1024 .b8 __smem[];" in text
    assert "ld.param.u32" not in text, "an unused parameter is not loaded"
    assert (traced.entry, traced.arch, traced.threads, traced.cluster) == ("fill", "sm_100a", (32, 4, 1), (2, 1, 1))
    assert traced.smem_bytes == 512
    assert [name for name, _ in traced.params] == ["x", "unused"]
    assert assemble(text, "sm_100a").ok


def test_two_traces_print_the_same_text():
    again = saxpy.configure()
    assert again is not saxpy
    assert again.ptx("sm_90a") == saxpy.ptx("sm_90a")


def test_a_trace_is_cached_for_each_target_and_configuration():
    assert saxpy.trace("sm_90a") is saxpy.trace("sm_90a")
    assert saxpy.trace("sm_90a") is not saxpy.trace("sm_100a")


def test_the_text_survives_the_parser():
    for text in (saxpy.ptx("sm_90a"), fill.ptx()):
        assert ptx.to_text(ptx.parse(text)) == text
