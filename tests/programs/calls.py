"""Calls of FlashAttention-4 and QuACK by their Python API, each in a process of its own: both remember the GPU.

``python -m tests.programs.calls DEVICE attention|gradients|softmax|gemm`` prints the largest error against float64,
beside the largest value.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import torch

from tests.programs.verdicts import checked

Pair = tuple[torch.Tensor, torch.Tensor]


def attention(gradients: bool = False) -> Iterator[Pair]:
    from flash_attn.cute import flash_attn_func

    q, k, v = (torch.randn(1, 128, 2, 64, device="cuda").bfloat16().requires_grad_(gradients) for _ in range(3))
    found = flash_attn_func(q, k, v, causal=True)[0]
    exact = [each.double().transpose(1, 2) for each in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True).transpose(1, 2)
    yield found, expected
    if gradients:
        do = torch.randn_like(found)
        ours = torch.autograd.grad(found, (q, k, v), do)
        yield from zip(ours, torch.autograd.grad(expected, (q, k, v), do.double()), strict=True)


def softmax() -> Iterator[Pair]:
    from quack.softmax import softmax

    x = torch.randn(33, 256, device="cuda").bfloat16()
    yield softmax(x), torch.softmax(x.double(), -1)


def gemm() -> Iterator[Pair]:
    from quack.gemm_interface import gemm

    a, b = (torch.randn(256, 128, device="cuda").bfloat16() for _ in range(2))
    yield gemm(a, b.T, tuned=False), a.double() @ b.double().T


CALLS = {"attention": attention, "gradients": lambda: attention(gradients=True), "softmax": softmax, "gemm": gemm}


def main(device: str, call: str) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    with checked(device) as session:
        for found, expected in CALLS[call]():
            print((found.double() - expected).abs().max().item(), expected.abs().max().item())
        print(*(each.name for each in session.launches))


if __name__ == "__main__":
    main(*sys.argv[1:])
