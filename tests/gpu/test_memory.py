"""Too little memory on the GPU: a clear error, nothing lost, and everything works again afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch

import warpwright as ww
import warpwright.interop.torch
from tests.gpu.kernels import THREADS, saxpy
from warpwright.report.verdict import judge

MIB = 1 << 20
ROWS = 1 << 19  # squared, in bfloat16, 512 GiB
HINT = (
    "the GPU has too little free memory; free some (torch.cuda.empty_cache() frees torch's cache), "
    "or use smaller arrays"
)


@pytest.fixture
def full() -> Iterator[list[torch.Tensor]]:
    """torch holds all but some 100 MiB, in a list to be cleared."""
    torch.cuda.empty_cache()
    held = []
    for unit in (1024 * MIB, 64 * MIB):
        while torch.cuda.mem_get_info()[0] > unit + 64 * MIB:
            held.append(torch.empty(unit, dtype=torch.uint8, device="cuda"))
    yield held
    held.clear()
    torch.cuda.empty_cache()


@pytest.fixture
def limited() -> Iterator[None]:
    """torch's allocator has what it holds now and 128 MiB, of a GPU with plenty left."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 128 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def close(d: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    exact = a.double() @ b.double()
    return bool((d.double() - exact).norm() < 4e-3 * exact.norm())


@pytest.mark.parametrize("product", [ww.matmul, torch.ops.warpwright.matmul])
def test_a_result_larger_than_the_gpu(product) -> None:
    a, b = normal(ROWS, 8), normal(8, ROWS)
    kept, before = a.clone(), torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 512\.00 GiB"):
        product(a, b)
    assert torch.cuda.memory_allocated() == before and torch.equal(a, kept)
    assert close(product(a[:100], b[:, :200]), a[:100], b[:, :200])


@pytest.mark.usefixtures("limited")
def test_an_exhausted_pool() -> None:
    """The result, then the copy of an operand that no tensor map covers, find no room."""
    a, b = normal(256, 256), normal(256, 256)
    long = a[:, :8].repeat(48, 1)
    with pytest.raises(torch.OutOfMemoryError):
        ww.matmul(long, long.T)
    strange = torch.as_strided(normal(1024, 1024), (65536, 1024), (8, 1))[:, 1:1000]
    out = torch.full((65536, 256), 7.0, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError):
        ww.matmul(strange, normal(999, 256), out=out)
    assert (out == 7).all()
    assert close(ww.matmul(a, b), a, b)


def test_numpy_arrays_that_find_no_room(full: list[torch.Tensor]) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((8192, 8192), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))
    with pytest.raises(ww.LaunchError) as caught:
        ww.matmul(a, b.T, device="cuda")
    assert str(caught.value) == f"launch of 'gemm': 134,217,728 bytes of NumPy arrays: {HINT}"
    free = torch.cuda.mem_get_info()[0]
    with pytest.raises(ww.LaunchError):
        ww.matmul(a, b.T, device="cuda")
    assert torch.cuda.mem_get_info()[0] == free
    full.clear()
    torch.cuda.empty_cache()
    rows = slice(0, 8192, 512)
    assert judge(ww.matmul(a, b.T, device="cuda")[rows], a[rows], b.T).verified


def test_a_gpu_without_room_runs_what_needs_none(full: list[torch.Tensor]) -> None:
    x, y = full[0][:4096].view(torch.float32).fill_(1), full[0][4096:8192].view(torch.float32).fill_(2)
    ww.launch(saxpy, 1024 // THREADS, args=[3.0, x, y, 1024])
    assert torch.equal(y, torch.full_like(y, 5))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
def test_arrays_of_two_gpus_and_the_second_alone() -> None:
    a, b = torch.randn(64, 64, device="cuda:1").half(), torch.randn(64, 64, device="cuda:1").half()
    assert close(ww.matmul(a, b), a, b)
    with pytest.raises(ww.UsageError) as caught:
        ww.matmul(a, b.to("cuda:0"))
    assert str(caught.value) == "matmul: a is on cuda:1 and b on cuda:0; expected both on one device"
    x, y = torch.ones(8, device="cuda:0"), torch.ones(8, device="cuda:1")
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(saxpy, 1, args=[1.0, x, y, 8])
    assert str(caught.value) == (
        "launch of 'saxpy' on cuda:0: given an array on cuda:1; expected all arrays on cuda:0; copy it there"
    )
