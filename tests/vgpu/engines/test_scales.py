"""tcgen05.mma with block scales: every kind, type, vector and ID of scale factors against float64, and bit for bit
against MMA-Sim's model in exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vgpu.engines.block_scales import pack, put_scales, random_codes, scaled, values
from tests.vgpu.engines.fabric import Cluster, operation
from tests.vgpu.engines.operands import cells
from tests.vgpu.engines.rounding import scaled_sums
from tests.vgpu.engines.test_mma import A_AT, B_AT, COLUMN, place_shares, result
from warpwright.layout import InstrDescriptor, SmemDescriptor, scale_tiles
from warpwright.vgpu.engines import tensor
from warpwright.vgpu.engines.op import Op

SFA_AT, SFB_AT = 384, 400  # columns
OPERANDS = ("d", "a", "b", "idesc", "scale_a", "scale_b")
Codes = NDArray[np.uint8]

# kind, opcode's vector, types of A and B, type of scale factors, elements of a block
CASES = [
    ("mxf8f6f4", ".block32", "e4m3", "e4m3", "ue8m0", 32),
    ("mxf8f6f4", ".scale_vec::1X", "e5m2", "e2m1", "ue8m0", 32),
    ("mxf8f6f4", "", "e2m3", "e3m2", "ue8m0", 32),
    ("mxf8f6f4", "", "e2m1", "e5m2", "ue8m0", 32),
    ("mxf4", "", "e2m1", "e2m1", "ue8m0", 32),
    ("mxf4nvf4", ".scale_vec::2X", "e2m1", "e2m1", "ue8m0", 32),
    ("mxf4nvf4", ".block16", "e2m1", "e2m1", "ue8m0", 16),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", "e2m1", "ue4m3", 16),
]


class Problem:
    """Operands of ``steps`` instructions, one after the other along K, in the memories of a CTA or a pair."""

    def __init__(self, case: tuple[str, str, str, str, str, int], m: int, n: int, group: int = 1, steps: int = 1):
        self.kind, self.vector, self.a_type, self.b_type, self.scale_type, block = case
        self.m, self.n, self.group, random = m, n, group, np.random.default_rng(m + n + len(self.vector))
        self.k = 32 if self.kind == "mxf8f6f4" else 64
        self.count = self.k // block
        low, high = (120, 136) if self.scale_type == "ue8m0" else (0, 0x7F)
        self.a, self.b = [
            [random_codes(random, (rows, self.k), type) for _ in range(steps)]
            for rows, type in ((m, self.a_type), (n, self.b_type))
        ]
        self.sfa, self.sfb = [
            [random.integers(low, high, (rows, self.count)).astype(np.uint8) for _ in range(steps)] for rows in (m, n)
        ]

    def run(self, cluster: Cluster, majors: tuple[str, str] = ("k", "k"), enable: int = 0) -> None:
        """Issue one instruction for each step; its scale factors are in the next bytes of the same cells."""
        padded = self.kind == "mxf8f6f4"
        self.ops: list[Op] = []
        for step in range(len(self.a)):
            first = step * self.count
            for rank in range(self.group):
                rows = slice(rank * self.m // self.group, (rank + 1) * self.m // self.group)
                put_scales(cluster, rank, SFA_AT, self.sfa[step][rows], first)
                put_scales(cluster, rank, SFB_AT, self.sfb[step], first)
            matrices = (self.a[step], self.a_type, A_AT, majors[0]), (self.b[step], self.b_type, B_AT, majors[1])
            descriptors = [
                place_shares(
                    cluster, at + step * 0x1800, pack(codes, type, major, padded=padded), self.group, major, mode=32
                )
                for codes, type, at, major in matrices
            ]
            desc = InstrDescriptor(
                self.kind, self.a_type, self.b_type, "f32", self.m, self.n, *majors,
                sfa_id=first, sfb_id=first, scale_type=self.scale_type,
            )  # fmt: skip
            opcode = f"tcgen05.mma.cta_group::{self.group}.kind::{self.kind}.block_scale{self.vector}"
            words = COLUMN, *descriptors, desc.encode(), first << 30 | SFA_AT, first << 30 | SFB_AT, enable or step > 0
            self.ops.append(operation(opcode, *words))
        tensor.complete(cluster, self.ops)

    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the sums in float64, and the sums of magnitudes."""
        a = np.hstack([scaled(*each) for each in self._operands(self.a, self.a_type, self.sfa)])
        b = np.hstack([scaled(*each) for each in self._operands(self.b, self.b_type, self.sfb)])
        return a @ b.T, np.abs(a) @ np.abs(b).T

    def _operands(self, codes: list[Codes], type: str, factors: list[Codes]) -> list[tuple[Codes, str, Codes, str]]:
        return [(c, type, f, self.scale_type) for c, f in zip(codes, factors, strict=True)]


def check(cluster: Cluster, problem: Problem) -> None:
    """Float32 sums of K products lose at most K units of 2^-24 of the sum of magnitudes."""
    found = result(cluster, problem.m, problem.group, problem.n)
    expected, size = problem.exact()
    assert (np.abs(found - expected) <= problem.k * len(problem.a) * 2.0**-24 * size).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize(("m", "n", "group"), [(128, 40, 1), (256, 32, 2)])
def test_products_are_scaled_by_block(case: tuple[str, str, str, str, str, int], m: int, n: int, group: int) -> None:
    cluster, problem = Cluster(group), Problem(case, m, n, group)
    problem.run(cluster)
    check(cluster, problem)


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=["1X", "2X"])
def test_scale_factor_ids_select_bytes_of_a_cell(case: tuple[str, str, str, str, str, int]) -> None:
    cluster, problem = Cluster(), Problem(case, 128, 24, steps=4 if case[0] == "mxf8f6f4" else 2)
    problem.run(cluster)
    check(cluster, problem)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: "-".join(map(str, case)))
def test_padded_elements_lie_along_either_dimension(case: tuple[str, str, str, str, str, int]) -> None:
    cluster, problem = Cluster(), Problem(case, 128, 32)
    problem.run(cluster, ("mn", "mn"))
    check(cluster, problem)


@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=["bytes", "pairs"])
def test_a_in_tensor_memory_is_scaled(case: tuple[str, str, str, str, str, int]) -> None:
    """Row r of A in lane r, 32 bits of K a column."""
    cluster, problem = Cluster(), Problem(case, 128, 24)
    problem.run(cluster)
    (op,) = problem.ops
    packed = np.ascontiguousarray(pack(problem.a[0], case[2], "k", padded=False))
    cluster.tmem[0, 300:308, :] = packed.view(np.int32).T
    words = [op[name] for name in OPERANDS]
    words[1] = 300
    cluster.tmem[cells(128, 1, 24, COLUMN)] = 0
    tensor.complete(cluster, [operation(op.inst.opcode, *words, 0, a_in_tmem=True)])
    check(cluster, problem)


@pytest.mark.parametrize(("a_type", "b_type"), [("e2m1", "e3m2"), ("e2m3", "e4m3")])
def test_narrow_types_without_scale_factors(a_type: str, b_type: str) -> None:
    cluster, random = Cluster(), np.random.default_rng(3)
    a, b = random_codes(random, (128, 32), a_type), random_codes(random, (16, 32), b_type)
    shares = [
        place_shares(cluster, at, pack(codes, type, "k", padded=True), 1, mode=32)
        for at, codes, type in ((A_AT, a, a_type), (B_AT, b, b_type))
    ]
    words = COLUMN, *shares, InstrDescriptor("f8f6f4", a_type, b_type, "f32", 128, 16).encode(), 0
    tensor.complete(cluster, [operation("tcgen05.mma.cta_group::1.kind::f8f6f4", *words)])
    left, right = values(a, a_type), values(b, b_type)
    error = np.abs(result(cluster, 128, 1, 16) - left @ right.T)
    assert (error <= 32 * 2.0**-24 * (np.abs(left) @ np.abs(right).T)).all()


def test_copies_replace_the_scale_factors_of_the_instruction_before() -> None:
    """Scale factors of one, then of two, in one queue on one accumulator: three times the product."""
    cluster, problem = Cluster(), Problem(CASES[0], 128, 16)
    problem.sfa[0][:] = problem.sfb[0][:] = 127
    problem.run(cluster)
    once = result(cluster, 128, 1, 16)
    copies = []
    for number, code in enumerate((127, 128)):
        cluster.shared[0, 0xC000 + 512 * number : 0xC200 + 512 * number] = code
        words = SFA_AT, SmemDescriptor(0xC000 + 512 * number, 0, 128, 0).encode()
        copies.append(operation("tcgen05.cp.cta_group::1.32x128b.warpx4", *words))
    (first,) = problem.ops
    again = operation(first.inst.opcode, *(first[name] for name in OPERANDS), 1)
    tensor.complete(cluster, [copies[0], first, copies[1], again])
    np.testing.assert_array_equal(result(cluster, 128, 1, 16), (3 * once).astype(np.float32))


def test_an_accumulator_is_complete_before_it_is_read_as_scale_factors() -> None:
    """The second instruction reads scale factors from columns that the first one writes, zeros, so 2^-127, before the
    third one adds to them."""
    cluster, problem = Cluster(), Problem(CASES[0], 128, 16)
    problem.run(cluster)
    problem.a[0][:] = 0
    place_shares(cluster, A_AT, problem.a[0], 1, mode=32)
    (first,) = problem.ops
    words = {name: first[name] for name in OPERANDS}
    at = {"d": SFA_AT - 8, "scale_a": SFB_AT + 32}
    put_scales(cluster, 0, SFB_AT + 32, problem.sfa[0], 0)
    zero = operation(first.inst.opcode, *(words | at).values(), 0)
    random = np.random.default_rng(1).integers(100, 120, (128, 32)).astype(np.uint8)
    other = place_shares(cluster, 0x9000, random, 1, mode=32)
    second = operation(first.inst.opcode, *(words | {"a": other}).values(), 0)
    third = operation(first.inst.opcode, *(words | at | {"a": other}).values(), 1)
    tensor.complete(cluster, [zero, second, third])
    together = result(cluster, 128, 1, 16)
    problem.sfa[0][:] = 0
    put_scales(cluster, 0, SFA_AT, problem.sfa[0], 0)
    tensor.complete(cluster, [second])
    np.testing.assert_array_equal(together, result(cluster, 128, 1, 16))


def test_each_cta_of_a_pair_uses_its_own_scale_factors_of_b() -> None:
    cluster, problem = Cluster(2), Problem(CASES[0], 256, 32, 2)
    problem.run(cluster)
    first = result(cluster, 256, 2, 32)
    put_scales(cluster, 1, SFB_AT, problem.sfb[0] + 1, 0)
    tensor.complete(cluster, problem.ops)
    np.testing.assert_array_equal(result(cluster, 256, 2, 32), first * np.repeat([1, 2], 128)[:, None])


def test_scale_factors_far_from_one_do_not_overflow() -> None:
    """2^127 of A times 2^-127 of B: float32 cannot hold the scaled A."""
    cluster, problem = Cluster(), Problem(CASES[0], 128, 16)
    problem.sfa[0][:], problem.sfb[0][:] = 254, 0
    problem.run(cluster)
    check(cluster, problem)
    problem.sfb[0][:] = 254
    problem.run(cluster)
    found = result(cluster, 128, 1, 16)
    assert (found == np.sign(problem.exact()[0]) * np.inf).all()


def test_a_scale_factor_of_nan_spoils_its_row() -> None:
    cluster, problem = Cluster(), Problem(CASES[0], 128, 16)
    problem.sfa[0][3] = 255
    problem.run(cluster)
    assert (np.isnan(result(cluster, 128, 1, 16)) == (np.arange(128) == 3)[:, None]).all()


def test_tcgen05_cp_copies_a_tile_of_scale_factors() -> None:
    """The tiles of ``layout`` and the cells that the MMA reads are one layout."""
    cluster, problem = Cluster(), Problem(CASES[0], 128, 24, steps=4)
    for column, codes in ((SFA_AT, problem.sfa), (SFB_AT, problem.sfb)):
        tiles = scale_tiles(np.hstack(codes)).ravel()
        cluster.shared[0, 0x8000 : 0x8000 + 512] = tiles
        words = column, SmemDescriptor(0x8000, 0, 128, 0).encode()
        tensor.complete(cluster, [operation("tcgen05.cp.cta_group::1.32x128b.warpx4", *words)])
    copied = cluster.tmem.copy()
    problem.run(cluster)
    np.testing.assert_array_equal(cluster.tmem[0, SFA_AT : SFA_AT + 4], copied[0, SFA_AT : SFA_AT + 4])
    check(cluster, problem)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_hardware_sums_equal_the_model(case: tuple[str, str, str, str, str, int]) -> None:
    """MMA-Sim's model, one sum at a time in exact fractions: the first 16 rows. The accumulators reach from
    far above the products to the last bit that counts."""
    cluster, problem = Cluster(), Problem(case, 128, 16)
    cluster.hardware = True
    random = np.random.default_rng(5)
    start = (random.normal(size=(128, 16)) * 2.0 ** random.integers(-40, 12, (128, 16))).astype(np.float32)
    cluster.tmem[cells(128, 1, 16, COLUMN)] = start.view(np.int32)
    problem.run(cluster, enable=1)
    part = slice(0, 16)
    expected = scaled_sums(
        (values(problem.a[0][part], case[2]), values(problem.b[0][part], case[3])), start[part, part],
        (problem.sfa[0][part], problem.sfb[0][part]), case,
    )  # fmt: skip
    np.testing.assert_array_equal(result(cluster, 128, 1, 16)[part, part], expected)
    assert np.isfinite(expected).all()


def test_hardware_sums_follow_nan_scale_factors() -> None:
    for case in (CASES[0], CASES[7]):
        cluster, problem = Cluster(), Problem(case, 128, 16)
        cluster.hardware = True
        problem.sfb[0][2, 0] = 255 if case[4] == "ue8m0" else 127
        problem.run(cluster)
        found = cluster.tmem[cells(128, 1, 16, COLUMN)]
        assert (found[:, 2] == 0x7FFF_FFFF).all()
        assert np.isfinite(np.delete(found, 2, axis=1).view(np.float32)).all()
