"""tcgen05: the fifth-generation tensor core and its tensor memory (PTX ISA 9.1 section 9.7.16), sm_100a.

One thread issues mma, cp, shift and commit; whole warps issue alloc, ld, st and their waits. All instructions of a
kernel use the same ``cta_group``. With 2 the tensor cores of a CTA pair (ranks that differ in bit 0) work together, and
the shape of a tile is that of this CTA's half.
"""

from __future__ import annotations

from typing import Any

from warpwright.errors import DescriptorError
from warpwright.lang.context import misuse
from warpwright.lang.expr import Expr, Value, operand
from warpwright.lang.ops.descriptor import (
    Operand,
    instruction_descriptor,
    kind_of,
    scaled_descriptor,
    scaled_kind,
    shared_descriptor,
)
from warpwright.lang.ops.mbarrier import RemoteBarrier, mbarrier
from warpwright.lang.ops.tma import mask
from warpwright.lang.smem import Tile, Transposed
from warpwright.lang.tensor_memory import COLUMN_BITS, TmemTile, kernel_columns
from warpwright.lang.trace import addr, current
from warpwright.layout import SCALE_TILE
from warpwright.ptx import nodes
from warpwright.types import Scalar, b32, pred, u32, u64

__all__ = [
    "alloc", "commit", "cp", "cp_scales", "dealloc", "fence_after_thread_sync", "fence_before_thread_sync", "ld", "mma",
    "mma_block_scale", "relinquish_alloc_permit", "shift", "st", "wait_ld", "wait_st",
]  # fmt: skip

Tensor = TmemTile | Expr
K_BYTES = 32
QUARTER = 32
MAX_REGISTERS = 128
LANE_SHIFT = 16

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
COLUMNS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}
COPY_SHAPES = (
    "128x256b",
    "4x256b",
    "128x128b",
    "64x128b.warpx2::02_13",
    "64x128b.warpx2::01_23",
    "32x128b.warpx4",
)


def alloc(slot: nodes.Address | Expr, columns: int, *, cta_group: int = 1) -> None:
    """Allocate ``columns`` (32, 64, 128, 256 or 512) of tensor memory and write the address to shared memory ``slot``.

    ``tmem.alloc`` computes both arguments.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair.
    Completes by itself, when the columns are free.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.alloc).
    """
    _check_columns(columns)
    place = addr(slot) if isinstance(slot, Expr) else slot
    current().emit(f"tcgen05.alloc{_group(cta_group)}.sync.aligned.shared::cta.b32", place, columns)


def dealloc(address: Expr, columns: int, *, cta_group: int = 1) -> None:
    """Free ``columns`` of tensor memory at ``address``, as many as were allocated.

    Issued by one whole warp, after every reader; with cta_group 2 by one in each CTA of the pair.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.dealloc).
    """
    _check_columns(columns)
    current().emit(f"tcgen05.dealloc{_group(cta_group)}.sync.aligned.b32", address, columns)


def relinquish_alloc_permit(*, cta_group: int = 1) -> None:
    """Declare that this CTA allocates no more tensor memory, so that another CTA of the SM may.

    Issued by one whole warp; with cta_group 2 by one in each CTA of the pair.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.7.1 (tcgen05.relinquish_alloc_permit).
    """
    current().emit(f"tcgen05.relinquish_alloc_permit{_group(cta_group)}.sync.aligned")


def mma(d: TmemTile, a: Operand, b: Tile | Transposed, *, accumulate: Value, cta_group: int = 1) -> None:
    """Compute D = A·Bᵀ, or D += A·Bᵀ where ``accumulate`` holds: one instruction, K of 32 bytes (16 elements of bf16).

    ``a`` (M, K) and ``b`` (N, K) are K-wide slices of swizzled shared-memory tiles, ``d`` is a tile (M, N) of tensor
    memory. A tile whose rows run along K is given transposed, ``tile[k:k + 16, :].T``. ``a`` may also be in tensor
    memory, ``tile.packed(bf16)[:, k:k + 16]``. With ``cta_group=2`` ``a`` and ``b`` are this CTA's halves, (M/2, K) and
    (N/2, K), and each CTA receives its M/2 rows of all N columns; the peer's operands are at the same offsets. The
    element types determine the ``.kind``.

    Raises KernelError for element types without a kind, an M, N or K that the kind does not have, and tiles of other
    shapes.

    Issued by one thread; with cta_group 2 of one CTA of the pair.
    Completes by `commit` at an mbarrier, in order with the mma before it.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.10.9.1 (tcgen05.mma).
    """
    _check_shapes(d, a, b, cta_group)
    try:
        kind = kind_of(a, b)
        idesc = instruction_descriptor(kind, a, b, d.dtype, d.shape[1], cta_group)
    except DescriptorError as error:
        raise misuse(str(error)) from None
    enable = operand(accumulate, pred)
    opcode = f"tcgen05.mma{_group(cta_group)}.kind::{kind}"
    left = a.operand if isinstance(a, TmemTile) else shared_descriptor(a)
    current().emit(opcode, d.operand, left, shared_descriptor(b), f"0x{idesc:08x}", enable)


def mma_block_scale(
    d: TmemTile,
    a: Operand,
    b: Tile | Transposed,
    scale_a: TmemTile,
    scale_b: TmemTile,
    *,
    accumulate: Value,
    block: int = 32,
    first: int = 0,
    cta_group: int = 1,
) -> None:
    """Compute D = A·Bᵀ or D += A·Bᵀ as `mma` does, each ``block`` of K times a scale factor of its row of A and of B.

    ``a`` and ``b`` are of e4m3 and e5m2 (32 elements of K), or of e2m1x2 (64). ``scale_a`` and ``scale_b`` are
    `tmem.scales`, which `cp_scales` fills with 4 scale factors a row; ``first`` is the number of the first of the
    1 (32 elements by 32), 2 (64 by 32) or 4 (64 by 16) that the instruction uses.

    Raises KernelError for types, sizes and blocks that no kind has, and scale factors of too few rows.

    Issued by one thread; with cta_group 2 of one CTA of the pair.
    Completes by `commit` at an mbarrier, in order with the mma before it.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.10.9.1 (tcgen05.mma).
    """
    _check_shapes(d, a, b, cta_group)
    for name, scales, rows in (("scale_a", scale_a, a.shape[0]), ("scale_b", scale_b, d.shape[1])):
        _check_scales(name, scales, rows, scale_a.dtype)
    try:
        kind = scaled_kind(a, b, scale_a.dtype, block)
        idesc = scaled_descriptor(kind, a, b, scale_a.dtype, d.shape[1], cta_group, block, first)
    except DescriptorError as error:
        raise misuse(str(error)) from None
    enable = operand(accumulate, pred)
    opcode = f"tcgen05.mma{_group(cta_group)}.kind::{kind}.block_scale.block{block}"
    left = a.operand if isinstance(a, TmemTile) else shared_descriptor(a)
    factors = scale_a.operand, scale_b.operand
    current().emit(opcode, d.operand, left, shared_descriptor(b), f"0x{idesc:08x}", *factors, enable)


def commit(
    barrier: mbarrier | RemoteBarrier | Expr, *, cta_group: int = 1, multicast: int | Expr | None = None
) -> None:
    """Make the tensor core arrive once at ``barrier`` when every earlier mma, cp and shift of this thread is complete.

    The arrival is asynchronous, unlike ``barrier.arrive``, and implies `fence_before_thread_sync`. With ``multicast``,
    a 16-bit mask of CTA ranks, it happens at the same offset in each of those CTAs.

    Issued by the thread that issued the mma.
    Completes by the arrival at the mbarrier.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.12.1 (tcgen05.commit).
    """
    opcode = f"tcgen05.commit{_group(cta_group)}.mbarrier::arrive::one.shared::cluster"
    place = addr(barrier) if isinstance(barrier, Expr) else barrier.operand
    if multicast is None:
        current().emit(f"{opcode}.b64", place)
    else:
        ranks = multicast if isinstance(multicast, Expr) else mask(multicast)
        current().emit(f"{opcode}.multicast::cluster.b64", place, ranks)


def ld(source: Tensor, shape: str = "32x32b", *, num: int | None = None, half: int = 0) -> list[Expr]:
    """Load tensor memory to registers, which may be read after `wait_ld`.

    From a tile each warp loads its own quarter, lanes 32·(warp % 4) to +31, and all columns of the tile: with shape
    ``32x32b`` thread t gets row t of the quarter, one register a column. A shape of 16 lanes loads the first 16 lanes
    of the quarter, or with ``half=1`` the others. The registers have the tile's element type if that has 32 bits, else
    b32. From a raw u32 address ``num`` repeats the shape. The limit is 128 registers.

    Raises KernelError for an unknown shape, for a tile that is not ``shape`` times a power of two, and for ``half``
    with a shape of 32 lanes or a raw address.

    Issued by whole, converged warps.
    Completes by `wait_ld`.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.8.3 (tcgen05.ld).
    """
    repeat = _repeat("tcgen05.ld", source, shape, num)
    _check_half("ld", source, shape, half)
    trace = current()
    dtype = source.dtype if isinstance(source, TmemTile) and source.dtype.bits == b32.bits else b32
    registers = [trace.fresh(dtype) for _ in range(repeat * REGISTERS[shape])]
    trace.emit(f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32", tuple(registers), _quarter(source, half))
    return registers


def st(
    destination: Tensor, values: list[Expr], shape: str = "32x32b", *, num: int | None = None, half: int = 0
) -> None:
    """Store 32-bit registers to tensor memory in the layout of `ld`; other threads see them after `wait_st`.

    Raises KernelError if the number of registers does not fit the tile and ``shape``, and for ``half`` as `ld` does.

    Issued by whole, converged warps.
    Completes by `wait_st`.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.8.4 (tcgen05.st).
    """
    repeat = _repeat("tcgen05.st", destination, shape, num)
    _check_half("st", destination, shape, half)
    if len(values) != repeat * REGISTERS[shape]:
        raise misuse(
            f"given {len(values)} registers to tcgen05.st {shape}.x{repeat}; expected {repeat * REGISTERS[shape]}"
        )
    current().emit(f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32", _quarter(destination, half), tuple(values))


def wait_ld() -> None:
    """Wait until this thread's earlier `ld` have written their registers.

    Issued by the warps that loaded, converged.
    Completes by those loads.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.8.5 (tcgen05.wait::ld).
    """
    current().emit("tcgen05.wait::ld.sync.aligned")


def wait_st() -> None:
    """Wait until this thread's earlier `st` have written tensor memory.

    Issued by the warps that stored, converged.
    Completes by those stores.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.8.5 (tcgen05.wait::st).
    """
    current().emit("tcgen05.wait::st.sync.aligned")


def cp(destination: Tensor, descriptor: Expr, shape: str, *, cta_group: int = 1) -> None:
    """Copy the shared memory of a matrix descriptor (u64) to tensor memory: ``shape`` rows × bits.

    Raises KernelError for an unknown shape.

    Issued by one thread.
    Completes by `commit`; before a later mma of the same thread starts.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.9.2 (tcgen05.cp).
    """
    if shape not in COPY_SHAPES:
        raise misuse(f"given shape {shape!r} to tcgen05.cp; expected one of {', '.join(COPY_SHAPES)}")
    current().emit(f"tcgen05.cp{_group(cta_group)}.{shape}", _tensor(destination), operand(descriptor, u64))


def cp_scales(destination: TmemTile, source: Tile, *, cta_group: int = 1) -> None:
    """Copy tiles of scale factors from shared memory, a ``smem.tile(ue8m0, (32 * tiles, 16))``, to `tmem.scales`.

    A tile has 4 scale factors for each of 128 rows (`warpwright.layout.scale_tiles`). With ``cta_group=2`` each CTA
    copies its own tiles, at the same offsets.

    Raises KernelError for a source of another shape than the destination's tiles.

    Issued by one thread, one instruction for each tile.
    Completes by `commit`; before a later mma of the same thread starts.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.9.2 (tcgen05.cp).
    """
    tiles = destination.shape[1] // destination.density // SCALE_TILE[1]
    if source.shape != (QUARTER * tiles, 16) or source.dtype.nbytes != 1 or source.swizzle:
        raise misuse(
            f"given a source of {source.dtype.name} {source.shape} with swizzle {source.swizzle} to cp_scales; "
            f"expected smem.tile({destination.dtype.name}, ({QUARTER * tiles}, 16))"
        )
    for tile in range(tiles):
        part = destination[:, 16 * tile : 16 * (tile + 1)]
        rows = source[QUARTER * tile : QUARTER * (tile + 1), :]
        cp(part, shared_descriptor(rows), "32x128b.warpx4", cta_group=cta_group)


def shift(address: Tensor, *, cta_group: int = 1) -> None:
    """Move rows of 32 bytes down by one lane within a quarter; the last row does not move.

    Issued by one thread.
    Completes by `commit`.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.9.3 (tcgen05.shift).
    """
    current().emit(f"tcgen05.shift{_group(cta_group)}.down", _tensor(address))


def fence_before_thread_sync() -> None:
    """Order this thread's earlier asynchronous tcgen05 operations before the barrier or arrival that follows.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.11.1 (tcgen05.fence::before_thread_sync).
    """
    current().emit("tcgen05.fence::before_thread_sync")


def fence_after_thread_sync() -> None:
    """Order this thread's later asynchronous tcgen05 operations after the barrier or wait before it.

    Issued by each thread for itself.
    Completes by itself.
    Targets: sm_100a.
    PTX ISA 9.1 section 9.7.16.11.1 (tcgen05.fence::after_thread_sync).
    """
    current().emit("tcgen05.fence::after_thread_sync")


def _group(cta_group: int) -> str:
    kernel_columns(cta_group)
    return f".cta_group::{cta_group}"


def _check_group(tile: TmemTile, cta_group: int) -> None:
    if tile.cta_group != cta_group:
        raise misuse(f"given cta_group={cta_group} for a tile of cta_group={tile.cta_group}; expected the tile's own")


def _check_shapes(d: TmemTile, a: Operand, b: Tile | Transposed, cta_group: int) -> None:
    _check_group(d, cta_group)
    n = cta_group * b.shape[0]
    if d.shape != (a.shape[0], n):
        raise misuse(
            f"given d {d.shape} for a {a.shape} and b {b.shape} with cta_group={cta_group}; "
            f"expected d of {(a.shape[0], n)}: the rows of a, and {cta_group} × the rows of b"
        )
    _check_operands(a, b)


def _check_scales(name: str, scales: TmemTile, rows: int, dtype: type[Scalar]) -> None:
    """Raises KernelError unless a tile has scale factors of as many rows, of the type of both."""
    most = scales.shape[1] // scales.density * QUARTER
    if rows > most or scales.dtype is not dtype:
        raise misuse(f"given {name} of {scales.dtype.name} for {most} rows; expected tmem.scales({dtype.name}, {rows})")


def _check_operands(a: Operand, b: Tile | Transposed) -> None:
    for name, matrix in (("a", a), ("b", b)):
        step, columns = K_BYTES // matrix.dtype.nbytes, matrix.shape[1]
        if isinstance(matrix, TmemTile):
            fits, kind, memory = matrix.density * matrix.dtype.bits == COLUMN_BITS, "a packed tile", "tensor memory"
            mend = f"tile.packed({matrix.dtype.name})[:, k:k + {step}]"
        else:
            swizzle = (matrix.tile if isinstance(matrix, Transposed) else matrix).swizzle
            fits, kind, memory = swizzle > 0, "a swizzled tile", f"{matrix.dtype.name} with swizzle {swizzle}"
            mend = f"tile[k:k + {step}, :].T" if isinstance(matrix, Transposed) else f"tile[:, k:k + {step}]"
        if not fits or columns != step:
            raise misuse(
                f"given {name} of {columns} columns of {memory}; expected {step} columns ({K_BYTES} bytes of K) of "
                f"{kind}: {mend}"
            )


def _check_columns(columns: int) -> None:
    if columns not in (32, 64, 128, 256, 512):
        raise misuse(f"given {columns} columns of tensor memory; expected 32, 64, 128, 256 or 512")


def _repeat(name: str, place: Tensor, shape: str, num: int | None) -> int:
    """Returns the repetitions of ``shape``: 1 to 128 for ``.x1`` to ``.x128``."""
    if shape not in REGISTERS:
        raise misuse(f"given shape {shape!r} to {name}; expected one of {', '.join(REGISTERS)}")
    if isinstance(place, TmemTile):
        repeat, rest = divmod(place.shape[1], COLUMNS[shape])
    else:
        repeat, rest = num or 1, 0
    most = MAX_REGISTERS // REGISTERS[shape]
    if rest or repeat not in [1 << power for power in range(most.bit_length())]:
        size = f"a tile of {place.shape[1]} columns" if isinstance(place, TmemTile) else f"num={num}"
        raise misuse(
            f"given {size} to {name} {shape}; expected {COLUMNS[shape]} columns times a power of two, "
            f"at most {most} times"
        )
    return repeat


def _check_half(name: str, place: Tensor, shape: str, half: int) -> None:
    if half not in (0, 1) or (half and (shape == "32x32b" or isinstance(place, Expr))):
        raise misuse(
            f"given tcgen05.{name} of shape {shape} with half={half!r}; expected half=0 or 1, of a tile, with a shape "
            "of 16 lanes; add 16 << 16 to a raw address"
        )


def _quarter(place: Tensor, half: int = 0) -> nodes.Address:
    """Returns the address plus the first lane of this warp's quarter, 32 × bits 5 and 6 of the thread index, or of its
    second half."""
    if isinstance(place, Expr):
        return addr(place)
    trace = current()
    thread = trace.pure("mov.u32", u32, "%tid.x")
    lane = trace.pure("and.b32", u32, trace.pure("shl.b32", u32, thread, LANE_SHIFT), 3 * QUARTER << LANE_SHIFT)
    return addr(trace.pure("add.u32", u32, place.base, lane), place.column + (half * QUARTER // 2 << LANE_SHIFT))


def _tensor(place: Tensor) -> Any:
    return place.operand if isinstance(place, TmemTile) else addr(place)
