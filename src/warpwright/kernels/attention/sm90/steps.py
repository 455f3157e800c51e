"""Steps that the Hopper attention kernels share: rings, masks, loads, products and stores."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpwright.kernels.attention.problem import PANEL
from warpwright.kernels.attention.sm90.plan import STRIP, Config
from warpwright.kernels.attention.sm90.softmax import HALVES
from warpwright.kernels.tiles import PACKED, WARP_ROWS, WARPS, WGMMA_BYTES, part, store_rows_to_smem, window
from warpwright.lang import (
    Expr,
    Global,
    If,
    Ring,
    Var,
    b32,
    cvt,
    f32,
    fence,
    ld,
    lg2,
    max,
    mbarrier,
    min,
    pack,
    role,
    s32,
    select,
    smem,
    st,
    tma,
    u32,
    var,
    warp,
    wgmma,
)
from warpwright.lang.fragment import Fragment
from warpwright.lang.ring import Cursor, Slot
from warpwright.lang.smem import Tile
from warpwright.types import Scalar

__all__ = [
    "LN2",
    "LOG2E",
    "CurrentTile",
    "Mask",
    "Rings",
    "apply_mask",
    "hide",
    "init_barriers",
    "issue_rs",
    "issue_ss",
    "load_when_empty",
    "pack_weights",
    "panel",
    "publish_when_empty",
    "read_item",
    "rescale",
    "schedule",
    "store_panels",
    "store_rows",
    "write_lse",
]

K = 16  # of a wgmma of 16-bit operands
LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
WORD_QUAD = 4  # words of an item that one ld or st moves
WORD, EVERY = 32, 0xFFFFFFFF  # bits


class Rings(NamedTuple):
    """The rings between the roles: items of ``work``, Q, K, V; ``o`` has only barriers, for O in the slots of Q."""

    work: Ring
    q: Ring
    o: Ring
    k: Ring
    v: Ring

    @staticmethod
    def of(config: Config, dtype: type[Scalar], words: int = 4, of_q: int = 1, of_work: int = 0) -> Rings:
        """Returns the rings of a CTA; an item of ``work`` has ``words`` words, a multiple of four.

        ``of_q`` and ``of_work`` threads arrive on empty of Q and of an item; by default one saves O, and it and one of
        each warp of the consumers read an item.
        """
        (queries, keys), consumers = config.tile, config.consumers
        shapes = (queries, config.head_dim), (keys, config.head_dim), (keys, config.columns)
        tiles = [smem.tile(dtype, shape, swizzle=panel(shape[1]) * dtype.nbytes) for shape in shapes]
        return Rings(
            work=Ring(2, empty=of_work or consumers * WARPS + 1, name="work", item=smem.tile(u32, (1, words))),
            q=Ring(config.q_stages, empty=of_q, name="q", q=tiles[0]),
            o=Ring(config.q_stages, full=consumers * WARPS, name="o"),
            k=Ring(config.stages, empty=consumers, name="k", k=tiles[1]),
            v=Ring(config.stages, empty=consumers, name="v", v=tiles[2]),
        )


def panel(head_dim: int) -> int:
    """Returns the columns of a panel: 64 (rows of 128 bytes), or 32 if 64 does not divide ``head_dim``."""
    return PANEL if head_dim % PANEL == 0 else PANEL // 2


def init_barriers(barriers: Iterable[Ring | mbarrier], maps: Sequence[tma.Map[Any]] = (), on_warp: int = 0) -> None:
    """Initialise all barriers and prefetch the maps, in one thread; the kernel's ``bar.sync()`` comes next."""

    @role(warp=on_warp, elect=True)
    def init() -> None:
        for barrier in barriers:
            barrier.init()
        fence.mbarrier_init()
        for each in maps:
            tma.prefetch_map(each)


@dataclass(frozen=True)
class Mask:
    """Which of ``kv_len`` keys a query sees: query i sees the keys from ``begin`` + i up to ``end`` + i, where given.

    ``begin`` and ``end`` (s32) are those of query 0. ``keys`` is the size of a key block.
    """

    kv_len: Expr
    begin: Expr | None
    end: Expr | None
    keys: int

    def first(self, row: Any) -> Any:
        """Returns the first key (u32) that query ``row`` sees; kv_len if it sees none; None without a left bound."""
        return None if self.begin is None else clamp(row.to(s32) + self.begin, 0, self.kv_len)

    def stop(self, row: Any) -> Any:
        """Returns the key (u32) after the last one that query ``row`` sees, 0 if it sees none."""
        return self.kv_len if self.end is None else clamp(row.to(s32) + self.end, 0, self.kv_len)

    def blocks(self, row: Any, queries: int) -> tuple[Any, Any]:
        """Returns the first key block that the queries from ``row`` on see, and the number of blocks, at least one."""
        stop = max(self.stop(row + (queries - 1)), 1)
        last = (stop - 1) // self.keys
        if self.begin is None:
            return 0, last + 1
        first = min(self.first(row) // self.keys, last)
        return first, last + 1 - first

    def runs(self, row: Any, first: Any, count: Any) -> list[tuple[bool, Any]]:
        """Returns the blocks after the last one, from right to left, as runs (whether to mask, where the run ends).

        The end of a run counts blocks from the last one. The warpgroup's 64 queries begin at ``row``.
        """
        stop, whole = first + count, 1
        ends: list[tuple[bool, Any]] = []
        if self.end is not None:
            whole = max(stop - min(max(self.stop(row) // self.keys, first), stop - 1), 1)
            ends.append((True, whole))
        if self.begin is not None:
            hidden = min((self.first(row + (STRIP - 1)) + (self.keys - 1)) // self.keys, stop - 1)
            ends.append((False, max(stop - max(hidden, first), whole)))
        return [*ends, (self.begin is not None, count)]


def clamp(key: Any, least: int, most: Any) -> Any:
    """Returns a key (s32) clamped to ``least`` … ``most``, u32."""
    return min(max(key, least), most.to(s32)).to(u32)


@dataclass(frozen=True)
class CurrentTile:
    """The tile that a consumer works on: first query, head among those of all batches, first key block, block count.

    The item after the last tile has no block. Without a left bound the first block is always 0.
    """

    row: Any
    head: Any
    first: Any
    count: Any

    @staticmethod
    def of(left_bound: bool) -> CurrentTile:
        """Returns registers for a tile, not set yet."""
        return CurrentTile(var(u32, 0), var(u32, 0), var(u32, 0) if left_bound else 0, var(u32, 0))

    def lse_rows(self, lse: Expr, q_len: Any) -> Any:
        """Returns where the log-sum-exp of the head's first query is, of ``q_len`` queries a head."""
        return Global(f32, lse) + self.head * q_len

    def set(self, words: Sequence[Any]) -> None:
        """Take the tile of an item, whose first words are the tile's."""
        for register, word in zip((self.row, self.head, self.first, self.count), words, strict=False):
            if isinstance(register, Var):
                register.set(word)


def schedule(number: Any, tiles: Any, section: Any, queries: int, last_first: bool) -> tuple[Any, Any]:
    """Returns the first query and the head of tile ``number``: ``section`` heads side by side, ``tiles`` each."""
    within, before = number % (section * tiles), number // (section * tiles) * section
    place, head = within // section, before + within % section
    return (tiles - 1 - place if last_first else place) * queries, head


def publish_when_empty(items: Cursor, words: Sequence[Any]) -> None:
    """Wait for the next empty item, write its words and arrive on its full barrier."""
    slot = next(items)
    slot.empty.wait()
    for first in range(0, len(words), WORD_QUAD):
        st(slot.item.at(0, first), *words[first : first + WORD_QUAD])
    slot.full.arrive()


def read_item(slot: Slot) -> tuple[Any, ...]:
    """Returns the words of an item, whose full barrier the caller waited for."""
    words = range(0, slot.item.shape[1], WORD_QUAD)
    return tuple(word for first in words for word in ld(slot.item.at(0, first), vec=WORD_QUAD))


def load_when_empty(cursor: Cursor, name: str, source: tma.Map[Scalar], *place: Any) -> None:
    """Wait for the next empty slot and load its tile ``name`` by TMA, which completes the slot's full barrier.

    The tile's rows begin at ``place``, the coordinates before the column; each panel is a box.
    """
    slot = next(cursor)
    slot.empty.wait()
    slot.full.arrive_expect_tx(slot.nbytes)
    tile: Tile = getattr(slot, name)
    width = tile.span // tile.dtype.nbytes
    for column in range(0, tile.shape[1], width):
        tma.load(tile[:, column : column + width], source[(*place, column)], slot.full)


def store_panels(tile: Tile, target: tma.Map[Scalar], *place: Any) -> None:
    """Issue the TMA stores of a tile, a box a panel, to the rows that begin at ``place``; the caller commits them."""
    width = tile.span // tile.dtype.nbytes
    for column in range(0, tile.shape[1], width):
        tma.store(target[(*place, column)], tile[:, column : column + width])


def issue_ss(acc: Fragment, a: Tile, strip: Any, b: Tile) -> None:
    """Issue ``acc`` = A·Bᵀ as one wgmma group, A the 64 rows of ``a`` with number ``strip``; both in shared memory."""
    rows = part(a, strip, STRIP, "k")
    wgmma.fence()
    for kk in range(0, b.shape[1], WGMMA_BYTES // b.dtype.nbytes):
        wgmma.mma(acc, window(rows, kk, "k"), window(b, kk, "k"), accumulate=kk > 0)
    wgmma.commit_group()


def issue_rs(
    acc: Fragment, a: Sequence[Any], b: Tile, accumulate: Any, major: str = "mn", steps: slice = slice(None)
) -> None:
    """Issue ``acc`` += A·B as one wgmma group, A in packed registers; ``acc`` = A·B where not ``accumulate``. B, or
    with ``major`` "k" its transpose, is in shared memory. ``steps`` are those of K, all by default."""
    wgmma.fence()
    every = range(0, b.shape[major == "k"], WGMMA_BYTES // b.dtype.nbytes)
    for number, kk in [*enumerate(every)][steps]:
        left = wgmma.left(b.dtype, a[4 * number : 4 * number + 4])
        wgmma.mma(acc, left, window(b, kk, major), accumulate=True if number else accumulate)
    wgmma.commit_group()


def apply_mask(
    mask: Mask, scores: Sequence[Any], row: Any, block: Any, apart: int = 8, by_words: bool = True
) -> list[Any]:
    """Returns the scores of the key block that begins at key ``block``, -inf where the query does not see the key.

    This thread's two rows are the queries ``row`` and ``row`` + ``apart``. ``by_words``: as of `hide`.
    """
    left, masked = (block + warp.lane % 4 * 2).to(s32), list(scores)
    for half in HALVES:
        query = row + apart * half
        first = None if mask.begin is None else mask.first(query).to(s32) - left
        hide(masked, half, first, mask.stop(query).to(s32) - left, by_words)
    return masked


def hide(scores: MutableSequence[Any], half: int, first: Any, stop: Any, by_words: bool = True) -> None:
    """Replace the scores of this thread's first or second row by -inf in the columns (s32) before ``first`` and from
    ``stop`` on, where these are not None; they count from the thread's own first column.

    ``by_words`` up to 32 columns are the bits of a word: R2P sets seven predicates from it, where a comparison sets
    one. R2P sets all predicates, so those in use take a register, which some kernels and wider tiles lack.
    """
    row = [v for v in range(len(scores)) if v >> 1 & 1 == half]
    word = seen_columns(first, stop) if by_words and len(row) <= WORD else None
    for bit, v in enumerate(row):
        seen = is_between(first, 8 * (bit // 2) + bit % 2, stop) if word is None else word & (1 << bit) != 0
        scores[v] = select(seen, scores[v], float("-inf"))


def is_between(first: Any, column: int, stop: Any) -> Any:
    """Returns whether ``first`` <= ``column`` < ``stop``, where these are not None."""
    if first is None or stop is None:
        return first <= column if stop is None else stop > column
    return (stop > column) & (first <= column)


def seen_columns(first: Any, stop: Any) -> Any:
    """Returns a word (u32) with a bit for each of this thread's columns of a row, whether it is one of ``first`` …
    ``stop`` - 1."""
    word: Any = None
    if stop is not None:
        word = (cvt(1, u32) << columns_before(stop)) - 1
    if first is not None:
        after = cvt(EVERY, u32) << columns_before(first)
        word = after if word is None else word & after
    return word


def columns_before(column: Any) -> Any:
    """Returns how many of this thread's columns of a row, two of each eight, are before ``column`` (s32), u32."""
    distance = max(column, 0).to(u32)
    return (distance >> 3) * 2 + min(distance & 7, 2)


def pack_weights(registers: Sequence[Var], weights: Sequence[Any], dtype: type[Scalar]) -> None:
    """Round the weights P to ``dtype`` and pack them into the A operand of PV."""
    for register, low, high in zip(registers, weights[::2], weights[1::2], strict=True):
        register.set(pack(PACKED[dtype], low, high).bitcast(b32))


def rescale(acc: Fragment, factors: Sequence[Any]) -> None:
    """Multiply each row of ``acc`` by its factor."""
    for v, register in enumerate(acc.regs):
        register.set(register * factors[v >> 1 & 1])


def store_rows(acc: Fragment, tile: Tile, index: Any) -> None:
    """Store this warp's 16 rows of ``acc`` to strip ``index`` of a tile of Q, which no QKᵀ reads any more."""
    strip, width = part(tile, index, WARP_ROWS, "k"), tile.span // tile.dtype.nbytes
    for left in range(0, tile.shape[1], width):
        store_rows_to_smem(strip[:, left : left + width], acc.regs[left // 2 : (left + width) // 2], True)


def write_lse(lse: Global[Any], row: Any, q_len: Any, shifts: Sequence[Any], totals: Sequence[Any]) -> None:
    """Write the log-sum-exp of this thread's rows ``row`` and ``row`` + 8; one thread of a quad does."""
    for half, (shift, total) in enumerate(zip(shifts, totals, strict=True)):
        at = row + 8 * half
        with If((at < q_len) & (warp.lane % 4 == 0)):
            lse[at] = (shift + lg2(total)) * LN2
