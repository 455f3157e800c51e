"""Stand-ins for the CUDA packages, for what is worth testing without a GPU."""

from __future__ import annotations

import enum
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from warpwright.cuda import compile as compiling
from warpwright.cuda import function, tensor_map


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class FakeDriver:
    """Notes how it is called; ``status`` is its answer."""

    CUresult = Result

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.status = Result.CUDA_SUCCESS
        for name in ("DataType", "Interleave", "Swizzle", "L2promotion", "FloatOOBfill"):
            setattr(self, f"CUtensorMap{name}", int)
        self.cuuint64_t = self.cuuint32_t = int

    def cuTensorMapEncodeTiled(self, *args: Any) -> tuple[Result, Any]:
        self.calls.append(("cuTensorMapEncodeTiled", args))
        return self.status, SimpleNamespace(opaque=range(16))


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(tensor_map, "driver", lambda: made)
    monkeypatch.setattr(function, "driver", lambda: made)
    tensor_map.encoded.cache_clear()
    yield made
    tensor_map.encoded.cache_clear()


@pytest.fixture
def fake_core(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``cuda.core`` whose linker refuses with ``refusal``, or notes its ``options``."""
    noted = SimpleNamespace(refusal="", options=None)

    class Linker:
        def __init__(self, code: bytes, options: dict[str, Any]) -> None:
            noted.options, self.code = options, code

        def link(self, kind: str) -> SimpleNamespace:
            if noted.refusal:
                raise RuntimeError("link failed")
            return SimpleNamespace(code=kind.encode() + b" of " + self.code)

        def get_info_log(self) -> str:
            return "the report\n\0"

        def get_error_log(self) -> str:
            return noted.refusal

    core = ModuleType("cuda.core")
    core.Linker, core.LinkerOptions = Linker, dict
    core.ObjectCode = SimpleNamespace(from_ptx=lambda text: text)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    monkeypatch.setattr(compiling, "nvjitlink_version", lambda: (13, 0))
    return noted
