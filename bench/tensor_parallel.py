"""Two layers of Llama 70B with tensor parallelism, forward and backward: ``torchrun --nproc-per-node 2
bench/tensor_parallel.py --json OUT.json``.

Each rank has a part of every weight, and between the layers a part of the rows (sequence parallelism). The contenders
have the same weights and run interleaved:

- ``torch eager``, ``torch compiled``: `torch.distributed.tensor.parallel.parallelize_module` with ColwiseParallel,
  RowwiseParallel and SequenceParallel; ``torch compiled async``: with asynchronous tensor parallelism
- ``ours eager``, ``ours compiled``: `warpwright.distributed`, with one weight each for qkv and for gate and up

A time is the longest of all ranks by CUDA events, the median of the rounds; the loss and the gradient of the input of
every contender are compared with torch's eager ones. A contender that fails is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from warpwright.distributed import AllGatherLinear, LinearReduceScatter

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 8192, 28672, 64, 8, 128
LAYERS = 2
TOLERANCE = 0.05  # of the loss and, in the norm, of the gradient of the input: bf16, other orders of sums
Step = Callable[[], tuple[Tensor, Tensor]]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of rows (tokens, heads of this rank times 128)."""
    heads = [each.view(each.shape[0], -1, HEAD).transpose(0, 1).unsqueeze(0) for each in (q, k, v)]
    out = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1).reshape(q.shape[0], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, heads * HEAD, bias=False) for heads in (HEADS, KV_HEADS, KV_HEADS))
        self.o = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(attend(self.q(x), self.k(x), self.v(x)))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.feed_forward = (
            nn.RMSNorm(HIDDEN),
            Attention(),
            nn.RMSNorm(HIDDEN),
            FeedForward(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class OurAttention(nn.Module):
    def __init__(self, whole: Attention, rank: int, ranks: int) -> None:
        super().__init__()
        parts = [each.weight.detach().chunk(ranks)[rank] for each in (whole.q, whole.k, whole.v)]
        self.widths = [part.shape[0] for part in parts]
        self.qkv, self.o = AllGatherLinear(torch.cat(parts)), LinearReduceScatter.from_linear(whole.o)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(attend(*self.qkv(x).split(self.widths, -1)))


class OurFeedForward(nn.Module):
    def __init__(self, whole: FeedForward, rank: int, ranks: int) -> None:
        super().__init__()
        parts = [each.weight.detach().chunk(ranks)[rank] for each in (whole.gate, whole.up)]
        self.gate_up, self.down = AllGatherLinear(torch.cat(parts)), LinearReduceScatter.from_linear(whole.down)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


def our_block(whole: Block) -> Block:
    """Returns this rank's part of a block."""
    found, ranks = Block.__new__(Block), (dist.get_rank(), dist.get_world_size())
    nn.Module.__init__(found)
    for name in ("norm1", "norm2"):
        norm = nn.RMSNorm(HIDDEN, device="cuda", dtype=torch.bfloat16)
        norm.load_state_dict(getattr(whole, name).state_dict())
        setattr(found, name, norm)
    found.attention = OurAttention(whole.attention, *ranks)
    found.feed_forward = OurFeedForward(whole.feed_forward, *ranks)
    return found


def parallelize(block: Block) -> Block:
    """Returns the block as torch divides it."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    rows = PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),))
    plan: dict[str, Any] = {"attention": rows, "feed_forward": rows}
    plan |= {name: SequenceParallel(sequence_dim=0) for name in ("norm1", "norm2")}
    columns = ("attention.q", "attention.k", "attention.v", "feed_forward.gate", "feed_forward.up")
    plan |= {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=Shard(0)) for name in ("attention.o", "feed_forward.down")}
    return parallelize_module(block, mesh, plan)


def whole_layers() -> list[Block]:
    """Returns the layers with all weights, the same on all ranks."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return [Block().to(torch.bfloat16) for _ in range(LAYERS)]


def step_of(model: nn.Module, x: Tensor) -> Step:
    """Returns a call that computes the loss of this rank's rows and all gradients."""

    def step() -> tuple[Tensor, Tensor]:
        x.grad = None
        model.zero_grad(set_to_none=True)
        loss = model(x).float().square().mean()
        loss.backward()
        return loss.detach(), x.grad

    return step


def contenders(x: Tensor) -> dict[str, Callable[[], Step]]:
    """Returns functions that make each contender; the first call of a compiled one compiles it."""
    ours = nn.Sequential(*map(our_block, whole_layers()))
    torchs = nn.Sequential(*map(parallelize, whole_layers()))

    def compiled(model: nn.Module, asynchronous: bool = False) -> Step:
        options = {"_micro_pipeline_tp": True} if asynchronous else None
        return step_of(torch.compile(model, dynamic=False, options=options), x)

    return {
        "torch eager": lambda: step_of(torchs, x),
        "ours eager": lambda: step_of(ours, x),
        "ours compiled": lambda: compiled(ours),
        "torch compiled": lambda: compiled(torchs),
        "torch compiled async": lambda: compiled(torchs, True),
    }


def check(name: str, found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Raise AssertionError for another loss or gradient than torch's eager ones."""
    losses = torch.stack([found[0], expected[0]])
    dist.all_reduce(losses)
    difference = float((losses[0] - losses[1]).abs() / losses[1])
    assert difference <= TOLERANCE, f"{name}: the loss differs by {difference:.2e}"
    gradients = [each[1].float() for each in (found, expected)]
    difference = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    assert difference <= TOLERANCE, f"{name}: the gradient of the input differs by {difference:.2e}"


def usable(x: Tensor, failures: list[str]) -> dict[str, Step]:
    """Returns the contenders that are right."""
    found: dict[str, Step] = {}
    expected = None
    for name, make in contenders(x).items():
        step = make()
        result, wrong = first_result(name, step, expected)
        expected = expected or result
        if wrong:
            failures.append(wrong)
            say(f"FAILED {wrong}")
        else:
            found[name] = step
    return found


def first_result(
    name: str, step: Step, expected: tuple[Tensor, Tensor] | None
) -> tuple[tuple[Tensor, Tensor] | None, str]:
    """Returns the loss and the gradient of a contender, and what is wrong with it, or ""."""
    try:
        loss, gradient = step()
        result = loss.clone(), gradient.clone()
        check(name, result, expected or result)
    except Exception as error:
        return None, f"{name}: {type(error).__name__}: {str(error)[:500]}"
    return result, ""


def measure(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Returns the median milliseconds of each contender, of the slower rank."""
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in steps}
    one = torch.ones(1, device="cuda")
    for _ in range(rounds + 2):
        for name, step in steps.items():
            pair = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.all_reduce(one)
            pair[0].record()
            step()
            pair[1].record()
            events[name].append(pair)
        torch.cuda.synchronize()
    found = {}
    for name, pairs in events.items():
        times = torch.tensor([start.elapsed_time(end) for start, end in pairs[2:]], device="cuda")
        dist.all_reduce(times, dist.ReduceOp.MAX)
        found[name] = statistics.median(times.tolist())
    return found


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--tokens", type=int, nargs="*", default=[4096])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    failures, rows = list[str](), list[dict[str, Any]]()
    say(f"{dist.get_world_size()} × {torch.cuda.get_device_name()}, torch {torch.__version__}, {LAYERS} layers, ms")
    for tokens in options.tokens:
        torch.manual_seed(1 + dist.get_rank())
        shape = tokens // dist.get_world_size(), HIDDEN
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        times = measure(usable(x, failures), options.rounds)
        rows.append({"tokens": tokens, "milliseconds": times})
        ours = min((time for name, time in times.items() if name.startswith("ours")), default=float("nan"))
        best = min((time for name, time in times.items() if name.startswith("torch")), default=float("nan"))
        each = "  ".join(f"{name} {time:.2f}" for name, time in times.items())
        say(f"{tokens:>6} tokens  fastest of torch / fastest of ours {best / ours:.3f}  {each}")
        if options.json and dist.get_rank() == 0:
            content = {"device": torch.cuda.get_device_name(), "results": rows, "failures": failures}
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
