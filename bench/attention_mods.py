"""Attention with functions of the user on a real Hopper GPU against compiled ``flex_attention`` and flash-attn-4.

``python bench/attention_mods.py``: forward, backward and packed, or those of them that ``--parts`` names;
``python bench/attention_mods.py --parts backward,packed`` leaves the forward part out.

2 × 16 heads of 8192 queries and keys, head dimension 128, random normal bfloat16; causal, ALiBi, a soft cap, a sliding
window of 1024 and documents of 1500, each as `score_mod` or `mask_mod` of all libraries. ``flex_attention`` is compiled
afresh for each case, with its block mask, which flash-attn-4, where it is installed, reads too; "-" is a case that it
refuses, and the reason is printed. ``plain`` is `ww.attention` or its gradients without functions on the same arrays.
CUDA events time each run after 256 MB have been written to L2; every round runs each once in random order, and the
medians are compared. TFLOPS count two GEMMs over the visible pairs of query and key, five for gradients; ``ratio`` is
ours over the faster peer. ``lists us`` is the time of the launch that writes the lists of blocks, as
``create_block_mask`` does for the peers; neither is part of a ratio. All other launches are. One head of each result is
compared with float64: a row is verified if the largest error of ours is within a bound, for gradients if the mean error
of each is at most 1.05 of ``flex_attention``'s, and if the mean error of each peer is within a share of the mean value.

Packed: gradients of sequences of equal lengths, packed, beside the dense gradients of the same values.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import peers
import torch
import torch._functorch.config as functorch
from attention import table
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import warpwright as ww
from warpwright import cuda
from warpwright.lang import f32, fma
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.varlen_backward import gradients_varlen
from warpwright.ops.binding import bind, layouts_of, start, values_of

SHAPE, HEAD, WINDOW, DOCUMENT, CAP = (2, 16, 8192, 128), (1, 3), 1024, 1500, 30.0
TOLERANCE = 1e-2  # of ours, and a share of the mean value for the mean error of the peers and of packed gradients
OF_PEER = 1.05  # of the mean error of flex_attention; both round P, dS and the result to bfloat16
PRODUCTS = 5 / 2  # GEMMs of the gradients, over those of the forward pass
PACKED = ((2, 8192), (8, 2048), (16, 1024))  # sequences and their length
BROKEN = 100.0  # TFLOPS below which a measurement of flex_attention is no measurement
PEERS = ["flex", peers.NEWEST] if peers.NEWEST in peers.NAMES else ["flex"]
Function = Callable[..., Any] | None


@dataclass(frozen=True)
class Case:
    """Options of `ww.attention`, the score and mask functions of ``flex_attention``, and options of flash-attn-4."""

    ours: dict[str, Any]
    score: Function
    mask: Function
    flash4: dict[str, Any] | None = None


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
        return fma(slopes[h], (k - q).to(f32), score)

    def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return CAP * torch.tanh(score / CAP)

    found = {
        "causal": Case({"mask_mod": causal}, None, causal),
        "ALiBi": Case({"score_mod": our_alibi, "mask_mod": causal}, alibi, causal),
        "soft cap": Case({"softcap": CAP, "mask_mod": causal}, capped, causal),
        "window": Case({"mask_mod": window}, None, window),
        "documents": Case({"mask_mod": documents}, None, documents),
    }
    mods = peers.flash4_mods(SHAPE[1], WINDOW, owner, CAP) if peers.NEWEST in PEERS else {}
    return {name: replace(case, flash4=mods.get(name)) for name, case in found.items()}


def flash4(case: Case, tensors: Sequence[Any], blocks: Any) -> dict[str, Callable[[], Any]]:
    """Returns attention by flash-attn-4, if it is installed and takes the case."""
    if case.flash4 is None:
        return {}
    return peers.usable({peers.NEWEST: partial(peers.modified_attention, tensors, blocks, case.flash4)})


def flash4_gradients(case: Case, leaves: list[Any], blocks: Any, do: Any) -> dict[str, Callable[[], Any]]:
    """Returns the gradients by flash-attn-4, without the forward pass, if it is installed and takes the case."""
    forward = flash4(case, leaves, blocks)
    return peers.usable(
        {name: partial(torch.autograd.grad, run(), leaves, do, retain_graph=True) for name, run in forward.items()}
    )


def bind_launches(call: Any) -> list[Callable[[], Any]]:
    """Returns functions that only start the launches of an operator: one function for each step."""
    stream = torch.cuda.current_stream().cuda_stream
    bound = [bind(plan, layouts_of(values), call.device)(values_of(values), stream) for plan, values in call.steps]
    return [partial(_start, each, call) for each in bound]


def bind_gradients(call: Any, with_lists: bool) -> list[Callable[[], Any]]:
    """Returns functions that only start the launches of gradients: the lists, if any, and all others. The results and
    the memory between the launches are NaN before."""
    ((plan, values),), stream = call.steps, torch.cuda.current_stream().cuda_stream
    for each in call.result:
        each.fill_(math.nan)
    launches = bind(plan, layouts_of(values), call.device)(values_of(values), stream)
    parts = [launches[:1], launches[1:]] if with_lists else [launches]
    return [partial(_start, each, call) for each in parts]


def _start(launches: Any, _: Any) -> None:
    """Start ``launches``; the second argument keeps their arrays."""
    start(launches)


def exact(case: Case, given: list[Any], batch: int, head: int) -> list[Any]:
    """Returns one head of the result in float64, and of its gradients by q, k and v if dO is given too."""
    q, k, v, *do = (x[batch, head].detach().double() for x in given)
    leaves = [x.requires_grad_(bool(do)) for x in (q, k, v)]
    rows, keys = (torch.arange(x.shape[0], device="cuda") for x in (q, k))
    at = torch.tensor(batch).cuda(), torch.tensor(head).cuda(), rows[:, None], keys[None]
    scores = q @ k.T / math.sqrt(q.shape[1])
    scores = case.score(scores, *at) if case.score else scores
    scores = torch.where(case.mask(*at), scores, -math.inf) if case.mask else scores
    o = torch.softmax(scores, -1) @ v
    return [o.detach(), *(torch.autograd.grad(o, leaves, do) if do else ())]


def visible(case: Case) -> int:
    """Returns the number of visible pairs of query and key of one head."""
    rows, keys = torch.arange(SHAPE[2], device="cuda")[:, None], torch.arange(SHAPE[2], device="cuda")[None]
    return int(case.mask(0, 0, rows, keys).sum()) if case.mask else SHAPE[2] ** 2


def row_of(name: str, times: dict[str, float], tera: float) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name}
    row |= {who: round(tera / times[who], 1) if who in times else "-" for who in ("ours", *PEERS)}
    row |= peers.ratios(times, PEERS)
    row |= {"us": round(times["ours"] * 1e6, 1)}
    return row | {"plain causal us": round(times["plain"] * 1e6, 1), "lists us": round(times["lists"] * 1e6, 1)}


def mean_errors(found: Any, wanted: list[Any]) -> list[float]:
    """Returns the mean error of each array of one head. NaN propagates."""
    return [float((x.double() - each).abs().mean()) for x, each in zip(found, wanted, strict=True)]


def is_right(found: Any, wanted: list[Any]) -> bool:
    """Returns whether the mean error of each array of one head is within its bound."""
    off = zip(mean_errors(found, wanted), wanted, strict=True)
    return all(error <= TOLERANCE * float(each.abs().mean()) for error, each in off)


def measure(name: str, case: Case, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(3)]
    out, plain = (torch.full(SHAPE, math.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lists, ours = bind_launches(ww.launches(ww.attention, *given, out=out, **case.ours))
    (dense,) = bind_launches(ww.launches(ww.attention, *given, out=plain, causal=True))
    blocks = create_block_mask(case.mask, None, None, SHAPE[2], SHAPE[2])
    theirs = {"flex": partial(torch.compile(flex_attention), *given, score_mod=case.score, block_mask=blocks)}
    theirs |= flash4(case, given, blocks)
    for each in (lists, ours, dense):
        each()
    wanted, found = exact(case, given, *HEAD), {"ours": out} | {who: run() for who, run in theirs.items()}
    off = {who: float((x[HEAD].double() - wanted[0]).abs().max()) for who, x in found.items()}
    right = bool(torch.isfinite(out).all()) and all(is_right([found[who][HEAD]], wanted) for who in theirs)
    times = cuda.medians({"ours": ours, **theirs, "plain": dense, "lists": lists}, rounds=rounds)
    row = row_of(name, times, 4e-12 * SHAPE[0] * SHAPE[1] * SHAPE[3] * visible(case))
    row |= {f"{who} off": float(f"{off[who]:.2e}") if who in off else "-" for who in ("ours", *PEERS)}
    row["verified"] = right and off["ours"] <= TOLERANCE and row["flex"] >= BROKEN
    return row


def measure_backward(name: str, case: Case, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    q, k, v, do = (torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(4))
    o, lse = ww.attention(q, k, v, return_lse=True, **case.ours)
    call = ww.launches(gradients, q, k, v, o, lse, do, **case.ours)
    lists, ours = bind_gradients(call, True)
    of_causal = ww.attention(q, k, v, return_lse=True, causal=True)
    (dense,) = bind_gradients(ww.launches(gradients, q, k, v, *of_causal, do, causal=True), False)
    blocks = create_block_mask(case.mask, None, None, SHAPE[2], SHAPE[2])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    by_flex = torch.compile(flex_attention)(*leaves, score_mod=case.score, block_mask=blocks)
    theirs = {"flex": partial(torch.autograd.grad, by_flex, leaves, do, retain_graph=True)}
    theirs |= flash4_gradients(case, leaves, blocks, do)
    for each in (lists, ours):
        each()
    _, *wanted = exact(case, [q, k, v, do], *HEAD)
    found = {who: [x[HEAD] for x in run()] for who, run in theirs.items()} | {"ours": [x[HEAD] for x in call.result]}
    off = {who: mean_errors(each, wanted) for who, each in found.items()}
    right = all(bool(torch.isfinite(x).all()) for x in call.result) and all(is_right(found[x], wanted) for x in theirs)
    times = cuda.medians({"ours": ours, **theirs, "plain": dense, "lists": lists}, rounds=rounds)
    row = row_of(name, times, PRODUCTS * 4e-12 * SHAPE[0] * SHAPE[1] * SHAPE[3] * visible(case))
    ratios = [ours / its for ours, its in zip(off["ours"], off["flex"], strict=True)]
    row |= {f"error {each}": round(ratio, 3) for each, ratio in zip(("dq", "dk", "dv"), ratios, strict=True)}
    row["verified"] = right and all(ratio <= OF_PEER for ratio in ratios) and row["flex"] >= BROKEN
    return row


def measure_packed(sequences: int, length: int, causal: bool, rounds: int) -> dict[str, Any]:
    """Measures packed gradients beside dense ones, which read and write arrays of their own."""
    torch.manual_seed(0)
    shape = sequences, length, SHAPE[1], SHAPE[3]
    q, k, v, do = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    apart = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    of_dense = ww.attention(*apart, causal=causal, return_lse=True)
    of_apart = do.transpose(1, 2).contiguous()
    (dense,) = bind_gradients(ww.launches(gradients, *apart, *of_dense, of_apart, causal=causal), False)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    starts = torch.arange(0, sequences * length + 1, length, device="cuda", dtype=torch.int32)
    of_packed = ww.attention_varlen(*rows, starts, starts, causal=causal, return_lse=True)
    inputs = (*rows, *of_packed, do.flatten(0, 1), starts, starts)
    call = ww.launches(gradients_varlen, *inputs, causal=causal)
    (packed,) = bind_gradients(call, False)
    packed()
    mask = (lambda b, h, q, k: k <= q) if causal else None
    _, *wanted = exact(Case({}, None, mask), [*apart, of_apart], sequences - 1, HEAD[1])
    found = [x.view(shape)[-1, :, HEAD[1]] for x in call.result]
    off = [e / float(x.abs().mean()) for e, x in zip(mean_errors(found, wanted), wanted, strict=True)]
    times = cuda.medians({"packed": packed, "dense": dense}, rounds=rounds)
    row: dict[str, Any] = {"sequences": sequences, "length": length, "causal": causal}
    row |= {f"{who} us": round(times[who] * 1e6, 1) for who in times}
    row |= {"ratio": round(times["dense"] / times["packed"], 3), "relative error": float(f"{max(off):.2e}")}
    written = all(bool(torch.isfinite(x).all()) for x in call.result)
    row["verified"] = written and all(each <= TOLERANCE for each in off)
    return row


def rows_of(part: str, rounds: int) -> list[dict[str, Any]]:
    if part == "packed":
        return [measure_packed(*each, causal, rounds) for each in PACKED for causal in (False, True)]
    one = {"forward": measure, "backward": measure_backward}[part]
    return [one(name, case, rounds) for name, case in cases().items()]


def show(part: str, rows: list[dict[str, Any]]) -> None:
    over = ["dense gradients"] if part == "packed" else PEERS
    print(f"{part}\n{table(rows)}\n\n{peers.summary(rows, over)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="runs of each")
    parser.add_argument("--parts", default="forward,backward,packed")
    options = parser.parse_args()
    functorch.donated_buffer = False  # the peer's gradients are computed again and again
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOPS, medians of {options.rounds}\n")
    unverified = []
    for part in options.parts.split(","):
        rows = rows_of(part, options.rounds)
        show(part, rows)
        unverified += [f"{part} {list(row.values())[:3]}" for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
