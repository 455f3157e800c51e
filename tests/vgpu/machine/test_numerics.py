"""numerics="hardware" through wgmma and tcgen05.mma: each instruction rounds as the reference does."""

from __future__ import annotations

import time

import numpy as np
import pytest

import warpwright as ww
from tests.foreign.test_run import TRITON_GOLDEN
from tests.vgpu.engines.fabric import Cluster, operation
from tests.vgpu.engines.operands import DTYPES, cells, wide
from tests.vgpu.engines.rounding import steps
from tests.vgpu.engines.test_mma import A_AT as LEFT
from tests.vgpu.engines.test_mma import B_AT as RIGHT
from tests.vgpu.engines.test_mma import COLUMN, place_shares
from tests.vgpu.helpers import TIME_FACTOR
from tests.vgpu.machine.test_wgmma import FINISH, shape_of, tail
from tests.vgpu.machine.warpgroup_text import (
    B_AT,
    SIZES,
    SMEM,
    Operand,
    a_registers,
    from_registers,
    mma,
    place,
    run,
    to_registers,
)
from warpwright.errors import LaunchError
from warpwright.layout import InstrDescriptor
from warpwright.vgpu.engines import tensor

WORDS = ("exact", "hardware")
WGMMA = [
    ("bf16", "bf16", "f32", 25, 23),
    ("f16", "f16", "f16", 25, 10),
    ("tf32", "tf32", "f32", 25, 23),
    ("e4m3", "e4m3", "f32", 13, 13),
]


def values(seed: int, rows: int, k: int, type: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    found = wide(random, (rows, k), type) if type == "bf16" else random.normal(size=(rows, k)).astype(DTYPES[type])
    return (found.view(np.uint32) & 0xFFFFE000).view(np.float32) if type == "tf32" else found


@pytest.mark.parametrize("case", WGMMA, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("source", ["shared", "registers"])
@pytest.mark.parametrize("sign", [1, -1])
def test_wgmma_rounds_as_the_reference(case: tuple[str, str, str, int, int], source: str, sign: int) -> None:
    """Three instructions on the same operands; a negative sign negates the products."""
    types, bits, keep = case[:3], *case[3:]
    k, n = 32 // SIZES[types[0]], 16
    a, b = values(0, 64, k, types[0]), values(1, n, k, types[1])
    c = values(2, 64, n, "f16").astype(np.float32)
    image, words = np.zeros(SMEM, np.uint8), to_registers(c, types[2])
    da, db = place(image, 0, a, Operand(types[0])), place(image, B_AT, b, Operand(types[1]))
    left, majors = ("%da", ("k", "k")) if source == "shared" else ("{%a0, %a1, %a2, %a3}", ("k",))
    line = mma(shape_of(types, n), words.shape[1], a=left, tail=tail(types, majors, signs=f"{sign}, 1"))
    registers = a_registers(a, types[0])
    run(f"{line}\n" * 3 + FINISH, image, words, left=registers, da=da, db=db, numerics="hardware")
    some = np.arange(0, 64, 7)
    wide_a = np.tile(sign * a[some].astype(np.float32), 3)
    expected = steps(wide_a, np.tile(b.astype(np.float32), 3), c[some], k, types, bits, keep)
    assert np.array_equal(from_registers(words, n, types[2])[some], expected)


@pytest.mark.parametrize(
    ("kind", "type", "d_type", "keep"),
    [("f16", "bf16", "f32", 23), ("f16", "f16", "f16", 10), ("f8f6f4", "e4m3", "f32", 23)],
)
@pytest.mark.parametrize("group", [1, 2])
def test_tcgen05_mma_rounds_as_the_reference(kind: str, type: str, d_type: str, keep: int, group: int) -> None:
    m, n, k = 64 * group, 16, 32 // SIZES[type]
    if group == 2:
        m, n = 128, 32
    cluster = Cluster(group)
    cluster.hardware = True
    a, b = values(3, m, k, type), values(4, n, k, type)
    desc = InstrDescriptor(kind, type, type, d_type, m, n)
    places = place_shares(cluster, LEFT, a, group), place_shares(cluster, RIGHT, b, group), desc.encode()
    ops = [operation(f"tcgen05.mma.cta_group::{group}.kind::{kind}", COLUMN, *places, on) for on in (0, 1)]
    tensor.complete(cluster, ops)
    found = cluster.tmem[cells(m, group, n, COLUMN)]
    found = found.astype(np.uint16).view(np.float16) if d_type == "f16" else found.view(np.float32)
    rows = [np.tile(x.astype(np.float32), 2) for x in (a[:12], b)]
    expected = steps(*rows, np.zeros((12, n)), k, (type, type, d_type), 25, keep)
    assert np.array_equal(found[:12], expected)


def test_exact_and_hardware_differ_and_both_are_near() -> None:
    """A whole matmul, 512 × 512 × 1024, by each; tensor cores truncate sums."""
    random, entry = np.random.default_rng(5), ww.load_ptx(TRITON_GOLDEN / "triton_matmul.sm_90a.ptx")["matmul"]
    a, b = (np.abs(random.normal(size=(512, 1024))).astype(np.float16) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    results = {}
    start = time.perf_counter()
    for numerics in WORDS:
        d, args = np.zeros((512, 512), np.float16), []
        for array in (a, b, d):
            args += [ww.TensorMap(array, box=(128, 64), swizzle=128), *array.shape, array.shape[1], 1]
        more = [np.zeros(16, np.uint8), np.zeros(16, np.uint8)]
        ww.launch(entry, grid=(4, 4), smem=98352, args=[*args, 512, 512, 1024, *more], device="h200", numerics=numerics)
        results[numerics] = d.astype(np.float64)
        assert np.allclose(results[numerics], exact, rtol=2**-10)
    assert time.perf_counter() - start < 60 * TIME_FACTOR
    assert (results["hardware"] <= results["exact"]).all() and (results["hardware"] < results["exact"]).any()


def test_the_device_sets_the_numerics() -> None:
    random = np.random.default_rng(6)
    a, b = (random.normal(size=shape).astype(np.float16) for shape in ((128, 256), (256, 128)))
    found = {word: ww.matmul(a, b, device=ww.device("b200", numerics=word), out_dtype=np.float32) for word in WORDS}
    assert np.allclose(found["exact"], found["hardware"], rtol=0, atol=2e-3)
    assert (found["exact"] != found["hardware"]).any()


def test_other_numerics_are_refused() -> None:
    entry = ww.load_ptx(TRITON_GOLDEN / "triton_vector_add.sm_90a.ptx")["vector_add"]
    x, scratch = np.zeros(64, np.float32), np.zeros(16, np.uint8)
    with pytest.raises(LaunchError) as caught:
        ww.launch(entry, grid=1, args=[x, x, x, 64, scratch, scratch], device="h200", numerics="fast")
    assert str(caught.value) == "numerics='fast': expected 'exact' or 'hardware'."
