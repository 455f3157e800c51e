"""Digests of the PTX of every shipped configuration, to compare two versions of the source.

``python -m tests.races.shipped_ptx --write FILE`` writes one digest for each launch of each entry of
`test_shipped.SHIPPED`; ``python -m tests.races.shipped_ptx [FILE]`` traces every configuration again, names those that
differ from FILE (default: the committed digests), and exits with status 1 if there is one. A digest covers the text
without ``.loc`` and ``.file`` and with the entry's name replaced. ``--text FOLDER`` writes the texts, for a diff.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.races.test_shipped import SHIPPED
from tests.races.watched import Watched
from warpwright import ptx
from warpwright.gpu import LaunchResult

DIGESTS = Path(__file__).parent / "golden" / "shipped_ptx.json"
LINES = re.compile(r"^\s*\.(loc|file)\b.*\n", re.MULTILINE)
ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def comparable(text: str) -> str:
    """Returns ``text`` without source lines, with the kernel named ``entry``."""
    name = ENTRY.search(text)
    text = LINES.sub("", text)
    return re.sub(rf"\b{re.escape(name[1])}\b", "entry", text) if name else text


def texts(names: Iterable[str] = SHIPPED) -> Iterator[tuple[str, str]]:
    """The name and the comparable PTX of each launch of the entries ``names``; nothing is run."""

    def keep(self: Any, module: Any, *args: Any, **options: Any) -> LaunchResult:
        self.texts.append(ptx.to_text(module))
        return LaunchResult()

    with mock.patch.object(Watched, "launch", keep):
        for name in names:
            launched = SHIPPED[name]().texts
            yield from ((f"{name} [{number}]", comparable(text)) for number, text in enumerate(launched))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=DIGESTS)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--text", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    found = {}
    for name, text in texts():
        found[name] = digest(text)
        if options.text:
            options.text.mkdir(parents=True, exist_ok=True)
            (options.text / f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}.ptx").write_text(text)
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} digests in {options.write}")
        return 0
    known = json.loads(options.file.read_text())
    unlike = [name for name in known if found.get(name) != known[name]] + [name for name in found if name not in known]
    print(f"{len(found)} launches, {len(known)} digests, {len(unlike)} unlike", *unlike, sep="\n  ")
    return bool(unlike)


if __name__ == "__main__":
    sys.exit(main())
