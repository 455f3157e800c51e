"""Every foreign kernel runs unchanged on the virtual GPU, with the results of NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.foreign.cases import CASES, TRITON, Case
from tests.foreign.compile import ARCHS, HERE, golden

VIRTUAL = {"sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090"}
TRITON_GOLDEN = HERE.parent / "ptx" / "golden"
LAUNCHES = [pytest.param(case, arch, id=f"{case.file}-{case.entry}-{arch}") for case in CASES for arch in case.archs]
TRITON_LAUNCHES = [pytest.param(case, arch, id=f"{case.entry}-{arch}") for case in TRITON for arch in case.archs]


def written(argument: Any) -> np.ndarray:
    return argument.array if isinstance(argument, ww.TensorMap) else argument


def check(case: Case, path: Path, device: str) -> list[Any]:
    """Launch, compare the results with NumPy's, and return the arguments after the launch."""
    args, expected = case.make(np.random.default_rng(len(case.entry)))
    kernel = ww.load_ptx(path)[case.entry]
    ww.launch(kernel, grid=case.grid, block=case.block, smem=case.smem, args=args, device=device)
    for index, expect in expected.items():
        wanted = np.asarray(expect.value)
        found = expect.view(written(args[index])).astype(wanted.dtype)
        equal = (found == wanted) | ((found != found) & (wanted != wanted))
        with np.errstate(invalid="ignore"):
            near = np.abs(found - wanted) <= expect.atol + expect.rtol * np.abs(wanted)
        wrong = [tuple(at) for at in np.argwhere(~(equal | near))]
        assert not wrong, (
            f"argument {index} at {wrong[0]}: {found[wrong[0]]}, not {wanted[wrong[0]]} ({len(wrong)} wrong)"
        )
    return args


@pytest.mark.parametrize(("case", "arch"), LAUNCHES)
def test_cuda_kernels(case: Case, arch: str) -> None:
    check(case, golden(case.file, arch), VIRTUAL[arch])


@pytest.mark.parametrize(("case", "arch"), TRITON_LAUNCHES)
def test_triton_kernels(case: Case, arch: str) -> None:
    check(case, TRITON_GOLDEN / f"{case.file}.{arch}.ptx", VIRTUAL[arch])


@pytest.mark.parametrize("arch", ARCHS)
def test_printf(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    ww.launch(ww.load_ptx(golden("print", arch))["print"], grid=3, block=32, args=[3], device=VIRTUAL[arch])
    lines = [
        f"block {block} of 3: {1.5:5.2f} {1 / (block + 1):e} {block << 40} {765:#x} '{letter}' {word} %"
        for block, letter, word in ((0, "a", "even"), (1, "b", "odd"), (2, "c", "even"))
    ]
    assert sorted(capfd.readouterr().out.splitlines()) == lines
