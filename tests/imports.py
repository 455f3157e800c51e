"""The imports of a package, read from its text, type-checking imports included."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SOURCE", "circles", "imported_names", "imports", "modules"]

SOURCE = Path(__file__).parents[1] / "src" / "warpwright"


@functools.lru_cache
def modules(package: Path) -> dict[str, Path]:
    """Returns the file of each module by its dotted name below the package; a package's file is ``folder.__init__``."""
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}


@functools.cache
def imported_names(package: Path, module: str) -> tuple[tuple[str, ...], ...]:
    """Returns every name of the package that ``module`` imports, as its components below the package."""
    return tuple(_imported_names(package, module))


def _imported_names(package: Path, module: str) -> Iterator[tuple[str, ...]]:
    here = (package.name, *module.split(".")[:-1])
    for node in ast.walk(ast.parse(modules(package)[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            names = [(*base, *(node.module or "").split("."), alias.name) for alias in node.names]
            names = [tuple(filter(None, name)) for name in names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == package.name)


def imports(package: Path, module: str) -> set[str]:
    """Returns the modules of the package that ``module`` imports."""
    return {_module_of(package, name) for name in imported_names(package, module)} - {module}


def _module_of(package: Path, name: tuple[str, ...]) -> str:
    for length in range(len(name), -1, -1):
        dotted = ".".join(name[:length])
        for found in (dotted, f"{dotted}.__init__".removeprefix(".")):
            if found in modules(package):
                return found
    raise AssertionError(f"{package.name} has no module of {'.'.join(name)}")


def circles(package: Path) -> list[set[str]]:
    """Returns the sets of modules that import one another, directly or through others."""
    edges = {module: imports(package, module) for module in modules(package)}
    reached = {module: _reachable(edges, module) for module in edges}
    knots = {frozenset(m for m in reached[module] if module in reached[m]) for module in edges}
    return [set(knot) for knot in knots if knot]


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += edges[module]
    return found
