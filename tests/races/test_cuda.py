"""Checks of nvcc's PTX find mistakes of CUDA C++ kernels at the lines of their sources; the repaired kernels are
clean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.races.compile import HERE, NAMES, STATES, compile_ptx, golden
from tests.samples import sampled
from warpwright import ptx
from warpwright.vgpu.checks.findings import Finding, Verdict

HEADER_LINES = 6  # nvcc's banner: the compiler build, the release, the version of NVVM
DATA, RESULT, WORDS = np.ones(1024, np.float32), np.zeros(256, np.float32), np.zeros(256, np.uint32)

# kernel: class in classes.py, CTAs, threads, arguments, rule, then message and lines as there
CASES: dict[str, tuple[Any, ...]] = {
    "unfenced_store": (4, 1, 64, [RESULT], "proxy-fence", "tile[threadIdx.x] = threadIdx.x", "STORE(out, tile"),
    "refilled_stage": (2, 1, 64, [DATA, RESULT, 4], "proxy-fence", "sum += stage[threadIdx.x]", "LOAD(stage, in"),
    "reused_source": (6, 1, 64, [RESULT], "race", "ptx::cp_async_bulk(ptx::space_global", "tile[threadIdx.x] = turn"),
    "early_commit": (22, 1, 64, [DATA, RESULT], "race", "COPY(stage", "out[threadIdx.x - 32] = stage[threadIdx.x]"),
    "early_exit": (16, 2, 32, [RESULT], "exit-early", "= theirs[threadIdx.x]"),
    "double_init": (21, 1, 64, [RESULT], "mbarrier-live", "INIT(&ready, 64)", "INIT(&ready, 64)"),
    "double_arrive": (23, 1, 64, [RESULT], "race", "held[threadIdx.x] = threadIdx.x", "= held[threadIdx.x - 32]"),
    "unequal_registers": (
        24,
        1,
        256,
        [RESULT],
        "setmaxnreg",
        "setmaxnreg.dec.sync.aligned.u32 40",
    ),
    "unwaited_product": (10, 1, 128, [RESULT], "wgmma-registers", "PRODUCT(d, left, right)", "out[threadIdx.x] = d[0]"),
    "uncommitted_product": (17, 1, 128, [WORDS], "race", "PRODUCT(sums, left", "READ(value, sums"),
    "parted_pair": (18, 2, 64, [WORDS], "tmem-pair", "tcgen05.alloc", "tcgen05.dealloc"),
    "unheard_waiter": (12, 1, 96, [RESULT, 4], "mbarrier-lapped", "WAIT(&full, turn & 1)", "ARRIVE(&full)"),
    "consumers_barrier": (0, 1, 96, [RESULT, 3], "deadlock", "cycle: ", "__syncthreads()", "WAIT(&empty"),
}


NOTES = ("unfenced_store", "refilled_stage", "unequal_registers")  # unless the check is strict


def _check(name: str, state: str, *off: str, strict: bool = True) -> Verdict:
    _, grid, block, args, *_ = CASES[name]
    kernel = ww.load_ptx(golden(name, state))["kernel"]
    return ww.check(kernel, grid=grid, block=block, args=args, off=off, strict=strict)


def _lines(finding: Finding) -> list[str]:
    """Returns the source at the lines of a finding's steps."""
    places = [step.where.rsplit(":", 1) for step in finding.steps]
    return [(HERE / path).read_text().splitlines()[int(line) - 1] for path, line in places]


@pytest.mark.parametrize("name", CASES)
def test_the_rule_finds_a_mistake_in_cuda_at_its_lines(name: str) -> None:
    rule, *expected = CASES[name][4:]
    verdict = _check(name, "wrong")
    findings = [finding for finding in verdict.findings if finding.rule.id == rule]
    message = expected.pop(0) if rule in ("deadlock", "fault") else ""
    found = [_lines(finding)[: len(expected)] for finding in findings if message in finding.message]
    assert any(len(lines) == len(expected) and all(map(str.__contains__, lines, expected)) for lines in found), verdict


@pytest.mark.parametrize("name", CASES)
def test_the_grade_of_a_mistake(name: str) -> None:
    verdict = _check(name, "wrong", strict=False)
    assert verdict.kind == ("notes" if name in NOTES else "findings"), str(verdict)
    assert CASES[name][4] in {each.rule.id for each in verdict.notes + verdict.findings}


@pytest.mark.parametrize("name", CASES)
def test_the_repaired_kernel_is_clean(name: str) -> None:
    verdict = _check(name, "repaired")
    assert verdict.kind == "clean", str(verdict)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_missed_without_its_rule(name: str) -> None:
    rule = CASES[name][4]
    assert rule not in {finding.rule.id for finding in _check(name, "wrong", rule).findings}


def test_every_source_has_its_ptx_and_its_case() -> None:
    assert set(CASES) == set(NAMES)
    assert {path.name for path in (HERE / "ptx").iterdir()} == {golden(n, s).name for n in NAMES for s in STATES}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH; the stored PTX is tested anyway")
@sampled("name", NAMES, every=4)
def test_nvcc_compiles_the_stored_ptx(name: str, tmp_path: Path) -> None:
    """PTX of the same compiler is equal as a tree; PTX of any other nvcc must still parse."""
    compile_ptx(name, "wrong", tmp_path / "fresh.ptx")
    fresh, stored = (tmp_path / "fresh.ptx").read_text(), golden(name, "wrong").read_text()
    module = ptx.parse(fresh)
    assert fresh.splitlines()[:HEADER_LINES] != stored.splitlines()[:HEADER_LINES] or module == ptx.parse(stored)
