"""wgmma: Hopper's tensor core, issued by a warpgroup, sums in registers (PTX ISA 9.1 section 9.7.15), sm_90a.

A warpgroup is four consecutive warps, the first a multiple of four; all its threads run every call. The protocol::

    acc = wgmma.accumulator(f32, (64, 256))
    for k in loop(tiles_k):
        slot = next(slots)
        slot.full.wait()
        wgmma.fence()
        for kk in range(0, 64, 16):
            wgmma.mma(acc, slot.a[:, kk : kk + 16], slot.b[:, kk : kk + 16], accumulate=(k > 0) | (kk > 0))
        wgmma.commit_group()
        wgmma.wait_group(0)

Between `mma` and its `wait_group` no thread may read or write the accumulator or A's registers, or overwrite the tiles.
An accumulator stays in its registers: a loop that has no `fence`, or that moves the accumulator, makes ptxas serialise
the mma.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.fragment import Fragment, accumulator_registers, check_registers
from warpwright.lang.ops.descriptor import warpgroup_descriptor
from warpwright.lang.smem import Tile, Transposed
from warpwright.lang.trace import current
from warpwright.layout import fragment
from warpwright.types import Scalar, pred

__all__ = ["accumulator", "commit_group", "fence", "left", "mma", "wait_group"]

M = 64
THREADS = 128
K_BYTES = 32
FLOATS = ("f32", "f16")
# element type of A: (types that B may have, types of D)
PAIRS = {
    "f16": (("f16",), FLOATS),
    "bf16": (("bf16",), ("f32",)),
    "tf32": (("tf32",), ("f32",)),
    "e4m3": (("e4m3", "e5m2"), FLOATS),
    "e5m2": (("e4m3", "e5m2"), FLOATS),
    "s8": (("s8", "u8"), ("s32",)),
    "u8": (("s8", "u8"), ("s32",)),
}
LEFT_REGISTERS = 4
MAX_PENDING = 7  # ptxas replaces a larger number by 7
Operand = Tile | Transposed


def accumulator(dtype: type[Scalar], shape: tuple[int, int]) -> Fragment:
    """Returns D of the warpgroup's mma: ``shape`` (64, n) of f32, f16 or s32, n a multiple of 8 up to 256.

    ``acc.regs`` are this thread's registers, n/2 (f16: n/4 of f16x2); ``acc.at(v)`` is the row and column of element
    v. The first `mma` has ``accumulate=False``: the registers are not initialised. Raises KernelError for another shape
    or type.
    """
    if dtype.name not in (*FLOATS, "s32"):
        raise misuse(f"given a wgmma accumulator of {dtype.name}; expected f32, f16 or s32")
    if len(shape) != 2 or shape[0] != M or not _is_n(shape[1], dtype.name):
        raise misuse(
            f"given a wgmma accumulator of {dtype.name} {shape}; expected (64, n) with n {_allowed_n(dtype.name)}"
        )
    registers = accumulator_registers(dtype, M * shape[1] // THREADS)
    return Fragment(dtype, shape, registers, THREADS, fragment.accumulator)


def left(dtype: type[Scalar], regs: Sequence[Expr]) -> Fragment:
    """Returns A of one `mma` in four 32-bit registers with elements of ``dtype``, lowest bits first.

    Register r of thread t has row 16·(t/32) + t%32/4 + 8·(r%2) and columns from K/2·(r/2) on. For 16-bit types that is
    the layout of an f32 accumulator: k-block j takes ``pack(bf16x2, acc.regs[v], acc.regs[v + 1])`` for v = 8·j,
    8·j + 2, 8·j + 4, 8·j + 6. Raises KernelError for other registers.
    """
    if dtype.name not in PAIRS:
        raise misuse(f"given A of {dtype.name} in registers; expected one of {', '.join(PAIRS)}")
    regs = check_registers(regs, (LEFT_REGISTERS,), f"A of wgmma in {dtype.name}")
    return Fragment(dtype, (M, 8 * K_BYTES // dtype.bits), regs, THREADS, partial(fragment.a_operand, bits=dtype.bits))


def fence() -> None:
    """Order this warpgroup's earlier register accesses before the next `mma`.

    The first `mma` of each group needs the fence; between `mma` into one accumulator none is needed. Tiles that threads
    wrote with ordinary stores need ``fence.proxy_async()`` as well; tiles that TMA filled do not.

    Issued by the whole warpgroup, converged.
    Completes by itself.
    Targets: sm_90a.
    PTX ISA 9.1 section 9.7.15.7.1 (wgmma.fence).
    """
    current().emit("wgmma.fence.sync.aligned")


def mma(
    acc: Fragment,
    a: Operand | Fragment,
    b: Operand,
    *,
    accumulate: Value,
    negate_a: bool = False,
    negate_b: bool = False,
    satfinite: bool = False,
) -> None:
    """Compute D = A·Bᵀ, or D += A·Bᵀ where ``accumulate`` holds: 64 rows, K of 32 bytes (16 elements of bf16).

    ``a`` (64, K) and ``b`` (n, K) are K-wide slices of swizzled tiles; ``a`` may also be `left` registers. A 16-bit
    tile whose rows run along K is given transposed: ``tile[kk : kk + 16, :].T``. ``negate_a`` and ``negate_b`` change
    the sign of a floating-point matrix; ``satfinite`` clamps s32 sums.

    Raises KernelError for types that wgmma does not have, and for tiles of another shape or without a swizzle.

    Issued by the whole warpgroup, converged, with the same tiles.
    Completes by `commit_group` and `wait_group`.
    Targets: sm_90a.
    PTX ISA 9.1 section 9.7.15.5.2 (wgmma.mma_async).
    """
    _check_types(acc, a, b)
    _check_shapes(acc, a, b)
    integer = acc.dtype.name == "s32"
    if integer and (negate_a or negate_b):
        raise misuse("given negate_a or negate_b for integers; expected floating-point matrices")
    if satfinite and not integer:
        raise misuse(f"given satfinite=True for sums of {acc.dtype.name}; expected an accumulator of s32")
    k = 8 * K_BYTES // b.dtype.bits
    types = f"{acc.dtype.name}.{a.dtype.name}.{b.dtype.name}{'.satfinite' if satfinite else ''}"
    signs = () if integer else (1 - 2 * negate_a, 1 - 2 * negate_b)
    current().emit(
        f"wgmma.mma_async.sync.aligned.m64n{acc.shape[1]}k{k}.{types}",
        tuple(acc.regs),
        tuple(a.regs) if isinstance(a, Fragment) else warpgroup_descriptor(a),
        warpgroup_descriptor(b),
        operand(accumulate, pred),
        *signs,
        *_majors(a, b),
    )


def commit_group() -> None:
    """Close the warpgroup's group: the `mma` issued since the previous group.

    Issued by the whole warpgroup, converged.
    Completes by itself; the group by `wait_group`.
    Targets: sm_90a.
    PTX ISA 9.1 section 9.7.15.7.2 (wgmma.commit_group).
    """
    current().emit("wgmma.commit_group.sync.aligned")


def wait_group(pending: int = 0) -> None:
    """Wait until at most ``pending`` (0 to 7) of the newest groups are incomplete.

    The sums of a complete group may be read, its tiles and its registers of A overwritten.

    Issued by the whole warpgroup, converged.
    Completes by the groups.
    Targets: sm_90a.
    PTX ISA 9.1 section 9.7.15.7.3 (wgmma.wait_group).
    """
    if not isinstance(pending, int) or not 0 <= pending <= MAX_PENDING:
        raise misuse(f"given wgmma.wait_group({pending!r}); expected a Python int from 0 to {MAX_PENDING}")
    current().emit("wgmma.wait_group.sync.aligned", pending)


def _is_n(n: int, dtype: str) -> bool:
    step = 16 if dtype == "s32" and n > 32 else 8
    return 8 <= n <= 256 and n % step == 0


def _allowed_n(dtype: str) -> str:
    return "8, 16, 24, 32 or a multiple of 16 up to 256" if dtype == "s32" else "a multiple of 8 up to 256"


def _check_types(acc: Fragment, a: Operand | Fragment, b: Operand) -> None:
    left, right, sums = a.dtype.name, b.dtype.name, acc.dtype.name
    if left not in PAIRS:
        raise misuse(f"given a of {left} to wgmma.mma; expected one of {', '.join(PAIRS)}")
    partners, results = PAIRS[left]
    if right not in partners or sums not in results:
        raise misuse(
            f"given a of {left}, b of {right} and sums of {sums} to wgmma.mma; expected for a of {left}: "
            f"b of {' or '.join(partners)}, sums of {' or '.join(results)}"
        )


def _check_shapes(acc: Fragment, a: Operand | Fragment, b: Operand) -> None:
    k, n = 8 * K_BYTES // b.dtype.bits, acc.shape[1]
    for name, matrix, shape in (("a", a, (M, k)), ("b", b, (n, k))):
        if matrix.shape != shape:
            raise misuse(
                f"given {name} {matrix.shape} of {matrix.dtype.name} to wgmma.mma with an accumulator {acc.shape}; "
                f"expected {shape}: K is {K_BYTES} bytes, tile[:, kk : kk + {k}]"
            )
        if not isinstance(matrix, Fragment):
            _check_tile(name, matrix)


def _check_tile(name: str, matrix: Operand) -> None:
    tile = matrix.tile if isinstance(matrix, Transposed) else matrix
    if not tile.swizzle:
        raise misuse(
            f"given {name} of a tile without a swizzle to wgmma.mma; "
            "expected smem.tile(…, swizzle=128), or 64 or 32 for narrower rows"
        )
    if isinstance(matrix, Transposed) and tile.dtype.bits != 16:
        raise misuse(
            f"given a transposed {name} of {tile.dtype.name} to wgmma.mma; expected rows along M or N, K contiguous: "
            "only 16-bit types may be transposed"
        )


def _majors(a: Operand | Fragment, b: Operand) -> tuple[int, ...]:
    """Returns imm-trans of the operands that have one, 16-bit tiles."""
    if b.dtype.bits != 16:
        return ()
    return tuple(int(isinstance(matrix, Transposed)) for matrix in (a, b) if not isinstance(matrix, Fragment))
