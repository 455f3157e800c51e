"""The table "What each target has" of docs/kernels.md: each cell runs on a virtual board, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.ops.matmul.test_epilogue import BF16, E4M3, E5M2, FLOAT16, expect, normal
from tests.samples import sampled
from warpwright.errors import UsageError
from warpwright.ops.matmul import call

DEVICES = ("h200", "b200", "rtx5090")
TABLE = (
    (Path(__file__).parents[3] / "docs" / "kernels.md")
    .read_text(encoding="utf-8")
    .split("## What each target has")[1]
    .split("## ")[0]
)
ROWS = {
    first.strip(): dict(zip(DEVICES, (cell.strip() for cell in cells), strict=True))
    for first, *cells in (line.split("|")[1:-1] for line in TABLE.splitlines() if line.startswith("| "))
    if first.strip(" -")
}
LAYOUTS = ("NN", "NT", "TN", "TT")  # T: the columns are dense


def oriented(x: Any, letter: str) -> Any:
    return np.asfortranarray(x) if letter == "T" else np.ascontiguousarray(x)


def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the operands that are copied from now on."""
    found: list[str] = []
    copy = call._copy_operand

    def counted(library: Any, family: Any, name: str, *more: Any) -> Any:
        found.append(name)
        return copy(library, family, name, *more)

    monkeypatch.setattr(call, "_copy_operand", counted)
    return found


def test_every_row_of_the_table_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(ROWS) == 9
    assert [row for row in ROWS if source.count(f'"{row}"') != 1] == []


@sampled("layout", LAYOUTS, every=3)
@pytest.mark.parametrize("dtype", [BF16, FLOAT16])
@pytest.mark.parametrize("device", DEVICES)
def test_16_bits(device: str, dtype: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = copies(monkeypatch)
    a, b = normal(40, 72, dtype=dtype), normal(72, 96, dtype=dtype)
    expect(ww.matmul(oriented(a, layout[0]), oriented(b, layout[1]), device=device), a, b)
    assert ROWS["bfloat16, float16, four layouts"][device] == ("one copy each" if copied else "in place")


@sampled("layout", LAYOUTS, keep=["NT", "TN"])
@pytest.mark.parametrize("types", [(E4M3, E5M2), (E5M2, E4M3)])
@pytest.mark.parametrize("device", DEVICES)
def test_float8(device: str, types: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = copies(monkeypatch)
    a, b = normal(48, 80, dtype=types[0]), normal(80, 96, dtype=types[1])
    expect(ww.matmul(oriented(a, layout[0]), oriented(b, layout[1]), device=device), a, b)
    row = ROWS["float8, both K-major"] if layout == "NT" else ROWS["float8, other layouts"]
    others = [name for name, letter, along_k in zip("ab", layout, "NT", strict=True) if letter != along_k]
    assert copied == ([] if row[device] == "in place" else others)


@pytest.mark.parametrize(("dtype", "activation"), [(BF16, "relu"), (FLOAT16, "gelu"), (E4M3, "silu")])
@pytest.mark.parametrize("device", DEVICES)
def test_epilogues(device: str, dtype: Any, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_stage", None)  # sums that NumPy finishes
    a, b, bias = normal(40, 80, dtype=dtype), normal(80, 96, dtype=dtype), normal(96, dtype=np.float32)
    out_dtype = BF16 if dtype == E4M3 else dtype
    options = {"bias": bias, "activation": activation, "scale_a": 0.5, "scale_b": 3.0, "out_dtype": out_dtype}
    assert ROWS["scales, bias, activation"][device] == "in the kernel"
    expect(ww.matmul(a, b, device=device, **options), a, b, 1.5, bias, activation)


@pytest.mark.parametrize("dtype", [BF16, FLOAT16, E4M3])
@pytest.mark.parametrize("device", DEVICES)
def test_batches(device: str, dtype: Any) -> None:
    a, b = normal(3, 40, 80, dtype=dtype), normal(3, 96, 80, dtype=dtype).swapaxes(1, 2)
    assert len(list(ww.launches(ww.matmul, a, b, device=device))) == 1
    assert ROWS["a batch"][device] == "one launch"
    expect(ww.matmul(a, b, device=device), a, b)


@sampled("dtype", [BF16, FLOAT16, E4M3], keep=[BF16, E4M3])
@pytest.mark.parametrize("device", DEVICES)
def test_few_tiles(device: str, dtype: Any) -> None:
    a, b, bias = normal(16, 16384, dtype=dtype), normal(64, 16384, dtype=dtype).T, normal(64)
    row = ROWS["few tiles, long K: float8"] if dtype == E4M3 else ROWS["few tiles, long K: 16 bits"]
    found = list(ww.launches(ww.matmul, a, b, device=device))
    assert row[device] == ("two launches" if len(found) == 2 else "one launch")
    assert found[0].grid[0] > 1  # one tile of D
    expect(ww.matmul(a, b, device=device, bias=bias, activation="relu"), a, b, 1.0, bias, "relu")


@pytest.mark.parametrize("dtype", [BF16, FLOAT16, np.dtype(np.float32)])
@pytest.mark.parametrize("device", DEVICES)
def test_results_with_gaps(device: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_stage", None)  # a padded copy of D
    a, b = normal(40, 72), normal(72, 96)
    whole = np.full((40, 128), np.nan, dtype)
    d = ww.matmul(a, b, out=whole[:, :96], device=device)
    assert np.isnan(whole[:, 96:].astype(np.float32)).all()
    assert ROWS["`out=` with gaps between rows"][device] == "in place"
    expect(d, a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_block_scales(device: str) -> None:
    a, b = (ww.quantize(normal(*shape, dtype=BF16), "mxfp8") for shape in ((40, 96), (72, 96)))
    if ROWS["block scales (`ww.quantize`)"][device] == "refused":
        with pytest.raises(UsageError):
            ww.matmul(a, b.T, device=device)
        return
    call = ww.launches(ww.matmul, a, b.T, device=device)
    assert len(list(call)) == 1
    expect(ww.matmul(a, b.T, device=device), a.dequantize(), b.T.dequantize())
