"""The mma.sync attention of packed sequences: numbers on the virtual RTX 5090, the verdict, ptxas, plans."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL
from tests.kernels.attention.varlen_helpers import Packed, pack_sequences, prepare_launch, starts, verify_packed
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm120.plan import CONFIGS, STEPS, UNBOUNDED, plan_varlen
from warpwright.kernels.attention.sm120.varlen import kernel_of
from warpwright.ptx.ptxas import assemble

ANY = 1  # the lengths are those of the sequences


def run_attention(problem: Problem, given: Packed) -> tuple[np.ndarray, np.ndarray]:
    grid, kernel, args, (o, lse, _) = prepare_launch(problem, CONFIGS[problem.padded_dim], given, arch="sm_120a")
    ww.launch(kernel, grid, args=args, device="rtx5090")
    return o, lse


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("arch", ["sm_120a", "sm_90"])
def test_no_spills(head_dim, arch) -> None:
    traced = kernel_of(CONFIGS[head_dim]).trace(arch, bounds=(True, True))
    result = assemble(traced.ptx, arch, "-v")
    assert result.errors == {}
    assert "0 bytes spill stores, 0 bytes spill loads" in result.log
    assert traced.smem_bytes <= CONFIGS[head_dim].smem_bytes


@sampled(
    ("problem", "q_lens", "k_lens"),
    [
        (Problem(1, 2, 1, ANY, ANY, 64), [1, 63, 0, 65, 40, 0], [70, 64, 10, 1, 0, 0]),
        (Problem(1, 2, 1, ANY, ANY, 40, causal=True), [0, 127, 64, 1], [3, 65, 129, 1]),
        (Problem(1, 4, 2, ANY, ANY, 64, dtype=np.float16, window=(30, 5)), [129, 0, 200], [127, 5, 130]),
        (Problem(1, 2, 2, ANY, ANY, 96, window=(20, None), causal=True), [128, 1, 40], [129, 63, 40]),
        (Problem(1, 3, 3, ANY, ANY, 128, causal=True, scale=0.3), [129, 300], [65, 200]),
        (Problem(1, 2, 1, ANY, ANY, 200, causal=True), [130, 0, 5], [40, 0, 100]),
    ],
    every=2,
)
def test_agrees_with_float64(problem, q_lens, k_lens) -> None:
    given = pack_sequences(problem, q_lens, k_lens)
    verify_packed(problem, given, run_attention(problem, given))


@sampled("count", [1, 2, 31, 32, 33, 64, 65, 1100], every=3)
def test_a_tile_finds_its_sequence_among_any_number(count) -> None:
    """32 sequences are compared at a time, so counts around 32 and its square are edges; every third has no query."""
    problem = Problem(1, 1, 1, ANY, ANY, 64)
    q_lens = [0 if i % 3 == 1 else 1 + 66 * (i % 7 == 5) for i in range(count)]
    given = pack_sequences(problem, q_lens, [1 + i % 4 for i in range(count)])
    verify_packed(problem, given, run_attention(problem, given))


def test_nothing_leaks_from_one_sequence_into_another() -> None:
    """A neighbour full of NaN, whose rows a tile that read beyond its sequence would multiply by 0."""
    problem = Problem(1, 2, 1, ANY, ANY, 64, causal=True)
    clean = pack_sequences(problem, [33, 70, 20], [50, 80, 31])
    dirty = Packed(*(x.copy() for x in clean))
    for array, cu in zip(dirty[:3], (dirty.cu_q, dirty.cu_k, dirty.cu_k), strict=True):
        array[cu[1] : cu[2]] = np.nan
    (expected, expected_lse), (found, lse) = (run_attention(problem, given) for given in (clean, dirty))
    middle = slice(*clean.cu_q[1:3])
    assert np.isnan(found[middle].astype(np.float32)).all() and np.isnan(lse[:, middle]).all()
    found[middle], lse[:, middle] = expected[middle], expected_lse[:, middle]
    assert np.array_equal(found, expected) and np.array_equal(lse, expected_lse)


def test_rows_of_no_sequence_do_not_change() -> None:
    problem = Problem(1, 2, 1, ANY, ANY, 64)
    given = pack_sequences(problem, [30, 50, 20], [40, 60, 10])
    short = given._replace(cu_q=given.cu_q[:-1], cu_k=given.cu_k[:-1])
    o, lse = run_attention(problem, short)
    assert (o[80:] == SENTINEL).all() and (lse[:, 80:] == SENTINEL).all()
    o[80:], lse[:, 80:] = 0, -np.inf
    verify_packed(problem, short, (o, lse))
    o, lse = run_attention(problem, given._replace(cu_q=starts([0, 0, 0])))
    assert (o == SENTINEL).all() and (lse == SENTINEL).all()


@pytest.mark.parametrize("wrong", [[0, 1000, 40, 100], [-5, 30, 10**9, 2], [0, 70, 20, -1], [50, 60, 90, 2**31 - 1]])
def test_wrong_offsets_touch_no_other_memory(wrong) -> None:
    """Offsets in GPU memory are not checked; the virtual GPU reports a box or a store beyond the arrays."""
    problem = Problem(1, 2, 1, ANY, ANY, 64, causal=True)
    given = pack_sequences(problem, [40, 30, 30], [40, 30, 30])
    bad = np.array(wrong, np.int32)
    for changed in ({"cu_q": bad}, {"cu_k": bad}, {"cu_q": bad, "cu_k": bad}):
        run_attention(problem, given._replace(**changed))


def test_the_verdict_is_clean() -> None:
    problem = Problem(1, 4, 2, ANY, ANY, 128, causal=True)
    given = pack_sequences(problem, [150, 0, 1, 300], [140, 5, 70, 330])
    grid, kernel, args, _ = prepare_launch(problem, CONFIGS[128], given, arch="sm_120a")
    verdict = ww.check(kernel, grid, args=args, device="rtx5090")
    assert verdict.kind == "clean", verdict


def test_plans() -> None:
    problem = Problem(3, 8, 2, 1000, 2000, 128, causal=True, scale=0.5)
    found = plan_varlen(problem, 3000, 6000, sms=170)
    assert (found.config, found.bounds, found.grid) == (CONFIGS[128], (False, True), (3000 // 64 + 3, 8, 1))
    assert found.scalars[:6] == (3, 3000, 6000, UNBOUNDED, 0, 4)
    assert found.scalars[6] == pytest.approx(0.5 * 1.4426950408889634)
    assert plan_varlen(problem, 3000, 6000, sms=170, config=STEPS["registers"]).grid == (3000 // 128 + 3, 8, 1)
    with pytest.raises(UsageError, match="expected at most 65535 each; split the batch"):
        plan_varlen(Problem(2, 65536, 1, 1, 1, 64), 2, 2, sms=170)
