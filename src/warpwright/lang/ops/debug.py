"""`printf`, `assert_` and `trap`: what a kernel tells the host, and how it ends with an error.

The first two are calls of functions that the CUDA driver provides, ``vprintf`` and ``__assertfail``. Their PTX is that
of nvcc: text in global variables, arguments packed in local memory, a call with ``.param`` variables.
"""

from __future__ import annotations

import re
from typing import Any

from warpwright.lang.context import misuse, source_line, user_frame
from warpwright.lang.control import check_condition
from warpwright.lang.convert import cvt
from warpwright.lang.expr import Expr, Value, as_expr, is_number
from warpwright.lang.pointer import Pointer
from warpwright.lang.trace import STACK, Trace, current
from warpwright.ptx import nodes
from warpwright.types import Scalar, f32, f64, pred, s32, s64, u32, u64

__all__ = ["assert_", "printf", "trap"]

_CONVERSION = re.compile(r"%[-+ #0]*(\*|\d+)?(?:\.(\d*))?(ll|l|)([diouxXcsfFeEgGaAp%])|%")


def printf(format: str, *values: Value | Pointer[Any] | str) -> None:
    """Print ``values`` as C does, once for each active thread: ``printf("%d: %f\\n", tid.x, x)``.

    Conversions: ``%d %i %u %o %x %X %c`` of integers and predicates up to 32 bits, ``%lld %llu %llx`` of 64 bits, ``%f
    %e %g %a`` of floats, ``%p`` of pointers and u64, ``%s`` of Python strings; with flags, a width, which may be ``*``,
    and a precision in digits: CUDA's printf reads no ``*`` there. A virtual GPU returns the text as ``printed`` of the
    launch's result, in order of clusters, at most 1 MiB of a launch; a real GPU keeps the last MiB. ``ww.launch``
    prints to standard output; ``ww.check`` prints nothing.

    Raises KernelError for values that the format does not convert.
    Issued by each thread for itself.
    Completes by itself; a real GPU prints when the host synchronises.
    Targets: all.
    PTX ISA 9.1 section 9.7.12.5 (call).
    """
    trace = current()
    if not isinstance(format, str):
        raise misuse(f"given {format!r} to printf; expected a Python string: printf('%d\\n', x)")
    kinds = _conversions(format)
    if len(kinds) != len(values):
        raise misuse(f"given printf({format!r}) with {len(values)} values; expected {len(kinds)}, one a conversion")
    with trace.inside("printf"):
        offset = 0
        for kind, value in zip(kinds, values, strict=True):
            word = _converted(trace, kind, value)
            offset = -(-offset // word.type.nbytes) * word.type.nbytes
            trace.emit(f"st.local.b{word.type.bits}", nodes.Address(nodes.Reg(STACK), offset), word)
            offset += word.type.nbytes
        trace.stack_bytes = max(trace.stack_bytes, offset, 8)
        packed = trace.pure("cvta.local.u64", u64, trace.pure("mov.u64", u64, STACK))
        _call(trace, "vprintf", (_text(trace, format), packed), result="b32")


def assert_(condition: Any, message: str = "") -> None:
    """Stop the launch with an error if ``condition``, a pred, does not hold in an active thread.

    The error has ``message``, by default the line of the kernel. On a virtual GPU it is a DeviceError of the launch; a
    real GPU prints it, and ends all CUDA work of the process (CUDA_ERROR_ASSERT).

    Raises KernelError for a Python bool that is False.
    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.12.5 (call).
    """
    trace, frame = current(), user_frame()
    message = message or source_line()
    if condition is False:
        raise misuse(f"the assertion `{message}` is False while the kernel is traced")
    if condition is True:
        return
    check_condition("assert_", condition)
    holds = trace.label("assert")
    trace.emit("bra", holds, guard=condition)
    with trace.inside("assert_"):
        texts = [_text(trace, text) for text in (message, frame.f_code.co_filename, trace.name)]
        line, one = as_expr(frame.f_lineno, u32), as_expr(1, u64)
        _call(trace, "__assertfail", (texts[0], texts[1], line, texts[2], one))
    trace.place(holds)


def trap() -> None:
    """Stop the launch with an error.

    On a virtual GPU it is a DeviceError of the launch; a real GPU ends all CUDA work of the process
    (CUDA_ERROR_LAUNCH_FAILED). Memory of the host keeps what the kernel has written before.

    Issued by each thread for itself.
    Completes by itself.
    Targets: all.
    PTX ISA 9.1 section 9.7.19.4 (trap).
    """
    current().emit("trap")


def _conversions(format: str) -> list[str]:
    """Returns the conversion of each value: ``d``, ``lld``, ``s``; ``*`` for a width. Raises KernelError for others."""
    kinds: list[str] = []
    for found in _CONVERSION.finditer(format):
        width, _, length, kind = found.groups()
        if kind is None:
            rest = format[found.start() :].split()[0]
            if re.match(r"%[-+ #0*\d]*\.\*", rest):
                raise misuse(
                    "given a precision of * to printf, which CUDA's printf does not read; expected digits: %.2f"
                )
            raise misuse(
                f"given the conversion {rest!r} to printf; expected %d, %u, %x, %lld, %f, %s, %p, …, or %% for %"
            )
        if width == "*":
            kinds.append("*")
        if kind != "%":
            kinds.append(f"{'ll' if length else ''}{kind}")
    return kinds


def _converted(trace: Trace, kind: str, value: Any) -> Expr:
    """Returns a value as C passes it to printf: an integer of 32 or 64 bits, an f64, or an address."""
    if kind == "s":
        if not isinstance(value, str):
            raise misuse(f"given {value!r} for %s; expected a Python string: numbers are %d or %f")
        return _text(trace, value)
    if isinstance(value, Pointer) and kind == "p":
        return cvt(value.address, u64)
    if isinstance(value, Pointer | str) or not (isinstance(value, Expr) or is_number(value)):
        raise misuse(f"given {value!r} for %{kind}; expected a number, or %s for a string and %p for a pointer")
    if kind[-1] in "fFeEgGaA":
        return _float(kind, value)
    return _integer(kind, value)


def _float(kind: str, value: Any) -> Expr:
    if not isinstance(value, Expr):
        return as_expr(float(value), f64)
    if value.type.kind != "float":
        raise misuse(f"given {value} for %{kind}; expected a float: write %{_integer_kind(value.type)}, or x.to(f32)")
    return cvt(value if value.type is f64 else cvt(value, f32), f64)


def _integer(kind: str, value: Any) -> Expr:
    wide = kind.startswith("ll") or kind == "p"
    if not isinstance(value, Expr):
        return as_expr(value, s64 if wide else s32)
    type = value.type
    if type.kind == "float":
        raise misuse(f"given {value} for %{kind}; expected an integer: write %f, or x.to(s32)")
    if (type.bits == 64) != wide:
        raise misuse(f"given {value} for %{kind}; expected {64 if wide else 32} bits: write %{_integer_kind(type)}")
    if type is pred:
        return cvt(value, u32)
    return cvt(value, (s64 if wide else s32) if type.kind == "signed" else (u64 if wide else u32))


def _integer_kind(type: type[Scalar]) -> str:
    return f"{'ll' if type.bits == 64 else ''}{'d' if type.kind == 'signed' else 'u'}"


def _text(trace: Trace, text: str) -> Expr:
    """Returns the generic address of a zero-terminated text in global memory."""
    name = trace.texts.setdefault(text, f"$text_{len(trace.texts)}")
    return trace.pure("cvta.global.u64", u64, trace.pure("mov.u64", u64, name))


def _call(trace: Trace, function: str, values: tuple[Expr, ...], result: str = "") -> None:
    """Emit a call of ``function``; the parameters have names of their own, so that no block is needed."""
    call = trace.label("$call")
    trace.calls[function] = tuple(f"b{value.type.bits}" for value in values), result
    params = [f"{call}_{number}" for number in range(len(values))]
    for name, value in zip(params, values, strict=True):
        trace.items.append(nodes.Variable("param", f"b{value.type.bits}", name))
        trace.emit(f"st.param.b{value.type.bits}", nodes.Address(nodes.Reg(name)), value)
    results = [f"{call}_result"] if result else []
    trace.items += [nodes.Variable("param", result, name) for name in results]
    vectors = [nodes.Vector(tuple(map(nodes.Reg, names))) for names in (results, params)]
    trace.emit("call.uni", vectors[0], nodes.Reg(function), vectors[1])
