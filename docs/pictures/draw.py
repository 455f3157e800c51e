"""Draw the pictures of the tutorials: ``python docs/pictures/draw.py`` (needs the extra ``plot``).

The launches of the first table are those of the playground (docs/site/variants.py); the second has commands.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
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
SMALL = {  # picture: title of the lesson, title of the variant
    "tma.png": ("2 TMA", ""),
    "tma-plain.png": ("2 TMA", "without a swizzle"),
    "wgmma.png": ("4 wgmma", ""),
}
COMMANDS = {
    "persistent.png": "profile gemm --size 4096 --level 5",
    "roles.png": "profile gemm --size 4096 --level 6",
    "pair.png": "profile gemm --size 4096 --level 7",
}


def main() -> None:
    draw_small()
    for name, words in COMMANDS.items():
        subprocess.run([sys.executable, "-m", "warpwright", *words.split(), "--plot", FOLDER / name], check=True)
        shrink(FOLDER / name)
    source, count = np.zeros(1 << 20, np.float32), 1 << 20
    copy = run_path(str(EXAMPLES / "01_copy.py"))["copy"]
    draw(ww.profile(copy, grid=count // 256, args=[source, source.copy(), count]), "copy.png")
    attention = run_path(str(EXAMPLES / "07_attention.py"))["attention"]
    q, o = np.zeros((2048, 64), ml_dtypes.bfloat16), np.zeros((2048, 64), np.float32)
    draw(ww.profile(attention, grid=128, args=[q, q, q, o, 128, 0.18], device="rtx5090"), "attention-example.png")
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


def draw_small() -> None:
    """Draw small launches, and the launch of PTX from page 11 with blocks of 256 threads."""
    sys.path.insert(0, str(FOLDER.parent / "site"))
    from runs import launch_of, run_lesson
    from variants import LESSONS

    lessons = {lesson.title: lesson for lesson in LESSONS}
    with tempfile.TemporaryDirectory() as folder:
        found = {title: list(run_lesson(lessons[title], Path(folder) / title)) for title in {*dict(SMALL.values())}}
        for name, (title, variant) in SMALL.items():
            run = next(run for run in found[title] if not variant or run.variant.title == variant)
            draw(run.profile, name)
        first = next(run_lesson(lessons["11 A kernel of yours"], Path(folder) / "ptx"))
        kernel, _ = launch_of(first.file)
    x, count = np.zeros(1 << 18, np.float32), 1 << 18
    draw(ww.profile(kernel, grid=count // 256, block=256, args=[count, 2.0, x, x.copy()]), "saxpy.png")


def draw(profile: Profile, name: str) -> None:
    draw_pipeline(profile, FOLDER / name)
    shrink(FOLDER / name)


def shrink(path: Path) -> None:
    """Reduce a picture to 64 colours: a third of the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
