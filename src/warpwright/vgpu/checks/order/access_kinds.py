"""What an instruction does to global memory, as the memory model sees it (PTX ISA 9.1 chapter 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from warpwright.isa.operands import bits_of
from warpwright.types import of_name
from warpwright.vgpu.program.program import Inst, Program

__all__ = [
    "ASYNC", "CLUSTER", "CTA", "DEVICE", "GENERIC", "MAP", "SYSTEM", "WEAK", "Kind", "accesses_by_lane", "fence_of",
    "global_operand", "is_strong", "kind_of", "kinds_of", "strong_kinds",
]  # fmt: skip

GENERIC, ASYNC, MAP = range(3)  # proxies: of threads, of engines, of tensor maps
WEAK, CTA, CLUSTER, DEVICE, SYSTEM = range(5)  # scopes of strong operations; a weak one has none
SCOPES = ("", ".cta", ".cluster", ".gpu", ".sys")
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": DEVICE, "sys": SYSTEM, "gl": DEVICE}


@dataclass(frozen=True, slots=True)
class Kind:
    """``reads``, ``writes`` of global memory; ``scope``: how far it is strong; ``unit``: bytes of a scalar, 0 where
    that depends on a tensor map; ``proxy`` through which it goes; ``acquires``, ``releases`` as its opcode says."""

    reads: bool
    writes: bool
    scope: int = WEAK
    unit: int = 0
    proxy: int = GENERIC
    acquires: bool = False
    releases: bool = False


def accesses_by_lane(inst: Inst) -> bool:
    """Whether each lane of a warp accesses memory at an address of its own; of wmma its part of the matrix."""
    return bool(inst.traits.access) and (not inst.form.collective or "matrix" in inst.form.slots)


def kind_of(inst: Inst) -> Kind | None:
    """Returns what an instruction may do to global memory, None for nothing."""
    kind = _by_lane if accesses_by_lane(inst) else _KINDS.get(inst.name)
    return kind(inst) if kind else None


def global_operand(inst: Inst, kind: Kind) -> str:
    """Returns the name of the address in global memory of a linear operation, "" if the operation has none."""
    return "addr" if inst.find("addr") else "dst_mem" if kind.writes else "src_mem" if kind.reads else ""


def strong_kind_of(inst: Inst) -> Kind | None:
    """Returns what an instruction may do to shared memory if it is a strong access, else None."""
    if not accesses_by_lane(inst) or inst["space"].startswith(("global", "local", "param", "const")):
        return None
    kind = _access(inst)
    return kind if is_strong(kind) else None


@lru_cache(maxsize=8)
def kinds_of(program: Program) -> list[Kind | None]:
    """Returns what each instruction may do to global memory, None for nothing."""
    return [kind_of(inst) for inst in program.insts]


@lru_cache(maxsize=8)
def strong_kinds(program: Program) -> list[Kind | None]:
    """Returns for each instruction what `strong_kind_of` does."""
    return [strong_kind_of(inst) for inst in program.insts]


def is_strong(kind: Kind | None) -> bool:
    return kind is not None and kind.scope > WEAK and kind.proxy == GENERIC


def _by_lane(inst: Inst) -> Kind | None:
    return None if inst["space"].startswith(("shared", "local", "param", "const")) else _access(inst)


def _access(inst: Inst) -> Kind:
    """Returns the kind of a thread's access. A volatile access is relaxed in system scope, an atomic one in device
    scope (sections 8.4 and 9.7.13.5)."""
    access = inst.traits.access
    semantics, scope = (inst[slot] if slot in inst.form.slots else "" for slot in ("sem", "scope"))
    default = DEVICE if access == "update" else WEAK
    return Kind(
        reads=access != "write",
        writes=access != "read",
        scope=SYSTEM if semantics == "volatile" or inst.has("mmio") else _SCOPES.get(scope, default),
        unit=max(8, bits_of(inst["type"])) // 8,
        acquires=semantics in ("acquire", "acq_rel"),
        releases=semantics in ("release", "acq_rel"),
    )


def _bulk(inst: Inst) -> Kind | None:
    """Returns the kind of a bulk copy or reduction, linear or of a box; None from one CTA's memory to another's."""
    into, reduces = inst["dst"] == "global", "op" in inst.form.slots
    if not into and inst["src"] != "global":
        return None
    unit = 0 if inst.find("map") else of_name(inst["type"]).nbytes if reduces else 1
    return Kind(inst["src"] == "global", into, DEVICE if reduces and into else WEAK, unit, ASYNC)


_KINDS: dict[str, Callable[[Inst], Kind | None]] = {
    "cp.async": lambda _: Kind(True, False),
    "cp.async.bulk": _bulk,
    "cp.async.bulk.tensor": _bulk,
    "cp.reduce.async.bulk": _bulk,
    "cp.reduce.async.bulk.tensor": _bulk,
    "tensormap.replace": lambda inst: None if inst["space"].startswith("shared") else Kind(True, True),
    "tensormap.cp_fenceproxy": lambda _: Kind(False, True, releases=True),
}
_FENCES = {  # the slot of the scope
    "membar": "level",
    "fence": "scope",
    "fence.proxy.tensormap::generic": "scope",
    "tensormap.cp_fenceproxy": "scope",
}


def fence_of(inst: Inst) -> int:
    """Returns the scope of a fence, WEAK if the instruction is no fence or has no scope."""
    slot = _FENCES.get(inst.name)
    return _SCOPES.get(inst[slot], WEAK) if slot else WEAK
