"""The documentation site: Sphinx reads the Markdown pages of this repository where they are.

``make docs`` builds it into build/site, with every warning as an error.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).parents[2]
PLAYGROUND = "`build/site/playground.html`"  # in a page of docs: the site has a link there
LINK_OUTSIDE = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#]+)(?:#[^)]*)?\)")

project = "Warpwright"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx_copybutton", "glossary_links"]
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**"]
exclude_patterns = ["build", "bench", "dist", "examples", "src", "tests", ".*", "docs/site"]
nitpicky = True
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = [
    "toc.not_included",  # index.md lists the pages that a reader looks for; a test compares it with the folder
    "myst.header",  # docs/rules.md has its sections at the third level, for GitHub
]

html_theme = "furo"
pygments_dark_style = "a11y-dark"  # furo's own dark style has colours of less contrast than WCAG AA
html_title = "Warpwright"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"


def name_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to files that are not pages, such as examples, into text: the site has no copy of the source."""
    folder = (Path(app.srcdir) / page).parent

    def replace(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[2]))
        is_page = path.suffix == ".md" or "://" in match[2] or match[2].startswith("<")
        return match[0] if is_page or not path.is_relative_to(ROOT) else f"{match[1]}"

    parts = re.split(r"(^```.*?^```$)", source[0], flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK_OUTSIDE.sub(replace, part) for part in parts[::2]]
    source[0] = "".join(parts)


def link_playground(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn the name of the playground's file into a link: docs/site/playground.py writes that file beside the pages."""
    source[0] = source[0].replace(PLAYGROUND, '<a href="../playground.html">playground.html</a>')


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_files_outside)
    app.connect("source-read", link_playground)
