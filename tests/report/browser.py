"""Chromium without a window: opens a page with a script that acts on it, and returns what the script answers."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
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


TAB = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
FOCUS = """(() => { const at = document.activeElement;
  return { tag: at.tagName, text: (at.textContent || at.ariaLabel || at.name || at.id).trim(),
    link: at.href || "", marked: getComputedStyle(at).outlineStyle !== "none" && getComputedStyle(at).opacity > 0.5 };
})()"""


def tab_stops(path: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """Returns the elements that have the focus after each of ``count`` presses of Tab on a page."""
    to_browser, commands = os.pipe()
    replies, from_browser = os.pipe()
    given = [
        *OPTIONS[:-1],
        f"--user-data-dir={folder / 'user'}",
        "--window-size=1440,900",
        "--remote-debugging-pipe",
    ]
    shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    words = ["bash", "-c", shell, "bash", str(BROWSER), *given, path.as_uri()]
    with subprocess.Popen(words, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL) as browser:
        os.close(to_browser)
        os.close(from_browser)
        try:
            with open(commands, "wb", buffering=0) as out, open(replies, "rb") as answered:
                return list(_walk(out, answered, path.as_uri(), count))
        finally:
            browser.kill()


def _walk(out: Any, answered: Any, address: str, count: int) -> Iterator[dict[str, Any]]:
    numbers = itertools.count(1)

    def call(method: str, **options: Any) -> Any:
        number, session = next(numbers), options.pop("session", None)
        message = {"id": number, "method": method, "params": options} | ({"sessionId": session} if session else {})
        out.write(json.dumps(message).encode() + b"\0")
        while True:
            text = bytearray()
            while (byte := answered.read(1)) != b"\0":
                assert byte, "the browser ended"
                text += byte
            reply = json.loads(text)
            if reply.get("id") == number:
                return reply["result"]

    target = next(each for each in call("Target.getTargets")["targetInfos"] if each["type"] == "page")
    session = call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]

    def value(script: str) -> Any:
        return call("Runtime.evaluate", expression=script, returnByValue=True, session=session)["result"].get("value")

    while value("location.href.split('#')[0] + document.readyState") != f"{address}complete":
        time.sleep(0.05)
    for _ in range(count):
        call("Input.dispatchKeyEvent", type="rawKeyDown", session=session, **TAB)
        call("Input.dispatchKeyEvent", type="keyUp", session=session, **TAB)
        yield value(FOCUS)
