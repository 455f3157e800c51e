"""The kernel language: a Python function that runs once and emits PTX (``kernel.ptx()``)."""

from __future__ import annotations

from warpwright.lang import smem
from warpwright.lang.arithmetic import (
    brev,
    clz,
    cos,
    div,
    ex2,
    fma,
    lg2,
    max,
    min,
    mul_hi,
    mul_wide,
    popc,
    prmt,
    rcp,
    rem,
    rsqrt,
    sin,
    sqrt,
    tanh,
)
from warpwright.lang.control import Break, Elif, Else, If, Var, loop, select, var
from warpwright.lang.convert import bitcast, cvt, pack, pack_narrow, unpack
from warpwright.lang.expr import Expr, Value
from warpwright.lang.fragment import Fragment
from warpwright.lang.kernel import Kernel, kernel
from warpwright.lang.ops import (
    bar,
    clusterlaunchcontrol,
    cp_async,
    fence,
    griddepcontrol,
    mma,
    setmaxnreg,
    tcgen05,
    tensormap,
    tma,
    tmem,
    wgmma,
)
from warpwright.lang.ops.atomics import atom, red
from warpwright.lang.ops.cluster import cluster
from warpwright.lang.ops.debug import assert_, printf, trap
from warpwright.lang.ops.matrix import ldmatrix, movmatrix, stmatrix
from warpwright.lang.ops.mbarrier import mbarrier
from warpwright.lang.ops.special import (
    clock64,
    cluster_ctaid,
    cluster_nctaid,
    clusterid,
    ctaid,
    globaltimer,
    lanemask_lt,
    nclusterid,
    nctaid,
    ntid,
    smid,
    tid,
)
from warpwright.lang.ops.warp import activemask, elect_one, match, redux, shfl, vote, warp
from warpwright.lang.peers import Peers
from warpwright.lang.pointer import Global, Pointer, Shared, ld, st
from warpwright.lang.ring import Ring
from warpwright.lang.role import role
from warpwright.lang.scalars import (
    b8,
    b16,
    b32,
    b64,
    b128,
    bf16,
    bf16x2,
    e2m1x2,
    e4m3,
    e5m2,
    f16,
    f16x2,
    f32,
    f32x2,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    tf32,
    u8,
    u16,
    u32,
    u64,
    ue4m3,
    ue8m0,
)
from warpwright.lang.trace import Traced

__all__ = [
    "Break", "Elif", "Else", "Expr", "Fragment", "Global", "If", "Kernel", "Peers", "Pointer", "Ring", "Shared",
    "Traced", "Value", "Var", "activemask", "assert_", "atom", "b8", "b16", "b32", "b64", "b128", "bar", "bf16",
    "bf16x2", "bitcast", "brev", "clock64", "cluster", "cluster_ctaid", "cluster_nctaid", "clusterid",
    "clusterlaunchcontrol", "clz", "cos", "cp_async", "ctaid", "cvt", "div", "e2m1x2", "e4m3", "e5m2", "elect_one",
    "ex2", "f16", "f16x2", "f32", "f32x2", "f64", "fence", "fma", "globaltimer", "griddepcontrol", "kernel",
    "lanemask_lt", "ld", "ldmatrix", "lg2", "loop", "match", "max", "mbarrier", "min", "mma", "movmatrix", "mul_hi",
    "mul_wide", "nclusterid", "nctaid", "ntid", "pack", "pack_narrow", "popc", "pred", "printf", "prmt", "rcp", "red",
    "redux", "rem", "role", "rsqrt", "s8", "s16", "s32", "s64", "select", "setmaxnreg", "shfl", "sin", "smem", "smid",
    "sqrt", "st", "stmatrix", "tanh", "tcgen05", "tensormap", "tf32", "tid", "tma", "tmem", "trap", "u8", "u16", "u32",
    "u64", "ue4m3", "ue8m0", "unpack", "var", "vote", "warp", "wgmma",
]  # fmt: skip
