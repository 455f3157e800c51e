"""`virtual` in a process without the libraries that it serves."""

from __future__ import annotations

import pytest

import warpwright as ww
from warpwright.errors import UsageError
from warpwright.interop import virtual


@pytest.mark.parametrize("installed", [set(), {"triton", "cutlass"}, {"torch"}])
def test_without_a_library_that_it_serves(monkeypatch: pytest.MonkeyPatch, installed: set[str]) -> None:
    monkeypatch.setattr(virtual, "_is_installed", installed.__contains__)
    with pytest.raises(UsageError) as caught, ww.virtual("h200"):
        pass
    assert str(caught.value) == (
        "virtual() runs kernels of Triton and CuTe DSL on tensors of torch, and kernels of cuda.core and CuPy; "
        "expected one of these packages: pip install torch triton nvidia-cutlass-dsl, or pip install cuda-core, or "
        "pip install 'cupy-cuda13x[ctk]'"
    )
