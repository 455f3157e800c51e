"""The kernel language: ordinary Python, run once, emits PTX (``kernel.ptx()``)."""

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
from warpwright.lang.convert import bitcast, cvt, pack, unpack
from warpwright.lang.expr import Expr, Value
from warpwright.lang.kernel import Kernel, kernel
from warpwright.lang.ops.memory import Global, Pointer, Shared, atom, ld, red, st
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
from warpwright.lang.role import Role, role
from warpwright.lang.scalars import (
    b8,
    b16,
    b32,
    b64,
    b128,
    bf16,
    bf16x2,
    e4m3,
    e5m2,
    f16,
    f16x2,
    f32,
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
)
from warpwright.lang.trace import Traced

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
