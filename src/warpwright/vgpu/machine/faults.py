"""The messages of run-time errors: the thread, its instruction, what is wrong, and what mends it."""

from __future__ import annotations

from warpwright.errors import DeviceError, MemoryFault, ProtocolError, UnsupportedInstruction, WarpwrightError
from warpwright.vgpu.engines.op import Op
from warpwright.vgpu.jit.state import FAULTS, LOCAL_WINDOW, RANK_SHIFT, RESERVED_SHARED, SHARED_WINDOW
from warpwright.vgpu.machine.state import ClusterState
from warpwright.vgpu.program.program import Inst, place

__all__ = ["at_exit", "describe_word", "error", "fault", "fields", "mbarrier", "thread_text"]

_WINDOWS = {SHARED_WINDOW >> 32: "shared", LOCAL_WINDOW >> 32: "local"}


def thread_text(cluster: ClusterState, inst: Inst, index: int, lane: int) -> str:
    """Returns ``file:line: `opcode`: kernel k, CTA (x, y, z), warp w, lane l``."""
    rank, warp = divmod(index, cluster.per_cta)
    cta = cluster.launch.cta_of(cluster.first, rank)
    thread = f"warp {warp}, lane {lane}" if lane >= 0 else f"warp {warp}"
    return f"{place(inst)}: `{inst.opcode}`: kernel {cluster.launch.name}, CTA {cta}, {thread}"


def error(
    kind: type[WarpwrightError], cluster: ClusterState, inst: Inst, index: int, lane: int, reason: str
) -> WarpwrightError:
    """Returns the error of a thread (of a warp, if ``lane`` is -1) at an instruction."""
    error = kind(f"{thread_text(cluster, inst, index, lane)}: {reason}")
    error.at, error.reason = (inst.index, 32 * index + max(lane, 0)), reason
    return error


def at_exit(kind: type[WarpwrightError], cluster: ClusterState, op: Op, what: str, reason: str) -> WarpwrightError:
    """Returns the error of a CTA that exits before it completes what ``op`` requires, such as the dealloc after an
    alloc."""
    error = kind(f"kernel {cluster.launch.name}, CTA {cluster.launch.cta_of(cluster.first, op.rank)} {reason}")
    error.at = op.inst.index, 32 * (op.rank * cluster.per_cta + op.warp) + max(op.lane, 0)
    error.what, error.reason = what, f"the CTA {reason}"
    return error


def fault(cluster: ClusterState, index: int) -> WarpwrightError:
    """Returns the error for the fault that lane code or a routine recorded in a warp's state."""
    warp = cluster.warps[index]
    inst = cluster.launch.insts[int(warp["inst"])]
    kind = FAULTS[int(warp["fault"])]
    lane, address = int(warp["fault_lane"]), int(warp["fault_addr"])
    message = cluster.launch.kernel.messages.get(inst.index)
    if kind == "unsupported" and message:
        return UnsupportedInstruction(message)
    found, reason = _reason(cluster, inst, index, kind, address)
    return error(found, cluster, inst, index, lane, reason)


def _reason(cluster: ClusterState, inst: Inst, index: int, kind: str, address: int) -> tuple[type[DeviceError], str]:
    """Returns the class and the reason of a fault."""
    if kind in ("bounds", "misaligned", "rank"):
        return MemoryFault, _access(cluster, inst, kind, address)
    if kind == "trap":
        return DeviceError, "the kernel executed trap."
    if kind == "mbarrier_init":
        return ProtocolError, f"count {address}; expected 1 to {2**20 - 1} arrivals."
    if kind.startswith("tmem"):
        return ProtocolError, _tensor_memory(kind, address, index % cluster.per_cta)
    return ProtocolError, mbarrier(kind, cluster, *divmod(address - cluster.shared_host, cluster.shared_stride))


def _access(cluster: ClusterState, inst: Inst, kind: str, address: int) -> str:
    given = f"address 0x{address & (1 << 64) - 1:x}"
    if kind == "misaligned":
        return f"{given} is not aligned to the size of the access{cluster.launch.memory.alignment(address)}."
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


def mbarrier(kind: str, cluster: ClusterState, rank: int, offset: int) -> str:
    """Returns what is wrong with an mbarrier operation."""
    where = f"the mbarrier at offset 0x{offset:x} of CTA {rank}"
    if kind == "mbarrier_invalid":
        return f"{where} is not initialised: run mbarrier.init there, and synchronise, before it is used."
    words = describe_word(cluster, rank, offset)
    if kind == "mbarrier_closes":
        return (
            f"{where} ({words}) would complete its phase, which an arrival with .noComplete must not; "
            "arrive without it."
        )
    if kind == "mbarrier_count" and not fields(cluster, rank, offset)[1]:
        return (
            f"{where} got an arrival for a phase that has all of its arrivals ({words}); wait for the end of the "
            "phase before the next arrival, or raise its count."
        )
    if kind == "mbarrier_count":
        return f"{where} got more arrivals than its phase has pending ({words}); raise its count, or drop an arrival."
    return f"{where} ({words}) would leave the range of its transaction count, +-{2**20 - 1} bytes."


def fields(cluster: ClusterState, rank: int, offset: int) -> tuple[int, int, int, int]:
    """Returns phase, pending arrivals, expected arrivals and pending bytes of an mbarrier."""
    word = int.from_bytes(cluster.shared[rank, offset : offset + 8].tobytes(), "little")
    tx = word >> 41 & 0x1F_FFFF
    return word & 1, word >> 1 & 0xF_FFFF, word >> 21 & 0xF_FFFF, tx - ((tx >> 20) << 21)


def describe_word(cluster: ClusterState, rank: int, offset: int) -> str:
    """Returns the fields of an mbarrier in words."""
    phase, pending, expected, tx = fields(cluster, rank, offset)
    if tx < 0:
        return f"phase {phase}, {pending} of {expected} arrivals pending, {-tx} bytes too many"
    return f"phase {phase}, {pending} of {expected} arrivals and {tx} bytes pending"
