"""The sentences of run-time errors: who did what, what was wrong, and what mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warpwright.errors import DeviceError, MemoryFault, ProtocolError, UnsupportedInstruction, WarpwrightError
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import (
    FAULTS,
    LOCAL_WINDOW,
    RANK_SHIFT,
    RESERVED_SHARED,
    SHARED_WINDOW,
    WAIT_BAR,
    WAIT_BULK,
    WAIT_CLUSTER,
    WAIT_MBARRIER,
    WAIT_SERVICE,
    WAIT_WGMMA,
)
from warpwright.vgpu.program.program import Inst, place

if TYPE_CHECKING:
    from warpwright.vgpu.machine.cluster import Cluster

__all__ = ["at_exit", "deadlock", "error", "fault", "fields", "mbarrier", "waiting_at", "waits_for", "who"]

_WINDOWS = {SHARED_WINDOW >> 32: "shared", LOCAL_WINDOW >> 32: "local"}


def who(cluster: Cluster, inst: Inst, index: int, lane: int) -> str:
    """``file:line: `opcode`: kernel k, CTA (x, y, z), warp w, lane l``."""
    rank, warp = divmod(index, cluster.per_cta)
    cta = cluster.launch.cta_of(cluster.first, rank)
    thread = f"warp {warp}, lane {lane}" if lane >= 0 else f"warp {warp}"
    return f"{place(inst)}: `{inst.opcode}`: kernel {cluster.launch.name}, CTA {cta}, {thread}"


def error(
    kind: type[WarpwrightError], cluster: Cluster, inst: Inst, index: int, lane: int, reason: str
) -> WarpwrightError:
    """An error of a thread (of a warp, where ``lane`` is -1) at an instruction."""
    made = kind(f"{who(cluster, inst, index, lane)}: {reason}")
    made.at, made.reason = (inst.index, 32 * index + max(lane, 0)), reason
    return made


def at_exit(
    kind: type[WarpwrightError], cluster: Cluster, op: Op, what: str, reason: str, warp: int = -1
) -> WarpwrightError:
    """The error of what a CTA, or a warp of it, owes when it exits; ``op`` began it, ``what`` says how."""
    whose = f", warp {warp}" if warp >= 0 else ""
    made = kind(f"kernel {cluster.launch.name}, CTA {cluster.launch.cta_of(cluster.first, op.rank)}{whose} {reason}")
    made.at = op.inst.index, 32 * (op.rank * cluster.per_cta + op.warp) + max(op.lane, 0)
    made.what, made.reason = what, f"warp {warp} {reason}" if warp >= 0 else f"the CTA {reason}"
    return made


def fault(cluster: Cluster, index: int) -> WarpwrightError:
    """The error for what lane code or a routine recorded in a warp's state."""
    warp = cluster.warps[index]
    inst = cluster.launch.insts[int(warp["inst"])]
    kind = FAULTS[int(warp["fault"])]
    lane, address = int(warp["fault_lane"]), int(warp["fault_addr"])
    message = cluster.launch.kernel.messages.get(inst.index)
    if kind == "unsupported" and message:
        return UnsupportedInstruction(message)
    found, reason = _told(cluster, inst, index, kind, address)
    return error(found, cluster, inst, index, lane, reason)


def _told(cluster: Cluster, inst: Inst, index: int, kind: str, address: int) -> tuple[type[DeviceError], str]:
    """Class and reason of a fault."""
    if kind in ("bounds", "misaligned", "rank"):
        return MemoryFault, _access(cluster, inst, kind, address)
    if kind == "trap":
        return DeviceError, "the kernel executed trap."
    if kind == "mbarrier_init":
        return ProtocolError, f"count {address}; expected 1 to {2**20 - 1} arrivals."
    if kind.startswith("tmem"):
        return ProtocolError, _tensor_memory(kind, address, index % cluster.per_cta)
    return ProtocolError, mbarrier(kind, cluster, *divmod(address - cluster.shared_host, cluster.shared_stride))


def _access(cluster: Cluster, inst: Inst, kind: str, address: int) -> str:
    given = f"address 0x{address & (1 << 64) - 1:x}"
    if kind == "misaligned":
        return f"{given} is not aligned to the size of the access."
    space = _WINDOWS.get(address >> 32, "global") if not inst["space"] else inst["space"].partition("::")[0]
    rank, offset = (address & 0xFFFF_FFFF) >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)
    if kind == "rank":
        return f"{given} belongs to CTA {rank} of a cluster of {cluster.ranks}."
    if space == "shared":
        if RESERVED_SHARED <= offset < cluster.shared_limit and rank < cluster.ranks:
            return f"{given} is shared memory of CTA {rank}; .shared::cta reaches the CTA's own: use .shared::cluster."
        return (
            f"{given} is outside shared memory, bytes 0x{RESERVED_SHARED:x} to 0x{cluster.shared_limit:x} of each CTA."
        )
    if space == "local":
        return f"{given} is outside the {cluster.launch.kernel.program.local_bytes} bytes of local memory."
    return f"{given} is outside global memory: {cluster.launch.memory.describe(address)}."


def _tensor_memory(kind: str, address: int, warp: int) -> str:
    lane, column = address >> 16, address & 0xFFFF
    if kind == "tmem_lane":
        return (
            f"the access cannot begin at tensor memory lane {lane}; expected the first lane of a quarter, or its 17th "
            "for shapes of 16 lanes."
        )
    if kind == "tmem_quarter":
        own = 32 * (warp % 4)
        return (
            f"tensor memory lane {lane} is not one of this warp's, {own} to {own + 31}; add {own} << 16 to the address."
        )
    return (
        f"tensor memory columns from {column} on are not allocated; allocate them with tcgen05.alloc before, and free "
        "them after."
    )


def mbarrier(kind: str, cluster: Cluster, rank: int, offset: int) -> str:
    """What is wrong with an mbarrier operation."""
    where = f"the mbarrier at offset 0x{offset:x} of CTA {rank}"
    if kind == "mbarrier_invalid":
        return f"{where} is not initialised: run mbarrier.init there, and synchronise, before it is used."
    fields = describe_word(cluster, rank, offset)
    if kind == "mbarrier_closes":
        return (
            f"{where} ({fields}) would complete its phase, which an arrival with .noComplete must not; "
            "arrive without it."
        )
    if kind == "mbarrier_count":
        return f"{where} got more arrivals than its phase has pending ({fields}); raise its count, or drop an arrival."
    return f"{where} ({fields}) would leave the range of its transaction count, +-{2**20 - 1} bytes."


def fields(cluster: Cluster, rank: int, offset: int) -> tuple[int, int, int, int]:
    """Phase, pending arrivals, expected arrivals and pending bytes of an mbarrier."""
    word = int.from_bytes(cluster.shared[rank, offset : offset + 8].tobytes(), "little")
    tx = word >> 41 & 0x1F_FFFF
    return word & 1, word >> 1 & 0xF_FFFF, word >> 21 & 0xF_FFFF, tx - ((tx >> 20) << 21)


def describe_word(cluster: Cluster, rank: int, offset: int) -> str:
    """The fields of an mbarrier in words."""
    phase, pending, expected, tx = fields(cluster, rank, offset)
    return f"phase {phase}, {pending} of {expected} arrivals and {tx} bytes pending"


def deadlock(cluster: Cluster) -> str:
    """Who waits on what, when nothing can move."""
    rows = [row for index in range(cluster.count) for row in _waits(cluster, index)]
    shown = rows[:12] + ([f"… and {len(rows) - 12} more"] if len(rows) > 12 else [])
    return f"kernel {cluster.launch.name}: no warp can make progress.\n  " + "\n  ".join(shown)


def _waits(cluster: Cluster, index: int) -> list[str]:
    warp = cluster.warps[index]
    live = int(warp["live"])
    rows: dict[str, list[int]] = {}
    for lane in range(32):
        if live >> lane & 1:
            rows.setdefault(_wait(cluster, index, lane), []).append(lane)
    rank, number = divmod(index, cluster.per_cta)
    cta = cluster.launch.cta_of(cluster.first, rank)
    return [f"CTA {cta}, warp {number}, {_lane_text(lanes)}: {what}" for what, lanes in rows.items()]


def _lane_text(lanes: list[int]) -> str:
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    return f"lanes {lanes[0]}-{lanes[-1]}" if lanes == list(range(lanes[0], lanes[-1] + 1)) else f"{len(lanes)} lanes"


def _wait(cluster: Cluster, index: int, lane: int) -> str:
    return f"{waits_for(cluster, index, lane)} ({place(waiting_at(cluster, index, lane))})"


def waits_for(cluster: Cluster, index: int, lane: int) -> str:
    """What a lane that does not run waits for, in words."""
    warp = cluster.warps[index]
    if not int(warp["blocked"]) >> lane & 1:
        parked = int(warp["parked"]) >> lane & 1
        return "waits for the other lanes of its warp" if parked else "runs in circles"
    kind, argument = int(warp["wait_kind"][lane]), int(warp["wait_arg"][lane])
    return _WAITS[kind](cluster, index, int(warp["wait_addr"][lane]), argument)


def waiting_at(cluster: Cluster, index: int, lane: int) -> Inst:
    """The instruction that a lane waits at: a blocked lane goes on at the block after it."""
    blocks = cluster.launch.kernel.program.blocks
    warp = cluster.warps[index]
    number = int(warp["pc"][lane])
    if int(warp["blocked"]) >> lane & 1 and blocks[number - 1].insts:
        return blocks[number - 1].insts[-1]
    return next(block.insts[0] for block in blocks[number:] if block.insts)


def _wait_mbarrier(cluster: Cluster, index: int, address: int, argument: int) -> str:
    rank, offset = divmod(address - cluster.shared_host, cluster.shared_stride)
    state = describe_word(cluster, rank, offset)
    return f"waits for parity {argument & 1} of the mbarrier at offset 0x{offset:x} of CTA {rank} ({state})"


def _wait_bar(cluster: Cluster, index: int, address: int, argument: int) -> str:
    progress = cluster.named.progress(index // cluster.per_cta, address, argument & 0xFFFF_FFFF)
    return f"waits at barrier {address} ({progress})"


def _service(cluster: Cluster, index: int) -> str:
    return cluster.registers.wanted(index) or cluster.tmem_state.wanted(index // cluster.per_cta)


_WAITS: dict[int, Callable[[Cluster, int, int, int], str]] = {
    WAIT_MBARRIER: _wait_mbarrier,
    WAIT_BAR: _wait_bar,
    WAIT_CLUSTER: lambda cluster, index, address, argument: (
        f"waits at the barrier of the cluster ({cluster.whole.progress()})"
    ),
    WAIT_BULK: lambda cluster, index, address, argument: "waits for its bulk groups",
    WAIT_SERVICE: lambda cluster, index, address, argument: f"waits for {_service(cluster, index)}",
    WAIT_WGMMA: lambda cluster, index, address, argument: f"waits for its wgmma: {cluster.warpgroups.missing(index)}",
}
