"""The kernel language: ordinary Python, run once, emits PTX."""

from __future__ import annotations

from warpwright.lang.control import Break, Elif, Else, If, Var, loop, select, var
from warpwright.lang.convert import bitcast, cvt, pack, unpack
from warpwright.lang.expr import Expr, Value
from warpwright.lang.kernel import Kernel, kernel
from warpwright.lang.ops.memory import Global, Pointer, Shared, atom, ld, red, st
from warpwright.lang.ops.special import ctaid, nctaid, ntid, tid
from warpwright.lang.ops.warp import elect_one, warp
from warpwright.lang.role import role
from warpwright.lang.trace import Traced
