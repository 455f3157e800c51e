"""The scalar types as a kernel sees them: at run time those of `warpwright.types`.

For a type checker a parameter ``n: u32`` is also an `Expr`, so that arithmetic in kernels checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpwright import types
    from warpwright.lang.expr import Expr

    class b8(types.b8, Expr, bits=8, kind="bits"): ...

    class b16(types.b16, Expr, bits=16, kind="bits"): ...

    class b32(types.b32, Expr, bits=32, kind="bits"): ...

    class b64(types.b64, Expr, bits=64, kind="bits"): ...

    class b128(types.b128, Expr, bits=128, kind="bits"): ...

    class bf16(types.bf16, Expr, bits=16, kind="float"): ...

    class bf16x2(types.bf16x2, Expr, bits=32, kind="float"): ...

    class e2m1x2(types.e2m1x2, Expr, bits=8, kind="float"): ...

    class e4m3(types.e4m3, Expr, bits=8, kind="float"): ...

    class e5m2(types.e5m2, Expr, bits=8, kind="float"): ...

    class f16(types.f16, Expr, bits=16, kind="float"): ...

    class f16x2(types.f16x2, Expr, bits=32, kind="float"): ...

    class f32(types.f32, Expr, bits=32, kind="float"): ...

    class f32x2(types.f32x2, Expr, bits=64, kind="float"): ...

    class f64(types.f64, Expr, bits=64, kind="float"): ...

    class pred(types.pred, Expr, bits=1, kind="pred"): ...

    class s8(types.s8, Expr, bits=8, kind="signed"): ...

    class s16(types.s16, Expr, bits=16, kind="signed"): ...

    class s32(types.s32, Expr, bits=32, kind="signed"): ...

    class s64(types.s64, Expr, bits=64, kind="signed"): ...

    class tf32(types.tf32, Expr, bits=32, kind="float"): ...

    class u8(types.u8, Expr, bits=8, kind="unsigned"): ...

    class u16(types.u16, Expr, bits=16, kind="unsigned"): ...

    class u32(types.u32, Expr, bits=32, kind="unsigned"): ...

    class u64(types.u64, Expr, bits=64, kind="unsigned"): ...

    class ue4m3(types.ue4m3, Expr, bits=8, kind="float"): ...

    class ue8m0(types.ue8m0, Expr, bits=8, kind="float"): ...

else:
    from warpwright.types import (
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

__all__ = [
    "b8", "b16", "b32", "b64", "b128", "bf16", "bf16x2", "e2m1x2", "e4m3", "e5m2", "f16", "f16x2", "f32", "f32x2",
    "f64", "pred", "s8", "s16", "s32", "s64", "tf32", "u8", "u16", "u32", "u64", "ue4m3", "ue8m0",
]  # fmt: skip
