"""Chromium without a window: opens a page with a script that acts on it, and returns what the script answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
    "--virtual-time-budget=4000",
)  # fmt: skip

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: apt-get install chromium")


def answers(page: str, script: str, folder: Path, width: int = 1440) -> tuple[Any, list[str]]:
    """Returns the JSON value of ``script``, the body of a function that runs when ``page`` has loaded, and the messages
    on the console."""
    act = f"""<script>addEventListener("load", () => {{
        const answer = document.createElement("pre");
        answer.id = "answer";
        answer.textContent = JSON.stringify((() => {{ {script} }})());
        document.body.append(answer);
    }});</script></body>"""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", act), encoding="utf-8")
    given = [f"--user-data-dir={folder / 'user'}", f"--window-size={width},900", "--dump-dom", path.as_uri()]
    done = subprocess.run([str(BROWSER), *OPTIONS, *given], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(found[1])) if found else None, console
