"""The notation of the table and the match against it."""

# ruff: noqa: E501 - the table under test

from __future__ import annotations

import pytest

from warpwright.isa.notation import forms, supports

TABLE = """
walk  1.2.3,4.5  Go somewhere.
    walk{.fast}.pace=slow|BOOL{.sem=relaxed.scope=cta|gpu}.type=u32|s32   d, [a]{, b:u32}{if fast, c:pred}  @ sm_90a sm_100f 8.6
    walk.back.type=f32
    ...    d
walk.away  1.2.4  Leave.
    walk.away<CLAMP>
"""
WALK, AWAY = forms("one thread", "return", TABLE)  # fmt: skip


def _slots(opcode: str) -> dict[str, str] | None:
    match = WALK.match(tuple(opcode.split(".")))
    return dict(match.chosen) if match else None


def test_headers() -> None:
    assert (WALK.name, WALK.section, WALK.doc) == ("walk", "1.2.3,4.5", "Go somewhere.")
    assert (AWAY.issued_by, AWAY.completes_by) == ("one thread", "return")
    assert WALK.spellings[0].since == "8.6"
    assert WALK.targets == ("sm_90a", "sm_100f", "all")


@pytest.mark.parametrize(
    ("opcode", "slots"),
    [
        ("slow.u32", {"pace": "slow", "type": "u32"}),
        ("fast.and.s32", {"fast": "fast", "pace": "and", "type": "s32"}),
        ("slow.relaxed.gpu.u32", {"pace": "slow", "sem": "relaxed", "scope": "gpu", "type": "u32"}),
        ("back.f32", {"back": "back", "type": "f32"}),
        ("u32.slow", {"type": "u32", "pace": "slow"}),
        ("slow.relaxed.u32", None),
        ("slow.slow.u32", None),
        ("fast.u32", None),
        ("", None),
    ],
)
def test_modifiers(opcode: str, slots: dict[str, str] | None) -> None:
    assert _slots(opcode) == slots


def test_arity_counts_what_may_be_left_out() -> None:
    assert [spelling.arity for spelling in WALK.spellings] == [(2, 4), (1, 1)]


def test_a_tail_makes_one_spelling_each() -> None:
    assert AWAY.syntax == ("walk.away{.relu}{.satfinite}", "walk.away.satfinite.relu")


def test_an_absent_slot_is_empty_and_an_unknown_one_an_error() -> None:
    match = WALK.match(("slow", "u32"))
    assert match is not None and match["fast"] == ""
    with pytest.raises(KeyError, match="walk has no slot 'speed'; it has back, fast, pace, scope, sem, type"):
        match["speed"]


@pytest.mark.parametrize(
    ("target", "admitted"),
    [
        ("all", {"sm_90", "sm_90a", "sm_100a", "sm_120a"}),
        ("sm_100+", {"sm_100a", "sm_120a"}),
        ("sm_90a", {"sm_90a"}),
        ("sm_100f", {"sm_100a"}),
    ],
)
def test_targets(target: str, admitted: set[str]) -> None:
    archs = ("sm_90", "sm_90a", "sm_100a", "sm_120a")
    assert {arch for arch in archs if supports((target,), arch)} == admitted
