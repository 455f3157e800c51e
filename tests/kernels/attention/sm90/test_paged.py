"""The Hopper attention over keys in pages: ptxas, numbers on the virtual H200, and verdicts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import SENTINEL, verify
from tests.kernels.attention.paged_helpers import Paged, fill_pages, paged_launches, rows_of, verify_paged
from tests.kernels.attention.varlen_helpers import starts
from tests.kernels.helpers import replaced, without
from tests.samples import sampled
from warpwright.kernels.attention import Problem
from warpwright.kernels.attention.sm90 import append, paged_decode, paged_varlen
from warpwright.kernels.attention.sm90.decode_plan import CONFIGS as FEW
from warpwright.kernels.attention.sm90.decode_plan import PAIRS, DecodeConfig
from warpwright.kernels.attention.sm90.paged_plan import plan_few
from warpwright.kernels.attention.sm90.pages import box_rows
from warpwright.kernels.attention.sm90.plan import CONFIGS
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import load_ptx
from warpwright.targets import DEVICES
from warpwright.vgpu import Device

KERNELS = {
    "few": paged_decode.kernel_of(replace(FEW[128], places=4)).configure(bounds=(True, True), size=16),
    "few, in pairs": paged_decode.kernel_of(replace(PAIRS[128], places=4)).configure(bounds=(True, True), size=16),
    "few, 64": paged_decode.kernel_of(replace(FEW[64], places=4)).configure(bounds=(True, True), size=16),
    "combine": paged_decode.combine_of(replace(FEW[128], places=4)).configure(bounds=(True, True), size=16),
    "packed": paged_varlen.kernel_of(CONFIGS["128: 128x128"]).configure(bounds=(True, True), size=16),
    "packed, 256": paged_varlen.kernel_of(CONFIGS["256: 128x64"]).configure(bounds=(True, True), size=16, packed=False),
    "append": append.append.configure(size=16),
}


def on_few_sms(sms: int) -> Any:
    return Device(replace(DEVICES["h200"], sms=sms))


def run(problem: Problem, given: Paged, sms: int = 3, **more: Any) -> Any:
    options = {"causal": problem.causal, "window": problem.window, "scale": problem.scale, "return_lse": True}
    return ww.attention_paged(*given, **options, device=on_few_sms(sms), **more)


@sampled("name", KERNELS, keep=["few", "few, in pairs", "packed"])
def test_no_spills_and_no_serialised_wgmma(name: str) -> None:
    result = assemble(KERNELS[name].trace("sm_90a").ptx, "sm_90a", "-v")
    assert result.errors == {}
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.log
    assert not re.search(r"C75\d\d|warning", result.log)


@sampled(
    ("problem", "size", "lengths", "sms"),
    [
        (Problem(3, 8, 2, 1, 300, 64), 16, [300, 0, 77], 5),
        (Problem(2, 8, 2, 1, 600, 128, causal=True), 64, [1, 600], 7),
        (Problem(4, 12, 2, 3, 1000, 64, causal=True, window=(200, 0)), 48, [1000, 2, 64, 333], 9),
        (Problem(1, 6, 3, 1, 1000, 64), 256, [1000], 7),
        (Problem(40, 2, 1, 1, 140, 64), 32, [i * 3 % 140 for i in range(40)], 6),
        (Problem(2, 4, 4, 2, 200, 96, dtype=np.float16, scale=0.3), 16, [200, 15], 4),
        (Problem(2, 8, 1, 1, 200, 256), 128, [129, 200], 3),
        (Problem(3, 8, 2, 1, 300, 128), 16, [300, 0, 77], 3),  # two CTAs an SM
    ],
    every=4,
)
def test_few_queries_agree_with_float64(problem, size, lengths, sms) -> None:
    """Unused rows of pages are NaN, and unused numbers of pages far outside."""
    given = fill_pages(problem, size, lengths)
    verify_paged(problem, given, run(problem, given, sms))


# 34 parts of one tile would take the last CTA longer than a second launch.
CUT = Problem(1, 16, 1, 1, 64 * 700, 64)


def test_a_second_launch_combines_parts() -> None:
    assert plan_few(CUT, sms=132).combine_grid == (36, 2, 1)
    problem = Problem(2, 8, 2, 3, 700, 64, causal=True)
    given, found = fill_pages(problem, 32, [700, 130]), []
    for last in (True, False):
        patched = replace(FEW[64], places=4, last=last)
        found.append(run_configured(problem, given, patched))
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))
    verify_paged(problem, given, found[1])


def run_configured(problem: Problem, given: Paged, config: Any, check: bool = False) -> Any:
    """Run a configuration on five SMs; with ``check`` every launch must be clean."""
    planned = paged_launches(problem, given, 5, config)
    for number, (kernel, grid, args, space) in enumerate(planned):
        if check:
            verdict = ww.check(kernel, grid, args=args, device="h200", depends_on=[space] if number else [])
            assert verdict.kind == "clean", verdict
        ww.launch(kernel, grid, args=args, device="h200")
    args = dict(zip(planned[0][0].params, planned[0][2], strict=True))
    return args["o"], args["lse"]


@sampled("last", [True, False], keep=[True])
def test_the_verdict_is_clean(last: bool) -> None:
    problem, config = Problem(2, 48, 3, 4, 898, 64, causal=True), DecodeConfig(64, 64, 3, places=4, last=last)
    given = fill_pages(problem, 16, [898, 70])
    verify_paged(problem, given, run_configured(problem, given, config, check=True))


def test_missing_synchronisation_is_found() -> None:
    problem = Problem(1, 8, 2, 1, 500, 64)
    given = fill_pages(problem, 64, [500])
    (launch,) = ww.launches(ww.attention_paged, *given, device=on_few_sms(5))
    for change in (replaced(r"atom\.acq_rel\.gpu", "atom.relaxed.gpu"), without(r"bar\.sync 1, 128", 2)):
        entry = load_ptx(change(launch.kernel.ptx))[launch.kernel.entry]
        verdict = ww.check(entry, launch.grid, smem=launch.kernel.smem_bytes, args=launch.args, device="h200")
        assert verdict.kind == "findings"


PACKED = Problem(3, 4, 2, 1, 400, 64, causal=True)
ROWS, KEYS, PAGE = [140, 0, 5], [400, 90, 77], 48


def chunks(problem: Problem = PACKED, size: int = PAGE) -> tuple[np.ndarray, Paged, np.ndarray]:
    """Returns packed queries, pages in which their keys end the sequences, and the first rows."""
    given = fill_pages(replace(problem, q_len=max(ROWS)), size, KEYS)
    q = np.concatenate([given.q[i, :rows] for i, rows in enumerate(ROWS)])
    return q, given, starts(ROWS)


def verify_chunks(problem: Problem, q: np.ndarray, given: Paged, found: Any) -> None:
    first = 0
    for i, (rows, keys) in enumerate(zip(ROWS, KEYS, strict=True)):
        of, each = slice(first, first + rows), replace(problem, batch=1, q_len=max(rows, 1), kv_len=keys)
        if rows:
            kv = [rows_of(x, given.table[i], keys)[None] for x in (given.k, given.v)]
            verify(each, (q[of].swapaxes(0, 1)[None], *kv), (found[0][of].swapaxes(0, 1)[None], found[1][None, :, of]))
        first += rows


@sampled(
    ("changes", "size"),
    [({}, PAGE), ({"window": (100, None)}, 16), ({"head_dim": 128, "causal": False}, 128), ({"head_dim": 192}, 16)],
    every=4,
)
def test_chunks_agree_with_float64(changes, size) -> None:
    problem = replace(PACKED, **changes)
    q, given, cu = chunks(problem, size)
    out, lse, ran = run(problem, given._replace(q=q), cu_seqlens_q=cu, explain=True)
    assert ran.kernel == "sm90.attention_paged"
    verify_chunks(problem, q, given, (out, lse))


def test_sequences_of_many_queries_each() -> None:
    problem = Problem(2, 4, 2, 130, 300, 64, causal=True)
    given = fill_pages(problem, PAGE, [300, 150])
    verify_paged(problem, given, run(problem, given))


def test_the_verdict_on_chunks_is_clean() -> None:
    q, given, cu = chunks()
    call = ww.launches(
        ww.attention_paged, q, *given[1:], cu_seqlens_q=cu, causal=True, return_lse=True, device=on_few_sms(2)
    )
    for launch in call:
        verdict = ww.check(launch.kernel, launch.grid, args=launch.args, device=call.device, update=True)
        assert verdict.kind == "clean", verdict


def cut_off(array: np.ndarray, given: Paged, rows: list[int]) -> np.ndarray:
    """Returns the last ``rows`` rows of each sequence, packed, which are then NaN in ``array``."""
    found = []
    for table, length, count in zip(given.table, given.lengths, rows, strict=True):
        found.append(rows_of(array, table, length)[:, length - count :].swapaxes(0, 1))
        for row in range(length - count, length):
            array[table[row // array.shape[1]], row % array.shape[1]] = np.nan
    return np.concatenate(found)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint16), b.view(np.uint16))


def test_new_rows_of_chunks_are_written_and_read() -> None:
    q, given, cu = chunks()
    k, v = given.k.copy(), given.v.copy()
    new = {name: cut_off(array, given, ROWS) for name, array in (("k", k), ("v", v))}
    before = given._replace(q=q, k=k, v=v, lengths=given.lengths - np.array(ROWS, np.int32))
    verify_chunks(PACKED, q, given, run(PACKED, before, cu_seqlens_q=cu, **new))
    assert same_bits(k, given.k) and same_bits(v, given.v)


def test_new_rows_of_equal_sequences_are_written_into_any_strides() -> None:
    """One array of K and V by head, whose two halves lie between each other."""
    problem = Problem(2, 4, 2, 2, 300, 64, causal=True)
    given = fill_pages(problem, 32, [289, 36])
    pages = np.empty((len(given.k), 2, 2, 32, 64), given.k.dtype)
    k, v = pages[:, 0].swapaxes(1, 2), pages[:, 1].swapaxes(1, 2)
    k[...], v[...] = given.k, given.v
    new = {name: cut_off(x, given, [3, 3]).reshape(2, 3, 2, 64) for name, x in (("k", k), ("v", v))}
    before = given._replace(k=k, v=v, lengths=given.lengths - 3)
    verify_paged(problem, given, run(problem, before, **new))
    assert same_bits(k, given.k) and same_bits(v, given.v)


def test_the_verdict_on_new_rows_is_clean() -> None:
    q, given, cu = chunks()
    new = {name: cut_off(array.copy(), given, ROWS) for name, array in (("k", given.k), ("v", given.v))}
    lengths = given.lengths - np.array(ROWS, np.int32)
    call = ww.launches(ww.attention_paged, q, *given[1:4], lengths, cu_seqlens_q=cu, **new, device="h200")
    launch = next(iter(call))
    verdict = ww.check(launch.kernel, launch.grid, args=launch.args, device="h200")
    assert launch.kernel.entry == "append" and verdict.kind == "clean", verdict


@pytest.mark.parametrize("length", [2**31 - 1, -1, 320])
def test_wrong_tables_touch_no_other_memory(length: int) -> None:
    """The values change after the call was described, as they may on a GPU."""
    problem = Problem(2, 4, 2, 1, 300, 64)
    given = fill_pages(problem, 64, [300, 100])
    k, v = (np.nan_to_num(x.astype(np.float32)).astype(x.dtype) for x in (given.k, given.v))
    new = {name: np.ones((2, 1, 2, 64), k.dtype) for name in "kv"}
    before = k.copy()
    call = ww.launches(ww.attention_paged, given.q, k, v, *given[3:], **new, device=on_few_sms(3))
    given.table[1], given.lengths[1] = [-1, 10**6, 2**31 - 1, -(2**31), 3], length
    given.lengths[0] = 10**6
    for launch in call:
        ww.launch(launch.kernel, launch.grid, args=launch.args, device=call.device)
    assert np.isfinite(call.result.astype(np.float32)).all() and (call.result != SENTINEL).all()
    assert same_bits(k, before)


def test_boxes() -> None:
    assert [box_rows(size, keys) for size, keys in ((16, 128), (48, 80), (256, 64), (96, 128))] == [16, 16, 64, 32]
