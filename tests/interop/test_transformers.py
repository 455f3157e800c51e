"""Models of Hugging Face transformers with ``attn_implementation="warpwright"`` on the CPU against eager attention.

Models are in float32 and attention is in bfloat16, so that nothing but attention differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")
transformers = pytest.importorskip(
    "transformers", reason="transformers is an extra: pip install 'warpwright[transformers]'"
)

from transformers import AttentionInterface, AttentionMaskInterface

from warpwright.errors import UsageError
from warpwright.interop.transformers import attention, attention_mask, register

SIZE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 32}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
ERROR = 0.02
LEFT = [[1] * 12, [0] * 5 + [1] * 7]
RIGHT = [[1] * 12, [1] * 7 + [0] * 5]
BOTH = [[0] * 2 + [1] * 10, [0] * 3 + [1] * 7 + [0] * 2]
EDIT = 'attn_implementation="sdpa"'


def rounded(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
    out, weights = attention(module, *(x.bfloat16() for x in (q, k, v)), mask, **options)
    return out.float(), weights


@pytest.fixture(autouse=True, scope="module")
def names() -> Iterator[None]:
    """The names of both implementations in transformers while the tests of this file run."""
    register()
    AttentionInterface.register("rounded", rounded)
    AttentionMaskInterface.register("rounded", attention_mask)
    yield
    for interface in (AttentionInterface, AttentionMaskInterface):
        for name in ("warpwright", "rounded"):
            interface._global_mapping.pop(name)


def pair(kind: str = "Llama", **options: Any) -> tuple[Any, Any]:
    """Returns a model with our attention and the same model with eager attention."""
    models = []
    for name in ("rounded", "eager"):
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**SIZE, **HEADS, initializer_range=0.2, **options)
        models.append(getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation=name).eval())
    assert [model.config._attn_implementation for model in models] == ["rounded", "eager"]
    return models[0], models[1]


def ids(batch: int = 2, count: int = 12) -> Any:
    return torch.randint(1, 32, (batch, count), generator=torch.Generator().manual_seed(1))


def near(found: Any, expected: Any, error: float = ERROR) -> None:
    assert found.shape == expected.shape
    assert (found - expected).norm() <= error * expected.norm()


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_the_name_is_known_to_both_interfaces() -> None:
    model = transformers.LlamaModel._from_config(
        transformers.LlamaConfig(**SIZE, **HEADS), attn_implementation="warpwright", dtype=torch.bfloat16
    )
    with torch.no_grad():
        assert model(ids()).last_hidden_state.dtype == torch.bfloat16
    assert AttentionMaskInterface()["warpwright"] is attention_mask


@pytest.mark.parametrize("mask", [None, LEFT, RIGHT, BOTH])
def test_logits_are_those_of_eager_attention(mask: Any) -> None:
    ours, eager = pair()
    given = None if mask is None else torch.tensor(mask)
    tokens = slice(None) if given is None else given.bool()
    with torch.no_grad():
        found, expected = (model(ids(), attention_mask=given).logits[tokens] for model in (ours, eager))
    near(found, expected)


def test_a_mask_changes_the_result() -> None:
    ours, _ = pair()
    with torch.no_grad():
        found, unmasked = (ours(ids(), attention_mask=mask).logits[1, 5:] for mask in (torch.tensor(LEFT), None))
    assert (unmasked - found).norm() > 5 * ERROR * found.norm()


@pytest.mark.parametrize("mask", [None, BOTH])
def test_gradients_are_those_of_eager_attention(mask: Any) -> None:
    given = None if mask is None else torch.tensor(mask)
    labels = ids() if given is None else ids().masked_fill(given * given.roll(1, 1) == 0, -100)  # no first token
    found = []
    for model in pair():
        model(ids(), attention_mask=given, labels=labels).loss.backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in found[1].items():
        near(found[0][name], expected, 2 * ERROR)


WITH_SINKS = {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("kind", "cache", "sizes"),
    [("Llama", "dynamic", {}), ("Llama", "static", {}), ("GptOss", "dynamic", WITH_SINKS)],
    ids=["Llama", "Llama, static cache", "gpt-oss"],
)
def test_text_is_generated_from_a_padded_batch(kind: str, cache: str, sizes: dict[str, int]) -> None:
    ours, eager = pair(kind, **sizes)
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    options |= {"return_dict_in_generate": True, "disable_compile": True, "attention_mask": torch.tensor(LEFT)}
    found = ours.generate(ids(), **options, cache_implementation=cache)
    expected = eager.generate(ids(), **options)
    assert torch.equal(found.sequences, expected.sequences)
    for each, wanted in zip(found.logits, expected.logits, strict=True):
        near(each, wanted)


def test_sliding_windows() -> None:
    ours, eager = pair("Mistral", sliding_window=4)
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    found, expected = (m.generate(ids(), **options, return_dict_in_generate=True) for m in (ours, eager))
    for each, wanted in zip(found.logits, expected.logits, strict=True):
        near(each, wanted)


def layer_inputs(rows: int = 6, keys: int = 9) -> tuple[Any, ...]:
    """A causal layer, Q of two heads, K and V of one."""
    generator = torch.Generator().manual_seed(2)
    shapes = (2, 2, rows, 64), (2, 1, keys, 64), (2, 1, keys, 64)
    return SimpleNamespace(is_causal=True), *(torch.randn(shape, generator=generator).bfloat16() for shape in shapes)


def exact(q: Any, k: Any, v: Any, causal: bool, cap: float = 0, sinks: Any = None, window: int = 0) -> Any:
    """Returns attention in float64, (batch, rows, heads, head_dim); a window is the keys that a query sees."""
    scores = q.double() @ k.double().mT / 8
    scores = cap * torch.tanh(scores / cap) if cap else scores
    rows, keys = scores.shape[2:]
    if causal:
        apart = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
        scores = scores.masked_fill((apart < 0) | (apart >= (window or keys)), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[None, :, None, None].expand(len(q), -1, rows, 1)), -1)
    return (torch.softmax(scores, -1)[..., :keys] @ v.double()).transpose(1, 2)


def test_soft_caps_and_sinks() -> None:
    layer, q, k, v = layer_inputs()
    sinks = torch.tensor([0.5, 2.0]).bfloat16()
    leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
    found, weights = attention(layer, q, k, v, None, softcap=2.0, s_aux=sinks)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    expected = exact(*doubles[:3], True, 2.0, doubles[3])
    near(found.double(), expected)
    assert weights is None
    results = (torch.autograd.grad(each.sum(), given) for each, given in ((found, leaves), (expected, doubles)))
    for each, wanted in zip(*results, strict=True):
        assert (each.double() - wanted).abs().max() <= 0.03 * wanted.abs().max()


@pytest.mark.parametrize("rows", [9, 4])
def test_soft_caps_and_sinks_with_padding(rows: int) -> None:
    layer, q, k, v = layer_inputs(rows)
    sinks, mask = torch.tensor([0.5, 2.0]), torch.ones(2, 9, dtype=torch.bool)
    mask[1, :3] = mask[:, 7:] = False  # and two rows of a cache that are empty
    found, _ = attention(layer, q, k, v, mask, softcap=2.0, s_aux=sinks, sliding_window=3)
    own = slice(0, 4) if rows == 4 else slice(3, 7)  # four queries are at the places 3 to 6
    assert rows == 4 or not found[1, :3].any()
    expected = exact(q[1:, :, own], k[1:, :, 3:7], v[1:, :, 3:7], True, 2.0, sinks, 3)
    near(found[1:, own].double(), expected)


def test_cross_attention_skips_padding_of_the_keys() -> None:
    _, q, k, v = layer_inputs()
    layer = SimpleNamespace(is_causal=False)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 4:] = False
    found, _ = attention(layer, q, k, v, mask)
    near(found[0].double(), exact(q[:1], k[:1, :, :4], v[:1, :, :4], False)[0])
    near(found[1].double(), exact(q[1:], k[1:], v[1:], False)[0])


def test_packed_sequences() -> None:
    layer, q, k, v = (x if isinstance(x, SimpleNamespace) else x[:1] for x in layer_inputs(9))
    starts = torch.tensor([0, 4, 9])
    found, _ = attention(layer, q, k, v, None, cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    for part in (slice(0, 4), slice(4, 9)):
        near(found[:, part].double(), exact(*(x[:, :, part] for x in (q, k, v)), True))


def test_values_of_fewer_columns() -> None:
    layer, q, k, v = layer_inputs()
    found, _ = attention(layer, q, k, v[..., :40], None)
    near(found.double(), exact(q, k, v[..., :40], True))


def test_autocast_rounds_the_inputs() -> None:
    layer, q, k, v = layer_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = attention(layer, q.float(), k.float(), v, None)
    assert torch.equal(found, attention(layer, q, k, v, None)[0])


def test_a_model_compiles_to_one_graph() -> None:
    ours = pair()[0].model
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for given in (None, torch.tensor(BOTH)):
        with torch.no_grad():
            found, expected = (m(ids(), given, use_cache=False).last_hidden_state for m in (compiled, ours))
        near(found, expected, 0.001)
    packed = torch.tensor([[*range(6), *range(6)]]).expand(2, -1)
    with torch.no_grad(), pytest.raises(RuntimeError, match="given position_ids of packed sequences; expected one"):
        compiled(ids(), position_ids=packed, use_cache=False)


REFUSED = {
    "dropout": "attention: dropout=0.1; expected 0.0, for no kernel drops weights: attention_dropout=0.0 in the "
    f"config, or {EDIT}",
    "output_attentions": "attention: output_attentions=True; expected False, for no kernel stores weights, or "
    'attn_implementation="eager"',
    "position_bias": f"attention: given position_bias, which no kernel adds; expected {EDIT}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_serves_is_refused(name: str) -> None:
    layer, q, k, v = layer_inputs()
    value = {"dropout": 0.1, "output_attentions": True, "position_bias": q}[name]
    assert refusal(attention, layer, q, k, v, None, **{name: value}) == REFUSED[name]


def test_other_masks_are_refused() -> None:
    layer, q, k, v = layer_inputs()
    assert refusal(attention, layer, q, k, v, torch.zeros(2, 1, 6, 9)) == (
        "attention: attention_mask is torch.float32 (2, 1, 6, 9); expected (batch, keys), 1 for tokens and 0 for "
        f"padding, or {EDIT}"
    )
    ours, _ = pair()
    assert refusal(ours, ids(), attention_mask=torch.tensor([[1] * 12, [1] * 4 + [0, 1] + [0] * 6])) == (
        "attention: attention_mask has a 0 between two 1s in row 1; expected padding before or after the tokens of a "
        f"sequence, or {EDIT}"
    )
    packed = torch.tensor([[*range(6), *range(6)]]).expand(2, -1)
    assert refusal(ours, ids(), position_ids=packed, use_cache=False) == (
        "attention: given position_ids of packed sequences; expected one sequence in each row and padding after it, or "
        f"{EDIT}"
    )
    assert refusal(attention_mask, batch_size=1, kv_length=3, mask_function=lambda b, h, q, k: k <= q) == (
        "attention: given a mask by test_other_masks_are_refused.<locals>.<lambda>; expected causal and sliding-window "
        f"masks and padding, or {EDIT}"
    )
    ragged = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
    sizes = {"batch_size": 2, "q_length": 5, "q_offset": 3, "kv_length": 8}
    causal = transformers.masking_utils.causal_mask_function
    assert refusal(attention_mask, **sizes, mask_function=causal, attention_mask=ragged) == (
        "attention: given padding after tokens, and fewer queries than keys; expected padding before them: "
        f'tokenizer.padding_side = "left", or {EDIT}'
    )


def test_padding_without_a_causal_mask_has_gradients() -> None:
    layer, q, k, v = SimpleNamespace(is_causal=False), *layer_inputs()[1:]
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, :3] = False
    leaves = [x.requires_grad_() for x in (q, k, v)]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    expected = torch.nn.functional.scaled_dot_product_attention(*doubles, mask[:, None, None], enable_gqa=True)
    out = attention(layer, q, k, v, mask)[0]
    near(out.double(), expected.transpose(1, 2))
    results = (torch.autograd.grad(x.sum(), given) for x, given in ((out, leaves), (expected, doubles)))
    for found, wanted in zip(*results, strict=True):
        assert (found - wanted).abs().max() <= 0.03 * wanted.abs().max()


def test_padding_without_a_causal_mask_has_no_gradients_of_caps() -> None:
    _, q, k, v = layer_inputs()
    mask = torch.ones(2, 9, dtype=torch.bool)
    assert refusal(attention, SimpleNamespace(is_causal=False), q.requires_grad_(), k, v, mask, softcap=2.0) == (
        "attention: given padding, softcap, 6 queries and 9 keys that require gradients, and causal=False; expected a "
        f"causal mask and as many queries as keys, torch.no_grad(), or {EDIT}"
    )
