"""Barriers, mbarriers, fences and waits of lane code (PTX ISA 9.1 sections 9.7.13.1 to 9.7.13.4, 9.7.13.15).

An mbarrier operation updates the object in shared memory at once. A lane that waits is marked blocked and resumes at
the next block when the machine, or `wake`, unblocks it; ``try_wait`` then returns false once and the kernel's own loop
retries.
"""

from __future__ import annotations

from warpwright.vgpu.jit import record
from warpwright.vgpu.jit.control import converge
from warpwright.vgpu.jit.lanes import Lanes, meaning
from warpwright.vgpu.jit.memory import address, translate
from warpwright.vgpu.jit.state import (
    LANES,
    OFFSETS,
    WAIT_BAR,
    WAIT_BULK,
    WAIT_CLUSTER,
    WAIT_MBARRIER,
)
from warpwright.vgpu.program.program import Inst, Operand, Register

__all__ = ["BAR_ARRIVE", "block", "one_more", "operand_slot", "refuse"]

# Role of a lane at a named barrier, stored above the thread count in its wait argument (`bars.ll`).
BAR_SYNC, BAR_ARRIVE, BAR_RED = 0, 1, 2
_BAR_OPS = {"popc": 1, "and": 2, "or": 3}

# Fields of an mbarrier word (`mbarrier.ll`).
_TAG, _PENDING, _BYTES = 1 << 63, ((1 << 20) - 1) << 1, ((1 << 21) - 1) << 41


def operand_slot(index: int) -> int:
    """Offset of the lanes' operand ``index`` (64 bits a lane) in the warp's state."""
    return OFFSETS["operands"] + 8 * LANES * index


def _operands(lanes: Lanes, *values: str) -> None:
    for index, value in enumerate(values):
        lanes.store("<32 x i64>", value, operand_slot(index))


def block(lanes: Lanes, kind: int, mask: str, following: int) -> None:
    """Block the lanes of ``mask`` and resume them at block ``following``; the dispatcher runs other lanes. Ends the
    block."""
    if following > lanes.block and kind != WAIT_MBARRIER:
        record.spend(lanes)
    lanes.emit(f"call void @set_pc(ptr %w, i32 {lanes.block_mask}, i32 {following})")
    lanes.emit(f"call void @block(ptr %w, i32 {mask}, i32 {kind})")
    lanes.emit("br label %dispatch")
    lanes.ended = True


def _bar(lanes: Lanes, inst: Inst, how: int, vote: str = "") -> None:
    number, threads = lanes.resize(lanes.integer(inst.operand("a"), 32), 32, 64), inst.find("b")
    count = lanes.resize(lanes.integer(threads, 32), 32, 64) if threads is not None else lanes.splat(0, 64)
    word = lanes.op(f"or <32 x i64> {count}, {lanes.splat(how << 32, 64)}")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    lanes.store("<32 x i64>", number, OFFSETS["addr"])
    _operands(lanes, _with_vote(lanes, inst, word, vote) if vote else word)
    record.bar(lanes, inst, record.first_value(lanes, number), record.first_value(lanes, word))
    block(lanes, WAIT_BAR, lanes.mask, lanes.block + 1)


def _with_vote(lanes: Lanes, inst: Inst, word: str, vote: str) -> str:
    """The wait argument of bar.red. A result that nothing reads has no place in the warp's state."""
    target = inst.operand("d")
    place = lanes.slots.get(target.name, 0) if isinstance(target, Register) else 0
    how = (_BAR_OPS[inst["op"]] << 35 | place // 4 << 37) if place else 0
    yes, no = lanes.splat(how | 1 << 34, 64), lanes.splat(how, 64)
    bits = lanes.op(f"select <32 x i1> {vote}, <32 x i64> {yes}, <32 x i64> {no}")
    return lanes.op(f"or <32 x i64> {word}, {bits}")


@meaning("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync")
def bar_sync(lanes: Lanes, inst: Inst) -> None:
    _bar(lanes, inst, BAR_SYNC)


@meaning("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive")
def bar_arrive(lanes: Lanes, inst: Inst) -> None:
    _bar(lanes, inst, BAR_ARRIVE)


@meaning("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red")
def bar_red(lanes: Lanes, inst: Inst) -> None:
    _bar(lanes, inst, BAR_RED, lanes.read(inst.operand("c"), "pred"))


@meaning("barrier.cluster.arrive", "barrier.cluster.wait")
def barrier_cluster(lanes: Lanes, inst: Inst) -> None:
    """The aligned forms are for the whole warp: its lanes gather first."""
    if inst.has("aligned"):
        converge(lanes, "-1")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    _operands(lanes, lanes.splat(int(inst.name.endswith("wait")), 64))
    record.row(lanes, inst)
    waiting = lanes.mask
    if lanes.costs and inst.name.endswith("arrive"):
        waiting = lanes.op(f"call i32 @cluster_arrive(ptr %w, i32 {lanes.mask})")
    block(lanes, WAIT_CLUSTER, waiting, lanes.block + 1)


@meaning(
    "membar", "membar.proxy", "fence", "fence.mbarrier_init", "fence.proxy.alias", "fence.proxy.async",
    "fence.proxy.tensormap::generic", "fence.proxy.async::generic", "tcgen05.fence::before_thread_sync",
    "tcgen05.fence::after_thread_sync", "nanosleep", "pmevent", "griddepcontrol.wait",
    "griddepcontrol.launch_dependents", "prefetch.tensormap",
)  # fmt: skip
def ordered(lanes: Lanes, inst: Inst) -> None:
    """No effect: lane code runs in program order and one warp at a time."""
    if inst.name not in ("nanosleep", "pmevent", "prefetch.tensormap"):
        record.order(lanes, inst)


def _translate(lanes: Lanes, inst: Inst) -> None:
    translate(lanes, inst, address(lanes, inst.operand("mbar")), inst["space"], 8)


@meaning("mbarrier.init")
def mbarrier_init(lanes: Lanes, inst: Inst) -> None:
    """Phase 0, pending and expected arrivals = count, no bytes expected."""
    _translate(lanes, inst)
    count = lanes.resize(lanes.integer(inst.operand("count"), 32), 32, 64)
    _count_in_range(lanes, count)
    pending = lanes.op(f"shl <32 x i64> {count}, {lanes.splat(1, 64)}")
    expected = lanes.op(f"shl <32 x i64> {count}, {lanes.splat(21, 64)}")
    word = lanes.op(f"or <32 x i64> {lanes.op(f'or <32 x i64> {pending}, {expected}')}, {lanes.splat(_TAG, 64)}")
    lanes.emit(f"call void @scatter64(ptr %w, i32 {lanes.mask}, i64 0, <32 x i64> {word})")
    _record(lanes, inst, count)


def _record(lanes: Lanes, inst: Inst, count: str) -> None:
    """Record an instruction that sets a barrier."""
    if lanes.costs or lanes.watched:
        _operands(lanes, count, lanes.splat(0, 64), lanes.splat(0, 64))
        record.barriers(lanes, inst, sets=True)


def _count_in_range(lanes: Lanes, count: str) -> None:
    less = lanes.op(f"sub <32 x i64> {count}, {lanes.splat(1, 64)}")
    bad = lanes.op(f"icmp uge <32 x i64> {less}, {lanes.splat((1 << 20) - 1, 64)}")
    refuse(lanes, bad, "mbarrier_init", count)


def refuse(lanes: Lanes, bad: str, kind: str, shown: str) -> None:
    """Raise a fault if ``bad`` (<32 x i1>) is true for an active lane; the error shows that lane's value of
    ``shown``."""
    bits = lanes.op(f"and i32 {lanes.mask_of(bad)}, {lanes.mask}")
    refuse, good = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {bits}, 0')}, label %{good}, label %{refuse}")
    lanes.emit(f"{refuse}:")
    lanes.store("<32 x i64>", shown, OFFSETS["addr"])
    lanes.op(f"call i1 @fault(ptr %w, i32 {bits}, i32 {lanes.faults[kind]})")
    lanes.emit("br label %fault")
    lanes.emit(f"{good}:")


def _check_not_last(lanes: Lanes, count: str) -> None:
    """Check that a .noComplete arrival is not the phase's last (PTX ISA 9.1 section 9.7.13.15.13)."""
    word = lanes.op(f"call <32 x i64> @gather64(ptr %w, i32 {lanes.mask}, i64 0)")
    left = lanes.op(f"and <32 x i64> {word}, {lanes.splat(_PENDING | _BYTES, 64)}")
    last = lanes.op(f"icmp eq <32 x i64> {left}, {lanes.op(f'shl <32 x i64> {count}, {lanes.splat(1, 64)}')}")
    refuse(lanes, last, "mbarrier_closes", lanes.load("<32 x i64>", OFFSETS["addr"]))


@meaning("mbarrier.inval")
def mbarrier_inval(lanes: Lanes, inst: Inst) -> None:
    _translate(lanes, inst)
    lanes.emit(f"call void @scatter64(ptr %w, i32 {lanes.mask}, i64 0, <32 x i64> zeroinitializer)")
    _record(lanes, inst, lanes.splat(0, 64))


def _update(lanes: Lanes, inst: Inst, count: str, expect: str, complete: str, drop: str) -> str:
    """Apply one operation of each lane in turn to its barrier; returns the words before it, the state tokens."""
    _apply(lanes, count, expect, complete, drop)
    record.barriers(lanes, inst)
    lanes.event()
    return lanes.load("<32 x i64>", OFFSETS["scratch"])


def _apply(lanes: Lanes, *numbers: str) -> None:
    _operands(lanes, *numbers)
    lanes.check(lanes.op(f"call i1 @mbarrier_lanes(ptr %w, i32 {lanes.mask})"))


def one_more(lanes: Lanes, inst: Inst) -> None:
    """Increment the pending count of the barrier's current phase."""
    _translate(lanes, inst)
    zero = lanes.splat(0, 64)
    _apply(lanes, lanes.splat(-1, 64), zero, zero, zero)


def _number(lanes: Lanes, operand: Operand | None) -> str:
    """A count as ``<32 x i64>``, "" if absent."""
    return lanes.resize(lanes.integer(operand, 32), 32, 64) if operand is not None else ""


@meaning("mbarrier.expect_tx", "mbarrier.complete_tx")
def mbarrier_tx(lanes: Lanes, inst: Inst) -> None:
    nbytes = lanes.resize(lanes.integer(inst.operand("tx_count"), 32), 32, 64)
    zero = lanes.splat(0, 64)
    expect, complete = (nbytes, zero) if inst.name == "mbarrier.expect_tx" else (zero, nbytes)
    _translate(lanes, inst)
    _update(lanes, inst, zero, expect, complete, zero)


@meaning(
    "mbarrier.arrive", "mbarrier.arrive.expect_tx", "mbarrier.arrive.noComplete", "mbarrier.arrive_drop",
    "mbarrier.arrive_drop.expect_tx", "mbarrier.arrive_drop.noComplete",
)  # fmt: skip
def mbarrier_arrive(lanes: Lanes, inst: Inst) -> None:
    """Without a count, and with ``expect_tx``, a lane arrives once."""
    one, zero = lanes.splat(1, 64), lanes.splat(0, 64)
    count, expect = (_number(lanes, inst.find(name)) for name in ("count", "tx_count"))
    _translate(lanes, inst)
    if count:
        _count_in_range(lanes, count)
    drop = (count or one) if "arrive_drop" in inst.name else zero
    if inst.name.endswith("noComplete"):
        _check_not_last(lanes, count)
    count, expect = count or one, expect or zero
    token = _update(lanes, inst, count, expect, zero, drop)
    lanes.write(inst.operand("d"), token, "b64")


@meaning("mbarrier.pending_count")
def mbarrier_pending_count(lanes: Lanes, inst: Inst) -> None:
    shifted = lanes.op(f"lshr <32 x i64> {lanes.integer(inst.operand('state'), 64)}, {lanes.splat(1, 64)}")
    count = lanes.op(f"and <32 x i64> {shifted}, {lanes.splat((1 << 20) - 1, 64)}")
    lanes.write(inst.operand("d"), lanes.resize(count, 64, 32), "u32")


@meaning("mbarrier.test_wait", "mbarrier.test_wait.parity", "mbarrier.try_wait", "mbarrier.try_wait.parity")
def mbarrier_wait(lanes: Lanes, inst: Inst) -> None:
    """A token has its phase in bit 0, so both kinds of wait compare one bit."""
    _translate(lanes, inst)
    parity = inst.find("parity")
    _operands(lanes, _number(lanes, parity) if parity else lanes.integer(inst.operand("state"), 64))
    lanes.store("i32", "0", OFFSETS["fault"])
    done = lanes.op(f"call i32 @mbarrier_test(ptr %w, i32 {lanes.mask})")
    lanes.check(lanes.op(f"icmp eq i32 {lanes.load('i32', OFFSETS['fault'])}, 0"))
    if lanes.observed:
        lanes.store("<32 x i64>", lanes.spread("i64", lanes.resize_scalar(done, 32, 64)), operand_slot(5))
    lanes.event()
    record.wait(lanes, inst, done)
    lanes.write(inst.operand("p"), lanes.op(f"bitcast i32 {done} to <32 x i1>"), "pred")
    waiting = lanes.op(f"and i32 {lanes.mask}, {lanes.op(f'xor i32 {done}, -1')}")
    if not inst.traits.blocks:
        return
    blocked, ready = lanes.name(), lanes.name()
    lanes.emit(f"br i1 {lanes.op(f'icmp eq i32 {waiting}, 0')}, label %{ready}, label %{blocked}")
    lanes.emit(f"{blocked}:")
    block(lanes, WAIT_MBARRIER, waiting, lanes.block + 1)
    lanes.ended = False
    lanes.emit(f"{ready}:")


def _group_fields(inst: Inst) -> tuple[str, str]:
    """Bulk copies and plain cp.async copies have separate groups."""
    return ("groups", "uncommitted") if inst.traits.queue == "copy" else ("lane_groups", "lane_uncommitted")


@meaning("cp.async.bulk.commit_group", "cp.async.commit_group")
def commit_group(lanes: Lanes, inst: Inst) -> None:
    """Close the thread's group, even an empty one: wait_group counts groups."""
    committed, uncommitted = _group_fields(inst)
    active = f"select <32 x i1> {lanes.active}, <32 x i32>"
    open_ = lanes.load("<32 x i32>", OFFSETS[uncommitted])
    groups = lanes.load("<32 x i32>", OFFSETS[committed])
    busy = lanes.op(f"icmp ne <32 x i32> {lanes.op(f'or <32 x i32> {open_}, {groups}')}, zeroinitializer")
    more = lanes.op(f"add <32 x i32> {groups}, {lanes.op(f'zext <32 x i1> {busy} to <32 x i32>')}")
    lanes.store("<32 x i32>", lanes.op(f"{active} {more}, <32 x i32> {groups}"), OFFSETS[committed])
    lanes.store("<32 x i32>", lanes.op(f"{active} zeroinitializer, <32 x i32> {open_}"), OFFSETS[uncommitted])
    record.row(lanes, inst)


@meaning("cp.async.bulk.wait_group", "cp.async.wait_group", "cp.async.wait_all")
def wait_group(lanes: Lanes, inst: Inst) -> None:
    """Completed groups are not counted, so a lane waits only while one is in flight."""
    number = inst.number("n")
    committed, uncommitted = _group_fields(inst)
    groups = lanes.load("<32 x i32>", OFFSETS[committed])
    if not inst.find("n"):
        groups = lanes.op(f"or <32 x i32> {groups}, {lanes.load('<32 x i32>', OFFSETS[uncommitted])}")
    over = lanes.op(f"icmp ugt <32 x i32> {groups}, {lanes.splat(number, 32)}")
    waiting = lanes.op(f"and i32 {lanes.mask}, {lanes.mask_of(over)}")
    lanes.store("i32", str(inst.index), OFFSETS["inst"])
    record.row(lanes, inst, str(number))
    block(lanes, WAIT_BULK, record.waiting_lanes(lanes, waiting), lanes.block + 1)
