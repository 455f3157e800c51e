"""Opcodes read through the public functions."""

from __future__ import annotations

import time

import pytest

from warpwright import isa
from warpwright.errors import UsageError


@pytest.mark.parametrize(
    ("opcode", "name", "slots"),
    [
        ("ld.global.v4.f32", "ld", {"space": "global", "vec": "v4", "type": "f32", "sem": "", "nc": ""}),
        ("ld.global.nc.L1::no_allocate.L2::256B.v4.u32", "ld", {"nc": "nc", "evict": "L1::no_allocate"}),
        ("ld.acquire.gpu.global.u32", "ld", {"sem": "acquire", "scope": "gpu"}),
        ("cvt.rn.bf16x2.f32", "cvt", {"rnd": "rn", "dtype": "bf16x2", "atype": "f32"}),
        ("setp.lt.and.u32", "setp", {"cmp": "lt", "bool": "and", "type": "u32"}),
        ("mul.wide.u32", "mul", {"mode": "wide", "type": "u32"}),
        ("atom.add.release.gpu.global.u32", "atom", {"op": "add", "sem": "release"}),
        ("mbarrier.arrive.expect_tx.shared::cta.b64", "mbarrier.arrive.expect_tx", {"space": "shared::cta"}),
        ("mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.try_wait.parity", {"sem": ""}),
        (
            "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes",
            "cp.async.bulk.tensor",
            {"dim": "2d", "group": "cta_group::2", "dst": "shared::cluster", "src": "global", "multicast": ""},
        ),
        ("tcgen05.mma.cta_group::2.kind::f16", "tcgen05.mma", {"group": "cta_group::2", "kind": "kind::f16"}),
        ("tcgen05.ld.sync.aligned.32x32b.x32.b32", "tcgen05.ld", {"shape": "32x32b", "num": "x32", "pack": ""}),
        ("bar.sync", "bar.sync", {}),
        ("bar.warp.sync", "bar.warp.sync", {}),
        ("fence.proxy.async.shared::cta", "fence.proxy.async", {"space": "shared::cta"}),
        ("ret", "ret", {"uni": ""}),
    ],
)
def test_match(opcode: str, name: str, slots: dict[str, str]) -> None:
    match = isa.match(opcode)
    assert match is not None and match.form.name == name
    assert {slot: match[slot] for slot in slots} == slots


@pytest.mark.parametrize(
    "opcode",
    [
        "ldx.u32",
        "ld",
        "ld.global.v3.f32",
        "add.f16x3",
        "add.sat.u32",
        "cvt.f16.f32",
        "mul.u32",
        "fence",
        "tcgen05.ld",
        "",
    ],
)
def test_what_is_no_instruction(opcode: str) -> None:
    assert isa.match(opcode) is None


def test_the_number_of_operands_tells_spellings_apart() -> None:
    two, three = isa.match("max.f32", 3), isa.match("max.f32", 4)
    assert two is not None and isa.supports(two, "sm_90a")
    assert three is not None and not isa.supports(three, "sm_90a") and isa.supports(three, "sm_120a")


def test_supports_a_form() -> None:
    assert isa.supports(isa.lookup("tcgen05.mma"), "sm_100a")
    assert not isa.supports(isa.lookup("tcgen05.mma"), "sm_120a")


def test_describe() -> None:
    assert isa.describe("tcgen05.commit") == (
        "Arrive at an mbarrier when this thread's mma, cp and shift are complete.\n"
        "Issued by one thread.\n"
        "Completes by mbarrier arrive.\n"
        "Targets: sm_100f.\n"
        "PTX ISA 9.1 section 9.7.16.12.1."
    )


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        isa.lookup("warp.speed")
    assert str(caught.value) == "given instruction 'warp.speed'; expected the name of a form in warpwright.isa"


def test_every_form_is_complete() -> None:
    for name, form in isa.FORMS.items():
        assert form.name == name
        assert form.doc.endswith("."), name
        assert form.section.startswith("9.7."), name
        assert form.spellings, name


def test_a_new_opcode_is_read_quickly() -> None:
    """The best of several rounds over distinct opcodes, so that the result does not depend on a busy machine."""
    opcodes = [f"ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v{n}.b{b}" for n in (2, 4) for b in (8, 16, 32)]
    best = []
    for opcode in opcodes:
        rounds = []
        for _ in range(5):
            isa.match.cache_clear()
            start = time.perf_counter()
            assert isa.match(opcode) is not None
            rounds.append(time.perf_counter() - start)
        best.append(min(rounds))
    assert min(best) < 100e-6
