"""`printf` and `assert_` on a real GPU as on a virtual one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.lang.ops.test_debug import kinds

FAILS = """
import numpy as np
import warpwright as ww
from tests.lang.ops.test_debug import bounded

x = np.zeros(32, np.uint32)
bounded[1](x, device="cuda")
assert (x == 9).all()
try:
    bounded[1](x, device="cuda")
except ww.DeviceError as error:
    print(error)
"""


def test_values_of_every_type_are_printed_as_a_virtual_gpu_prints_them(capfd: pytest.CaptureFixture[str]) -> None:
    args = [np.ones(1, np.float32), -3, -300, 2**40, np.float16(1.5), 0x3FC0, 0.1]
    expected = kinds[1](*args, device="h200").printed.splitlines()
    capfd.readouterr()
    kinds[1](*args, device="cuda")
    torch.cuda.synchronize()
    found = capfd.readouterr().out.splitlines()
    assert found[:2] == expected[:2]
    assert found[2].rpartition(" ")[0] == expected[2].rpartition(" ")[0]  # behind it the address of an array


def test_a_failed_assertion_is_an_error_of_the_driver() -> None:
    """In a process of its own: the context of a failed assertion is lost."""
    ran = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, check=True)
    assert "CUDA_ERROR_ASSERT" in ran.stdout
    assert "assertion `assert_(x[tid.x] < 5, message)` failed" in ran.stdout.lower() + ran.stderr.lower()
