"""Handles of streams of every library."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from warpwright.cuda.stream import current, handle
from warpwright.errors import UsageError


def test_handles() -> None:
    assert handle(0x1234) == 0x1234
    assert handle(SimpleNamespace(__cuda_stream__=lambda: (0, 5))) == 5
    assert handle(SimpleNamespace(cuda_stream=6)) == 6
    assert handle(SimpleNamespace(ptr=7)) == 7
    with pytest.raises(UsageError) as caught:
        handle("fast")
    assert str(caught.value) == (
        "given stream='fast'; expected a stream of cuda.core, torch or CuPy, or its handle as an int"
    )


def test_the_current_stream_of_the_arrays_library(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=10 + device))
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = type("Tensor", (), {"__module__": "torch", "device": 3})()
    assert current([object(), tensor]) == 13
    assert current([object()]) == 0
