"""What becomes of a kernel when one of its synchronising instructions is taken out or changed.

``FORMULA`` says it of an instruction that is taken out, by opcode, ``CHANGED`` of one that is changed; ``REDUNDANT``
lists the exceptions, by kernel, role, opcode and change, with the reason.
"""

from __future__ import annotations

import re

from tests.races.edits import REMOVED, Edit

__all__ = ["CHANGED", "FORMULA", "REDUNDANT", "expected"]

FORMULA = {
    r"mbarrier\.init": "fault",
    r"fence\.mbarrier_init": "mbarrier-init",
    r"mbarrier\.try_wait": "race, exit-early, mbarrier-lapped, fault",
    r"mbarrier\.arrive|tcgen05\.commit": "deadlock",
    r"cp\.async\.bulk\.(commit|wait)": "race, exit-early",
    r"wgmma\.fence": "wgmma-fence",
    r"wgmma\.(commit|wait)": "wgmma-registers, race",
    r"tcgen05\.fence": "tcgen05-fence",
    r"tcgen05\.wait::ld": "tmem-registers",
    r"tcgen05\.(alloc|dealloc)": "fault",
    r"cp\.async\.mbarrier": "deadlock",
    r"fence\.proxy": "proxy-fence",
    r"bar\.warp": "race, proxy-fence",
    r"bar": "race, mbarrier-init, exit-early, fault",
    r"setmaxnreg\.dec": "deadlock",
}

# what is changed: rules of which one finds it
LOST = "deadlock, race, fault, exit-early, mbarrier-lapped, uninitialised, tcgen05-fence"
CHANGED = {
    "one arrival more": "deadlock",
    "one arrival less": "fault, deadlock, race, mbarrier-lapped",
    "twice the bytes": "deadlock, fault",
    "bytes too few": "deadlock, race, fault",
    "the other phase": LOST,
    "the next barrier": LOST,
    "bytes for the next barrier": LOST,
    "no peer": LOST,
    "data at the leader": LOST,
}

ORDERED = "lanes are together behind it anyway: a barrier, a fence and an arrival of each, or nothing"
FREED = "only dealloc follows, behind wait::ld"
FRESH = "nothing was issued to tensor memory before"
BLOCKS = "a warp's first two blocks are free"
EXITS = "cp.async.bulk.wait_group comes before wait_group.read: one is enough for the exit"
TOGETHER = "loads and waits of tensor memory are the whole warp's: the lane that arrives knows of them"
ALONE = "one CTA, and its own threads arrive: they do so before they exit"
SHORT = "a slot that so short a problem does not fill, or not again"
QUERIES = "the arrival for the keys tells of the copies before it too, the queries'"
LATER = "the next slot is free later than this one, and the last slot does not come again"
# kernel, role, opcode, how many of them were before, and the change: reason
REDUNDANT = {
    r".* end bar\.warp": ORDERED,
    r".* tcgen05\.relinquish": "no other CTA on the SM waits to allocate",
    r"(memory_flow|blackwell \d+|example 05) kernel tcgen05\.fence::\w+ #0": FRESH,
    r"(memory_flow|blackwell \d+|example 05) kernel tcgen05\.fence::before\w* #1": FREED,
    r"blackwell 7 epilogue bar\.warp\.sync #4": TOGETHER,
    r"blackwell 10 epilogue bar\.warp\.sync #(7|16)$": TOGETHER,
    r"blackwell 10 mma mbarrier\.try_wait\S* #(3($|: the next barrier)|6$)": "the first wave has waited for the slots",
    r"blackwell 10 mma mbarrier\.try_wait\S* #0: the next barrier": "the other half's sums are free later",
    r"blackwell 9 epilogue bar\.warp\.sync #16": TOGETHER,
    r"blackwell [79] epilogue bar\.warp\.sync #": "bar.sync of all that store follows",
    r"hopper 2 kernel mbarrier\.try_wait\S* #0": "the first turn of a fresh ring",
    r"hopper 1 kernel mbarrier\.try_wait\S* #0": "the thread that loads has itself waited for the products",
    r"hopper 1 kernel mbarrier\.try_wait\S* #2": ALONE,
    r"blackwell [23] kernel bar\.warp\.sync #0": ORDERED,
    r"hopper [12] kernel bar\.warp\.sync #[01]": "lanes meet again at an mbarrier",
    r"hopper [124] \w+ cp\.async\.bulk\.wait_group\.read #[01]": BLOCKS,
    r"hopper [12] kernel bar\.warp\.sync #[24]": BLOCKS,
    r"hopper 4 multiply bar\.warp\.sync #[02]": BLOCKS,
    r"hopper 4 multiply (cp\.async\.bulk\.wait_group #0|bar\.warp\.sync #8)": EXITS,
    r"hopper 4 multiply cp\.async\.bulk\.wait_group\.read #4": EXITS,
    r"hopper 4 load mbarrier\.try_wait\S* #1": ALONE,
    r"(blackwell 2 kernel|blackwell 3 loads|hopper 2 kernel) mbarrier\.try_wait\S* #0: the next barrier": LATER,
    r"blackwell 7 init mbarrier\.init\S* #1[01]: one arrival less": "bar.sync before: one warp speaks for its CTA's",
    r"hopper [14] \w+ mapa\S* #\d: no peer": "one CTA: the barrier is its own",
    r"example 04 kernel mapa\S* #0: no peer": "the address of data: other values are read, in order",
    r"attention sm120 init mbarrier\.init\S* #0: one arrival less": QUERIES,
    r"attention sm120 compute mbarrier\.try_wait\S* #0($|: the next barrier)": QUERIES,
    r"attention sm120 init fence\.mbarrier_init": "no engine counts at its barriers, and bar.sync tells threads",
    r"attention sm120 compute fence\.proxy": "cp.async writes through the generic proxy, as threads do",
    r"attention sm90 init mbarrier\.init\S* #1[01]$": SHORT,
    r"attention sm90 load mbarrier\.try_wait\S* #[34]$": SHORT,
    r"attention sm90 multiply bar\.warp\.sync #[01]$": SHORT,
    r"attention sm90 load mbarrier\.try_wait\S* #([789]|10)$": ALONE,
    r"(hopper \d|attention sm90) multiply setmaxnreg\.inc": "PTX's registers are the assembler's to spill",
}


def expected(name: str, edit: Edit) -> tuple[set[str], str]:
    """The rules of which one finds it, or why it is redundant."""
    for pattern, reason in REDUNDANT.items():
        if re.match(pattern, f"{name} {edit}") and (edit.what == REMOVED or ": " in pattern):
            return set(), reason
    removed = next((rules for opcode, rules in FORMULA.items() if re.match(opcode, edit.opcode)), "")
    rules = removed if edit.what == REMOVED else CHANGED[edit.what]
    return set(filter(None, rules.split(", "))), ""
