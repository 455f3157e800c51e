"""The reference of the public names, from their docstrings: the text of docs/reference.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import warpwright as ww
from warpwright import lang

HEAD = """\
# Reference

The public names with their docstrings: those of `import warpwright as ww`, then those of the kernel language,
`from warpwright.lang import …`. [guide.md](guide.md) introduces the language. This page is generated; after a change of
a docstring run `pytest --update-golden tests/test_reference.py`.
"""


def text() -> str:
    """The whole page. Scalar types and other names without a docstring of their own are left out."""
    sections = [HEAD]
    for title, prefix, module in (("The package", "ww.", ww), ("The kernel language", "", lang)):
        found = [entry for name in sorted(module.__all__) for entry in entries(prefix + name, getattr(module, name))]
        sections += [f"## {title}\n", *(f"### `{name}`\n\n{doc}\n" for name, doc in found)]
    return "\n".join(sections)


def entries(name: str, item: Any) -> Iterator[tuple[str, str]]:
    """The call or name of ``item`` with its docstring, then those of its public members."""
    if isinstance(item, ModuleType):
        for member in item.__all__:
            yield from entries(f"{name}.{member}", getattr(item, member))
        return
    if inspect.isfunction(item):
        yield name + signature(item), inspect.getdoc(item) or ""
        return
    owner = item if inspect.isclass(item) else type(item)
    if owner.__module__.startswith("warpwright") and "__doc__" in vars(owner) and owner.__doc__:
        yield (
            name + (signature(item) if item is owner and "__init__" in vars(owner) else ""),
            inspect.cleandoc(owner.__doc__),
        )
        for member, value in vars(owner).items():
            if inspect.isfunction(value) and value.__doc__ and not member.startswith("_"):
                yield f"{name}.{member}{signature(value)}", inspect.cleandoc(value.__doc__)


def signature(function: Any) -> str:
    """The parameters with their defaults, without types."""
    found = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))
