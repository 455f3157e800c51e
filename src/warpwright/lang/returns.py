"""The check that a kernel returns nothing, and that no ``return`` inside a run-time branch ends the trace early."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from warpwright.lang.context import misuse

__all__ = ["check_returns"]

_BRANCHES = ("If", "Elif", "Else")
_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


def check_returns(function: Callable[..., Any], result: Any) -> None:
    """Raise KernelError if ``function``, a kernel or a role that was traced, has returned a value, or has a ``return``
    inside an If: it ends the trace, so that the rest of the function would be missing in every thread."""
    name, code = function.__name__, function.__code__
    if result is not None:
        raise misuse(
            f"given the return value {result!r} of {name}, and a kernel returns nothing; store it: out[i] = value",
            _place(code, *(node for node in _returns(code) if node.value)),
        )
    if not _has_early_return(code):
        return
    for branch in ast.walk(_tree(code)):
        if isinstance(branch, ast.With) and any(map(_is_branch, branch.items)):
            for node in _statements(branch):
                raise misuse(
                    "given a return inside `with If(…)`, which ends the trace and not the thread; write the rest of "
                    f"{name} in `with If(…)` of the opposite condition",
                    _place(code, node),
                )


def _has_early_return(code: CodeType) -> bool:
    """Whether a function, or one inside it, has several returns: its end is one. Spares most kernels the parser."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return sum(op in _RETURNS for op in code.co_code[::2]) > 1 or any(map(_has_early_return, inner))


def _returns(code: CodeType) -> Iterator[ast.Return]:
    """Yields the return statements of a function, the last first."""
    for definition in _tree(code).body:
        yield from reversed(list(_statements(definition)))


def _tree(code: CodeType) -> ast.Module:
    """Returns the source of ``code`` as a tree; empty if there is none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _is_branch(item: ast.withitem) -> bool:
    call = item.context_expr
    name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
    return name in _BRANCHES


def _statements(node: ast.AST) -> Iterator[ast.Return]:
    """Yields the return statements in ``node``, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from _statements(child)


def _place(code: CodeType, *nodes: ast.Return) -> str:
    line = code.co_firstlineno + nodes[0].lineno - 1 if nodes else code.co_firstlineno
    return f"{code.co_filename}:{line}"
