"""FP8 attention forward on a real Hopper GPU against our bfloat16: ``python bench/attention_fp8.py``.

16384 tokens and 2048 columns of heads in all, causal or not, random normal numbers. For FP8, each head of Q, K and V is
divided by its largest magnitude / 448 and rounded to e4m3. Where FlashAttention 3 is installed
(``flash_attn_interface``), its FP8 forward is measured too, on the same numbers. Our time is that of both launches;
``values us`` is that of the launch that transposes V, alone. CUDA events time each call after 256 MB have been written
to L2; every round runs each call once in random order, and a row has the medians and the quartiles. TFLOPS count two
GEMMs over the visible pairs of query and key.

First the first and the last head of each result are compared with float64 attention of the rounded numbers. ``error``
is the relative RMS error, ``bar`` that of a float64 softmax whose weights alone are rounded to e4m3, in units of 1/256
of the largest one. A row is verified if its error is at most 1.1 times the bar.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from attention import bind_kernel, problems, table

import warpwright as ww
from warpwright import cuda
from warpwright.arrays.device import device_array
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.problem import DTYPES, FLOAT8
from warpwright.kernels.attention.sm90 import plan as plan_16_bit
from warpwright.kernels.attention.sm90.fp8_plan import CONFIGS, Fp8Config, choose
from warpwright.ops.attention.fp8 import SCALES, VALUES, plan_fp8
from warpwright.ops.binding import Plan, bind, layouts_of, start, values_of

E4M3_MAX = 448.0
TOLERANCE = 1.1
UNIT = 256.0
Run = Callable[[], Any]
Tensors = dict[str, torch.Tensor]


def quantized(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tensor (batch, heads, rows, head_dim) in e4m3, and the scale of each head."""
    scale = tensor.abs().amax((2, 3)).float() / E4M3_MAX
    return (tensor / scale[..., None, None]).to(torch.float8_e4m3fn), scale


def inputs(problem: Problem) -> Tensors:
    """Returns Q, K and V in e4m3 and in bfloat16 (``q16`` …), and the scales."""
    torch.manual_seed(0)
    shape = problem.batch, problem.heads, problem.q_len, problem.head_dim
    found: Tensors = {}
    for name, scale in SCALES.items():
        wide = torch.randn(shape, device="cuda")
        found[name], found[scale] = quantized(wide)
        found[f"{name}16"] = wide.bfloat16()
    return found


def bind_fp8(problem: Problem, config: Fp8Config, given: Tensors, out: torch.Tensor) -> tuple[Run, Run]:
    """Returns a call that starts both our launches, and one that starts the first alone."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    plan = plan_fp8(problem, frozenset(SCALES.values()), DTYPES[0], sms, True, False, config)
    memory = {VALUES: torch.empty(plan.scratch[VALUES], dtype=torch.uint8, device="cuda")}
    arrays = {**{name: given[name] for name in (*SCALES, *SCALES.values())}, "o": out, **memory}
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    values: dict[str, Any] = {name: device_array(tensor) for name, tensor in arrays.items()}
    values |= {"lse": 0, "workspace": device_array(counter)}
    first = Plan(plan.launches[:1], plan.config)
    both, alone = (_start(each, values) for each in (plan, first))
    return partial(_keep, both, arrays, counter), partial(_keep, alone, arrays, counter)


def _start(plan: Plan, values: dict[str, Any]) -> Run:
    bound = bind(plan, layouts_of(values), cuda.device("cuda:0"))
    return partial(start, bound(values_of(values), torch.cuda.current_stream().cuda_stream))


def _keep(run: Run, *_: Any) -> None:
    """Call ``run``; the other arguments are arrays that it reads."""
    run()


def flash_attention_3(problem: Problem, given: Tensors) -> Run | None:
    """Returns a call of FlashAttention 3's FP8 forward, if it is installed."""
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        return None
    q, k, v = (given[name].transpose(1, 2).contiguous() for name in "qkv")
    names = {f"{name}_descale": given[scale] for name, scale in SCALES.items()}
    call = partial(flash_attn_func, q, k, v, softmax_scale=problem.factor, causal=problem.causal, **names)

    def run() -> torch.Tensor:
        result = call()
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return run


def exact(problem: Problem, given: Tensors, batch: int, head: int, unit: float | None) -> torch.Tensor:
    """Returns attention of one head in float64; with a ``unit`` its weights are rounded to e4m3."""
    q, k, v = (given[name][batch, head].double() * given[scale][batch, head].double() for name, scale in SCALES.items())
    rows = []
    for first in range(0, problem.q_len, 2048):
        scores = q[first : first + 2048] @ k.T * problem.factor
        if problem.causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(first + 1), -torch.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-1, keepdim=True)
        if unit is not None:
            weights = (weights * unit).float().to(torch.float8_e4m3fn).double() / unit
        rows.append(weights @ v / total)
    return torch.cat(rows)


def relative(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Returns the relative RMS error. NaN propagates."""
    difference, right = torch.stack(found).double() - torch.stack(wanted), torch.stack(wanted)
    return float((difference.square().mean() / right.square().mean()).sqrt())


def measure(problem: Problem, configs: dict[str, Fp8Config], rounds: int) -> list[dict[str, Any]]:
    given, corners = inputs(problem), [(0, 0), (problem.batch - 1, problem.heads - 1)]
    wanted, bar = ([exact(problem, given, *corner, unit) for corner in corners] for unit in (None, UNIT))
    lowest = relative(bar, wanted)
    outs = {name: torch.full_like(given["q16"], torch.nan) for name in configs}
    runs: dict[str, Run] = {}
    for name, config in configs.items():
        runs[name], runs[f"{name}, values"] = bind_fp8(problem, config, given, outs[name])
        runs[name]()
    peer = flash_attention_3(problem, given)
    results = outs | ({} if peer is None else {"flash-attn 3": peer()})
    off = {name: relative([out[corner] for corner in corners], wanted) for name, out in results.items()}
    whole = {name: bool(torch.isfinite(out).all()) for name, out in results.items()}
    scales = {scale: given[scale] for scale in SCALES.values()}
    by_ww = ww.attention(given["q"], given["k"], given["v"], causal=problem.causal, **scales)
    same = bool((by_ww == outs[choose(problem)]).all())
    wide = replace(problem, dtype=DTYPES[0])
    sixteen, counter = [given[f"{name}16"] for name in SCALES], torch.zeros(1, dtype=torch.int32, device="cuda")
    of_16 = plan_16_bit.choose(wide)
    runs["bf16"] = bind_kernel(wide, of_16, [*sixteen, torch.empty_like(sixteen[0])], counter)
    runs |= {} if peer is None else {"flash-attn 3": peer}
    times = cuda.times(runs, device=cuda.device("cuda:0"), rounds=rounds)
    rows = []
    for name in results:
        found = times[name]
        row = {"d": problem.head_dim, "tokens": problem.q_len, "causal": problem.causal, "kernel": name}
        row |= {"TFLOPS": round(problem.flops * 1e-12 / found.median, 1), "us": round(found.median * 1e6, 1)}
        row |= {"quartiles": f"{found.low * 1e6:.1f} {found.high * 1e6:.1f}", "MHz": round(found.clock_mhz)}
        row |= {"values us": round(times[f"{name}, values"].median * 1e6, 1) if name in configs else 0.0}
        row |= {"bf16": round(problem.flops * 1e-12 / times["bf16"].median, 1)}
        row |= {"of bf16": round(times["bf16"].median / found.median, 3)}
        row |= {"error": float(f"{off[name]:.3e}"), "bar": float(f"{lowest:.3e}"), "chosen": name == choose(problem)}
        row["verified"] = whole[name] and (name not in configs or off[name] <= TOLERANCE * lowest) and same
        rows.append(row)
    return rows


def configs_of(head_dim: int, changes: list[str]) -> dict[str, Fp8Config]:
    """Returns configurations by name, as they are and with each of ``changes`` (``run=2,tile=128x160``)."""
    named = {name: config for name, config in CONFIGS.items() if config.head_dim == head_dim}
    more = named.copy()
    for name, config in named.items():
        for change in changes:
            fields = dict(field.split("=") for field in change.split(","))
            more[f"{name}, {change}"] = replace(config, **{field: value_of(value) for field, value in fields.items()})
    return more


def value_of(text: str) -> Any:
    """Returns the value of a field: a number, or numbers with an x between them (a tile)."""
    numbers = tuple(int(word) for word in text.split("x"))
    return numbers[0] if len(numbers) == 1 else numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--lengths", default="2048,4096,8192,16384")
    parser.add_argument("--changes", nargs="*", default=[], help="fields of the configuration, such as run=2 room=0")
    parser.add_argument("--rounds", type=int, default=30, help="launches of each kernel")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    head_dims, lengths = ([int(word) for word in text.split(",")] for text in (options.head_dims, options.lengths))
    rows = [
        row
        for problem in problems(head_dims, lengths)
        for row in measure(
            replace(problem, dtype=FLOAT8),
            configs_of(problem.head_dim, options.changes),
            options.rounds,
        )
    ]
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {options.rounds}\n")
        print(table(rows))
    unverified = [f"{row['kernel']} at {row['tokens']} tokens" for row in rows if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {', '.join(unverified)}")


if __name__ == "__main__":
    main()
