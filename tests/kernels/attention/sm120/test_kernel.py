"""The mma.sync attention on the virtual RTX 5090: numbers against float64, the verdict, ptxas, shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import BF16, SENTINEL, arguments, normal_qkv, run_attention, verify
from tests.samples import sampled
from warpwright.errors import KernelError, UsageError
from warpwright.kernels.attention import Problem, reference
from warpwright.kernels.attention.sm120.kernel import kernel_of
from warpwright.kernels.attention.sm120.plan import CONFIGS, CP_ASYNC, STEPS, layout, plan
from warpwright.lang import bf16, f16, f32, kernel, smem, wgmma
from warpwright.ptx.ptxas import assemble
from warpwright.targets import ARCHS

ALL = {
    **STEPS,
    **{f"tma-{head_dim}": config for head_dim, config in CONFIGS.items() if head_dim != 128},
    **{f"cp.async-{head_dim}": config for head_dim, config in CP_ASYNC.items()},
}
MASKS = [{}, {"causal": True}, {"window": (9, 70)}]
FEW = ["v3", "fewer-syncs", "two-ctas", "cp.async-64"]


def problem_of(config, batch=1, heads=2, kv_heads=1, q_len=100, kv_len=130, **more):
    return Problem(batch, heads, kv_heads, q_len, kv_len, config.head_dim, **more)


@sampled(
    ("name", "mask"), [*((n, m) for n in FEW for m in MASKS), *((n, MASKS[1]) for n in ALL if n not in FEW)], every=4
)
def test_numbers(name, mask) -> None:
    problem = problem_of(ALL[name], batch=2 if mask else 1, **mask)
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, ALL[name], *given))


@pytest.mark.parametrize("name", ["v3", "two-ctas", "cp.async-64"])
@sampled(
    ("q_len", "kv_len"),
    [(1, 1), (1, 129), (63, 64), (64, 63), (65, 65), (127, 1), (129, 127), (64, 1000), (300, 65)],
    every=3,
)
def test_lengths(name, q_len, kv_len) -> None:
    problem = problem_of(ALL[name], heads=1, q_len=q_len, kv_len=kv_len, causal=True)
    given = normal_qkv(problem, q_len)
    verify(problem, given, run_attention(problem, ALL[name], *given))


@pytest.mark.parametrize("name", ["fewer-syncs", "two-ctas"])
def test_head_dimensions_between_are_padded_with_zeros(name) -> None:
    problem = Problem(1, 4, 2, 40, 70, 40, causal=True, scale=0.3, dtype=np.float16)
    given = normal_qkv(problem)
    verify(problem, given, run_attention(problem, ALL[name], *given))


@sampled("name", STEPS, every=3)
def test_one_hot_keys_show_every_exchange_of_rows_and_columns(name) -> None:
    """Query i matches key order[i] alone; the values encode row and column."""
    problem = problem_of(STEPS[name], heads=1, q_len=80, kv_len=96, scale=1.0)
    order = np.random.default_rng(1).permutation(96)[:80]
    q, k, v = np.zeros((80, 128)), np.zeros((96, 128)), np.arange(96)[:, None] + np.arange(128) / 128
    q[np.arange(80), order], k[np.arange(96), np.arange(96)] = 16.0, 16.0
    given = [x.astype(BF16)[None, None] for x in (q, k, v)]
    out, lse = run_attention(problem, STEPS[name], *given)
    assert np.array_equal(out[0, 0], given[2][0, 0, order])
    np.testing.assert_allclose(lse, 256.0)


@pytest.mark.parametrize("name", FEW)
def test_large_scores_infinities_and_nan(name) -> None:
    problem = problem_of(ALL[name], heads=1, q_len=70, kv_len=80, scale=1.0)
    q, k, v = (x.copy() for x in normal_qkv(problem))
    q *= BF16.type(30)
    verify(problem, (q, k, v), run_attention(problem, ALL[name], q, k, v))
    q[0, 0, 3], k[0, 0, 5, :] = 0.0, 1.0
    q[0, 0, 3, 0] = -np.inf  # row 3: -inf at key 5, and NaN nowhere
    k[0, 0, :, 0] = np.abs(k[0, 0, :, 0])
    k[0, 0, :, 0] = np.where(k[0, 0, :, 0] == 0, BF16.type(1), k[0, 0, :, 0])
    q[0, 0, 9, 7] = np.nan
    q[0, 0, 11] = 0.0
    q[0, 0, 11, 0] = np.inf
    out, lse = run_attention(problem, ALL[name], q, k, v)
    exact, exact_lse = reference.attention(problem, q, k, v)
    assert (out[0, 0, 3] == 0).all() and np.isneginf(lse[0, 0, 3])
    assert np.isnan(out[0, 0, 9]).all() and np.isnan(out[0, 0, 11]).all()
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))
    k[0, 0, 4, 2] = np.nan
    assert np.isnan(run_attention(problem, ALL[name], q, k, v)[0]).all()


def test_a_value_that_is_not_finite_reaches_its_column_alone() -> None:
    problem = problem_of(CONFIGS[128], heads=1, q_len=40, kv_len=40)
    q, k, v = normal_qkv(problem)
    v[0, 0, 8, 5], v[0, 0, 9, 6] = np.nan, -np.inf
    out, _ = run_attention(problem, CONFIGS[128], q, k, v)
    assert np.isnan(out[..., 5]).all() and np.isneginf(out[..., 6]).all()
    assert np.isfinite(np.delete(out.astype(np.float32), [5, 6], -1)).all()


def test_strides_and_neighbouring_memory() -> None:
    """[b, s, h, d] arrays inside larger ones: only the result changes."""
    problem = Problem(2, 2, 1, 50, 70, 64, causal=True)
    q, k, v = (np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2) for x in normal_qkv(problem))
    for config in (CONFIGS[64], CP_ASYNC[64]):
        whole, lse = np.full((2, 52, 3, 72), SENTINEL, BF16), np.zeros((2, 2, 50), np.float32)
        o = whole[:, 1:51, :2, :64].swapaxes(1, 2)
        called, grid, args = arguments(problem, config, (q, k, v, o, lse))
        if config.kernel == "cp.async":
            args[:4] = [q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2), whole.reshape(-1)[3 * 72 :]]
        ww.launch(called, grid, args=args, device="rtx5090")
        verify(problem, (q, k, v), (o, lse))
        o[...] = SENTINEL
        assert (whole == SENTINEL).all()


@sampled("name", [*FEW, "helpers"], every=2)
def test_the_verdict_is_clean(name) -> None:
    problem = problem_of(ALL[name], heads=1, q_len=70, causal=True)
    q, k, v = normal_qkv(problem)
    arrays = (q, k, v, np.zeros_like(q), np.zeros(q.shape[:3], np.float32))
    called, grid, args = arguments(problem, ALL[name], arrays)
    verdict = ww.check(called, grid, args=args)
    assert verdict.kind == "clean", str(verdict)


@sampled(("name", "arch"), [*((name, "sm_120a") for name in ALL), *((name, "sm_90") for name in FEW)], every=4)
def test_ptxas_accepts_it_without_spills(name, arch) -> None:
    result = assemble(kernel_of(ALL[name]).ptx(arch=arch, dtype=f16 if name == "v3" else bf16), arch, "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log


@pytest.mark.parametrize("name", ALL)
def test_the_layout_is_that_of_the_kernel(name) -> None:
    config = ALL[name]
    traced = kernel_of(config).trace()
    assert traced.smem_bytes == config.smem_bytes == sum(piece.nbytes for piece in layout(config))
    assert traced.threads == (config.threads, 1, 1)
    assert config.smem_bytes <= ARCHS["sm_120a"].smem_per_block == 101_376


def test_the_published_configuration() -> None:
    v3 = STEPS["v3"]
    assert (v3.stages, v3.producers, v3.consumers, v3.threads, v3.tile, v3.head_dim) == (2, 4, 8, 384, (32, 64), 128)
    pieces = {piece.name: piece.nbytes for piece in layout(v3)}
    tiles = {"Q, then O": 8, "K": 32, "V": 32, "scores, then weights": 8, "sums of O": 16}
    assert {name: pieces[name] // 1024 for name in tiles} == tiles  # 96 KiB
    wide = layout(replace(v3, tile=(64, 64), stages=3))
    assert (
        sum(piece.nbytes for piece in wide if piece.name in tiles) == 160 * 1024
    )  # v2: more than a CTA of sm_120 can have


def test_two_ctas_share_an_sm() -> None:
    arch, config = ARCHS["sm_120a"], STEPS["two-ctas"]
    assert 2 * (config.smem_bytes + arch.smem_reserved_per_block) <= arch.smem_per_sm
    problem = problem_of(config)
    assert plan(problem).config.tile == config.tile
    assert plan(problem, arch="sm_90a").config.tile == STEPS["registers"].tile  # measured to be faster there


def test_there_is_no_wgmma_on_sm_120a() -> None:
    """The next step of the published plan; the language and ptxas refuse it."""

    @kernel("sm_90a", threads=128)
    def multiply() -> None:
        tile = smem.tile(bf16, (64, 64), swizzle=128)
        wgmma.fence()
        wgmma.mma(wgmma.accumulator(f32, (64, 64)), tile[:, :16], tile[:, :16], accumulate=False)

    with pytest.raises(KernelError) as caught:
        multiply.ptx(arch="sm_120a")
    assert str(caught.value).partition(": ")[2] == (
        "wgmma.fence needs sm_90a; this kernel is traced for sm_120a: trace it for a target that has it, or write this "
        "step with instructions that sm_120a has"
    )
    text = multiply.ptx().replace(".target sm_90a", ".target sm_120a")
    errors = assemble(text, "sm_120a").errors.values()
    assert "Instruction 'wgmma.fence' not supported on .target 'sm_120a'" in errors


@pytest.mark.parametrize(
    ("problem", "config", "sentence"),
    [
        (
            Problem(1, 1, 1, 8, 8, 128),
            CONFIGS[64],
            "attention: given head dimension 128 for a configuration of 64; expected at most 64: leave config= out",
        ),
        (
            Problem(1, 70_000, 1, 8, 8, 64),
            None,
            "attention: given batch=1 and heads=70000; expected at most 65535 each; split the batch",
        ),
    ],
)
def test_refused_plans(problem, config, sentence) -> None:
    with pytest.raises(UsageError) as caught:
        plan(problem, config=config)
    assert str(caught.value) == sentence
