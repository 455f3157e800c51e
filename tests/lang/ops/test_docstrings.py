"""The docstring of each operation ends with its issuer, completion, targets and section of the PTX ISA."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from warpwright import isa
from warpwright.lang import (
    Ring,
    bar,
    cluster,
    clusterlaunchcontrol,
    cp_async,
    fence,
    griddepcontrol,
    mbarrier,
    mma,
    setmaxnreg,
    tcgen05,
    tensormap,
    tma,
    tmem,
    wgmma,
)
from warpwright.lang.ops import matrix
from warpwright.lang.ops.mbarrier import RemoteBarrier

ENDING = re.compile(
    r"Issued by (?P<who>[^.]+)\.\nCompletes by (?P<how>[^.]+)\.\nTargets: (?P<where>.+)\.\n"
    r"PTX ISA 9\.1 section (?P<section>[\d.]+) \((?P<name>[\w.:]+)( and [\w.:]+)?\)\.$"
)
PLAIN = {"array", "at_address", "producer", "consumer", "tile", "scales", "mask", "accumulator", "left", "right"}


def operations() -> Iterator[tuple[str, Any]]:
    for module in (
        tma,
        tcgen05,
        fence,
        bar,
        tmem,
        wgmma,
        mma,
        matrix,
        setmaxnreg,
        griddepcontrol,
        clusterlaunchcontrol,
        cp_async,
        tensormap,
    ):
        functions = inspect.getmembers(module, inspect.isfunction)
        yield from ((f"{module.__name__}.{name}", f) for name, f in functions if f.__module__ == module.__name__)
    for owner in (mbarrier, RemoteBarrier, type(cluster), Ring):
        yield from ((f"{owner.__name__}.{name}", f) for name, f in inspect.getmembers(owner, inspect.isroutine))


PUBLIC = {
    name: function
    for name, function in operations()
    if not name.rsplit(".", 1)[1].startswith("_") and name.rsplit(".", 1)[1] not in PLAIN
}


def form_of(name: str) -> isa.Form:
    words = name.split(".")
    prefixes = (".".join(words[:length]) for length in range(len(words), 0, -1))
    return next(isa.FORMS[prefix] for prefix in prefixes if prefix in isa.FORMS)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_docstring_ends_with_the_facts_of_its_form(name) -> None:
    text = inspect.getdoc(PUBLIC[name])
    found = ENDING.search(text)
    assert found, f"{name} ends with: {text[-200:]!r}"
    assert found["section"] in form_of(found["name"]).section.split(",")


def test_the_modules_have_operations() -> None:
    assert len(PUBLIC) > 40
