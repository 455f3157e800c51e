"""Attention over keys in pages on a real Hopper GPU: ``python bench/attention_paged.py``.

Decoding: one query of each head, bfloat16, random normal, 8 heads of K and V, groups of 4 and 8, batches of 1 to 64,
and pages of 16 to 256 rows in random order; "dense" is ``ww.attention`` of the same keys in order, and the bar is
0.97 of it. A last part has sequences of random lengths, from none to the longest. Chunks: packed queries whose keys
begin before them; "dense" is ``ww.attention_varlen`` of the same keys in order. "append" is a call that writes a new
row of each sequence first. CUDA events time each call's launches after 256 MB have been written to L2; every round
runs each once in random order, and the medians are compared. TB/s count K and V once. Each result is compared with
that of the dense kernel, or for random lengths with float64. The exit status is 1 if a result is wrong or a bar is
missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import warpwright as ww
from warpwright import cuda

BAR = 0.97
TOLERANCE = 0.01  # of a mean of many values, in bfloat16
KV_HEADS = 8
PAGES = (16, 64, 128, 256)
DECODE = [(1, 4, 65536, 128), (8, 4, 16384, 128), (8, 8, 16384, 128), (64, 4, 4096, 128), (64, 8, 16384, 128)]
OTHERS = [(8, 4, 16384, 64), (8, 4, 16384, 256)]
CHUNKS = [(8, 4, 512, 8192, 128), (2, 4, 2048, 16384, 128)]  # sequences, group, queries, keys, head dimension
Run = Callable[[], Any]
Tensor = torch.Tensor


def in_pages(rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns (sequences, rows, heads, head_dim) as pages in random order, and the block table."""
    count, length, *rest = rows.shape
    width = length // size
    table = torch.randperm(count * width, device="cuda").view(count, width)
    pages = torch.empty(count * width, size, *rest, device="cuda", dtype=rows.dtype)
    pages[table] = rows.unflatten(1, (width, size))
    return pages, table.int()


def paged(k: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the pages of K and of V with one block table."""
    torch.manual_seed(1)
    k_pages, table = in_pages(k, size)
    torch.manual_seed(1)
    return k_pages, in_pages(v, size)[0], table


def row_of(name: str, size: int, times: dict[str, float], nbytes: int, off: float) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name, "page": size, "paged us": round(times["paged"] * 1e6, 1)}
    row |= {"dense us": round(times["dense"] * 1e6, 1), "append us": round(times["append"] * 1e6, 1)}
    row |= {"/ dense": round(times["dense"] / times["paged"], 3), "TB/s": round(nbytes / times["paged"] * 1e-12, 2)}
    return row | {"off": float(f"{off:.1e}"), "verified": off < TOLERANCE}


def decode(batch: int, group: int, keys: int, head_dim: int, size: int, rounds: int) -> dict[str, Any]:
    """Returns a row for one query a sequence."""
    torch.manual_seed(0)
    q = torch.randn(batch, 1, KV_HEADS * group, head_dim, device="cuda").bfloat16()
    k, v = (torch.randn(batch, keys, KV_HEADS, head_dim, device="cuda").bfloat16() for _ in range(2))
    pages, lengths = paged(k, v, size), torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    new = {name: x[:, -1:].contiguous() for name, x in (("k", k), ("v", v))}
    outs = [torch.full_like(q, math.nan) for _ in range(3)]
    runs: dict[str, Run] = {
        "paged": partial(ww.attention_paged, q, *pages, lengths, out=outs[0]),
        "dense": partial(ww.attention, q, k, v, layout="bshd", out=outs[1]),
        "append": partial(ww.attention_paged, q, *pages, lengths - 1, **new, out=outs[2]),
    }
    for run in runs.values():
        run()
    off = max(float((out - outs[1]).abs().max()) for out in outs)
    nbytes = 2 * k.numel() * k.itemsize
    return row_of(f"decode {batch}x{keys}x{head_dim}, group {group}", size, times_of(runs, rounds), nbytes, off)


def chunks(batch: int, group: int, rows: int, keys: int, head_dim: int, size: int, rounds: int) -> dict[str, Any]:
    """Returns a row for packed queries."""
    torch.manual_seed(0)
    q = torch.randn(batch * rows, KV_HEADS * group, head_dim, device="cuda").bfloat16()
    k, v = (torch.randn(batch, keys, KV_HEADS, head_dim, device="cuda").bfloat16() for _ in range(2))
    pages, lengths = paged(k, v, size), torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    cu_q, cu_k = (torch.arange(batch + 1, dtype=torch.int32, device="cuda") * each for each in (rows, keys))
    new = {name: x[:, -rows:].flatten(0, 1).contiguous() for name, x in (("k", k), ("v", v))}
    outs, options = [torch.full_like(q, math.nan) for _ in range(3)], {"cu_seqlens_q": cu_q, "causal": True}
    dense = q, k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k
    runs: dict[str, Run] = {
        "paged": partial(ww.attention_paged, q, *pages, lengths, **options, out=outs[0]),
        "dense": partial(ww.attention_varlen, *dense, causal=True, out=outs[1]),
        "append": partial(ww.attention_paged, q, *pages, lengths - rows, **options, **new, out=outs[2]),
    }
    for run in runs.values():
        run()
    off = max(float((out - outs[1]).abs().max()) for out in outs)
    nbytes = 2 * k.numel() * k.itemsize
    return row_of(f"chunks {batch}x{rows} of {keys}x{head_dim}", size, times_of(runs, rounds), nbytes, off)


def mixed(batch: int, group: int, most: int, head_dim: int, size: int, rounds: int) -> dict[str, Any]:
    """Returns a row for one query a sequence of random lengths; the bar is for bytes a second, as in equal lengths."""
    torch.manual_seed(0)
    q = torch.randn(batch, 1, KV_HEADS * group, head_dim, device="cuda").bfloat16()
    k, v = (torch.randn(batch, most, KV_HEADS, head_dim, device="cuda").bfloat16() for _ in range(2))
    pages = paged(k, v, size)
    lengths = torch.randint(0, most + 1, (batch,), dtype=torch.int32, device="cuda")
    same = torch.full_like(lengths, int(lengths.sum()) // batch)
    outs = [torch.full_like(q, math.nan) for _ in range(2)]
    runs: dict[str, Run] = {
        "paged": partial(ww.attention_paged, q, *pages, lengths, out=outs[0]),
        "dense": partial(ww.attention_paged, q, *pages, same, out=outs[1]),
    }
    for run in runs.values():
        run()
    off, queries = 0.0, q.unflatten(2, (KV_HEADS, group)).double()
    for i, length in enumerate(lengths.tolist()):
        scores = torch.einsum("hgd,nhd->hgn", queries[i, 0], k[i, :length].double()) / math.sqrt(head_dim)
        wanted = torch.einsum("hgn,nhd->hgd", torch.softmax(scores, -1), v[i, :length].double())
        off = max(off, float((outs[0][i, 0].view_as(wanted) - wanted).abs().max()))
    times = times_of(runs, rounds) | {"append": math.nan}
    nbytes = 2 * int(lengths.sum()) * KV_HEADS * head_dim * k.itemsize
    return row_of(f"lengths 0 to {most}, {batch} sequences", size, times, nbytes, off)


def times_of(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    return cuda.medians(runs, rounds=rounds, stream=torch.cuda.current_stream().cuda_stream)


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned columns with a header."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", default=",".join(map(str, PAGES)), help="rows of a page")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(word) for word in options.pages.split(",")]
    rows = [decode(*each, size, options.rounds) for each in DECODE for size in sizes]
    rows += [decode(*each, sizes[0], options.rounds) for each in OTHERS]
    rows += [mixed(64, 4, 16384, 128, size, options.rounds) for size in sizes]
    rows += [chunks(*each, size, options.rounds) for each in CHUNKS for size in sizes]
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {options.rounds}\n\n{table(rows)}"
        )
    wrong = [f"{row['case']}, page {row['page']}" for row in rows if not row["verified"]]
    missed = [
        f"{row['case']}, page {row['page']}" for row in rows if row["case"][:6] == "decode" and row["/ dense"] < BAR
    ]
    if wrong or missed:
        sys.exit(f"not verified: {', '.join(wrong) or 'none'}; below {BAR} of dense: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
