"""Peers on a real GPU: torch's backends of attention, and where they are installed flash-attn-4 and QuACK."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from warpwright import cuda
from warpwright.kernels.attention import Problem
from warpwright.ops.attention import trials

NEWEST = "flash4"  # https://pypi.org/project/flash-attn-4
NAMES = [*trials.PEERS, NEWEST] if find_spec("flash_attn") else [*trials.PEERS]
QUACK = "quack"  # https://pypi.org/project/quack-kernels
GEMM_NAMES = ["cublas", QUACK] if find_spec("quack") else ["cublas"]
TUNING_ROUNDS = 5  # launches of a configuration of QuACK that count
HEAT_SIZE, HEAT_SECONDS = 8192, 0.1
WORKERS = 16  # processes that compile QuACK's kernels, at most
Run = Callable[[], Any]
_reasons = set[str]()


def attention(name: str, problem: Problem, tensors: Sequence[Any]) -> Any:
    """Returns attention of arrays (batch, heads, tokens, head_dim) by the peer ``name``."""
    if name != NEWEST:
        return trials.peer(name, problem, tensors)
    return _flash4(tensors, causal=problem.causal, softmax_scale=problem.factor)


def window_attention(tensors: Sequence[Any], problem: Problem) -> Any:
    """Returns attention of flash-attn-4 with the causal mask and the window of ``problem``."""
    return _flash4(tensors, causal=True, window_size=(problem.left, 0 if problem.left else None))


def _flash4(tensors: Sequence[Any], **options: Any) -> Any:
    from flash_attn.cute import flash_attn_func

    found = flash_attn_func(*(tensor.transpose(1, 2) for tensor in tensors), **options)
    return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)


def modified_attention(tensors: Sequence[Any], blocks: Any, options: Mapping[str, Any]) -> Any:
    """Returns attention of flash-attn-4 with functions of `flash4_mods`; ``blocks`` is torch's block mask, whose lists
    of key blocks the forward pass reads, and those of query blocks the gradients."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    keys = blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices
    queries = blocks.q_num_blocks, blocks.q_indices, blocks.full_q_num_blocks, blocks.full_q_indices
    forward, backward = (BlockSparseTensorsTorch(*each, block_size=blocks.BLOCK_SIZE) for each in (keys, queries))
    return _flash4(tensors, block_sparse_tensors=forward, block_sparse_tensors_bwd=backward, **options)


def flash4_mods(heads: int, window: int, owner: Any, cap: float) -> dict[str, dict[str, Any]]:
    """Returns flash-attn-4's functions of the cases of ``bench/attention_mods.py``; it traces them with vectors of
    CuTe DSL, and it has the soft cap itself. ``owner`` (tokens,) has the documents, int32."""
    from cutlass import Float32, Int32, cute
    from flash_attn.cute.utils import scalar_to_ssa

    def causal(b: Any, h: Any, q: Any, k: Any, *_: Any) -> Any:
        return k <= q

    def in_window(b: Any, h: Any, q: Any, k: Any, *_: Any) -> Any:
        return (k <= q) & (q - k <= window)

    def in_document(b: Any, h: Any, q: Any, k: Any, lengths: Any, arrays: Any) -> Any:
        of_q, of_k = (scalar_to_ssa(arrays[0][x[0]], Int32) for x in (q, k))
        return (k <= q) & (of_q == of_k)

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, **_: Any) -> Any:
        slope = cute.math.exp2((h + 1).to(Float32) * (-8 / heads))
        return score + slope * (kv_idx - q_idx).to(Float32)

    def alibi_gradient(gradient: Any, *_: Any, **__: Any) -> Any:
        return gradient

    return {
        "causal": {"mask_mod": causal},
        "ALiBi": {"mask_mod": causal, "score_mod": alibi, "score_mod_bwd": alibi_gradient},
        "soft cap": {"mask_mod": causal, "softcap": cap},
        "window": {"mask_mod": in_window},
        "documents": {"mask_mod": in_document, "aux_tensors": [owner]},
    }


def quack_gemm(a: Any, b: Any, out: Any, scale: Any = 1.0) -> Run:
    """Returns a call of QuACK's GEMM: ``out`` (M, N) = ``scale`` · A (M, K) · B (K, N), or batches of them.

    The first call for a shape tunes as QuACK does: its tuner compiles all of QuACK's configurations in parallel, slices
    of K included, and takes the fastest. Only the time of each is measured as here, by `cuda.medians`: QuACK's own
    measurement takes 200 launches and more. QuACK keeps kernels and choices on disk. The GPU multiplies for
    `HEAT_SECONDS` first: the configuration measured first would otherwise have a cool GPU's clock.
    """
    os.environ.setdefault("QUACK_COMPILE_WORKERS", str(min(WORKERS, os.cpu_count() or 1)))
    from quack import gemm_interface

    gemm_interface.gemm_tuned._do_bench = _tuning_time
    _heat()
    return partial(gemm_interface.gemm, a, b, out=out, alpha=scale, split_k=None)


def _heat() -> None:
    """Multiply until the GPU has the clock that it has under load."""
    import torch

    square = torch.randn(HEAT_SIZE, HEAT_SIZE, device="cuda", dtype=torch.bfloat16)
    cuda.sustained_seconds(partial(square.matmul, square), seconds=HEAT_SECONDS, estimate=0.0015)


def _tuning_time(run: Run, quantiles: Sequence[float]) -> list[float]:
    return [cuda.medians({"": run}, rounds=TUNING_ROUNDS)[""]] * len(quantiles)


def usable(runs: Mapping[str, Run]) -> dict[str, Run]:
    """Returns the calls that raise nothing; the reason of another one is printed, once."""
    return {name: run for name, run in runs.items() if _is_usable(name, run)}


def _is_usable(name: str, run: Run) -> bool:
    try:
        run()
    except Exception as error:
        text = f"{name} is left out: {type(error).__name__}: {error}".strip().splitlines()[0]
        if text not in _reasons:
            print(text, file=sys.stderr)
        _reasons.add(text)
        return False
    return True


def over_the_fastest(times: Mapping[str, float], ours: str) -> float:
    """Returns the speed of ``ours`` over that of the fastest peer of attention."""
    return round(min(times[name] for name in NAMES) / times[ours], 3)


def ratios(times: Mapping[str, float], names: Sequence[str]) -> dict[str, float | str]:
    """Returns columns: the speed of ours over the faster peer, and over each of several; "-" without a time."""
    columns = {"ratio": [*names]} | {f"/ {name}": [name] for name in names if len(names) > 1}
    found = {key: [times[name] for name in over if name in times] for key, over in columns.items()}
    return {key: round(min(each) / times["ours"], 3) if each else "-" for key, each in found.items()}


def summary(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Returns a line for each column of `ratios`."""
    lines = []
    for key in [key for key in rows[0] if key == "ratio" or key in {f"/ {name}" for name in names}]:
        found = [row[key] for row in rows if row[key] != "-"]
        mean = math.exp(sum(map(math.log, found)) / len(found)) if found else math.nan
        over = f"/ the faster of {', '.join(names)}" if key == "ratio" else key
        lines.append(f"ours {over}: geometric mean {mean:.3f} of {len(found)}, least {min(found, default=mean):.3f}")
    return "\n".join(lines)
