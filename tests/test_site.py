"""The documentation site: its navigation names every page, its tutorials include the examples, and it builds without a
warning, a broken link or a file from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.report.browser import needs_browser, tab_stops
from tests.report.test_html import contrast

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.stem != "index")
PACKAGES = ("sphinx", "furo", "myst_parser", "sphinx_copybutton")


def navigation(page: Path) -> list[str]:
    """The files that the lists of contents of a page name, relative to docs."""
    lists = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    entries = [line for text in lists for line in text.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    return [((page.parent / f"{name}.md").resolve().relative_to(ROOT)).as_posix() for name in names]


def test_the_navigation_names_every_page_once() -> None:
    pages = [*DOCS.glob("*.md"), *DOCS.glob("log/*.md"), DOCS / "tutorials" / "index.md"]
    named = navigation(DOCS / "index.md")
    expected = {page.relative_to(ROOT).as_posix() for page in pages} - {"docs/index.md"}
    assert sorted(named) == sorted(expected | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"})


def test_every_tutorial_is_listed_in_the_order_of_its_number() -> None:
    index = DOCS / "tutorials" / "index.md"
    assert navigation(index) == [page.relative_to(ROOT).as_posix() for page in TUTORIALS]
    text = index.read_text(encoding="utf-8")
    assert [page.name for page in TUTORIALS if f"]({page.name})" not in text] == []


def test_the_tutorials_include_every_example_and_only_functions_that_exist() -> None:
    """The code of an example stands once, in its file, where tests/test_examples.py runs it."""
    included = set()
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        for path, name in re.findall(r"^```\{literalinclude\} (\S+\.py)\n:pyobject: (\w+)\n```$", text, re.MULTILINE):
            file = (page.parent / path).resolve()
            assert f"\ndef {name}(" in file.read_text(encoding="utf-8"), f"{page.name} includes {name} of {path}"
            assert f"]({path})" in text, f"{page.name} has no link to {path} for readers on GitHub"
            included.add(file)
    assert included == set((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if not all(map(find_spec, PACKAGES)):
        pytest.skip("the site needs the extra docs: pip install 'warpwright[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "sphinx", "-qW", "--keep-going", "-c", "docs/site", ".", str(folder)]
    built = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert not built.returncode, built.stderr
    (folder / "playground.html").write_text("")  # docs/site/playground.py writes it: tests/test_playground.py
    return folder


def test_the_links_of_the_site_lead_to_anchors_of_its_own(site: Path) -> None:
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    assert [error for page in pages.values() for error in page.errors(pages)] == []


@needs_browser
def test_tab_goes_through_search_navigation_and_content(site: Path, tmp_path: Path) -> None:
    stops = tab_stops(site / "docs" / "index.html", 36, tmp_path)
    assert [stop["text"] for stop in stops if not stop["marked"]] == []  # the focus can be seen everywhere
    assert stops[0]["text"] == "Skip to content" and stops[0]["link"].endswith("#furo-main-content")
    names = [stop["text"] for stop in stops]
    search, readme, glossary, code = (
        names.index(each) for each in ("Search", "README", "Glossary", "Copy to clipboard")
    )
    assert search < readme < glossary < code < names.index("tutorials")


def variables(css: str) -> tuple[dict[str, str], dict[str, str]]:
    """The colours of furo's style sheet on light and on dark screens."""
    found = re.findall(r"--color-([\w-]+):\s*(#[0-9a-f]{3,6})[;}]", css)
    light = dict(reversed(found))  # of each name, the first one
    return light, light | dict(found)


def full(colour: str) -> str:
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


def test_the_colours_of_the_site_have_the_contrast_of_wcag_aa(site: Path) -> None:
    texts = ("foreground-primary", "foreground-secondary", "foreground-muted", "brand-primary", "brand-content",
             "brand-visited")  # fmt: skip
    for scheme in variables((site / "_static" / "styles" / "furo.css").read_text(encoding="utf-8")):
        for ground in ("background-primary", "background-secondary"):
            low = {text: contrast(full(scheme[text]), full(scheme[ground])) for text in texts}
            assert min(low.values()) >= 4.5, (ground, low)


def test_the_colours_of_code_have_the_contrast_of_wcag_aa(site: Path) -> None:
    css = (site / "_static" / "pygments.css").read_text(encoding="utf-8")
    for start in ("", 'body[data-theme="dark"] '):
        ground = re.search(rf"^{re.escape(start)}\.highlight {{ background: (#\w+)", css, re.MULTILINE)
        colours = re.findall(rf"^{re.escape(start)}\.highlight \.\w+ {{ color: (#\w+)", css, re.MULTILINE)
        assert ground and len(colours) > 40
        assert {each for each in colours if contrast(full(each), full(ground[1])) < 4.5} == set()


class Links(HTMLParser):
    """The anchors of a built page, its links, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        self.loaded += [found[key] or "" for key in ("src", "href") if tag != "a" and found.get(key)]

    def errors(self, pages: dict[Path, Links]) -> list[str]:
        """A sentence for each link to a missing file or anchor, and for each file from another host."""
        found = [f"{self.path.name} loads {url}" for url in self.loaded if urlsplit(url).netloc]
        for url in (*self.links, *self.loaded):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (self.path.parent / unquote(parts.path)).resolve() if parts.path else self.path
            anchors = pages[target].anchors if target in pages else {""}
            if not target.exists() or (target in pages and unquote(parts.fragment) not in anchors):
                found.append(f"{self.path.name} links to {url}")
        return found
