"""A Llama of Hugging Face transformers on a real Hopper GPU: ``attn_implementation="warpwright"`` beside ``"sdpa"``.

``python bench/huggingface.py``: four layers of hidden size 4096 with 32 heads of 128 columns, of which four share keys
and values, random bfloat16 weights; prefill with a cache, and a training step (forward and backward), at 4 × 4096 and
1 × 16384 tokens. ``sdpa`` is torch's ``scaled_dot_product_attention`` with the backend that torch takes. CUDA events
time each run after 256 MB have been written to L2; every round runs each model once in random order. A row has medians
and, in parentheses, lower and upper quartiles in milliseconds.

First gradients at 1 × 1024 tokens are compared with those of the same model in float32 with eager attention. In the
model that is compared only attention is in bfloat16: its error is that of attention, in the norm of all gradients. The
program fails if ours is above 2 %. The last column of errors is that of the whole model in bfloat16, where both
implementations differ by the rounding of everything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from attention import table
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, LlamaConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from warpwright import cuda
from warpwright.interop.transformers import register
from warpwright.run.devices import resolve

IMPLEMENTATIONS = ("warpwright", "sdpa")
SHAPES = ((4, 4096), (1, 16384))
CHECKED = (1, 1024)
TOLERANCE = 0.02  # of the norm of all gradients
SIZE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 16384,
}
Gradients = dict[str, torch.Tensor]


def build(implementation: str, dtype: torch.dtype, device: str, size: dict[str, int]) -> Any:
    """Returns the model; every model has the same weights, rounded to bfloat16."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModel.from_config(LlamaConfig(**size), attn_implementation=implementation, dtype=torch.bfloat16)
    return model.to(dtype)


def register_rounded(implementation: str) -> str:
    """Returns the name of an implementation of attention in bfloat16 for a model in float32."""
    attend, name = AttentionInterface()[implementation], f"{implementation} in bfloat16"

    def rounded(module: Any, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
        return attend(module, *(x.bfloat16() for x in (q, k, v)), *rest, **options)[0].float(), None

    AttentionInterface.register(name, rounded)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


def tokens(shape: tuple[int, int], device: str, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(1)).to(device)


def prefill(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        hidden: torch.Tensor = model(ids, use_cache=True).last_hidden_state
    return hidden


def train(model: Any, ids: torch.Tensor, do: torch.Tensor) -> None:
    """Computes the gradients of all weights."""
    for parameter in model.parameters():
        parameter.grad = None
    model(ids, use_cache=False).last_hidden_state.backward(do)


def gradients(implementation: str, dtype: torch.dtype, device: str, size: dict[str, int]) -> Gradients:
    model = build(implementation, dtype, device, size)
    ids = tokens(CHECKED, device, size["vocab_size"])
    do = torch.randn(*CHECKED, size["hidden_size"], generator=torch.Generator().manual_seed(2)).bfloat16()
    train(model, ids, do.to(device, dtype))
    return {name: parameter.grad.float() for name, parameter in model.named_parameters()}


def error(found: Gradients, expected: Gradients) -> float:
    """Returns the norm of the difference over the norm of ``expected``; NaN propagates."""
    off = sum(float((found[name] - each).double().square().sum()) for name, each in expected.items())
    return float((off / sum(float(each.double().square().sum()) for each in expected.values())) ** 0.5)


def errors(device: str, size: dict[str, int]) -> list[dict[str, Any]]:
    """Returns the errors of the gradients, with attention in bfloat16 and with the model in bfloat16."""
    expected, rows = gradients("eager", torch.float32, device, size), []
    for name in IMPLEMENTATIONS:
        of_attention = error(gradients(register_rounded(name), torch.float32, device, size), expected)
        of_model = error(gradients(name, torch.bfloat16, device, size), expected)
        rows.append({"implementation": name, "attention": f"{of_attention:.2e}", "model": f"{of_model:.2e}"})
        rows[-1]["verified"] = of_attention <= TOLERANCE
    return rows


def runs_of(what: str, models: dict[str, Any], shape: tuple[int, int]) -> dict[str, Callable[[], Any]]:
    ids = tokens(shape, "cuda", SIZE["vocab_size"])
    if what == "prefill":
        return {name: partial(prefill, model, ids) for name, model in models.items()}
    do = torch.randn(*shape, SIZE["hidden_size"], device="cuda", dtype=torch.bfloat16)
    return {name: partial(train, model, ids, do) for name, model in models.items()}


def measure(what: str, models: dict[str, Any], shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    found = cuda.times(runs_of(what, models, shape), device=resolve("cuda:0"), rounds=rounds)
    row: dict[str, Any] = {"what": what, "tokens": f"{shape[0]} x {shape[1]}"}
    for name, each in found.items():
        row[f"{name} ms"] = f"{each.median * 1e3:.2f} ({each.low * 1e3:.2f}-{each.high * 1e3:.2f})"
    row["ratio"] = round(found["sdpa"].median / found["warpwright"].median, 3)
    return row | {"clock MHz": round(found["warpwright"].clock_mhz)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    register()
    checked = errors("cuda", SIZE)
    models = {name: build(name, torch.bfloat16, "cuda", SIZE) for name in IMPLEMENTATIONS}
    rows = [measure(what, models, shape, options.rounds) for what in ("prefill", "train") for shape in SHAPES]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if options.json:
        print(json.dumps({"versions": versions, "errors": checked, "rows": rows}, indent=1))
    else:
        print(f"{torch.cuda.get_device_name()}, {versions}; medians of {options.rounds}\n")
        print(table(checked), table(rows), "ratio: time of sdpa over time of warpwright", sep="\n\n")
    unverified = [row for row in checked if not row["verified"]]
    if unverified:
        sys.exit(f"not verified: {unverified}")


if __name__ == "__main__":
    main()
