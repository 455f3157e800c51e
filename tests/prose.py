"""The words that this project does not use, and a draw of its prose for a reader to judge.

``python -m tests.prose [COMMIT]`` prints ten docstrings of ``src`` and ten paragraphs of README and docs as they stand
in COMMIT (default: HEAD). The seed of the draw is the commit's hash, so the draw can be repeated. A reader who knows
CUDA but not this project should understand each text at first sight.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAWN = 10
REFERENCE = "docs/reference.md"  # docstrings again

# Names that no module, class, function or method has: "" stands for every folder, else the folder below src/warpwright.
NAMES = {
    "": {
        "attending": "attention_helpers, attention_runs",
        "benching": "bench",
        "chooser": "facts, and choose in plan",
        "decoding": "decode_helpers",
        "extras": "epilogue",
        "Extras": "EpilogueArgs",
        "GemmConfig": "Config",
        "grouped": "split_heads",
        "hold_back": "throttle",
        "HopperConfig": "Config",
        "HopperPlan": "Plan",
        "Job": "Plan",
        "judging": "verdicts",
        "Kept": "BoundCall",
        "launching": "launches",
        "made": "new_result",
        "Prepared": "Bound",
        "profiling": "matmul_runs",
        "Recorder": "EventLog",
        "Repeat": "BoundCall",
        "repeats": "bound_call",
        "restrided": "as_strided",
        "rungs": "ladder_table",
        "sdpa": "attention",
        "sm120_rows": "reference_steps",
        "sm120_shared": "reference_kernel",
        "strange": "unknown_arrival",
        "telling": "reported_waits",
        "tuned": "measurements",
    },
    "kernels": {
        "free": "slot.empty.arrive, tcgen05.commit(slot.empty) or the PTX call itself",
        "give": "send_sums",
        "leave": "the PTX call itself",
        "meet": "cluster.sync, bar.sync or sync_store_warps",
        "put": "store_to_block or store_rows_to_smem",
        "read": "the PTX call itself",
        "release": "the PTX call itself",
        "take": "add_sums",
    },
    "ops": {
        "again": "Memo.get",
        "alike": "Guard",
        "checked": "check_epilogue",
        "held": "workspace",
        "host": "plan",
        "keep": "Memo.put",
        "Product": "Plan",
        "products": "plan",
    },
    "report": {"words": "format"},
}

# Phrases of the old prose, as regular expressions, and what to write instead.
PHRASES = {
    r"^Gives? |[;.] gives? (the|its|a|an|how|what) |, and gives? (the|its|a|an|how|what) ": "Returns",
    r"^What (makes|is|was|has|have|can|all|comes|it|they|one|every|who) ": "a noun, or a verb: Returns …",
    r"\bat hand\b": "current",
    r"\bbe it\b": "even, or such as",
    r"\bbehind\b": "after",
    r"\bfor (it|they|there|who|what) (is|are|was|were|has|have)\b": "because",
    r"\bgreatest\b": "maximum, largest",
    r"\bg(ive|ives|iven|ave|iving) (it|them|one another|each other)( back)?\b": "send, return, free",
    r"\bhe(ar|ars|ard) of\b": "see, learn",
    r"\bheld\b": "stored, kept, checked",
    r"\b(meet|meets|meeting|meetings|met)\b": "a barrier; synchronise",
    r"\bno way to\b": "cannot",
    r"\bone behind the other\b": "one after the other",
    r"\bsees? to (it|that|them)\b": "ensures",
    r"\bsoften(s|ed)?\b": "computes the softmax of",
    r"\bthat will not do\b": "invalid, misaligned, unsupported",
    r"\bthe (business|affair) of\b|\bown affair\b": "is done by",
    r"\bturns? of (the|a) (ring|loop)\b": "iteration, slot",
    r"\bwithout a way through\b": "without going through",
    r"\bwho (waits?|takes?|took|comes?|came|is|has|arrives?|reads?|writes?|stores?|would|may) ": "the thread, the CTA",
    r"\bwho waits for whom\b|\bwhom\b": "which thread waits at which barrier",
    r"\b(nobody|somebody|everybody|whoever|everyone|someone)\b": "no thread, the thread",
    r"\bwhat (it|they|one|a \w+|was|is|are|were) (was |were |is )?(given|held|kept|made|told)\b": "its name",
    r"\bproducts? (that|which) (was|were) multiplied\b|\bthe same product\b|\bsingle products?\b": "GEMM",
    r"\b(makes?|made) (it|them) so\b": "the statement itself",
    r"\bas (it lies|they lie|it is seen)\b": "in place",
}


def docstrings(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The place (file:line) and the text of every docstring of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found:
                yield f"{path}:{node.body[0].lineno}", found


def paragraphs(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The place and the text of every paragraph of a Markdown page: no heading, table, picture or code."""
    bare = re.sub(r"^```.*?^```$", lambda fence: "\n" * fence[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"(?:^.+\n?)+", bare, re.MULTILINE):
        if match[0][0] not in "#|!":
            yield f"{path}:{bare.count(chr(10), 0, match.start()) + 1}", match[0].strip()


def prose(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a Python file, or the paragraphs of a page."""
    return docstrings(path, text) if path.endswith(".py") else paragraphs(path, text)


def old_phrases(path: str, text: str) -> Iterator[str]:
    """A sentence for each phrase of `PHRASES` in the prose of a file. Words in backquotes do not count."""
    for place, found in prose(path, text):
        words = " ".join(re.sub(r"``?[^`]*``?|“[^”]*”|\"[^\"]*\"", "X", found).split())
        for pattern, instead in PHRASES.items():
            if match := re.search(pattern, words, re.IGNORECASE):
                yield f"{place}: {match[0]!r}; write: {instead}"


def old_names(path: str, text: str) -> Iterator[str]:
    """A sentence for each module, class, function or method of a Python file whose name is in `NAMES`.

    A function without parameters is a role of a kernel: ``free`` as a role frees tensor memory, no slot.
    """
    folder = Path(path).parts[2] if path.startswith("src/") and len(Path(path).parts) > 3 else ""
    defined: list[tuple[int, str, bool]] = [(1, Path(path).stem, True)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined += [(node.lineno, node.name, isinstance(node, ast.ClassDef) or bool(node.args.args))]
    for line, name, local in defined:
        names = NAMES[""] | (NAMES.get(folder, {}) if local else {})
        if name.strip("_") in names:
            yield f"{path}:{line}: {name}; call it: {names[name.strip('_')]}"
        elif "sdpa" in name.lower():
            yield f"{path}:{line}: {name}; call it: attention"


def files_of(commit: str) -> dict[str, str]:
    """The Python files of ``src``, README and the pages of ``docs`` (without the log), as they stand in a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        wanted = re.compile(r"src/.*\.py|README\.md|docs/[^/]*\.md")
        members = sorted(name for name in archive.getnames() if wanted.fullmatch(name) and name != REFERENCE)
        return {name: _text(archive, name) for name in members}


def _text(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    return file.read().decode() if file else ""


def draw(files: dict[str, str], seed: str, suffix: str, count: int = DRAWN) -> list[tuple[str, str]]:
    """``count`` docstrings or paragraphs of the files that end with ``suffix``, always the same for one seed."""
    found = [item for path in sorted(files) if path.endswith(suffix) for item in prose(path, files[path])]
    return random.Random(seed).sample(found, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", default="HEAD")
    commit = subprocess.check_output(["git", "rev-parse", parser.parse_args().commit], cwd=ROOT, text=True).strip()
    files = files_of(commit)
    print(f"Drawn with the seed {commit}")
    for title, suffix in (("Docstrings", ".py"), ("Paragraphs", ".md")):
        print(f"\n## {title}")
        for number, (place, text) in enumerate(draw(files, commit, suffix), 1):
            print(f"\n{number}. `{place}`\n", *(f"> {line}".rstrip() for line in text.splitlines()), sep="\n")


if __name__ == "__main__":
    main()
