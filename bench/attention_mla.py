"""Decoding of multi-head latent attention on a real Hopper GPU: ``python bench/attention_mla.py``.

``ww.attention_mla`` with 16, 32, 64 and 128 heads, one and two queries a sequence, batches of 1 to 128 and 4k to 64k
latent rows, bfloat16, random normal: the rows one after the other ("rows"), in pages of 64 in random order ("pages"),
and in pages with random lengths from the half to the whole ("mixed"). The peers are torch's
``scaled_dot_product_attention`` under `sdpa_kernel`, whose backends may refuse 576 columns, "math" up to 8 GB of keys
for all heads; DeepSeek's ``flash_mla``; and ``flash-attn-4`` with ``qv``, which so far refuses Hopper. "-" is a peer
that refuses, is left out or is not installed. CUDA events time each call's launches after 256 MB have been written to
L2; every round runs each once in random order, and the medians are compared; a peer that takes more than ten times our
time has three rounds. TFLOPS count 2 · 1088 operations a query, head and row, TB/s the latent rows once. Each of our
results begins as NaN and is compared with float64 in some heads, beside the largest error of the fastest peer. The
exit status is 1 if a result is wrong. ``--predict`` prints what ``ww.profile`` predicts for pages on an H200 instead,
which needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import torch
from attention_paged import in_pages, table
from peers import usable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import warpwright as ww
from warpwright import cuda

SIZES = [  # sequences, queries, heads, latent rows
    *((batch, 1, heads, 4096) for batch in (32, 66, 128) for heads in (16, 128)),
    *((batch, 1, heads, 16384) for batch in (8, 64) for heads in (16, 32, 64, 128)),
    *((1, 1, heads, 65536) for heads in (16, 128)),
    *((64, 2, heads, 8192) for heads in (16, 128)),
]
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
NAMES = (*BACKENDS, "flash_mla", "flash4")
PAGE, SCALE = 64, 192**-0.5
MATH_BYTES = 8 << 30  # of keys that torch's "math" copies to all heads, at most; with more it takes seconds a call
FEW, SLOW = 3, 10  # rounds of a peer that takes more than so many times our time
COMPARED = 8  # heads
TOLERANCE = 0.01  # of a mean of many values, in bfloat16
Run = Callable[[], Any]
Tensor = torch.Tensor


def torch_call(backend: SDPBackend, q: Tensor, rows: Tensor) -> Tensor:
    """Returns torch's attention; all heads share the latent rows without a copy."""
    keys = rows[:, None].expand(-1, q.shape[2], -1, -1)
    mask = causal_lower_right(q.shape[1], rows.shape[1]) if q.shape[1] > 1 else None
    with sdpa_kernel(backend):
        found = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), keys, keys[..., :512], attn_mask=mask, scale=SCALE
        )
    return found.transpose(1, 2)


def flash_mla_call(q: Tensor, pages: Tensor, block_table: Tensor, lengths: Tensor) -> Run:
    """Returns DeepSeek's kernel with its schedule, which a model computes once for all layers."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    metadata = get_mla_metadata(lengths, q.shape[1] * q.shape[2], 1)
    options = {"softmax_scale": SCALE, "causal": q.shape[1] > 1}
    return lambda: flash_mla_with_kvcache(q, pages[:, :, None], block_table, lengths, 512, *metadata, **options)[0]


def flash4_call(q: Tensor, rows: Tensor) -> Tensor:
    from flash_attn.cute import flash_attn_func

    values, positions = rows[:, :, None].split([512, 64], -1)
    latent, rotary = q.split([512, 64], -1)
    options = {"qv": latent.contiguous(), "softmax_scale": SCALE, "causal": q.shape[1] > 1}
    found = flash_attn_func(rotary.contiguous(), positions.contiguous(), values.contiguous(), **options)
    return found[0] if isinstance(found, tuple) else found


def peers(q: Tensor, rows: Tensor, paged: tuple[Tensor, Tensor, Tensor]) -> dict[str, Run]:
    """Returns the peers that support the problem and run without an error."""
    tried: dict[str, Run] = {name: partial(torch_call, backend, q, rows) for name, backend in BACKENDS.items()}
    if q.shape[2] * rows.numel() * rows.itemsize > MATH_BYTES:
        del tried["math"]
    if find_spec("flash_attn"):
        tried["flash4"] = partial(flash4_call, q, rows)
    if find_spec("flash_mla"):
        tried["flash_mla"] = flash_mla_call(q, *paged)
    return usable(tried)


def error(q: Tensor, rows: Tensor, lengths: list[int], found: Tensor) -> float:
    """Returns the largest error of some heads; NaN propagates."""
    worst = torch.zeros((), dtype=torch.float64, device="cuda")
    for i in range(COMPARED):
        batch, head = i * len(lengths) // COMPARED, i * q.shape[2] // COMPARED
        keys = rows[batch, : lengths[batch]].double()
        scores = q[batch, :, head].double() @ keys.T * SCALE
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + len(keys) - q.shape[1])
        wanted = torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ keys[:, :512]
        worst = torch.maximum(worst, (found[batch, :, head] - wanted).abs().max())
    return float(worst)


def seconds(runs: dict[str, Run], theirs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each; those of a peer that is far slower than ours are of `FEW` rounds."""
    stream = torch.cuda.current_stream().cuda_stream
    first = cuda.medians(runs | theirs, rounds=FEW, stream=stream)
    near = {name: run for name, run in theirs.items() if first[name] <= SLOW * first["pages"]}
    return first | cuda.medians(runs | near, rounds=rounds, stream=stream)


def measure(batch: int, q_len: int, heads: int, count: int, rounds: int) -> dict[str, Any]:
    """Returns the row of a problem."""
    torch.manual_seed(0)
    q = torch.randn(batch, q_len, heads, 576, device="cuda").bfloat16()
    rows = torch.randn(batch, count, 576, device="cuda", dtype=torch.bfloat16)
    pages, block_table = in_pages(rows, PAGE)
    full = torch.full((batch,), count, dtype=torch.int32, device="cuda")
    mixed = torch.randint(count // 2, count + 1, (batch,), dtype=torch.int32, device="cuda")
    outs = {name: torch.full_like(q[..., :512], math.nan) for name in ("rows", "pages", "mixed")}
    how: dict[str, Any] = {"scale": SCALE, "causal": q_len > 1}
    runs: dict[str, Run] = {"rows": partial(ww.attention_mla, q, rows, **how, out=outs["rows"])}
    for name, lengths in (("pages", full), ("mixed", mixed)):
        given = {"block_table": block_table, "lengths": lengths, "out": outs[name]}
        runs[name] = partial(ww.attention_mla, q, pages, **how, **given)
    for run in runs.values():
        run()
    theirs = peers(q, rows, (pages, block_table, full))
    lengths_of = {"rows": full.tolist(), "pages": full.tolist(), "mixed": mixed.tolist()}
    off = max(error(q, rows, lengths_of[name], out) for name, out in outs.items())
    times = seconds(runs, theirs, rounds)
    best = min(theirs, key=times.__getitem__) if theirs else None
    total, share = batch * count, int(mixed.sum()) / (batch * count)
    row: dict[str, Any] = {"case": f"{batch}x{count}, {heads} heads, {q_len} queries"}
    row |= {f"{name} us": round(times[name] * 1e6, 1) for name in outs}
    row |= {"TFLOPS": round(2 * 1088 * q_len * heads * total / times["pages"] * 1e-12)}
    row |= {"TB/s": round(1152 * total / times["pages"] * 1e-12, 2)}
    row |= {"mixed TFLOPS": round(2 * 1088 * q_len * heads * total * share / times["mixed"] * 1e-12)}
    row |= {f"{name} us": round(times[name] * 1e6, 1) if name in theirs else "-" for name in NAMES}
    row |= {"/ best": round(times[best] / times["pages"], 3) if best else "-", "off": float(f"{off:.1e}")}
    theirs_off = error(q, rows, full.tolist(), theirs[best]()) if best else math.nan
    return row | {"peer off": float(f"{theirs_off:.1e}"), "verified": off < TOLERANCE}


def predict(batch: int, q_len: int, heads: int, count: int) -> dict[str, Any]:
    """Returns a row with the predicted time of each launch for rows in pages."""
    bf16, width = np.dtype(ml_dtypes.bfloat16), count // PAGE
    q, pages = np.zeros((batch, q_len, heads, 576), bf16), np.zeros((batch * width, PAGE, 576), bf16)
    given = {"block_table": np.arange(batch * width, dtype=np.int32).reshape(batch, width)}
    given |= {"lengths": np.full(batch, count, np.int32)}
    call = ww.launches(ww.attention_mla, q, pages, scale=SCALE, causal=q_len > 1, device="h200", **given)
    times = [ww.profile(x.kernel, x.grid, args=x.args, device="h200").time_us for x in call]
    row: dict[str, Any] = {"case": f"{batch}x{count}, {heads} heads, {q_len} queries"}
    row |= {"us": round(times[0], 1), "combine us": round(sum(times[1:]), 1)}
    row |= {"TFLOPS": round(2 * 1088 * q_len * heads * batch * count / times[0] * 1e-6)}
    return row | {"TB/s": round(1152 * batch * count / times[0] * 1e-6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="launches of each")
    parser.add_argument("--only", type=int, metavar="HEADS", help="problems with as many heads")
    parser.add_argument("--predict", action="store_true", help="predict on a virtual H200, measure nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [size for size in SIZES if options.only in (None, size[2])]
    if options.predict:
        print(table([predict(*size) for size in sizes]))
        return
    rows = list[dict[str, Any]]()
    for size in sizes:
        rows.append(measure(*size, options.rounds))
        print(rows[-1], file=sys.stderr, flush=True)  # what a time limit would lose
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {options.rounds}\n\n{table(rows)}"
        )
    wrong = [row["case"] for row in rows if not row["verified"]]
    if wrong:
        sys.exit(f"not verified: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
