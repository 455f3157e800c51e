"""Launches of several threads and processes: each has state of its own, and what they share is safe."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import warpwright as ww
from tests.vgpu import helpers
from warpwright.lang import Global, If, kernel, tid, u32
from warpwright.run.check import check
from warpwright.vgpu import device
from warpwright.vgpu.checks.watcher import Watcher
from warpwright.vgpu.machine.blas import one_blas_thread
from warpwright.vgpu.machine.cluster import Cluster


@kernel("sm_90a", threads=32)
def branching(x: Global[u32], deep: u32) -> None:
    """Not all of the kernel is reached unless ``deep`` is set."""
    with If(deep != 0):
        x[tid.x] = tid.x


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run ``work`` in threads that begin at once, and raise the first error."""
    barrier, errors = threading.Barrier(count), list[BaseException]()

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def judge(deep: int) -> str:
    return check(branching, 1, args=[np.zeros(32, np.uint32), deep], device="h200").kind


def test_a_verdict_does_not_count_what_another_launch_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another launch of the same cached kernel, by another thread, runs between the end of a launch and its verdict."""
    end, inner = Watcher.end, list[str]()

    def interrupted(self: Watcher, cluster: Cluster, error: Exception | None = None, own: bool = False) -> None:
        end(self, cluster, error, own)
        if not inner:
            inner.append("")
            inner[:] = [judge(1)]

    monkeypatch.setattr(Watcher, "end", interrupted)
    assert judge(0) == "incomplete"
    assert inner == ["clean"]


def test_threads_compile_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, compile_program = list[str](), device.compile_program

    def slow(program: Any, *how: Any) -> Any:
        calls.append(program.name)
        time.sleep(0.05)
        return compile_program(program, *how)

    monkeypatch.setattr(device, "compile_program", slow)
    text = helpers.text("st.global.u32 [%o], %t;\nret;", (np.zeros(1),))

    def launch(_: int) -> None:
        x = np.zeros(32, np.uint32)
        ww.launch(ww.load_ptx(text)["k"], 1, 32, args=[x], device="b200")
        assert x.tolist() == list(range(32))

    in_threads(4, launch)
    assert calls == ["k"]


def test_a_kernel_may_leave_the_cache_before_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_CACHED", 0)
    x = np.zeros(32, np.uint32)
    helpers.run("st.global.u32 [%o], 7;\nret;", x, block=32)
    assert (x == 7).all()


def test_threads_trace_one_kernel_at_once() -> None:
    barrier, found = threading.Barrier(2), list[Any]()

    @kernel("sm_90a", threads=32)
    def met(x: Global[u32]) -> None:
        i = tid.x + 1
        barrier.wait()  # both threads are in the kernel
        with If(i > 3):
            barrier.wait()
            x[i] = i

    in_threads(2, lambda _: found.append(met.trace()))
    barrier = threading.Barrier(1)
    assert found[0] is found[1]
    assert found[0].ptx == met.configure().ptx()


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_launches_at_once_restore_the_threads_of_blas() -> None:
    with threadpool_limits(3, user_api="blas"):
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {3}


FORKS = """
import os, signal, sys, threading, time
import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits
import warpwright as ww
from tests.vgpu import helpers
from warpwright.vgpu.jit.runtime import COMPILER
from warpwright.vgpu.machine.blas import one_blas_thread

def launch(value):
    x = np.zeros(320, np.uint32)
    helpers.run(f"st.global.u32 [%o], {value};\\nret;", x, block=32, grid=10)
    assert (x == value).all()

compiling, launching, forked = (threading.Event() for _ in range(3))

def hold_the_compiler():
    with COMPILER:
        compiling.set()
        time.sleep(0.3)

def hold_the_limit():
    with one_blas_thread():
        launching.set()
        forked.wait()

threadpool_limits(2, user_api="blas")
launch(1)
threads = [threading.Thread(target=hold) for hold in (hold_the_compiler, hold_the_limit)]
for thread in threads:
    thread.start()
compiling.wait(), launching.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # a lock that nobody frees
    threadpool_limits(1, user_api="blas")  # as the other launch had it; some libraries forget it in a fork
    launch(1)
    launch(2)
    os._exit({each["num_threads"] for each in threadpool_info()} != {2})
forked.set()
launch(3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_compiles() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], timeout=60, env={**os.environ, "PYTHONPATH": "src:."})
    assert done.returncode == 0


def verdict_of(deep: int) -> Any:
    return check(branching, 1, args=[np.zeros(32, np.uint32), deep], device="h200")


def test_a_spawned_process_returns_its_verdicts() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(verdict_of, [0, 1]) == [verdict_of(0), verdict_of(1)]
