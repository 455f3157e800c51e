"""Operands by name: the place of each one in an instruction, and the results."""

from __future__ import annotations

import pytest

from warpwright import isa

LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
MMA = "tcgen05.mma.cta_group::1.kind::f16"

PLACES = {
    ("add.u32", "..."): {"d": (0,), "a": (1,), "b": (2,)},
    ("st.shared.v2.f32", ".v"): {"a": (0,), "b": (1,)},
    (LOAD, "..."): {"dst_mem": (0,), "map": (1,), "coords": (1, 1), "mbar": (2,)},
    (LOAD + ".multicast::cluster", "...."): {
        "dst_mem": (0,), "map": (1,), "coords": (1, 1), "mbar": (2,), "mask": (3,),
    },
    (LOAD + ".multicast::cluster.L2::cache_hint", "....."): {
        "dst_mem": (0,), "map": (1,), "coords": (1, 1), "mbar": (2,), "mask": (3,), "policy": (4,),
    },
    ("cp.async.ca.shared.global", "..."): {"dst_mem": (0,), "src_mem": (1,), "size": (2,)},
    ("cp.async.ca.shared.global", "...."): {"dst_mem": (0,), "src_mem": (1,), "size": (2,), "src_size": (3,)},
    ("cp.async.ca.shared.global.L2::cache_hint", "...."): {
        "dst_mem": (0,), "src_mem": (1,), "size": (2,), "policy": (3,),
    },
    ("setp.eq.s32", "..."): {"p": (0,), "a": (1,), "b": (2,)},
    ("setp.eq.s32", "p.."): {"p": (0, 0), "q": (0, 1), "a": (1,), "b": (2,)},
    ("setp.eq.and.s32", "...."): {"p": (0,), "a": (1,), "b": (2,), "c": (3,)},
    ("elect.sync", "p."): {"d": (0, 0), "p": (0, 1), "mask": (1,)},
    ("bar.red.popc.u32", "..."): {"d": (0,), "a": (1,), "c": (2,)},
    ("bar.red.popc.u32", "...."): {"d": (0,), "a": (1,), "b": (2,), "c": (3,)},
    ("mbarrier.arrive.shared::cluster.b64", ".."): {"d": (0,), "mbar": (1,)},
    (MMA, "....."): {"d": (0,), "a": (1,), "b": (2,), "idesc": (3,), "enable_input_d": (4,)},
    (MMA, "......"): {"d": (0,), "a": (1,), "b": (2,), "idesc": (3,), "enable_input_d": (4,), "scale_input_d": (5,)},
    (MMA, "....v."): {
        "d": (0,), "a": (1,), "b": (2,), "idesc": (3,), "disable_output_lane": (4,), "enable_input_d": (5,),
    },
}  # fmt: skip


@pytest.mark.parametrize(("opcode", "shape"), PLACES, ids=str)
def test_places(opcode: str, shape: str) -> None:
    match = isa.match(opcode, len(shape))
    assert match is not None
    assert match.places(shape) == PLACES[opcode, shape]


@pytest.mark.parametrize("name", isa.FORMS)
def test_every_operand_of_every_spelling_has_a_place(name: str) -> None:
    """With any number of operands that a spelling accepts, each operand has one name and its own place."""
    for spelling in isa.FORMS[name].spellings:
        slots = {operand.slot: "x" for operand in spelling.named if operand.slot}
        found = isa.Match(isa.FORMS[name], spelling, slots).places(
            "".join(o.kind.replace("a", ".") for o in spelling.named)
        )
        assert sorted({place[0] for place in found.values()}) == list(range(spelling.arity[1])), spelling.text
        assert len(set(found.values())) == len(found), spelling.text


@pytest.mark.parametrize(
    ("opcode", "arity", "writes"),
    [
        ("add.u32", 3, {"d"}),
        ("st.shared.u32", 2, set()),
        ("lop3.or.b32", 6, {"d", "p"}),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32", 3, {"d", "redval"}),
        (MMA, 5, set()),
        ("mbarrier.try_wait.b64", 3, {"p"}),
    ],
)
def test_results(opcode: str, arity: int, writes: set[str]) -> None:
    match = isa.match(opcode, arity)
    assert match is not None
    assert match.spelling.writes == writes


def test_traits() -> None:
    assert isa.lookup("cp.async.bulk").traits == isa.Traits("copy", proxy="async")
    assert isa.lookup("mbarrier.try_wait").traits == isa.Traits("mbarrier", blocks=True)
    assert isa.lookup("atom").traits == isa.Traits(access="update")
    assert isa.lookup("add").traits == isa.Traits()
    assert isa.lookup("bra").traits.jumps
    assert {name for name, form in isa.FORMS.items() if form.traits.effect} == {
        "tensormap.replace", "tensormap.cp_fenceproxy", "clusterlaunchcontrol.try_cancel.async", "tcgen05.alloc",
        "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit",
    }  # fmt: skip


def test_what_leaves_a_record_in_a_queue() -> None:
    queued = {name for name, form in isa.FORMS.items() if form.queued}
    assert {"tcgen05.mma", "tcgen05.commit", "cp.async", "cp.async.bulk.tensor", "st.async", "setmaxnreg"} <= queued
    assert queued.isdisjoint(["cp.async.commit_group", "cp.async.bulk.prefetch", "tcgen05.ld", "mbarrier.arrive", "ld"])
