"""Boards of other figures run the kernels of their family, compiled for their own target."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warpwright as ww
from warpwright.ptx.ptxas import assemble, find_ptxas

A = np.random.default_rng(0).standard_normal((200, 136)).astype(ml_dtypes.bfloat16)
Q = np.random.default_rng(1).standard_normal((1, 2, 128, 128)).astype(ml_dtypes.bfloat16)
CALLS: dict[str, Any] = {
    "matmul": lambda name: ww.matmul(A, A.T, device=name),
    "attention": lambda name: ww.attention(Q, Q, Q, device=name),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("board", "known"), [("b300", "b200"), ("h20", "h200")])
def test_a_board_gives_the_results_of_its_family(call: str, board: str, known: str) -> None:
    assert np.array_equal(CALLS[call](board).view(np.uint16), CALLS[call](known).view(np.uint16))


@pytest.mark.parametrize(
    "call",
    [ww.launches(ww.matmul, A, A.T, device="b300"), ww.launches(ww.attention, Q, Q, Q, device="b300")],
    ids=CALLS,
)
def test_a_b300_runs_the_kernels_of_sm_100a_compiled_for_sm_103a(call: Any) -> None:
    for launch in call:
        assert ".target sm_103a" in launch.kernel.ptx
        if find_ptxas():
            assert assemble(launch.kernel.ptx, "sm_103a").cubin


def test_a_b300_does_not_run_code_for_the_b200_alone() -> None:
    launch = next(iter(ww.launches(ww.matmul, A, A.T, device="b200")))
    with pytest.raises(ww.LaunchError) as caught:
        ww.launch(launch.kernel, launch.grid, args=launch.args, device="b300")
    edit = "compile it for that, or launch it on device 'b200'."
    assert str(caught.value).endswith(f"is for sm_100a; device b300 is sm_103a: {edit}")
