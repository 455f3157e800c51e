"""One entry for each instruction: every form has what its queue needs, and no code finds operands by position or
instructions by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.imports import SOURCE
from warpwright import isa
from warpwright.vgpu.checks.watcher import MEANINGS as CHECKS
from warpwright.vgpu.engines import copy, lane_copy, tensor
from warpwright.vgpu.jit.compile import MEANINGS
from warpwright.vgpu.jit.issue import NOT_YET
from warpwright.vgpu.machine.cluster import SERVICES
from warpwright.vgpu.timing.steps import RECORDS, ROWS

ENGINES = {"tensor": tensor.ENGINES, "copy": copy.ENGINES, "lane-copy": lane_copy.ENGINES, "service": SERVICES}
FREE = {  # forms with the cost of any instruction, or checked by way of the instructions around them
    "mbarrier.pending_count": "reads a register only",
    "cp.async.bulk.prefetch": "a hint",
    "cp.async.bulk.prefetch.tensor": "a hint",
    "griddepcontrol.wait": "a launch is alone on the virtual GPU",
    "griddepcontrol.launch_dependents": "a launch is alone on the virtual GPU",
    "wgmma.fence": "orders registers: it takes no time",
    "tcgen05.fence::before_thread_sync": "orders tensor memory: it takes no time",
    "tcgen05.fence::after_thread_sync": "orders tensor memory: it takes no time",
}
QUEUED = [name for name, form in isa.FORMS.items() if form.traits.queue]


@pytest.mark.parametrize("name", [name for name in QUEUED if name not in NOT_YET])
def test_every_form_of_a_queue_is_executed_checked_and_timed(name: str) -> None:
    form = isa.FORMS[name]
    assert name in MEANINGS
    if form.queued:
        assert name in ENGINES[form.traits.queue]
        assert name in RECORDS
    elif form.traits.queue != "warp" and name not in FREE:
        assert name in ROWS
    if form.traits.queue != "warp" and name not in FREE:
        assert name in CHECKS


@pytest.mark.parametrize("name", NOT_YET)
def test_unsupported_forms_are_not_registered(name: str) -> None:
    assert name in isa.FORMS
    assert name not in {**MEANINGS, **tensor.ENGINES, **RECORDS, **ROWS}


PLACES = ("isa/", "ptx/", "lang/", "vgpu/program/")  # folders that find operands by position or write instructions
PRIVATE = {"operands", "_operands", "words", "_words"}


def files() -> Iterator[tuple[str, ast.Module]]:
    """Yields the files of the package outside PLACES."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(PLACES):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def reads_by_position(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Returns every use of the operands or words of an operation, except methods of that name and a class's own
    fields."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and id(node) not in called:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "step")
            if not own:
                yield node


def test_no_file_reads_operands_by_position() -> None:
    programs = {name: tree for name, tree in files() if name.startswith(("vgpu/", "report/", "run/", "cuda/"))}
    assert not {name for name, tree in programs.items() if next(reads_by_position(tree), None)}


NAMED = {
    "vgpu/jit/costs.py": "the table of costs",
    "cli/attention_ladder.py": "counts barriers in printed PTX",
    "report/flow.py": "finds the steps of memory flow in printed PTX",
    "kernels/attention/sm120/plan.py": "a configuration is called cp.async",
}
PROBES = "selftest/probes/"  # their texts are PTX
DOTTED = {name for name in isa.FORMS if "." in name}


def names_registered(tree: ast.Module) -> set[str]:
    """Returns the names that a file registers: arguments of a decorator, keys of a table at its top level."""
    places: list[ast.AST] = [d for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) for d in n.decorator_list]
    tables = [n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and isinstance(n.value, ast.Dict)]
    places += [key for table in tables for key in table.keys if key]
    return {n.value for place in places for n in ast.walk(place) if isinstance(n, ast.Constant)}


def names_used(tree: ast.Module) -> set[str]:
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    prefixes = {each for each in strings if each.endswith(".") and any(name.startswith(each) for name in DOTTED)}
    return strings & DOTTED | prefixes


def test_an_instruction_is_named_only_where_it_is_registered() -> None:
    found = {name: names_used(tree) - names_registered(tree) for name, tree in files()}
    found = {name: names for name, names in found.items() if not name.startswith(PROBES)}
    assert not {name: names for name, names in found.items() if names and name not in NAMED}
