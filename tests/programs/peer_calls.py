"""Calls of ``bench/peers.py`` on a virtual H200, each in a process of its own: the libraries remember the GPU.

``python -m tests.programs.peer_calls bf16|fp8|batched`` is a tuned GEMM of QuACK, and with a case of
``bench/attention_mods.py`` attention of flash-attn-4 with its gradients. Each prints the mean error of every result
over its mean value.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attention_mods
import peers
import torch
from torch.nn.attention.flex_attention import create_block_mask

from tests.programs.verdicts import checked

Pair = tuple[torch.Tensor, torch.Tensor]
GEMMS = {"bf16": (torch.bfloat16, ()), "fp8": (torch.float8_e4m3fn, ()), "batched": (torch.bfloat16, (2,))}
MODS = {"SHAPE": (1, 2, 256, 128), "WINDOW": 100, "DOCUMENT": 90, "CAP": 2.0}


def gemm(dtype: torch.dtype, leading: tuple[int, ...]) -> Iterator[Pair]:
    """QuACK's GEMM, tuned among one tile, both orders of A and B, and one and two slices of K."""
    from quack import autotuner, gemm_interface
    from quack.cache.async_compile import suppress_pool

    a, b = (torch.randn(*leading, rows, 256, device="cuda").to(dtype) for rows in (100, 256))
    d = torch.full((*leading, 100, 256), math.nan, device="cuda", dtype=torch.bfloat16)
    scale = torch.tensor([0.125], device="cuda")
    times, tuner = [4.0, 3.0, 1.0, 2.0], gemm_interface.gemm_tuned
    of_tile = [each for each in tuner.configs if is_tried(each.kwargs["config"])]

    def time(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
        ((name, run),) = runs.items()
        run()
        return {name: times.pop(0)}

    with (
        suppress_pool(),  # other processes would compile for another GPU
        mock.patch.object(tuner, "configs", of_tile),
        mock.patch.object(tuner, "cache_results", False),
        mock.patch.object(autotuner, "_gpu_warmup"),
        mock.patch.object(peers.cuda, "medians", time),
    ):
        run = peers.quack_gemm(a, b.mT, d, scale)
        run()
        tried = [each.kwargs["config"] for each in tuner.configs_timings]
        assert [(each.swap_ab, each.split_k) for each in tried] == [(False, 1), (True, 1), (False, 2), (True, 2)]
        assert tuner.best_config.kwargs["config"] == tried[2], "the fastest"
        d.fill_(math.nan)
        run()  # without another measurement, for ``times`` is empty
    yield d, a.double() @ b.double().mT / 8


def is_tried(config: Any) -> bool:
    tile = config.tile_m, config.tile_n, config.cluster_m
    return config.device_capacity == 9 and tile == (128, 128, 2)


def attention(name: str) -> Iterator[Pair]:
    with mock.patch.multiple(attention_mods, **MODS):
        case, shape = attention_mods.cases()[name], attention_mods.SHAPE
        q, k, v, do = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
        blocks = create_block_mask(case.mask, None, None, shape[2], shape[2], device="cuda")
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        forward = attention_mods.flash4(case, [q, k, v], blocks)[peers.NEWEST]
        backward = attention_mods.flash4_gradients(case, leaves, blocks, do)[peers.NEWEST]
        for head in range(shape[1]):
            found = [x[0, head] for x in (forward(), *backward())]
            yield from zip(found, attention_mods.exact(case, [q, k, v, do], 0, head), strict=True)


def main(call: str) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    with checked("h200"):
        for found, expected in gemm(*GEMMS[call]) if call in GEMMS else attention(call):
            print(((found.double() - expected).abs().mean() / expected.abs().mean()).item())


if __name__ == "__main__":
    main(*sys.argv[1:])
