"""The watch ends a call whose flags do not come, names the rank, and leaves all other calls alone."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from warpwright.distributed import watch as module
from warpwright.distributed.agreement import DistributedTimeout
from warpwright.distributed.watch import Watch, keep_watch, look_at_all
from warpwright.kernels.node import Lack, report_of

DIGEST, LIMIT = 7, 10.0
SENTENCE = (
    "rank 1 has waited 10 s in call 7, and rank 3 has not sent its part; expected the same calls of all ranks, in one "
    "order; look for an error of rank 3, and start all ranks again: the GPU of rank 1 has stopped; "
    "WARPWRIGHT_TIME_LIMIT or the timeout of the group sets the limit"
)


class Gpu:
    """A GPU with words of the host, and the watch of rank 1; in a call of `DIGEST` it waits for ranks 2 and 3."""

    def __init__(self) -> None:
        self.words, self.flags = (ctypes.c_uint64 * 2)(), [0, 0, 0, 0]
        self.reads, self.stops = 0, list[int]()
        address = ctypes.addressof(self.words)
        self.watch = Watch(1, LIMIT, (address, address + 8), "call {}".format, self.read_flags, self.stop)
        self.watch.begin(DIGEST)
        self.watch.expect(2, 1, 2)
        self.watch.expect(3, 1, 3)

    def barrier(self, epoch: int) -> None:
        self.words[1] = DIGEST << 32 | epoch

    def read_flags(self, count: int) -> list[int]:
        self.reads += 1
        return self.flags[:count]

    def stop(self, report: int) -> None:
        self.stops.append(report)
        self.words[0] = report

    def look(self, *times: float) -> None:
        for each in times:
            self.watch.look(each)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(module, "GRACE", 0.5)
    return Gpu()


def test_a_flag_that_does_not_come_ends_the_call_and_names_its_rank(
    gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.barrier(1)
    gpu.flags[2] = 1
    gpu.look(100.0, 110.0)
    assert not gpu.reads  # within the limit nothing is asked of the GPU
    gpu.look(110.1, 111.1)
    assert gpu.stops == [report_of(Lack.SEND, 3)]
    with pytest.raises(DistributedTimeout) as caught:
        gpu.watch.require()
    assert str(caught.value) == SENTENCE
    keep_watch(gpu.watch)
    look_at_all(112.0)
    look_at_all(113.0)
    assert capsys.readouterr().err == f"warpwright: {SENTENCE}\n"


def test_a_call_whose_flags_have_come_is_asked_once(gpu: Gpu) -> None:
    gpu.flags[2:] = 1, 1
    gpu.barrier(1)
    gpu.look(100.0, 111.0, 112.0, 500.0)
    assert (gpu.reads, gpu.stops) == (1, [])
    gpu.watch.require()


def test_flags_that_the_next_call_has_set_back_end_nothing(gpu: Gpu) -> None:
    gpu.barrier(1)
    gpu.look(100.0, 111.0)  # the flags are 0 already
    gpu.barrier(2)
    gpu.look(112.0, 113.0)
    assert gpu.stops == []
    gpu.look(122.1, 123.1)  # this call does not go on
    assert gpu.stops == [report_of(Lack.SEND, 2)]


def test_a_call_without_waits_of_streams_is_left_alone(gpu: Gpu) -> None:
    gpu.watch.begin(DIGEST)
    gpu.barrier(1)
    gpu.look(100.0, 111.0, 112.0)
    assert (gpu.reads, gpu.stops) == (0, [])


def test_a_gpu_that_answers_no_copy_is_told_and_not_stopped(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.watch.read_flags = forever
    gpu.barrier(1)
    gpu.look(100.0, 111.0, 112.0)
    assert gpu.stops == []
    assert capsys.readouterr().err == (
        "warpwright: rank 1 began call 7 more than 10 s ago, and its GPU answers no copy; if it has no other work, "
        "look for an error of rank 2, 3\n"
    )


def forever(count: int) -> list[int]:
    threading.Event().wait()
    return []


PROGRAM = """
import tests.distributed.test_watch as test

test.module.GRACE = 0.2
gpu = test.Gpu()
gpu.watch.stop = test.forever
gpu.flags[2] = 1
gpu.barrier(1)
gpu.look(100.0, 111.0, 112.0)
print("it goes on")
"""


def test_a_gpu_that_does_not_stop_ends_the_process() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == -signal.SIGABRT
    assert result.stdout == ""
    assert f"warpwright: {SENTENCE}; its GPU did not stop, so the process ends\n" in result.stderr


ENDING = """
import tests.distributed.test_watch as test

gpu = test.Gpu()
test.keep_watch(gpu.watch)
gpu.barrier(1)
gpu.watch.look(100.0)
gpu.stop(test.report_of(test.Lack.SEND, 3))
raise RuntimeError("CUDA error: unspecified launch failure")
"""


def test_a_process_that_an_error_of_torch_ends_tells_the_missing_rank() -> None:
    result = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.endswith(f"RuntimeError: CUDA error: unspecified launch failure\nwarpwright: {SENTENCE}\n")


def test_the_thread_of_the_process_looks(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.watch.limit = 0.2
    gpu.barrier(1)
    keep_watch(gpu.watch)
    wait_until(lambda: gpu.watch.told)
    assert gpu.stops == [report_of(Lack.SEND, 2)]
    assert "rank 1 has waited 0.2 s in call 7, and rank 2 has not sent its part" in capsys.readouterr().err


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    last = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.01)
