"""Options and fixtures of all tests; skips ``gpu/`` on a machine without a GPU, and reports the reason."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from warpwright import cuda
from warpwright.errors import UsageError
from warpwright.vgpu.machine import schedule

GPU_TESTS = Path(__file__).parent / "gpu"


def missing() -> str:
    """Returns the reason why the tests of ``gpu/`` cannot run on this machine; empty if they can."""
    absent = [name for name in ("torch", "cupy") if find_spec(name) is None]
    try:
        spec = cuda.device("cuda").spec
    except UsageError as error:
        return str(error)
    if spec.arch != "sm_90a":
        return f"they are for sm_90a, and {spec.name} is {spec.arch}"
    return f"they need {' and '.join(absent)}" if absent else ""


MISSING = missing()


@pytest.fixture(autouse=True, scope="session")
def no_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests ignore the tuned configurations of this machine."""
    os.environ["WARPWRIGHT_CONFIG"] = str(tmp_path_factory.mktemp("settings"))


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters run in one order, and all of them begin while the first one waits for a limit of 2 ms.

    On busy CPUs a cluster that waits may reach its limit before the cluster that it waits for has run.
    """
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(schedule, "_LONG", 10_000)


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with a golden file; ``--update-golden`` writes the text to the file first.

    Golden files are those that this repository's own code writes. What a GPU answered is recorded by
    ``python -m tests.conformance.record``, and what nvcc compiled by ``tests/foreign/compile.py``.
    """

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        stored = path.read_text(encoding="utf-8")
        assert text == stored, (
            f"{path.name} differs; if the change is meant: pytest --update-golden {request.node.nodeid}"
        )

    return check


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files with what the code gives now")


def pytest_configure() -> None:
    # The second thread of a small matrix product costs more CPU, spinning, than it saves: the other process needs it.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that tests start
    threadpool_limits(1, user_api="blas")
    gc.disable()  # until the tests are collected: all that collection makes stays


def pytest_collection_finish() -> None:
    gc.freeze()  # a collection of garbage does not look at a million objects of the test files
    gc.set_threshold(50_000, 20, 100)  # nor often at the kernels that a process keeps; Python's is 700 or 2,000
    gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if MISSING and GPU_TESTS in (collection_path, *collection_path.parents) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/gpu skipped: {MISSING}")
