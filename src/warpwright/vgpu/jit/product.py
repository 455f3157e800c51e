"""The matrix product of the tensor engine, as LLVM IR: packing of 16-bit operands, and float32 sums in registers.

Packed A: panels of as many rows as a tile has, K by rows each; packed B: panels of eight rows, K by eight. A tile of
the accumulator, some rows of B by some vectors of rows of A, stays in registers while K runs. Each element's sum has
one order, that of K, and each step of it is rounded once: products of 16-bit values are exact in float32. So neither
the host nor the number of instructions in one product changes a bit.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["B_PANEL", "KINDS", "LARGEST_PANEL", "PLAN", "TILE_WORDS", "Tile", "text", "tile_of"]

B_PANEL = 8  # rows of B in a panel
LARGEST_PANEL = 32  # rows of A in a panel, of all tiles; a multiple of the others
BLOCK_K = 256  # elements of K after which the next tile goes on: the panel of A stays in the first cache
GROUP = 8  # rows of a transposition: a chunk of 16 bytes has as many elements
KINDS = ("bf16", "f16")
PLAN = ("rows_a", "k", "chunks_a", "count_a", "pack_a", "rows_b", "chunks_b", "pack_b", "paired", "tiles")
TILE_WORDS = (
    6  # of a tile in a plan, in bytes and elements: address, pitch, first row of A and of B, rows of A and of B
)


class Tile(NamedTuple):
    """A tile of the accumulator in registers: ``rows`` of B by ``vectors`` of ``width`` rows of A."""

    width: int
    vectors: int
    rows: int

    @property
    def panel(self) -> int:
        """Rows of A in a panel."""
        return self.width * self.vectors


def tile_of(features: str) -> Tile:
    """Returns the tile for a host with these features of LLVM: 16 sums in 32 registers, 8 in 16."""
    names = features.split(",")
    if "+avx512f" in names:
        return Tile(16, 2, 8)
    if "+avx2" in names:
        return Tile(8, 2, 4)
    return Tile(4, 2, 8)


def text(tile: Tile) -> str:
    """Returns the IR of `accumulate`, `product` and the packing routines."""
    packing = [_pack_rows(kind) + _pack_columns(kind) for kind in KINDS]
    return "\n".join([_tile(tile), _product(tile), *packing, _SAME, _CELLS, _accumulate(tile)])


def _tile(tile: Tile) -> str:
    """``tile(c, pitch, a, b, k)``: add ``k`` products to each sum; ``pitch``: bytes from one row of B to the next."""
    vector, cells = f"<{tile.width} x float>", [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
    lines = ["define internal void @tile(ptr %c, i64 %pitch, ptr %a, ptr %b, i64 %k) {", "entry:"]
    for r in range(tile.rows):
        lines += [f"  %o{r} = mul i64 %pitch, {r}", f"  %r{r} = getelementptr i8, ptr %c, i64 %o{r}"]
    for r, v in cells:
        lines += [f"  %p{r}_{v} = getelementptr {vector}, ptr %r{r}, i64 {v}"]
        lines += [f"  %i{r}_{v} = load {vector}, ptr %p{r}_{v}, align 4"]
    lines += ["  br label %loop", "loop:", "  %t = phi i64 [ 0, %entry ], [ %t1, %loop ]"]
    lines += [f"  %s{r}_{v} = phi {vector} [ %i{r}_{v}, %entry ], [ %n{r}_{v}, %loop ]" for r, v in cells]
    lines += _step(tile, vector)
    lines += ["  %t1 = add i64 %t, 1", "  %more = icmp ult i64 %t1, %k", "  br i1 %more, label %loop, label %done"]
    lines += ["done:", *(f"  store {vector} %n{r}_{v}, ptr %p{r}_{v}, align 4" for r, v in cells), "  ret void", "}"]
    return "\n".join([*lines, f"declare {vector} @llvm.fmuladd.v{tile.width}f32({vector}, {vector}, {vector})"])


def _step(tile: Tile, vector: str) -> list[str]:
    """One element of K in the loop of a tile."""
    lines = [f"  %ta = mul i64 %t, {tile.panel}", f"  %tb = mul i64 %t, {B_PANEL}"]
    lines += ["  %pa = getelementptr float, ptr %a, i64 %ta", "  %pb = getelementptr float, ptr %b, i64 %tb"]
    for v in range(tile.vectors):
        lines += [
            f"  %qa{v} = getelementptr {vector}, ptr %pa, i64 {v}",
            f"  %x{v} = load {vector}, ptr %qa{v}, align 4",
        ]
    for r in range(tile.rows):
        lines += [f"  %qb{r} = getelementptr float, ptr %pb, i64 {r}", f"  %y{r} = load float, ptr %qb{r}"]
        lines += [f"  %z{r} = insertelement {vector} poison, float %y{r}, i32 0"]
        lines += [f"  %w{r} = shufflevector {vector} %z{r}, {vector} poison, <{tile.width} x i32> zeroinitializer"]
        for v in range(tile.vectors):
            operands = f"{vector} %x{v}, {vector} %w{r}, {vector} %s{r}_{v}"
            lines += [f"  %n{r}_{v} = call {vector} @llvm.fmuladd.v{tile.width}f32({operands})"]
    return lines


def _product(tile: Tile) -> str:
    """``product(c, pitch, a, b, m, n, k)``: C, n rows of m floats, += packed B (n by k) times packed A (m by k)."""
    return f"""
define void @product(ptr %c, i64 %pitch, ptr %a, ptr %b, i64 %m, i64 %n, i64 %k) {{
entry:
  %astep = mul i64 %k, {tile.panel}
  %bstep = mul i64 %k, {B_PANEL}
  br label %blocks
blocks:
  %k0 = phi i64 [ 0, %entry ], [ %k1, %blocks_next ]
  %left = sub i64 %k, %k0
  %count = call i64 @llvm.umin.i64(i64 %left, i64 {BLOCK_K})
  %ka = mul i64 %k0, {tile.panel}
  %kb = mul i64 %k0, {B_PANEL}
  br label %panels
panels:
  %i = phi i64 [ 0, %blocks ], [ %i1, %panels_next ]
  %ia = mul i64 %i, %astep
  %iak = add i64 %ia, %ka
  %pa = getelementptr float, ptr %a, i64 %iak
  %ic = mul i64 %i, {tile.panel}
  %pc = getelementptr float, ptr %c, i64 %ic
  br label %tiles
tiles:
  %row = phi i64 [ 0, %panels ], [ %row1, %tiles ]
  %j = udiv i64 %row, {B_PANEL}
  %in = urem i64 %row, {B_PANEL}
  %jb = mul i64 %j, %bstep
  %jbk = add i64 %jb, %kb
  %at = add i64 %jbk, %in
  %pb = getelementptr float, ptr %b, i64 %at
  %jc = mul i64 %row, %pitch
  %pd = getelementptr i8, ptr %pc, i64 %jc
  call void @tile(ptr %pd, i64 %pitch, ptr %pa, ptr %pb, i64 %count)
  %row1 = add i64 %row, {tile.rows}
  %jm = icmp ult i64 %row1, %n
  br i1 %jm, label %tiles, label %panels_next
panels_next:
  %i1 = add i64 %i, 1
  %im = mul i64 %i1, {tile.panel}
  %imore = icmp ult i64 %im, %m
  br i1 %imore, label %panels, label %blocks_next
blocks_next:
  %k1 = add i64 %k0, {BLOCK_K}
  %kmore = icmp ult i64 %k1, %k
  br i1 %kmore, label %blocks, label %done
done:
  ret void
}}
declare i64 @llvm.umin.i64(i64, i64)"""


def _widen(kind: str, i: int, source: str) -> str:
    """Eight 16-bit values as float32 ``%y{i}``: bf16 by shifting, f16 by conversion."""
    if kind == "bf16":
        wide = f"  %u{i} = zext <8 x i16> {source} to <8 x i32>"
        return f"{wide}\n  %y{i} = shl <8 x i32> %u{i}, splat (i32 16)"
    half = f"  %u{i} = bitcast <8 x i16> {source} to <8 x half>\n  %v{i} = fpext <8 x half> %u{i} to <8 x float>"
    return f"{half}\n  %y{i} = bitcast <8 x float> %v{i} to <8 x i32>"


def _interleave(size: int, high: bool) -> str:
    """The mask of a shuffle that interleaves the low or high halves of two vectors of 8, by ``size`` elements."""
    first = GROUP // 2 if high else 0
    picked = [
        source + first + at + each for at in range(0, GROUP // 2, size) for source in (0, GROUP) for each in range(size)
    ]
    return f"<8 x i32> <{', '.join(f'i32 {i}' for i in picked)}>"


def _transpose() -> list[str]:
    """Vectors ``%a0`` to ``%a7`` of 8 rows become ``%d0`` to ``%d7``, the columns."""
    lines = []
    for size, source, to in ((1, "a", "b"), (2, "b", "c"), (4, "c", "d")):
        for first in range(0, GROUP, 2 * size):
            for i in range(size):
                pair = f"<8 x i16> %{source}{first + i}, <8 x i16> %{source}{first + size + i}"
                for high in (False, True):
                    name = f"%{to}{first + 2 * i + high}"
                    lines.append(f"  {name} = shufflevector {pair}, {_interleave(size, high)}")
    return lines


def _pack_rows(kind: str) -> str:
    """``pack_rows(to, from, index, rows, k, panel)``: chunks in the order (rows, k / 8), which are transposed."""
    lines = [
        f"define void @pack_rows_{kind}(ptr %to, ptr %from, ptr %index, i64 %rows, i64 %k, i64 %panel) {{",
        *_PANELS,
        "  %chunks = lshr i64 %k, 3\n  %ri = mul i64 %r, %chunks\n  %list = getelementptr i64, ptr %index, i64 %ri",
        "  br label %loop\nloop:\n  %t = phi i64 [ 0, %groups ], [ %t1, %loop ]",
    ]
    for i in range(GROUP):
        lines += [
            f"  %l{i} = mul i64 %chunks, {i}",
            f"  %m{i} = add i64 %l{i}, %t",
            _load_chunk(i, f"%list, i64 %m{i}"),
        ]
    lines += _transpose()
    lines += ["  %kp = mul i64 %t, %panel\n  %kq = shl i64 %kp, 3\n  %e0 = getelementptr float, ptr %base, i64 %kq"]
    for i in range(GROUP):
        lines += [f"  %e{i} = getelementptr float, ptr %e{i - 1}, i64 %panel"] if i else []
        lines += [_widen(kind, i, f"%d{i}"), f"  store <8 x i32> %y{i}, ptr %e{i}, align 4"]
    return "\n".join([*lines, *_NEXT.format(end="%chunks").splitlines()]) + "\n"


def _pack_columns(kind: str) -> str:
    """``pack_columns(to, from, index, rows, k, panel)``: chunks in the order (k, rows / 8)."""
    lines = [
        f"define void @pack_columns_{kind}(ptr %to, ptr %from, ptr %index, i64 %rows, i64 %k, i64 %panel) {{",
        *_PANELS,
        "  %chunks = lshr i64 %rows, 3\n  %list = getelementptr i64, ptr %index, i64 %g",
        "  br label %loop\nloop:\n  %t = phi i64 [ 0, %groups ], [ %t1, %loop ]",
        "  %m0 = mul i64 %t, %chunks",
        _load_chunk(0, "%list, i64 %m0"),
        "  %kp = mul i64 %t, %panel\n  %e0 = getelementptr float, ptr %base, i64 %kp",
        _widen(kind, 0, "%a0"),
        "  store <8 x i32> %y0, ptr %e0, align 4",
    ]
    return "\n".join([*lines, *_NEXT.format(end="%k").splitlines()]) + "\n"


def _load_chunk(i: int, place: str) -> str:
    return f"""  %q{i} = getelementptr i64, ptr {place}
  %f{i} = load i64, ptr %q{i}
  %h{i} = shl i64 %f{i}, 4
  %w{i} = getelementptr i8, ptr %from, i64 %h{i}
  %a{i} = load <8 x i16>, ptr %w{i}, align 1"""


# Groups of eight rows; %base: where the first element of K of the group %g, the rows from %r on, is packed.
_PANELS = """entry:
  %whole = mul i64 %k, %panel
  br label %groups
groups:
  %g = phi i64 [ 0, %entry ], [ %g1, %next ]
  %r = shl i64 %g, 3
  %p = udiv i64 %r, %panel
  %in = urem i64 %r, %panel
  %first = mul i64 %p, %whole
  %at = add i64 %first, %in
  %base = getelementptr float, ptr %to, i64 %at""".splitlines()

_NEXT = """  %t1 = add i64 %t, 1
  %tm = icmp ult i64 %t1, {end}
  br i1 %tm, label %loop, label %next
next:
  %g1 = add i64 %g, 1
  %gn = shl i64 %g1, 3
  %gm = icmp ult i64 %gn, %rows
  br i1 %gm, label %groups, label %done
done:
  ret void
}}"""

_SAME = """
; Whether %n chunks at %a are those at %b; both are numbered by %index.
define i64 @same_chunks(ptr %a, ptr %b, ptr %index, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %again ]
  %pf = getelementptr i64, ptr %index, i64 %i
  %f = load i64, ptr %pf
  %fs = shl i64 %f, 4
  %pa = getelementptr i8, ptr %a, i64 %fs
  %pb = getelementptr i8, ptr %b, i64 %fs
  %x = load i128, ptr %pa, align 1
  %y = load i128, ptr %pb, align 1
  %same = icmp eq i128 %x, %y
  br i1 %same, label %again, label %differ
again:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %equal
equal:
  ret i64 1
differ:
  ret i64 0
}"""

# Rectangles of sums, as a plan has them: %n rows of %m 32-bit values.
_CELLS = """
define internal i64 @word(ptr %at, i64 %i) {
  %p = getelementptr i64, ptr %at, i64 %i
  %x = load i64, ptr %p
  ret i64 %x
}
define internal void @clear_cells(ptr %tile) {
entry:
  %c = call i64 @word(ptr %tile, i64 0)
  %pitch = call i64 @word(ptr %tile, i64 1)
  %m = call i64 @word(ptr %tile, i64 4)
  %n = call i64 @word(ptr %tile, i64 5)
  %bytes = shl i64 %m, 2
  br label %rows
rows:
  %r = phi i64 [ 0, %entry ], [ %r1, %rows ]
  %at = phi i64 [ %c, %entry ], [ %at1, %rows ]
  %p = inttoptr i64 %at to ptr
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %bytes, i1 false)
  %at1 = add i64 %at, %pitch
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %n
  br i1 %more, label %rows, label %done
done:
  ret void
}
define internal void @copy_cells(ptr %to, ptr %from) {
entry:
  %c = call i64 @word(ptr %to, i64 0)
  %d = call i64 @word(ptr %from, i64 0)
  %pitch = call i64 @word(ptr %to, i64 1)
  %m = call i64 @word(ptr %to, i64 4)
  %n = call i64 @word(ptr %to, i64 5)
  %bytes = shl i64 %m, 2
  br label %rows
rows:
  %r = phi i64 [ 0, %entry ], [ %r1, %rows ]
  %skip = mul i64 %r, %pitch
  %ci = add i64 %c, %skip
  %di = add i64 %d, %skip
  %p = inttoptr i64 %ci to ptr
  %q = inttoptr i64 %di to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %bytes, i1 false)
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %n
  br i1 %more, label %rows, label %done
done:
  ret void
}
define internal i1 @same_cells(ptr %a, ptr %b) {
entry:
  %c = call i64 @word(ptr %a, i64 0)
  %d = call i64 @word(ptr %b, i64 0)
  %pitch = call i64 @word(ptr %a, i64 1)
  %m = call i64 @word(ptr %a, i64 4)
  %n = call i64 @word(ptr %a, i64 5)
  br label %rows
rows:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %skip = mul i64 %r, %pitch
  %ci = add i64 %c, %skip
  %di = add i64 %d, %skip
  %p = inttoptr i64 %ci to ptr
  %q = inttoptr i64 %di to ptr
  br label %lanes
lanes:
  %i = phi i64 [ 0, %rows ], [ %i1, %lanes ]
  %or = phi i32 [ 0, %rows ], [ %or1, %lanes ]
  %px = getelementptr i32, ptr %p, i64 %i
  %py = getelementptr i32, ptr %q, i64 %i
  %x = load i32, ptr %px
  %y = load i32, ptr %py
  %xor = xor i32 %x, %y
  %or1 = or i32 %or, %xor
  %i1 = add i64 %i, 1
  %im = icmp ult i64 %i1, %m
  br i1 %im, label %lanes, label %judge
judge:
  %same = icmp eq i32 %or1, 0
  br i1 %same, label %next, label %done
next:
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %n
  br i1 %more, label %rows, label %done
done:
  ret i1 %same
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"""


def _accumulate(tile: Tile) -> str:
    """``accumulate(plan, host, stride, left, right, add, fresh)``: a whole product, with what it packs.

    ``plan``: the words `PLAN`, then those of each tile; ``host``: shared memory of the first CTA, ``stride``: to the
    next; ``left`` and ``right``: room for packed A and B; ``add``: to the sums, else to 0; ``fresh``: B is packed, else
    it is in ``right``. Returns the rows of A that were multiplied: half of them if both CTAs of a pair have the same
    rows and sums.
    """
    words = "\n".join(f"  %{name} = call i64 @word(ptr %plan, i64 {i})" for i, name in enumerate(PLAN))
    return f"""
define i64 @accumulate(ptr %plan, ptr %host, i64 %stride, ptr %left, ptr %right, i64 %add, i64 %fresh) {{
entry:
{words}
  %list = getelementptr i64, ptr %plan, i64 {len(PLAN)}
  %half = lshr i64 %tiles, 1
  %halfwords = mul i64 %half, {TILE_WORDS}
  %second = getelementptr i64, ptr %list, i64 %halfwords
  %indexa = inttoptr i64 %chunks_a to ptr
  %indexb = inttoptr i64 %chunks_b to ptr
  %packa = inttoptr i64 %pack_a to ptr
  %packb = inttoptr i64 %pack_b to ptr
  %adds = icmp ne i64 %add, 0
  br i1 %adds, label %begun, label %clear
clear:
  %ci = phi i64 [ 0, %entry ], [ %ci1, %clear ]
  %cw = mul i64 %ci, {TILE_WORDS}
  %ct = getelementptr i64, ptr %list, i64 %cw
  call void @clear_cells(ptr %ct)
  %ci1 = add i64 %ci, 1
  %cm = icmp ult i64 %ci1, %tiles
  br i1 %cm, label %clear, label %begun
begun:
  %pairs = icmp ne i64 %paired, 0
  br i1 %pairs, label %chunks, label %apart
chunks:
  %peer = getelementptr i8, ptr %host, i64 %stride
  %count = lshr i64 %count_a, 1
  %alike = call i64 @same_chunks(ptr %host, ptr %peer, ptr %indexa, i64 %count)
  %likes = icmp ne i64 %alike, 0
  br i1 %likes, label %sums, label %apart
sums:
  br i1 %adds, label %compare, label %twins
compare:
  %si = phi i64 [ 0, %sums ], [ %si1, %equal ]
  %sw = mul i64 %si, {TILE_WORDS}
  %sa = getelementptr i64, ptr %list, i64 %sw
  %sb = getelementptr i64, ptr %second, i64 %sw
  %seq = call i1 @same_cells(ptr %sa, ptr %sb)
  br i1 %seq, label %equal, label %apart
equal:
  %si1 = add i64 %si, 1
  %sm = icmp ult i64 %si1, %half
  br i1 %sm, label %compare, label %twins
twins:
  %rows_half = lshr i64 %rows_a, 1
  br label %pack
apart:
  br label %pack
pack:
  %rows = phi i64 [ %rows_half, %twins ], [ %rows_a, %apart ]
  %blocks = phi i64 [ %half, %twins ], [ %tiles, %apart ]
  call void %packa(ptr %left, ptr %host, ptr %indexa, i64 %rows, i64 %k, i64 {tile.panel})
  %isfresh = icmp ne i64 %fresh, 0
  br i1 %isfresh, label %packright, label %multiply
packright:
  call void %packb(ptr %right, ptr %host, ptr %indexb, i64 %rows_b, i64 %k, i64 {B_PANEL})
  br label %multiply
multiply:
  %i = phi i64 [ 0, %pack ], [ 0, %packright ], [ %i1, %multiply ]
  %iw = mul i64 %i, {TILE_WORDS}
  %it = getelementptr i64, ptr %list, i64 %iw
  %at = call i64 @word(ptr %it, i64 0)
  %pitch = call i64 @word(ptr %it, i64 1)
  %row = call i64 @word(ptr %it, i64 2)
  %column = call i64 @word(ptr %it, i64 3)
  %m = call i64 @word(ptr %it, i64 4)
  %n = call i64 @word(ptr %it, i64 5)
  %to = inttoptr i64 %at to ptr
  %rk = mul i64 %row, %k
  %ck = mul i64 %column, %k
  %pa = getelementptr float, ptr %left, i64 %rk
  %pb = getelementptr float, ptr %right, i64 %ck
  call void @product(ptr %to, i64 %pitch, ptr %pa, ptr %pb, i64 %m, i64 %n, i64 %k)
  %i1 = add i64 %i, 1
  %im = icmp ult i64 %i1, %blocks
  br i1 %im, label %multiply, label %repeat
repeat:
  %once = icmp eq i64 %blocks, %tiles
  br i1 %once, label %done, label %copy
copy:
  %ri = phi i64 [ 0, %repeat ], [ %ri1, %copy ]
  %rw = mul i64 %ri, {TILE_WORDS}
  %ra = getelementptr i64, ptr %list, i64 %rw
  %rb = getelementptr i64, ptr %second, i64 %rw
  call void @copy_cells(ptr %rb, ptr %ra)
  %ri1 = add i64 %ri, 1
  %rm = icmp ult i64 %ri1, %half
  br i1 %rm, label %copy, label %done
done:
  ret i64 %rows
}}"""
