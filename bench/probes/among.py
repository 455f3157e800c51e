"""mma.sync with other work: arithmetic of the same warp and of others, the dependencies of a softmax, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from probes.harness import Bench, Measurement, summarise, time_block
from probes.issue import OPS
from probes.mma import FED, fill_smem, multiply_from_smem, multiply_loaded
from warpwright.kernels.attention.sm120.steps import pack_weights, reduce_tree
from warpwright.lang import (
    Expr,
    Global,
    If,
    Shared,
    b32,
    bar,
    bf16,
    bf16x2,
    clock64,
    ex2,
    f32,
    fence,
    fma,
    kernel,
    ldmatrix,
    loop,
    max,
    mbarrier,
    mma,
    pack,
    role,
    shfl,
    smem,
    tid,
    tma,
    u32,
    u64,
    var,
    warp,
)
from warpwright.types import Scalar

GROUP = 32  # MMAs of a round
SUMS = 8  # accumulators, used in turn
FOUR = 4  # MMAs for which instructions are counted, and boxes in flight
COLUMNS = 64  # of a box of bf16: 128 bytes a row, swizzled
CHAINS = 8  # of arithmetic
STEPS = 128  # of all chains in a round
LINKS = 16  # of a chain of latencies in a round
BLOCK = 4  # 16 x 16 blocks along the keys, and along the head dimension, of a round of the softmax

# name: (type of the chain, one step of a value, a constant and another constant)
Step = tuple[type[Scalar], Callable[[Any, Any, Any], Expr]]


def ignore_other(step: Callable[[Any, Any], Expr]) -> Callable[[Any, Any, Any], Expr]:
    return lambda x, k, _: step(x, k)


STEP: dict[str, Step] = {
    **{name: (kind, ignore_other(step)) for name, (kind, step, _) in OPS.items()},
    "fma_three": (f32, lambda x, k, other: fma(x, k, other)),
}

# instructions (of weigh and integer: steps of several instructions) for four MMAs
INTERLEAVED: dict[str, tuple[int, ...]] = {
    "fma_f32": (8, 16, 24, 48),
    "fma_three": (16, 24, 48),
    "max_f32": (4, 8, 12, 24),
    "pack_bf16": (8, 24),
    "integer": (4, 8, 16),
    "ex2": (1, 2, 3, 6),
    "shfl": (2, 4, 8),
    "weigh": (1, 2, 3, 6),
}
SPLIT = ("fma_f32", "fma_three", "max_f32", "ex2", "shfl", "weigh")
MIXES = ((0, 1), (0, 2), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3))  # warps of a scheduler: multiply, calculate
LINK = ("sums", "scale", "left", "fma_f32", "max_f32", "ex2", "shfl", "ldmatrix")
SOFTMAX = ("", "max", "exp", "max exp", "max exp scale", "load", "load max exp scale")


class Products:
    """MMAs of operands unknown to the assembler, added to ``SUMS`` accumulators in turn."""

    def __init__(self, seed: Any) -> None:
        words = [(seed + tid.x + i).bitcast(b32) for i in range(6)]
        self.left, self.right = mma.left(bf16, words[:4]), mma.right(bf16, words[4:])
        self.sums = [mma.accumulator(f32) for _ in range(SUMS)]

    def multiply(self, number: int) -> None:
        mma.sync(self.sums[number % SUMS], self.left, self.right)


class Arithmetic:
    """``CHAINS`` chains of one kind of step, a step of each in turn; every chain has its own two constants."""

    def __init__(self, op: str, seed: Any) -> None:
        kind, self.step = STEP[op]
        own = seed + tid.x  # the assembler would drop shuffles of a value that is equal in all lanes
        first = own.bitcast(f32) if kind is f32 else own
        self.values = [var(kind, first + i) for i in range(CHAINS)]
        apart = CHAINS if op == "fma_three" else 1
        self.constants = [first + (CHAINS + i) for i in range(apart)]
        self.others = [first + (2 * CHAINS + i) for i in range(apart)]

    def calculate(self, number: int) -> None:
        value, at = self.values[number % CHAINS], number % len(self.constants)
        value.set(self.step(value, self.constants[at], self.others[at]))


def write_clocks(out: Global[u64], start: Any) -> None:
    """Write the clock of this warp at ``start`` and now."""
    stop = clock64()
    with If(warp.lane == 0):
        out[2 * warp.id] = start
        out[2 * warp.id + 1] = stop


def keep_alive(values: Sequence[Any], sink: Global[u32]) -> None:
    """Use the values, so that the assembler keeps their computation."""
    for value in values:
        with If(value.bitcast(u32) == 0x12345):
            sink[tid.x] = 1


@kernel("sm_90a", threads=32)
def interleave(out: Global[u64], rounds: u32, seed: u32, sink: Global[u32], *, op="fma_f32", n=8, threads=32):
    """``n`` steps of arithmetic for four MMAs, spread evenly; they are independent of the MMAs."""
    products, arithmetic = Products(seed), Arithmetic(op, seed)
    with time_block(out):
        for _ in loop(rounds):
            for i in range(GROUP):
                products.multiply(i)
                for number in range(i * n // FOUR, (i + 1) * n // FOUR):
                    arithmetic.calculate(number)
    keep_alive([each.regs[0] for each in products.sums], sink)
    keep_alive(arithmetic.values, sink)


@kernel("sm_90a", threads=256)
def split(
    out: Global[u64],
    rounds: u32,
    steps: u32,
    seed: u32,
    sink: Global[u32],
    *,
    op="fma_f32",
    multiplying=1,
    calculating=1,
    threads=256,
):
    """On each scheduler some warps multiply and others calculate; cycles of each warp are written."""
    bar.sync()

    def multiply() -> None:
        products, start = Products(seed), clock64()
        for _ in loop(rounds):
            for i in range(GROUP):
                products.multiply(i)
        write_clocks(out, start)
        keep_alive([each.regs[0] for each in products.sums], sink)

    def calculate() -> None:
        arithmetic, start = Arithmetic(op, seed), clock64()
        for _ in loop(steps):
            for number in range(STEPS):
                arithmetic.calculate(number)
        write_clocks(out, start)
        keep_alive(arithmetic.values, sink)

    if multiplying:
        role(warps=range(4 * multiplying))(multiply)
    role(warps=range(4 * multiplying, 4 * (multiplying + calculating)))(calculate)


@kernel("sm_90a", threads=288)
def copy_beside(
    out: Global[u64], rounds: u32, boxes: u32, x: tma.Map[bf16], flip: u32, sink: Global[f32], *, threads=288, rows=64
):
    """Two warps of a scheduler multiply operands from ldmatrix, while TMA fills other memory, four boxes in flight."""
    place, targets = fill_smem(threads), [smem.tile(bf16, (rows, COLUMNS), swizzle=128) for _ in range(FOUR)]
    full = mbarrier.array(FOUR, name="full")
    with If(tid.x == 0):
        for barrier in full:
            barrier.init()
        fence.mbarrier_init()
    bar.sync()

    def issue_load(number: int) -> None:
        full[number].arrive_expect_tx(targets[number].nbytes)
        tma.load(targets[number], x[number * rows, 0], full[number])

    @role(warps=range(8))
    def multiply() -> None:
        start = clock64()
        sums = multiply_from_smem(place, rounds, flip)
        write_clocks(out, start)
        for each in sums:
            with If(each.regs[0] == 12345.0):
                sink[tid.x] = each.regs[0]

    @role(warp=8)
    def copy() -> None:
        start, leads = clock64(), warp.lane == 0
        with If(leads & (boxes > 0)):
            for number in range(FOUR):
                issue_load(number)
            for k in loop(boxes):
                for number in range(FOUR):
                    full[number].wait(k & 1)
                    issue_load(number)
            for barrier in full:
                barrier.wait(boxes & 1)
        write_clocks(out, start)


@kernel("sm_90a", threads=32)
def chain(out: Global[u64], rounds: u32, seed: u32, flip: u32, sink: Global[u32], *, link="sums", threads=32):
    """Each MMA depends on a value computed from the previous result; ``flip`` is 0, unknown to the assembler."""
    place = fill_smem(threads)
    products, arithmetic = Products(seed), Arithmetic(link if link in STEP else "fma_f32", seed)
    first, second, third = (var(b32, word) for word in (products.left.regs[0], *products.right.regs))
    left, right = mma.left(bf16, [first, *products.left.regs[1:]]), mma.right(bf16, [second, third])
    constant, other = arithmetic.constants[0], arithmetic.others[0]
    with time_block(out):
        for _ in loop(rounds):
            for _ in range(LINKS):
                acc = products.sums[0] if link in ("sums", "scale") else mma.accumulator(f32)
                mma.sync(acc, left, right)
                value = acc.regs[0]
                if link == "scale":
                    for register in acc.regs:
                        register *= constant
                elif link == "left":
                    first.set(pack(bf16x2, value, acc.regs[1]).bitcast(b32))
                elif link == "ldmatrix":
                    words = ldmatrix(Shared(b32, place + (value.bitcast(u32) & flip)), 4)
                    second.set(words[0])
                    third.set(words[1])
                elif link == "shfl":
                    second.set(shfl.bfly(value, 1).bitcast(b32))
                elif link != "sums":
                    second.set(STEP[link][1](value, constant, other).bitcast(b32))
    keep_alive([first, second, third, *products.sums[0].regs], sink)


@kernel("sm_90a", threads=32)
def softmax(out: Global[u64], rounds: u32, seed: u32, flip: u32, sink: Global[u32], *, parts="", threads=32):
    """A block of attention in a warp: 16 rows, 64 keys, head dimension 64; of the softmax what ``parts`` names.

    ``load``: one ldmatrix.x4 loads the B operands of two MMAs, else they stay in registers; ``max``: the maximum of
    each row, also over the lanes that share the row; ``exp``: weights are computed from scores and added to the totals;
    ``scale``: outputs and totals are rescaled. Weights are always rounded.
    """
    has = parts.split()
    place, factor = fill_smem(threads), (seed + tid.x).bitcast(f32)
    words = [[var(b32, (seed + tid.x + 8 * k + i).bitcast(b32)) for i in range(4)] for k in range(BLOCK)]
    fixed = [[(seed + tid.x + 4 * n + i).bitcast(b32) for i in range(4)] for n in range(BLOCK)]
    outputs = [mma.accumulator(f32) for _ in range(2 * BLOCK)]
    maxima, totals = ([var(f32, factor) for _ in range(2)] for _ in range(2))

    def multiply(sums: list[Any], lefts: list[Any], first: int) -> None:
        for k, left in enumerate(lefts):
            for n in range(BLOCK):
                number = first + k * BLOCK + n
                operand = ldmatrix(Shared(b32, place) + number * 128, 4) if "load" in has else fixed[n]
                for half in range(2):
                    mma.sync(sums[2 * n + half], left, mma.right(bf16, operand[2 * half : 2 * half + 2]))

    with time_block(out):
        for _ in loop(rounds):
            sums = [mma.accumulator(f32) for _ in range(2 * BLOCK)]
            multiply(sums, [mma.left(bf16, each) for each in words], 0)
            compute_softmax(has, sums, outputs, maxima, totals, factor)
            multiply(outputs, pack_weights(sums, bf16), BLOCK * BLOCK)
            place ^= flip
            for each in words:
                each[0].set((each[0].bitcast(u32) ^ flip).bitcast(b32))
    keep_alive([each.regs[i] for each in outputs for i in range(4)], sink)
    keep_alive([*maxima, *totals], sink)


def compute_softmax(
    has: list[str], sums: list[Any], outputs: list[Any], maxima: list[Any], totals: list[Any], k: Any
) -> None:
    """The softmax of the two rows of a thread, restricted to the named parts."""
    for half in range(2):
        scores = [block.regs[2 * half + i] for block in sums for i in range(2)]
        top = maxima[half]
        if "max" in has:
            top = reduce_tree(max, [maxima[half], *scores])
            for distance in (1, 2):
                top = max(top, shfl.bfly(top, distance))
        shift = top * -k
        fade = ex2(fma(maxima[half], k, shift)) if "scale" in has else k
        maxima[half].set(top)
        if "exp" in has:
            for score in scores:
                score.set(ex2(fma(score, k, shift)))
            totals[half].set(fma(totals[half], fade, reduce_tree(lambda a, b: a + b, scores)))
        if "scale" in has:
            for output in outputs:
                for i in range(2):
                    output.regs[2 * half + i] *= fade


def measure(bench: Bench) -> Iterator[Measurement]:
    sink = bench.array((1024,), "u32")
    for parts in (same_warp, other_warps, latencies, operand_loads, beside_copies, softmaxes):
        yield from parts(bench, sink)


def same_warp(bench: Bench, sink: Any) -> Iterator[Measurement]:
    for op, counts in bench.pick(INTERLEAVED, {"max_f32": (4,)}).items():
        for n in counts:
            for warps in bench.pick((4, 8), (4,)):
                probe = interleave.configure(op=op, n=n, threads=32 * warps)
                cycles = bench.slope(probe, [0x3F800001, sink], per=GROUP / FOUR * warps / 4)
                how = f"four products and {n} steps, {warps // 4} warps a scheduler, of a scheduler"
                yield summarise(f"woven.{op}.{n}.{warps}_warps", cycles, "cycles", how)


def other_warps(bench: Bench, sink: Any) -> Iterator[Measurement]:
    """Each role is timed while the other runs longer."""
    few, rounds, steps = bench.pick((24, 24 * 24, 8 * 24), (1, 1, 1))  # a step of ex2 takes that much longer
    for op in bench.pick(SPLIT, ("max_f32",)):
        for multiplying, calculating in bench.pick(MIXES, ((1, 1),)):
            warps = 4 * (multiplying + calculating)
            probe = split.configure(op=op, multiplying=multiplying, calculating=calculating, threads=32 * warps)
            roles = {"multiply": range(4 * multiplying), "calculate": range(4 * multiplying, warps)}
            name = f"split.{op}.{multiplying}_to_{calculating}"
            how = f"{multiplying} warps of a scheduler multiply, {calculating} calculate, of a scheduler"
            for role_name, counts, done in (
                ("calculate", (rounds, few), few * STEPS * calculating),
                ("multiply", (few, steps), few * GROUP * multiplying),
            )[: 1 + bool(multiplying)]:
                own = {role_name: roles[role_name]}
                cycles = [each / done for each in bench.by_role(probe, [*counts, 0x3F800001, sink], own)[role_name]]
                unit = "cycles/step" if role_name == "calculate" else "cycles/product"
                yield summarise(f"{name}.{role_name}", cycles, unit, how)


def latencies(bench: Bench, sink: Any) -> Iterator[Measurement]:
    for link in bench.pick(LINK, ("left", "ldmatrix")):
        cycles = bench.slope(chain.configure(link=link), [0x3F800001, 0, sink], per=LINKS)
        yield summarise(f"chain.{link}", cycles, "cycles", "from a product to the next, which needs a sum of it")


def operand_loads(bench: Bench, sink: Any) -> Iterator[Measurement]:
    for each, trans in bench.pick(((2, True), (4, False), (8, False)), ((4, True),)):
        for warps in bench.pick((1, 4, 8), (1,)):
            probe = multiply_loaded.configure(each=each, trans=trans, threads=32 * warps)
            cycles = bench.slope(probe, [0, bench.array((1024,), "f32")], per=2 * FED * max(1, warps / 4))
            how = f"an ldmatrix.x4{'.trans' if trans else ''} for {each}, {warps} warps, of a scheduler"
            name = f"mma.m16n8k16.fed_{each}{'_trans' if trans else ''}.{warps}_warps"
            yield summarise(name, cycles, "cycles/instruction", how)


def beside_copies(bench: Bench, sink: Any) -> Iterator[Measurement]:
    """MMAs and copies, each alone and while the other runs longer."""
    x, sums = bench.normal((256, COLUMNS)), bench.array((1024,), "f32")
    roles = {"multiply": range(8), "copy": range(8, 9)}
    few, rounds, boxes = bench.pick((48, 512, 512), (1, 2, 2))
    for name, counts, done in (
        ("multiply.alone", (few, 0), few * 2 * FED * 2),
        ("multiply", (few, boxes), few * 2 * FED * 2),
        ("copy.alone", (1, few), few * FOUR),
        ("copy", (rounds, few), few * FOUR),
    ):
        cycles = bench.by_role(copy_beside, [*counts, x, 0, sums], roles)[name.partition(".")[0]]
        what = "of a scheduler" if name.startswith("multiply") else "a box of 8 KB"
        how = f"an ldmatrix.x4 for two products, two warps a scheduler, while TMA writes; {what}"
        yield summarise(f"copied.{name}", [each / done for each in cycles], "cycles", how)


def softmaxes(bench: Bench, sink: Any) -> Iterator[Measurement]:
    for parts in bench.pick(SOFTMAX, ("load max exp scale",)):
        for warps in bench.pick((4, 8, 12, 16), (4,)):
            cycles = bench.slope(
                softmax.configure(parts=parts, threads=32 * warps), [0x3F800001, 0, sink], per=warps / 4
            )
            how = f"64 products and what is named, {warps // 4} warps a scheduler, of a scheduler"
            yield summarise(f"softmax.{'_'.join(['products', *parts.split()])}.{warps}_warps", cycles, "cycles", how)
