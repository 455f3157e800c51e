"""From an operator to the device: how many modules a cold call enters, and which launches a call makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.errors import UsageError
from warpwright.ops.attention.backward import gradients

MODULES, RETURNS = 8, 10
CALLS = {
    "matmul": "ww.matmul(ones(128, 64), ones(128, 64).T, device={!r})",
    "attention": "ww.attention(*[ones(1, 2, 128, 64)] * 3, device={!r})",
}
COUNT = """
import pathlib
import sys
import ml_dtypes
import numpy as np
import warpwright as ww

ROOT = str(pathlib.Path(ww.__file__).parent) + "/"
BELOW = ("lang", "kernels", "isa", "ptx", "vgpu", "layout", "cuda", "targets", "types.py", "errors.py")
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>")  # no calls from Python 3.12 on
entered = []

class Launched(Exception):
    pass

def note(frame, event, argument):
    file = frame.f_code.co_filename
    if event != "call" or not file.startswith(ROOT) or frame.f_code.co_name in INLINE:
        return
    file = file[len(ROOT):]
    if file == "vgpu/device.py" and frame.f_code.co_name == "launch":
        sys.setprofile(None)
        raise Launched
    if file.split("/")[0] not in BELOW and entered[-1:] != [file]:
        entered.append(file)

def ones(*shape):
    return np.ones(shape, ml_dtypes.bfloat16)

ww.matmul, ww.attention  # the first use of a name imports its module; the call alone is counted
sys.setprofile(note)
try:
    {call}
except Launched:
    print(len(set(entered)), len(entered) - len(set(entered)), *entered)
"""


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize("operator", CALLS)
def test_a_cold_call_enters_few_modules(operator: str, device: str, tmp_path) -> None:
    text = COUNT.replace("{call}", CALLS[operator].format(device))
    environment = {"PYTHONPATH": ":".join(sys.path), "WARPWRIGHT_CONFIG": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=True)
    modules, again, *entered = done.stdout.split()
    assert int(modules) <= MODULES and int(again) <= RETURNS, " ".join(entered)


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)


Q, K = normal(2, 4, 40, 64), normal(2, 2, 70, 64)
ROWS, STARTS = normal(14, 4, 64), np.array([0, 5, 14], np.int32)
ASKED: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[str]]] = [
    (ww.matmul, (normal(40, 24), normal(24, 16)), {"device": "h200"}, ["gemm"]),
    (ww.matmul, (normal(40, 24), normal(24, 15)), {"device": "b200", "level": 3, "bias": normal(15)}, ["gemm"]),
    (ww.matmul, (normal(65, 8192), normal(8192, 70)), {"device": "h200"}, ["gemm", "add_slices"]),
    (ww.matmul, (normal(3, 0), normal(0, 4)), {"device": "h200"}, ["gemm"]),
    (ww.matmul, (normal(0, 4), normal(4, 4)), {"device": "h200"}, []),
    (ww.attention, (Q, K, K), {"device": "rtx5090", "return_lse": True}, ["attention"]),
    (ww.attention, (Q[..., ::2], K[..., ::2], K[..., 1::2]), {"device": "rtx5090"}, ["attention"]),
    (ww.attention_varlen, (ROWS, ROWS, ROWS, STARTS, STARTS), {"causal": True}, ["attention_varlen"]),
]


@pytest.mark.parametrize(("operator", "arrays", "options", "entries"), ASKED)
def test_the_launches_of_a_call(operator: Any, arrays: Any, options: Any, entries: list[str]) -> None:
    """Launches that run one after the other compute the result of the operator."""
    call, found = ww.launches(operator, *arrays, **options), []
    for launch in call:
        found.append(launch.kernel.entry)
        ww.launch(launch.kernel, launch.grid, args=launch.args, device=call.device)
    assert len(found) == len(entries)
    expected = operator(*arrays, **options)
    results = [each if isinstance(each, tuple) else (each,) for each in (call.result, expected)]
    for result, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))


def test_the_launches_of_gradients() -> None:
    q, k = normal(1, 2, 20, 64), normal(1, 2, 30, 64)
    o, lse = ww.attention(q, k, k, device="h200", return_lse=True)
    assert len(list(ww.launches(gradients, q, k, k, o, lse, q))) == 3


def test_gradients_of_arrays_without_a_batch() -> None:
    q, k = normal(2, 20, 64), normal(2, 30, 64)
    o, lse = ww.attention(q, k, k, device="h200", return_lse=True)
    found = gradients(q, k, k, o, lse, q)
    for each, wanted in zip(found, gradients(*(x[None] for x in (q, k, k, o, lse, q))), strict=True):
        np.testing.assert_array_equal(each.astype(np.float32), wanted[0].astype(np.float32))


def test_another_function_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        ww.launches(print, 1)
    assert str(caught.value) == (
        "launches: given print; expected one of matmul, attention, attention_varlen, attention_paged, attention_mla, "
        "gradients, gradients_varlen: launches(ww.matmul, a, b)"
    )
