"""Draw the pictures of the tutorials: ``python docs/pictures/draw.py`` (needs the extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import ml_dtypes
import numpy as np
from PIL import Image

import warpwright as ww
from warpwright.report.pipeline import draw_pipeline
from warpwright.vgpu.timing.result import Profile

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "examples"


def main() -> None:
    x, sums = np.zeros((32 * 148, 1024), np.float32), np.zeros(32 * 148, np.float32)
    row_sums = run_path(str(EXAMPLES / "03_ring.py"))["row_sums"]
    for stages in (1, 4):
        profile = ww.profile(row_sums.configure(stages=stages), grid=148, args=[x, sums, 32])
        draw(profile, f"ring-{stages}.png")
    a, d = np.zeros((2048, 2048), ml_dtypes.bfloat16), np.zeros((2048, 2048), np.float32)
    first = run_path(str(EXAMPLES / "08_first_gemm.py"))["gemm"]
    draw(ww.profile(first, grid=(16, 16), args=[a, a, d, 32]), "first-gemm.png")
    fast = run_path(str(EXAMPLES / "09_fast_gemm.py"))["gemm"]
    draw(ww.profile(fast, grid=148, args=[a, a, d.astype(ml_dtypes.bfloat16), 4, 8, 32]), "fast-gemm.png")


def draw(profile: Profile, name: str) -> None:
    """Draw the pipeline with 64 colours: a third of the bytes."""
    draw_pipeline(profile, FOLDER / name)
    with Image.open(FOLDER / name) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(FOLDER / name, optimize=True)


if __name__ == "__main__":
    main()
