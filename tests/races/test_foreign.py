"""nvcc's PTX of correct kernels has no findings: barriers, copies, clusters, atomics, tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.foreign.cases import CASES, Case
from tests.foreign.compile import golden

FILES = (
    "async_copy", "barriers", "cluster_exchange", "histogram", "matmul", "reduce", "tensor_cores", "tma_copy",
    "transpose", "warp_ops", "wmma",
)  # fmt: skip
CASES = [case for case in CASES if case.file in FILES and "sm_90a" in case.archs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.entry}")
def test_a_correct_kernel_of_nvcc_has_no_findings(case: Case) -> None:
    args, _ = case.make(np.random.default_rng(len(case.entry)))
    kernel = ww.load_ptx(golden(case.file, "sm_90a"))[case.entry]
    verdict = ww.check(kernel, grid=case.grid, block=case.block, smem=case.smem, args=args, device="h200")
    assert verdict.findings == (), str(verdict)
