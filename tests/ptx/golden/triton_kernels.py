"""The Triton kernels of ``triton_*.ptx``, compiled without a GPU.

Run as a script it writes the files beside itself; ``compile.py`` calls it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
ARCHS = {"sm_90a": 90, "sm_100a": 100, "sm_120a": 120}


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    tl.store(out + index, tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + index, mask=index < columns, other=-float("inf"))
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + index, weights / tl.sum(weights, axis=0), mask=index < columns)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """C = A·Bᵀ through tensor maps, float32 accumulation."""
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    acc = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        acc = tl.dot(a.load([row, start]), b.load([column, start]).T, acc)
    c.store([row, column], acc.to(tl.float16))


@triton.jit
def histogram(x, bins, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    tl.atomic_add(bins + tl.load(x + index, mask=inside, other=0), 1, mask=inside)


TILES = {"M": 128, "N": 128, "K": 64}
MATMUL = {name: f"tensordesc<fp16[{rows}, {columns}]>" for name, rows, columns in (("a", 128, 64), ("b", 128, 64))}
MATMUL |= {"c": "tensordesc<fp16[128, 128]>", "m": "i32", "n": "i32", "k": "i32"}
POINTERS = {"x": "*fp32", "y": "*fp32", "out": "*fp32"}

KERNELS: list[tuple[Any, dict[str, str], dict[str, int]]] = [
    (vector_add, {**POINTERS, "n": "i32"}, {"BLOCK": 1024}),
    (softmax, {"x": "*fp32", "out": "*fp32", "stride": "i32", "columns": "i32"}, {"BLOCK": 1024}),
    (histogram, {"x": "*i32", "bins": "*i32", "n": "i32"}, {"BLOCK": 512}),
    (matmul, MATMUL, TILES),
]


def main() -> None:
    for kernel, signature, constants in KERNELS:
        for arch, capability in ARCHS.items():
            types = {**signature, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(fn=kernel, signature=types, constexprs=constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            (HERE / f"triton_{kernel.fn.__name__}.{arch}.ptx").write_text(compiled.asm["ptx"])


if __name__ == "__main__":
    main()
