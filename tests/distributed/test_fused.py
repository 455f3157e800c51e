"""The launch of the kernel of all-gather and GEMM: its arguments by name."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from tests.distributed.host_workspace import HostWorkspace, workspaces
from warpwright import cuda
from warpwright.cuda.function import layout
from warpwright.distributed import gather, scatter
from warpwright.distributed.gather import chunk_rows
from warpwright.distributed.problem import Problem
from warpwright.kernels.gemm.sm90 import CONFIGS
from warpwright.kernels.gemm.sm90.all_gather import SENDING
from warpwright.layout.peers import PEER_MAPS_BYTES, PEERS_BYTES
from warpwright.layout.tensor_map import TensorMap

X, WEIGHT, OUT = 0x1000, 0x2000, 0x3000


def encode(tensor: TensorMap, pointer: int) -> bytes:
    """A tensor map as its address, its extents and its strides."""
    values = (pointer, *tensor.dims, *tensor.strides)
    return struct.pack(f"<{len(values)}Q", *values).ljust(128, b"\0")


def bound(
    monkeypatch: pytest.MonkeyPatch, shared: HostWorkspace, problem: Problem, config: Any, send: bool = False
) -> dict[str, Any]:
    """Returns grid and arguments of a launch on a fake GPU, by name."""
    found: dict[str, Any] = {}

    def function(module: Any, entry: str, *sizes: Any) -> Any:
        params = next(item.params for item in module.items if getattr(item, "name", "") == entry)

        def at(grid: Any, values: list[Any], stream: int) -> None:
            layout(params)[0].pack(*values)
            found.update({param.name: value for param, value in zip(params, values, strict=True)}, grid=grid)

        return SimpleNamespace(at=at)

    monkeypatch.setattr(cuda, "encode", encode)
    shared.gpu.function, shared.reserve = function, lambda nbytes: None
    steps = (1, problem.k) if problem.majors[0] == "k" else (problem.columns[0], 1)
    if problem.operation == "all_gather_matmul":
        gather.Fused(config, send, shared, problem).launch(0, X, WEIGHT, steps, OUT, 7)
    else:
        scatter.Fused(config, shared, problem).launch(X, WEIGHT, steps[1], OUT, 7)
    return found


@pytest.mark.parametrize(("major", "extents"), [("k", (512, 1000)), ("mn", (1000, 512))])
def test_a_launch_has_the_memory_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, major: str, extents: tuple[int, int]
) -> None:
    shared = workspaces(2, 1024)[1]
    problem = Problem("all_gather_matmul", 2, 1400, 512, (1000,), (major,), torch.bfloat16)
    found = bound(monkeypatch, shared, problem, CONFIGS["128x256"], False)
    assert struct.unpack_from("<4Q", found["a"]) == (X, 512, 1400, 1024)
    assert struct.unpack_from("<4Q", found["b"]) == (WEIGHT, *extents, 2 * extents[0])
    assert struct.unpack_from("<6Q", found["d"]) == (OUT, 1000, 1400, 2, 2000, 2000 * 1400)
    maps = found["gathered"]
    assert len(maps) == PEER_MAPS_BYTES
    for rank, pointer in enumerate(shared.pointers):
        assert struct.unpack_from("<6Q", maps, 128 * rank) == (pointer, 512, 1400, 2, 1024, 1024 * 1400)
    assert struct.unpack_from("<2I", maps, 1024) == (1, 2)
    assert len(found["arrived"]) == PEERS_BYTES
    assert struct.unpack_from("<2Q", found["arrived"]) == shared.flags
    numbers = [found[name] for name in ("tiles_m", "tiles_n", "tiles_k", "chunk", "group")]
    assert numbers == [11, 4, 8, 32, 6]  # a chunk is 4 MB at least
    assert found["grid"] == (96, 1, 1)
    assert (found["report"], found["limit_ns"]) == tuple(shared.limit.values())


def test_a_kernel_that_sends_has_a_flag_for_each_row_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("all_gather_matmul", 2, 4096, 8192, (5120,), ("k",), torch.float16)
    found = bound(monkeypatch, workspaces(2, 1024)[0], problem, SENDING, True)
    assert (found["chunk"], found["group"], found["grid"]) == (1, 8, (128, 1, 1))


def test_a_kernel_that_scatters_has_an_entry_for_each_tile_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("matmul_reduce_scatter", 4, 1000, 512, (520,), ("k",), torch.bfloat16)
    shared = workspaces(4, 1024)[2]
    found = bound(monkeypatch, shared, problem, CONFIGS["128x256 alone"])
    assert struct.unpack_from("<6Q", found["a"]) == (X, 512, 1000, 4, 1024, 1024 * 1000)
    assert struct.unpack_from("<4Q", found["b"]) == (WEIGHT, 512, 520, 1024)
    assert struct.unpack_from("<4Q", found["d"]) == (OUT, 520, 1000, 1040)
    assert struct.unpack_from("<4Q", found["partials"]) == shared.pointers
    assert struct.unpack_from("<2I", found["arrived"], 64) == (2, 4)
    assert [found[name] for name in ("tiles_m", "tiles_n", "tiles_k", "alpha")] == [8, 3, 8, 1.0]
    assert found["grid"] == (96, 1, 1)
    assert (found["report"], found["limit_ns"]) == tuple(shared.limit.values())
    assert scatter.entries_of(CONFIGS["128x256 alone"], problem) == 72
    assert scatter.partial_bytes(CONFIGS["128x256 alone"], problem) == 72 * 128 * 256 * 2


def test_chunks_are_whole_tiles() -> None:
    problem = Problem("all_gather_matmul", 2, 8192, 4096, (1024,), ("k",), torch.bfloat16)
    assert chunk_rows(problem, 128) == 2048  # a quarter
    assert chunk_rows(problem._replace(rows=1000), 128) == 512  # 4 MB
    assert chunk_rows(problem._replace(rows=100), 192) == 576
