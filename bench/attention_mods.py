"""Attention with functions of the user on a real Hopper GPU against compiled ``flex_attention``.

``python bench/attention_mods.py``: forward, 2 × 16 heads of 8192 queries and keys, head dimension 128, random normal
bfloat16; causal, ALiBi, a soft cap, a sliding window of 1024 and documents of 1500, each as `score_mod` or `mask_mod`
of both libraries. The peer is compiled afresh for each case, with its block mask; ``plain`` is `ww.attention` without
functions on the same arrays. CUDA events time each launch after 256 MB have been written to L2; every round runs each
kernel once in random order, and the medians are compared. ``lists us`` is the time of the launch that writes the lists
of key blocks, as ``create_block_mask`` does for the peer; neither is part of a ratio. One head of each result is
compared with float64.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from attention import table
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import warpwright as ww
from warpwright import cuda
from warpwright.lang import f32
from warpwright.ops.binding import bind, layouts_of, start, values_of

SHAPE, WINDOW, DOCUMENT, CAP = (2, 16, 8192, 128), 1024, 1500, 30.0
TOLERANCE = 1e-2
BROKEN = 100.0  # TFLOPS below which a measurement of the peer is no measurement
Function = Callable[..., Any] | None


@dataclass(frozen=True)
class Case:
    """Options of `ww.attention`, and the score and mask functions of the peer."""

    ours: dict[str, Any]
    score: Function
    mask: Function


def cases() -> dict[str, Case]:
    slopes = 2.0 ** -torch.arange(1, SHAPE[1] + 1, device="cuda", dtype=torch.float32).mul(8 / SHAPE[1])
    owner = (torch.arange(SHAPE[2], device="cuda") // DOCUMENT).int()

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k <= q

    def window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q - k <= WINDOW)

    def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (owner[q] == owner[k])

    def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + slopes[h] * (k - q)

    def our_alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + slopes[h] * (k - q).to(f32)

    def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return CAP * torch.tanh(score / CAP)

    return {
        "causal": Case({"mask_mod": causal}, None, causal),
        "ALiBi": Case({"score_mod": our_alibi, "mask_mod": causal}, alibi, causal),
        "soft cap": Case({"softcap": CAP, "mask_mod": causal}, capped, causal),
        "window": Case({"mask_mod": window}, None, window),
        "documents": Case({"mask_mod": documents}, None, documents),
    }


def bind_steps(given: list[Any], out: Any, options: dict[str, Any]) -> list[Callable[[], Any]]:
    """Returns functions that only start the launches of `ww.attention`: the lists, if any, and attention."""
    call, stream = ww.launches(ww.attention, *given, out=out, **options), torch.cuda.current_stream().cuda_stream
    bound = [bind(plan, layouts_of(values), call.device)(values_of(values), stream) for plan, values in call.steps]
    keep = call  # its arrays
    return [partial(_start, each, keep) for each in bound]


def _start(launches: Any, _: Any) -> None:
    start(launches)


def exact(case: Case, given: list[Any], batch: int, head: int) -> Any:
    """Returns one head in float64."""
    q, k, v = (x[batch, head].double() for x in given)
    rows, keys = (torch.arange(SHAPE[2], device="cuda") for _ in range(2))
    at = torch.tensor(batch), torch.tensor(head), rows[:, None], keys[None]
    at = tuple(x.cuda() for x in at)
    scores = q @ k.T / math.sqrt(SHAPE[3])
    scores = case.score(scores, *at) if case.score else scores
    scores = torch.where(case.mask(*at), scores, -math.inf) if case.mask else scores
    return torch.softmax(scores, -1) @ v


def measure(name: str, case: Case, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(3)]
    out, plain = (torch.full(SHAPE, math.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    *lists, ours = bind_steps(given, out, case.ours)
    (dense,) = bind_steps(given, plain, {"causal": True})
    blocks = create_block_mask(case.mask, None, None, SHAPE[2], SHAPE[2]) if case.mask else None
    flex = torch.compile(flex_attention)
    peer = partial(flex, *given, score_mod=case.score, block_mask=blocks)
    for each in (*lists, ours, dense):
        each()
    wanted, theirs = exact(case, given, 1, 3), peer()
    off = [float((x[1, 3].double() - wanted).abs().max()) for x in (out, theirs)]
    written = bool(torch.isfinite(out).all())
    runs = {"ours": ours, "flex": peer, "plain": dense} | ({"lists": lists[0]} if lists else {})
    times = cuda.medians(runs, rounds=rounds)
    rows, keys = torch.arange(SHAPE[2], device="cuda")[:, None], torch.arange(SHAPE[2], device="cuda")[None]
    pairs = int(case.mask(0, 0, rows, keys).sum()) if case.mask else SHAPE[2] ** 2
    tera = 4e-12 * SHAPE[0] * SHAPE[1] * SHAPE[3] * pairs
    row: dict[str, Any] = {"case": name}
    row |= {who: round(tera / times[who], 1) for who in ("ours", "flex")}
    row |= {"ratio": round(times["flex"] / times["ours"], 3), "us": round(times["ours"] * 1e6, 1)}
    row |= {"plain causal us": round(times["plain"] * 1e6, 1), "lists us": round(times.get("lists", 0.0) * 1e6, 1)}
    row |= {"error": float(f"{off[0]:.2e}"), "its error": float(f"{off[1]:.2e}")}
    row["verified"] = written and off[0] <= TOLERANCE and row["flex"] >= BROKEN
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="launches of each kernel")
    options = parser.parse_args()
    rows = [measure(name, case, options.rounds) for name, case in cases().items()]
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    least = min(row["ratio"] for row in rows)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}\n")
    print(f"{table(rows)}\n\nours / flex_attention: geometric mean {mean:.3f}, least {least:.3f}")
    unverified = [row["case"] for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
