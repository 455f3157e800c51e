"""The docstring of each operation states its issuer, completion, targets and PTX instruction."""

from __future__ import annotations

import inspect
import re

import pytest

from warpwright import lang
from warpwright.lang import arithmetic, convert, pointer, smem
from warpwright.lang.ops import (
    atomics,
    bar,
    clusterlaunchcontrol,
    cp_async,
    debug,
    fence,
    griddepcontrol,
    matrix,
    mma,
    setmaxnreg,
    special,
    tcgen05,
    tensormap,
    tma,
    tmem,
    warp,
    wgmma,
)
from warpwright.lang.ops.cluster import cluster
from warpwright.lang.ops.mbarrier import mbarrier

TAIL = re.compile(r"Issued by .+\.\nCompletes by .+\.\nTargets: .+\.\nPTX ISA 9\.1 sections? \d.* \(.+\)\.$", re.DOTALL)
FAMILIES = {"atom": atomics.atom, "red": atomics.red, "shfl": warp.shfl, "vote": warp.vote, "match": warp.match}
FAMILIES |= {"redux": warp.redux, "cluster": cluster, "mbarrier": mbarrier}
SILENT = {"mbarrier.array", "mbarrier.at_address", "tmem.scales", "tmem.tile", "special.read", "pointer.check_pointer"}
SILENT |= {"wgmma.accumulator", "wgmma.left"}
SILENT |= {"mma.accumulator", "mma.left", "mma.right"}
HOPPER = (wgmma, debug, mma, matrix, setmaxnreg, griddepcontrol, clusterlaunchcontrol, tensormap, cp_async)


def operations():
    """Yields every public function of the operation modules and every public method of their families, by name."""
    for module in (arithmetic, convert, pointer, special, warp, bar, fence, tcgen05, tma, tmem, *HOPPER):
        stem = module.__name__.rpartition(".")[2]
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield f"{stem}.{name}", getattr(module, name)
    for family, owner in FAMILIES.items():
        for name, member in inspect.getmembers(owner if inspect.isclass(owner) else type(owner), callable):
            if not name.startswith("_"):
                yield f"{family}.{name}", member


OPERATIONS = {name: function for name, function in operations() if name not in SILENT}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_docstring_of_an_operation_is_complete(name):
    assert TAIL.search(inspect.getdoc(OPERATIONS[name]) or ""), f"{name} lacks its closing lines"


def test_there_are_many_operations():
    assert len(OPERATIONS) > 80


def test_every_public_name_has_a_docstring():
    undescribed = [name for name in lang.__all__ if not (inspect.getdoc(getattr(lang, name)) or "").strip()]
    types = {"b8", "b16", "b32", "b64", "b128", "bf16", "bf16x2", "e4m3", "e5m2", "f16", "f16x2", "f32", "f64"}
    types |= {"pred", "s8", "s16", "s32", "s64", "tf32", "u8", "u16", "u32", "u64"}
    assert set(undescribed) - types - {"Value"} == set()
    assert smem.tile.__doc__
