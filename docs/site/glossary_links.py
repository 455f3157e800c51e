"""Link the first use of each glossary term on a page to its row in docs/glossary.md."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

GLOSSARY = "docs/glossary"
# Terms that are also common words of English: a link would often be wrong.
COMMON = {
    "acquire", "arrive", "bar", "box", "commit", "completion", "configuration", "conflict", "consumer",
    "descriptor", "empty", "engine", "finding", "first", "full", "grid", "issue", "lane", "leader", "level",
    "major", "observer", "pair", "peer", "phase", "plan", "producer", "profile", "read", "release", "role", "rule",
    "schedule", "scheduler", "scope", "second", "seed", "slack", "slices", "slot", "stage", "stall", "thread",
    "warp", "wave", "workspace",
}  # fmt: skip
SKIPPED = (nodes.reference, nodes.literal, nodes.title, nodes.strong, nodes.literal_block, nodes.thead)


def mark_terms(app: Sphinx, tree: nodes.document) -> None:
    """Add an anchor to each term of the glossary; every other page is linked after all pages are read."""
    if app.env.docname == GLOSSARY:
        app.env.glossary_terms = {}  # type: ignore[attr-defined]
        for strong in tree.findall(nodes.strong):
            anchor = "term-" + nodes.make_id(strong.astext())
            strong["ids"].append(anchor)
            app.env.glossary_terms[strong.astext()] = anchor  # type: ignore[attr-defined]


def link_terms(app: Sphinx, tree: nodes.document, page: str) -> None:
    terms = dict(getattr(app.env, "glossary_terms", {}))
    if page == GLOSSARY or app.builder.format != "html":
        return
    left = {term: anchor for term, anchor in terms.items() if term not in COMMON}
    for text in list(tree.findall(nodes.Text)):
        if not _linkable(text):
            continue
        parts: list[Any] = []
        rest = text.astext()
        while match := _next(left, rest):
            term = _term(left, match[0])
            target = app.builder.get_relative_uri(page, GLOSSARY) + "#" + left.pop(term)
            link = nodes.reference("", match[0], refuri=target, internal=True, classes=["glossary-link"])
            parts += [nodes.Text(rest[: match.start()]), link]
            rest = rest[match.end() :]
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(rest)])


def _linkable(node: nodes.Node) -> bool:
    """Whether a text is prose: in a paragraph, in no link, heading, code or bold word."""
    inside_paragraph = False
    while node := node.parent:
        if isinstance(node, SKIPPED):
            return False
        inside_paragraph |= isinstance(node, nodes.paragraph)
    return inside_paragraph


def _next(left: dict[str, str], text: str) -> re.Match[str] | None:
    words = "|".join(re.escape(term) for term in sorted(left, key=len, reverse=True))
    return re.search(rf"(?<![\w-])(?:{words})s?(?![\w-])", text) if words else None


def _term(left: dict[str, str], found: str) -> str:
    return found if found in left else found.removesuffix("s")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", mark_terms)
    app.connect("doctree-resolved", link_terms)
    return {"parallel_read_safe": False}
