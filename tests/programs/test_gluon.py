"""Programs of Gluon run unmodified on a virtual GPU, with right numbers.

Together they use what Gluon's lessons 1 to 14 teach, but block scales.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[foreign]'")
pytest.importorskip("triton", reason="Triton is an extra: pip install 'warpwright[foreign]'")

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col  # noqa: E402

from tests.programs import gluon_blackwell, gluon_gemm, gluon_kernels  # noqa: E402
from tests.programs.gluon_kernels import tiles  # noqa: E402
from tests.programs.verdicts import check, checked  # noqa: E402

HALF = 2**-11  # one rounding to float16, of the largest value; sums are in float32
FLOAT = 2**-20  # 64 to 256 float32 additions, of the largest value


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path_factory) -> None:
    """Triton warns where this variable is not set, and keeps compiled kernels in a folder of these tests."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    torch.manual_seed(1)


def on(*names: str):
    """Runs a test in a session of each device."""

    def run(function):
        return pytest.mark.parametrize("session", names, indirect=True)(function)

    return run


@pytest.fixture
def session(request):
    with checked(request.param) as session:
        yield session


everywhere = on("h200", "b200", "rtx5090")


def operands(m: int, n: int, k: int):
    return torch.randn(m, k).half(), torch.randn(k, n).half(), torch.randn(m, n)


@everywhere
def test_layouts_are_autotuned(session) -> None:
    gluon_kernels.transpose_kernel.cache.clear()  # Triton's, which has no device
    x = torch.randn(70, 100)
    assert torch.equal(gluon_kernels.transpose(x), x.T)
    assert [each.time_us is None for each in session.launches] == [False, False, True]


@everywhere
def test_copies_fill_a_ring(session) -> None:
    x, out = torch.randn(3, 500), torch.empty(3, 128)
    gluon_kernels.running_sum_kernel[(3,)](x, out, 500, BLOCK=128, STAGES=3)
    check(out, torch.nn.functional.pad(x.double(), (0, 12)).view(3, 4, 128).sum(1), FLOAT)


@everywhere
def test_tensor_copies_fill_a_ring(session) -> None:
    a, b, out = torch.randn(64, 200), torch.randn(64, 200), torch.empty(64, 200)
    maps = [tiles(x, 32, 32) for x in (a, b, out)]
    gluon_kernels.tma_add_kernel[(2,)](*maps, 200, STAGES=2, layout=gluon_kernels.ROWS)
    assert torch.equal(out, a + b)


@everywhere
def test_roles_of_warps(session) -> None:
    x, out = torch.randn(64, 200), torch.zeros(64, 200)
    gluon_kernels.roles_kernel[(2,)](
        tiles(x, 32, 32), tiles(out, 32, 32), 2.5, STAGES=2, layout=gluon_kernels.ROWS, maxnreg=128
    )
    assert torch.equal(out, x * 2.5)


@everywhere
def test_a_cluster_shares_a_row(session) -> None:
    x, out = torch.randn(3, 1000), torch.empty(3, 1000)
    gluon_kernels.cluster_softmax_kernel[(3,)](x, out, 1000, BLOCK=1024, num_ctas=4)
    check(out, torch.softmax(x.double(), 1), FLOAT)


@everywhere
def test_a_tile_arrives_in_both_ctas(session) -> None:
    x, out = torch.randn(128, 64).half(), torch.zeros(128, 64).half()
    maps = [tiles(each, 64, 64, cga=((0, 0),)) for each in (x, out)]
    gluon_kernels.multicast_kernel[(2,)](*maps, num_ctas=2)
    assert torch.equal(out, x)


@pytest.mark.parametrize("registers", [False, True])
@on("h200")
def test_wgmma(session, registers) -> None:
    a, b, c = operands(128, 128, 64)
    d = torch.empty(128, 128)
    maps = [tiles(a, 64, 64), tiles(b, 64, 64), tiles(c, 64, 64), tiles(d, 64, 64)]
    gluon_gemm.wgmma_kernel[(2, 2)](*maps, A_IN_REGISTERS=registers, N_OF_MMA=32)
    check(d, a.double() @ b.double() + c.double(), FLOAT)


@pytest.mark.parametrize("tensor_memory", [False, True])
@on("b200")
def test_tcgen05(session, tensor_memory) -> None:
    a, b, c = operands(128, 128, 64)
    d = torch.empty(128, 128)
    maps = [tiles(a, 128, 64), tiles(b.T.contiguous(), 64, 64), tiles(c, 128, 64), tiles(d, 128, 64)]
    gluon_gemm.tcgen05_kernel[(1, 2)](*maps, A_IN_TENSOR_MEMORY=tensor_memory, COMMIT=not tensor_memory)
    check(d, a.double() @ b.double() + c.double(), FLOAT)


@on("h200", "b200")
def test_a_persistent_gemm(session) -> None:
    """Two programs, eight or four tiles, three steps a tile; one kernel with the tensor core of the GPU."""
    a, b, _ = operands(256, 128, 192)
    c = torch.empty(256, 128).half()
    rows = 64 if torch.cuda.get_device_capability() == (9, 0) else 128
    maps = [tiles(a, rows, 64), tiles(b, 64, 64), tiles(c, rows, 64)]
    gluon_gemm.persistent_kernel[(2,)](*maps, gluon_gemm.tensor_cores(), STAGES=3)
    check(c, a.double() @ b.double(), HALF)


@on("b200")
def test_a_gemm_with_roles_of_warps(session) -> None:
    a, b, c = operands(256, 128, 128)
    d = torch.empty(256, 128).half()
    maps = [tiles(a, 128, 64), tiles(b, 64, 64), tiles(c, 128, 64), tiles(d, 128, 32)]
    gluon_blackwell.roles_gemm_kernel[(2,)](*maps, STAGES=2, maxnreg=128)
    check(d, a.double() @ b.double() + c.double(), HALF)


@pytest.mark.parametrize("swizzle", [32, 128])
@on("b200")
def test_a_copy_to_tensor_memory(session, swizzle) -> None:
    x, out = torch.randn(128, 32), torch.zeros(128, 32)
    gluon_blackwell.copy_kernel[(1,)](x, out, 128, 32, swizzle)
    assert torch.equal(out, x)


@on("b200")
def test_programs_take_tiles_of_others(session) -> None:
    """A program of 160 KB has an SM of its own: 150 programs are two more than there are SMs."""
    tile_count = 150
    a, b, _ = operands(128 * tile_count, 128, 256)
    c, owners = torch.zeros(128 * tile_count, 128).half(), torch.full((tile_count,), -1, dtype=torch.int32)
    maps = [tiles(a, 128, 256), tiles(b, 256, 128), tiles(c, 128, 128)]
    gluon_blackwell.launch_control_kernel[(tile_count,)](*maps, owners)
    check(c, a.double() @ b.double(), HALF)
    taken = owners != torch.arange(tile_count)
    assert taken.sum() == 2 and owners.min() >= 0


@pytest.mark.parametrize("width", [16, 64, 128])
@on("b200")
def test_rows_are_gathered_and_scattered(session, width) -> None:
    """Rows and columns outside of x are zeros, outside of out they are dropped."""
    x, out = torch.randn(50, 152).bfloat16(), torch.zeros(40, 152).bfloat16()
    picks, places = torch.randint(-3, 55, (48,)), torch.randperm(50)[:48]
    layout = tiles(x, 16, width).layout
    maps = [TensorDescriptor.from_tensor(each, [1, width], layout) for each in (x, out)]
    gluon_blackwell.move_rows_kernel[(3,)](maps[0], picks.int(), maps[1], places.int(), 40, ROWS=16)
    exact = torch.zeros(50, 152).bfloat16()
    inside = (picks >= 0) & (picks < 50)
    exact[places[inside], 40 : 40 + width] = x[picks[inside], 40 : 40 + width]
    assert torch.equal(out, exact[:40])


PAIRS = [
    (2, ((1, 0),), ((0, 1),)),
    (4, ((1, 0), (2, 0)), ((0, 1), (0, 0))),  # two pairs share b
]


@pytest.mark.parametrize(("ctas", "of_a", "of_b"), PAIRS, ids=["pair", "two-pairs"])
@on("b200")
def test_pairs_of_ctas(session, ctas, of_a, of_b) -> None:
    m = 128 * ctas
    a, b, _ = operands(m, 64, 128)
    c = torch.zeros(m, 64).half()
    layout = gluon_blackwell.TensorMemoryLayout((128, 64), col_stride=1, cga_layout=of_a, two_ctas=True)
    maps = [tiles(a, m, 64, cga=of_a), tiles(b, 64, 64, cga=of_b), tiles(c, m, 64, cga=of_a)]
    gluon_blackwell.pair_kernel[(1,)](*maps, layout, num_ctas=ctas)
    check(c, a.double() @ b.double(), HALF)


@everywhere
def test_pixels_of_images(session) -> None:
    """Two channel blocks of three images of 5 x 7, whose pixels are no multiple of the 32 of a tile."""
    image, weights = torch.randn(3, 5, 7, 64), torch.randn(3, 3)
    out = torch.full((3 * 5 * 7, 64), float("nan"))
    rows = tiles(out, 32, 32)
    pixels = TensorDescriptorIm2Col.from_tensor(
        image, [32, 32], rows.layout, pixel_box_lower_corner=[-1, -1], pixel_box_upper_corner=[-1, -1]
    )
    gluon_kernels.stencil_kernel[(4, 2)](pixels, rows, weights, ROWS=3, COLUMNS=3, CHANNELS=32, HEIGHT=5, WIDTH=7)
    filters = weights.double().expand(64, 1, 3, 3)
    exact = torch.nn.functional.conv2d(image.double().permute(0, 3, 1, 2), filters, padding=1, groups=64)
    check(out, exact.permute(0, 2, 3, 1).reshape(-1, 64), FLOAT)
