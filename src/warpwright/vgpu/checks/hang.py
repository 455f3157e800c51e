"""A hang on one page: which warps wait for what, what should have ended each wait, and the last operations."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from warpwright.vgpu.checks.missing import phase_text
from warpwright.vgpu.checks.steps import Step
from warpwright.vgpu.machine.launch import RankCta
from warpwright.vgpu.machine.waits import number_text, warp_text
from warpwright.vgpu.program.names import APART, WHOLE

__all__ = [
    "Barrier",
    "Blocked",
    "Cta",
    "Hang",
    "Situations",
    "code_text",
    "cta_text",
    "letter",
    "page_lines",
    "state_lines",
    "what_text",
    "who_text",
]

Cta = tuple[int, int, int]
Situations = dict[tuple[int, ...], tuple[Cta, ...]]  # CTAs by the keys of `Blocked`
_WIDTH = 77  # columns of a line, so that an indented page fits into 80
_DETAILED, _LISTED, _SIGNALS, _LAST = 3, 6, 3, 8  # rows of the page


@dataclass(frozen=True, slots=True)
class Barrier:
    """An mbarrier that warps wait for: its name, the CTA that it lies in, its offset in shared memory, the step that
    initialised it, its open phase, and what that phase lacks; ``ends``: the steps that ended the last phases."""

    name: str
    cta: Cta
    offset: int
    init: Step | None
    phase: int
    pending: int
    expected: int
    bytes: int
    ends: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """Warps in one situation: ``warps`` of each of the ``ctas`` wait at ``step``, ``lanes`` threads of each warp.

    ``signals``: the instructions that arrive at the barrier or deliver its bytes, and what became of them; for a wait
    without an mbarrier, the last operations of the warps that have not come. ``key`` is equal for equal situations.
    """

    ctas: tuple[Cta, ...]
    warps: tuple[int, ...]
    lanes: int
    step: Step
    barrier: Barrier | None
    signals: tuple[Step, ...]
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """The report of a hang in a launch of ``grid`` CTAs. ``cycle``: the waits that wait for one another, if there are
    such; ``last``: the last operation of each group of warps; ``others``: CTAs in further situations, of other
    clusters; ``ranks``: the flag that each rank of a node polls, in words."""

    grid: int
    blocked: tuple[Blocked, ...]
    cycle: str
    last: tuple[Step, ...]
    others: int = 0
    ranks: tuple[str, ...] = ()

    def with_clusters(self, clusters: Iterable[Situations]) -> Hang:
        """Returns the report with the CTAs of further clusters in it, by the keys of their situations."""
        ctas = {each.key: list(each.ctas) for each in self.blocked}
        others = self.others
        for key, found in (item for cluster in clusters for item in cluster.items()):
            ctas.get(key, []).extend(found)
            others += 0 if key in ctas else len(found)
        blocked = tuple(replace(each, ctas=tuple(ctas[each.key])) for each in self.blocked)
        return replace(self, blocked=blocked, others=others)


def cta_text(ctas: Sequence[Cta]) -> str:
    """Returns ``"CTA 0-3"``, with coordinates if the grid has more than one axis, on a node with the rank."""
    if len(ranks := {cta.rank: () for cta in ctas if isinstance(cta, RankCta)}) > 1:
        return ", ".join(cta_text([cta for cta in ctas if cta == RankCta(cta, rank)]) for rank in ranks)
    if not any(y or z for _, y, z in ctas):
        return f"CTA {number_text(x for x, _, _ in ctas)}{''.join(f' of rank {rank}' for rank in ranks)}"
    return f"CTA {ctas[0]}" + (f" and {len(ctas) - 1} more" if len(ctas) > 1 else "")


def letter(number: int) -> str:
    """Returns the name of a situation on the page."""
    return chr(ord("A") + number) if number < 26 else f"A{number}"


def page_lines(hang: Hang) -> Iterator[str]:
    """Yields the lines of the page, at most 60 of at most 77 columns."""
    pairs = {(cta, warp) for each in hang.blocked for cta in each.ctas for warp in each.warps}
    ctas = list(dict.fromkeys(cta for each in hang.blocked for cta in each.ctas))
    where = cta_text(ctas) if len(ctas) == 1 else f"{len(ctas)} CTAs"
    verb = "waits" if len(pairs) == 1 else "wait"
    yield f"{_count(len(pairs), 'warp')} of {where} {verb}; the launch of {_count(hang.grid, 'CTA')} ended there"
    for text in hang.ranks:
        yield from _wrap(text)
    for number, each in enumerate(hang.blocked[:_DETAILED]):
        yield from _describe(letter(number), each)
    rest = hang.blocked[_DETAILED:]
    for number, each in enumerate(rest[:_LISTED], _DETAILED):
        yield _clip(f"{letter(number)}  {who_text(each)} {what_text(each)}: {_site(each.step)[0]}")
    more = hang.others + sum(len(each.ctas) for each in rest[_LISTED:])
    if more:
        yield f"and {_count(more, 'more situation')} like these; --json lists those of the first cluster"
    if hang.cycle:
        yield from _wrap(hang.cycle)
    yield "last operation of each warp"
    for step in hang.last[:_LAST]:
        yield _clip(f"   {step.what}: {code_text(step)}")
    if hang.last[_LAST:]:
        yield f"   and {len(hang.last) - _LAST} more rows"


def _describe(name: str, each: Blocked) -> Iterator[str]:
    yield from _wrap(f"{name}  {who_text(each)} {what_text(each)}")
    yield _clip(f"      {code_text(each.step)}")
    yield from (_clip(f"      {text}") for text in _site(each.step)[1:])
    if each.barrier is not None:
        yield from (_clip(f"   {text}") for text in state_lines(each.barrier))
    if not each.signals:
        yield f"   no thread of the kernel {'arrives there' if each.barrier else 'that can still run ends this wait'}"
    else:
        yield "   arrives there" if each.barrier else "   has not arrived"
    for signal in each.signals[:_SIGNALS]:
        if each.barrier:
            yield _clip(f"      {code_text(signal)}")
            yield _clip(f"         {signal.what}")
        else:
            yield _clip(f"      {signal.what}: {code_text(signal)}")
    if each.signals[_SIGNALS:]:
        yield f"      and {_count(len(each.signals) - _SIGNALS, 'more place')}"


def state_lines(barrier: Barrier) -> Iterator[str]:
    """Yields what is known of an mbarrier: its place, what its open phase lacks, what ended the phase before."""
    init = f", initialised at {_site(barrier.init)[0]}" if barrier.init else ""
    yield f"{barrier.name}: offset 0x{barrier.offset:x} of {cta_text([barrier.cta])}{init}"
    yield f"phase {barrier.phase} is open; it {phase_text(barrier.pending, barrier.expected, barrier.bytes)}"
    for number, end in enumerate(barrier.ends, barrier.phase - len(barrier.ends)):
        if number == barrier.phase - 1:
            yield f"phase {number} was ended by {code_text(end)}"


def who_text(each: Blocked) -> str:
    """Returns the warps of a situation: ``"mma, CTA 0, warp 1 (1 thread)"``."""
    lanes = (
        ""
        if each.lanes == 32
        else f" ({_count(each.lanes, 'thread')} each)"
        if each.warps[1:]
        else f" ({_count(each.lanes, 'thread')})"
    )
    role = "" if each.step.role in (WHOLE, APART) else f"{each.step.role}, "
    return f"{role}{cta_text(each.ctas)}, {warp_text(each.warps)}{lanes}"


def what_text(each: Blocked) -> str:
    """Returns what warps wait for, in words, of one warp or of several."""
    several, text = len(each.ctas) * len(each.warps) > 1, each.step.what
    return text.replace("waits", "wait", 1).replace("runs", "run", 1).replace("tests", "test", 1) if several else text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _base(where: str) -> str:
    return where.rpartition("/")[2]


def _site(step: Step) -> list[str]:
    """Returns the line of a step, the outermost call first; then the lines inside, and the PTX."""
    first, *inside = [_base(where) for where in (*step.calls, step.where)]
    texts = [f"in {', '.join(inside)}"] if inside else []
    if not first.startswith("PTX line"):
        texts.append(f"PTX line {step.ptx_line}: {step.opcode}")
    return [first, "; ".join(texts)] if texts else [first]


def code_text(step: Step) -> str:
    """Returns the line of a step and its text: of the source if there is one, else the opcode."""
    where = next(iter(step.calls), step.where)
    file, _, line = where.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if file and line.isdigit() else ""
    return f"{_base(where)}  {text or step.opcode}"


def _clip(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _wrap(text: str) -> Iterator[str]:
    """Yields a long line in parts, at most four."""
    yield from textwrap.wrap(text, _WIDTH, subsequent_indent="   ", max_lines=4, placeholder=" …")
