"""Write the playground: ``python docs/site/playground.py build/site/playground.html``.

One static page with a run of each variant of each tutorial: the code with the changed lines marked, the verdict, the
timeline, and the predicted time before and after. ``make docs`` writes it.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from runs import ROOT, Run, rule_of, run_lesson, source_of
from variants import LESSONS, Lesson

from warpwright.report.html.elements import Html, element, section, table
from warpwright.report.html.page import page, read
from warpwright.report.html.profile import timeline_controls
from warpwright.report.html.timeline import timeline_data
from warpwright.report.html.verdict import badge, verdict_parts

__all__ = ["playground", "run_lessons"]

WHAT = (
    "Stored runs of the kernels of the tutorials, each with edits: a wait removed, another number of stages. Choose a "
    "tutorial and a variant. The page shows the changed lines, the verdict of ww.check, the predicted time and the "
    "timeline. Every variant ran on the virtual GPU when this page was built."
)
Place = tuple[Lesson, Sequence[Run], int]  # a lesson, its runs, the number of one of them
SCRIPT = Path(__file__).with_name("playground.js")


def run_lessons(folder: Path, lessons: Sequence[Lesson] = LESSONS) -> list[tuple[Lesson, list[Run]]]:
    """Returns the runs of all variants of ``lessons``; their sources are in ``folder`` until the page is written."""
    return [(lesson, list(run_lesson(lesson, folder / str(at)))) for at, lesson in enumerate(lessons)]


def playground(lessons: Sequence[tuple[Lesson, list[Run]]]) -> str:
    """Returns the page as one HTML file."""
    runs = [(lesson, some, at) for lesson, some in lessons for at in range(len(some))]
    home = element("a", "Warpwright", href="docs/index.html")
    head = element("h1", "Playground") + element("p", WHAT) + element("p", "The documentation: ", home)
    lanes = section("pipeline", "Timeline", element("p", id="no-timeline"), element("div", *timeline_controls()))
    code, verdicts = (
        section(name.lower(), name, *_parts(runs, show)) for name, show in (("Code", _code), ("Verdict", _verdict))
    )
    columns = element("div", code, element("div", lanes, verdicts), class_="columns")
    choice = section("choice", "Choice", *_lists(), *_parts(runs, _times))
    sections = [("choice", "Choice", choice), ("code", "Code", columns), ("pipeline", "Timeline", Html()),
                ("verdict", "Verdict", Html())]  # fmt: skip
    data = {"lessons": [{"title": lesson.title, "runs": list(map(_data, some))} for lesson, some in lessons]}
    data["timeline"] = data["lessons"][0]["runs"][0]["timeline"]
    return page("Playground: Warpwright", Html(head), sections, data, [read("timeline.js"), SCRIPT.read_text()])


def _lists() -> Iterator[Html]:
    """Yields the two lists, which the script fills, and the line that names the run."""
    cells = [
        element("label", f"{name} ", element("select", id=name.lower()), for_=name.lower())
        for name in ("Tutorial", "Variant")
    ]
    yield element("div", *cells, class_="controls")
    yield element("p", id="chosen", role="status")


def _parts(runs: Sequence[Place], show: Callable[[Place], Html]) -> Iterator[Html]:
    """Yields a part of each run; the script shows the part of one."""
    for number, place in enumerate(runs):
        yield element("div", show(place), data_run=str(number), hidden="hidden")


def _code(place: Place) -> Html:
    lesson, runs, at = place
    return code_table(lesson, runs[at])


def _verdict(place: Place) -> Html:
    _, runs, at = place
    return Html("".join(verdict_parts(runs[at].verdict)))


def _times(place: Place) -> Html:
    """Returns the verdict and the predicted time of the kernel as it is, and of the variant."""
    _, runs, at = place
    pair = (runs[0], runs[at]) if at else (runs[0],)
    rows = [{"run": run.variant.title, "verdict": _badge(run), "predicted time": _time(run)} for run in pair]
    return table(rows)


def _data(run: Run) -> dict[str, Any]:
    lanes = timeline_data(run.profile) if run.profile else {}
    return {"title": run.variant.title, "verdict": rule_of(run.verdict), "timeline": lanes}


def _badge(run: Run) -> Html:
    return Html(badge(run.verdict.kind) + (f" {rule_of(run.verdict)}" if run.verdict.findings else ""))


def _time(run: Run) -> str:
    return f"{run.profile.time_us:.2f} µs" if run.profile else "none: the launch fails"


def code_table(lesson: Lesson, run: Run) -> Html:
    """Returns the kernel and every changed line; a sign marks lines that the variant adds and removes."""
    inside, rows, last = kernel_lines(run.text, lesson.kernel), [], 0
    for sign, number, text in line_changes(source_of(lesson), run.text):
        if sign or number in inside:
            if last and number > last + 1:
                rows.append(_row("", "⋮", ""))
            rows.append(_row(sign, str(number) if sign != "−" else "", text))
            last = number
    scroll = element("div", element("table", element("tbody", *rows), class_="code"), class_="scroll", tabindex="0",
                     role="region", aria_label=f"code of {lesson.kernel}")  # fmt: skip
    return element("figure", element("figcaption", lesson.source), scroll)


def _row(sign: str, number: str, text: str) -> Html:
    line = text.lstrip()
    marked = element({"−": "del", "+": "ins"}.get(sign, "span"), line or " ")
    code = element("code", text[: len(text) - len(line)], marked)
    cells = (element("td", sign), element("td", number), element("td", code), element("td", ""))
    return element("tr", *cells, class_="marked" if sign else "")


def line_changes(before: str, after: str) -> Iterator[tuple[str, int, str]]:
    """Yields the lines of ``after`` with their numbers, and before them the lines that they replace: "−", "+" or no
    sign, number, text."""
    old, new = before.splitlines(), after.splitlines()
    for tag, i, j, k, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (("−", k, text) for text in old[i:j])
        yield from (("" if tag == "equal" else "+", number + 1, new[number]) for number in range(k, end))


def kernel_lines(text: str, kernel: str) -> range:
    """Returns the lines of the function or of the assignment of this name."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == kernel:
            return range(node.decorator_list[0].lineno, (node.end_lineno or 0) + 1)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == kernel:
            return range(node.lineno, (node.end_lineno or 0) + 1)
    raise ValueError(f"no kernel {kernel} in the source")


def main() -> None:
    target = ROOT / sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        target.write_text(playground(run_lessons(Path(folder))), encoding="utf-8")
    print(sys.argv[1])


if __name__ == "__main__":
    main()
