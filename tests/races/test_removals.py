"""Every synchronising instruction is needed and its removal found, or there is a reason why it is not.

``FORMULA`` says what becomes of a kernel without an instruction, by opcode; ``REDUNDANT`` lists the exceptions, by
kernel, role and opcode, with the reason. Tests go through memory_flow and take every twelfth removal of two others;
``python -m tests.races.test_removals`` takes all of every kernel, in ten minutes, and prints the table.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from tests.races.removals import Change, Removal, Watched, outcome, product, removals
from warpwright.kernels.memory_flow import arguments, memory_flow
from warpwright.launch import launch
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

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
    r"fence\.proxy": "proxy-fence",
    r"bar\.warp": "race",
    r"bar": "race, mbarrier-init, exit-early, fault",
    r"setmaxnreg\.dec": "deadlock",
}

ORDERED = "lanes are together behind it anyway: a barrier, a fence and an arrival of each, or nothing"
FRESH = "nothing was issued to tensor memory before"
BLOCKS = "a warp's first two blocks are free"
EXITS = "cp.async.bulk.wait_group comes before wait_group.read: one is enough for the exit"
TOGETHER = "loads and waits of tensor memory are the whole warp's: the lane that arrives knows of them"
# kernel, role, opcode and how many of them were before: reason
REDUNDANT = {
    r".* end bar\.warp": ORDERED,
    r".* tcgen05\.relinquish": "no other CTA on the SM waits to allocate",
    r"(memory_flow|blackwell \d) kernel tcgen05\.fence::\w+ #0": FRESH,
    r"(memory_flow|blackwell \d) kernel tcgen05\.fence::before\w* #1": "only dealloc follows, behind wait::ld",
    r"blackwell 7 epilogue bar\.warp\.sync #4": TOGETHER,
    r"blackwell 9 epilogue bar\.warp\.sync #16": TOGETHER,
    r"blackwell [79] epilogue bar\.warp\.sync #": "bar.sync of all that store follows",
    r"hopper 2 kernel mbarrier\.try_wait\S* #0": "the first turn of a fresh ring",
    r"hopper 1 kernel mbarrier\.try_wait\S* #0": "the thread that loads has itself waited for the products",
    r"hopper 1 kernel mbarrier\.try_wait\S* #2": "one CTA, and its own threads arrive: they do so before they exit",
    r"blackwell [23] kernel bar\.warp\.sync #0": ORDERED,
    r"hopper [12] kernel bar\.warp\.sync #[01]": "lanes meet again at an mbarrier",
    r"hopper [124] \w+ cp\.async\.bulk\.wait_group\.read #[01]": BLOCKS,
    r"hopper [12] kernel bar\.warp\.sync #[24]": BLOCKS,
    r"hopper 4 multiply bar\.warp\.sync #[02]": BLOCKS,
    r"hopper 4 multiply (cp\.async\.bulk\.wait_group #0|bar\.warp\.sync #8)": EXITS,
    r"hopper 4 multiply cp\.async\.bulk\.wait_group\.read #4": EXITS,
    r"hopper 4 load mbarrier\.try_wait\S* #1": "one CTA, and its own threads arrive: they do so before they exit",
    r"hopper \d multiply setmaxnreg\.inc": "PTX's registers are the assembler's to spill",
}


def _flow(change: Change | None = None) -> Watched:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    watched = Watched(Device(DEVICES["b200"]), change)
    launch(memory_flow, 1, args=arguments(a, b, np.zeros((128, 128), np.float32)), device=watched)
    return watched


def _product(device: str, level: int, shape: tuple[int, int, int], sms: int) -> Callable[..., Watched]:
    return functools.partial(product, device, level, shape, sms)


KERNELS: dict[str, Callable[..., Watched]] = {
    "memory_flow": _flow,
    "blackwell 2": _product("b200", 2, (256, 256, 192), 8),
    "blackwell 3": _product("b200", 3, (256, 256, 640), 8),
    "blackwell 7": _product("b200", 7, (1024, 384, 384), 4),
    "blackwell 9": _product("b200", 9, (1024, 768, 384), 4),
    "hopper 1": _product("h200", 1, (128, 128, 256), 4),
    "hopper 2": _product("h200", 2, (256, 256, 512), 4),
    "hopper 4": _product("h200", 4, (256, 512, 384), 4),
    "hopper 8": _product("h200", 8, (512, 1024, 384), 4),
}


def _expected(name: str, removal: Removal) -> tuple[set[str], str]:
    """The rules of which one finds it, or why it is redundant."""
    for pattern, reason in REDUNDANT.items():
        if re.match(pattern, f"{name} {removal}"):
            return set(), reason
    rules = next((rules for opcode, rules in FORMULA.items() if re.match(opcode, removal.opcode)), "")
    return set(filter(None, rules.split(", "))), ""


def _outcome(name: str, removal: Removal) -> frozenset[str]:
    return outcome(KERNELS[name](removal).verdicts[0])


@functools.cache
def _text(name: str) -> str:
    watched = KERNELS[name]()
    assert watched.verdicts[0].kind == "clean"
    return watched.texts[0]


def _unlike(name: str, removal: Removal) -> str:
    """What does not come out as it should, in words; nothing where all is well."""
    rules, reason = _expected(name, removal)
    found = _outcome(name, removal)
    good = not found if reason else bool(found & rules)
    wanted = reason or " or ".join(sorted(rules))
    return "" if good else f"{name}: {removal}: {', '.join(sorted(found)) or 'clean'}; expected {wanted or 'a rule'}"


@pytest.mark.parametrize(("name", "every"), [("memory_flow", 1), ("blackwell 7", 12), ("hopper 8", 12)])
def test_what_is_removed_is_found_or_redundant(name: str, every: int) -> None:
    chosen = islice(removals(_text(name)), 0, None, every)
    assert [text for removal in chosen if (text := _unlike(name, removal))] == []


CHANGES = {
    "one arrival more": (r"(mbarrier\.init\S* \[%r\d+\]), 1;", r"\1, 2;", "deadlock"),
    "bytes too many": (r"(arrive\.expect_tx\S* _, \[%r\d+\]), 32768;", r"\1, 32784;", "deadlock"),
    "bytes too few": (r"(arrive\.expect_tx\S* _, \[%r\d+\]), 32768;", r"\1, 16384;", "race"),
    "the other phase": (r"(mbarrier\.try_wait\S* %p\d+, \[%r\d+\]), 0;", r"\1, 1;", "race"),
    "the other barrier": (r"(mbarrier\.try_wait\S* %p\d+, \[%r\d+)\], 0;", r"\1+8], 0;", "deadlock"),
    "bytes for another barrier": (
        r"(cp\.async\.bulk\.tensor\S*tx::bytes \S+ \S+ \S+ \S+ \[%r\d+)\];",
        r"\1+8];",
        "deadlock",
    ),
}


PAIR_CHANGES = {
    "bytes counted in the own CTA": (r"mapa\S* (%r\d+), (%r\d+), %r\d+;", r"mov.b32 \1, \2;", "deadlock"),
    "bytes of one CTA": (r", 81920;", r", 40960;", "race"),
    "commit in one CTA": (r"(\[%r\d+\+32\]), %rs\d+;", r"\1, 1;", "deadlock"),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [("memory_flow", change) for change in CHANGES.values()]
    + [("blackwell 7", change) for change in PAIR_CHANGES.values()],
    ids=[*CHANGES, *PAIR_CHANGES],
)
def test_what_is_changed_is_found(name: str, change: tuple[str, str, str]) -> None:
    pattern, new, rule = change
    assert re.search(pattern, _text(name))
    assert rule in outcome(KERNELS[name](lambda text: re.sub(pattern, new, text, count=1)).verdicts[0])


def main(names: list[str]) -> None:
    for name in names or KERNELS:
        for removal in removals(_text(name)):
            rules, reason = _expected(name, removal)
            found, wrong = ", ".join(sorted(_outcome(name, removal))) or "clean", ""
            wrong = "" if (found == "clean" if reason else set(found.split(", ")) & rules) else "  <- not as expected"
            print(f"{name:12} {str(removal)[:60]:60} {found} {f'({reason})' if reason else ''}{wrong}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
