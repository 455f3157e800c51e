"""A fake CUDA driver, for tests without a GPU."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpwright.cuda import function, tensor_map


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class FakeDriver:
    """Records its calls; every call returns ``status``."""

    CUresult = Result

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.status = Result.CUDA_SUCCESS
        for name in ("DataType", "Interleave", "Swizzle", "L2promotion", "FloatOOBfill"):
            setattr(self, f"CUtensorMap{name}", int)
        self.cuuint64_t = self.cuuint32_t = int

    def cuTensorMapEncodeTiled(self, *args: Any) -> tuple[Result, Any]:
        return self._encode("cuTensorMapEncodeTiled", args)

    def cuTensorMapEncodeIm2col(self, *args: Any) -> tuple[Result, Any]:
        return self._encode("cuTensorMapEncodeIm2col", args)

    def _encode(self, name: str, args: tuple[Any, ...]) -> tuple[Result, Any]:
        self.calls.append((name, args))
        memory = np.arange(16, dtype=np.uint64)
        return self.status, SimpleNamespace(opaque=range(16), memory=memory, getPtr=lambda: memory.ctypes.data)

    def cuTensorMapReplaceAddress(self, tensor_map: Any, pointer: int) -> tuple[Result]:
        self.calls.append(("cuTensorMapReplaceAddress", (pointer,)))
        tensor_map.memory[0] = pointer
        return (self.status,)


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(tensor_map, "driver", lambda: made)
    monkeypatch.setattr(function, "driver", lambda: made)
    tensor_map.encode_fields.cache_clear()
    yield made
    tensor_map.encode_fields.cache_clear()
