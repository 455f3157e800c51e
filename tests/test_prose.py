"""Names and phrases that this project gave up do not come back; the draw of prose is the same for one commit."""

from __future__ import annotations

from pathlib import Path

from tests.prose import NAMES, PHRASES, docstrings, draw, old_names, old_phrases, paragraphs

ROOT = Path(__file__).parents[1]
AREAS = (
    "*.md",
    "bench/**/*.py",
    "docs/**/*.py",
    "docs/*.md",
    "docs/tutorials/*.md",
    "examples/*.py",
    "src/**/*.py",
    "tests/**/*.py",
)
OWN_WORDS = {"tests/prose.py"}  # it lists the words


def read(paths: tuple[str, ...] = AREAS) -> dict[str, str]:
    found = sorted(path for pattern in paths for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


FILES = read()


def test_the_phrases_of_the_old_prose_are_gone() -> None:
    assert [said for path, text in FILES.items() for said in old_phrases(path, text)] == []


def test_the_names_that_went_are_gone() -> None:
    python = {path: text for path, text in FILES.items() if path.endswith(".py") and path not in OWN_WORDS}
    assert [said for path, text in python.items() for said in old_names(path, text)] == []


def test_a_phrase_and_a_name_are_found_where_they_stand() -> None:
    text = '"""Launches a kernel."""\n\n\ndef meet(slot):\n    """Who takes the last\n    number leaves."""\n'
    assert list(old_phrases("src/warpwright/kernels/x.py", text)) == [
        "src/warpwright/kernels/x.py:5: 'Who takes '; write: the thread, the CTA"
    ]
    assert list(old_names("src/warpwright/kernels/x.py", text)) == [
        "src/warpwright/kernels/x.py:4: meet; call it: cluster.sync, bar.sync or sync_store_warps"
    ]
    assert not list(old_names("src/warpwright/lang/x.py", text))
    assert not list(old_names("src/warpwright/kernels/x.py", text.replace("slot", "")))
    assert list(old_names("src/warpwright/ops/sdpa_x.py", "")) == [
        "src/warpwright/ops/sdpa_x.py:1: sdpa_x; call it: attention"
    ]
    assert not list(old_phrases("x.md", "`fence` comes.\n\n```text\nbehind\n```\n"))
    assert PHRASES and NAMES


def test_paragraphs_are_prose_alone() -> None:
    page = "# Head\n\nOne\ntwo.\n\n```sh\nno\n```\n\n| a | b |\n\n- three\n\n![picture](x.png)\n"
    assert list(paragraphs("x.md", page)) == [("x.md:3", "One\ntwo."), ("x.md:12", "- three")]
    assert list(docstrings("x.py", '"""One."""\nclass A:\n    """Two."""\n')) == [
        ("x.py:1", "One."),
        ("x.py:3", "Two."),
    ]


def test_one_seed_draws_one_sample() -> None:
    files = {f"{name}.py": f'"""The docstring of {name}."""\n' for name in "abcdefghijklmnop"}
    first, again, other = (draw(files, seed, ".py") for seed in ("1f", "1f", "2f"))
    assert first == again != other and len(set(first)) == 10
