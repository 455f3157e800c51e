"""Every CUDA C++ kernel for sm_90a computes the same on the GPU and on the virtual H200.

Triton's are left out: they state PTX 9.4, which a driver of CUDA 13.0 does not read.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.foreign.cases import CASES, Case
from tests.foreign.compile import golden
from tests.foreign.test_run import check, written


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.entry}")
def test_a_kernel_computes_the_same_on_both(case: Case) -> None:
    path = golden(case.file, "sm_90a")
    real, virtual = check(case, path, "cuda"), check(case, path, "h200")
    _, expected = case.make(np.random.default_rng(len(case.entry)))
    for index, expect in expected.items():
        if np.any(expect.rtol) or np.any(expect.atol):
            continue  # approximate functions: each side holds its bound
        mine, theirs = (expect.view(written(args[index])) for args in (virtual, real))
        np.testing.assert_array_equal(mine, theirs)
