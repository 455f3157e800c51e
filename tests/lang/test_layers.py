"""The imports of the language: no two of its units (files and folders directly under lang) import each other."""

from __future__ import annotations

from graphlib import TopologicalSorter

from tests.imports import SOURCE, circles, imports, modules


def test_no_unit_of_the_language_is_in_a_circle() -> None:
    files = [module for module in modules(SOURCE) if module.startswith("lang.") and module != "lang.__init__"]
    edges: dict[str, set[str]] = {module.split(".")[1]: set() for module in files}
    for module in files:
        unit = module.split(".")[1]
        edges[unit] |= {other.split(".")[1] for other in imports(SOURCE, module) if other.startswith("lang.")} - {unit}
    TopologicalSorter(edges).prepare()  # raises CycleError
    assert not [circle for circle in circles(SOURCE) if any(module.startswith("lang.") for module in circle)]
