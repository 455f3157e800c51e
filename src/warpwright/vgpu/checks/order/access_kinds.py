"""What an instruction does to global memory, as the memory model sees it (PTX ISA 9.1 chapter 8)."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.types import of_name
from warpwright.vgpu.engines.tensor_copy import form_of
from warpwright.vgpu.program.program import Inst

__all__ = [
    "ASYNC",
    "CLUSTER",
    "CTA",
    "DEVICE",
    "GENERIC",
    "MAP",
    "OF_LANES",
    "SYSTEM",
    "WEAK",
    "Kind",
    "fence_of",
    "kind_of",
]

GENERIC, ASYNC, MAP = range(3)  # proxies: of threads, of engines, of tensor maps
WEAK, CTA, CLUSTER, DEVICE, SYSTEM = range(5)  # scopes of strong operations; a weak one has none
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": DEVICE, "sys": SYSTEM, "gl": DEVICE}
OF_LANES = ("ld", "ldu", "ld.mmio", "st", "st.mmio", "atom", "red")
_TENSOR = ("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
_LINEAR = ("cp.async.bulk", "cp.reduce.async.bulk")


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


def kind_of(inst: Inst) -> Kind | None:
    """Returns what an instruction may do to global memory, None for nothing."""
    if inst.name in OF_LANES:
        return _lanes(inst)
    if inst.name == "cp.async":
        return Kind(True, False)
    if inst.name == "tensormap.replace":
        return None if inst["space"].startswith("shared") else Kind(True, True)
    if inst.name == "tensormap.cp_fenceproxy":
        return Kind(False, True, releases=True)
    if inst.name in _TENSOR:
        load = form_of(inst.opcode).load
        return Kind(load, not load, DEVICE if inst.name == _TENSOR[1] else WEAK, 0, ASYNC)
    if inst.name in _LINEAR:
        reduces = inst.name == _LINEAR[1]
        unit = of_name(inst["type"]).nbytes if reduces else 1
        into = inst["dst"] == "global"
        return Kind(inst["src"] == "global", into, DEVICE if reduces and into else WEAK, unit, ASYNC)
    return None


def _lanes(inst: Inst) -> Kind | None:
    """Returns the kind of a thread's access. A volatile access is relaxed in system scope, an atomic one in device
    scope (sections 8.4 and 9.7.13.5)."""
    if inst["space"].startswith(("shared", "local", "param", "const")):
        return None
    words = inst.opcode.split(".")
    atomic = inst.name in ("atom", "red")
    semantics = inst["sem"]
    scope = _SCOPES.get(inst["scope"], DEVICE if atomic else WEAK)
    if semantics == "volatile" or "mmio" in words:
        scope = SYSTEM
    return Kind(
        reads=inst.name not in ("st", "st.mmio"),
        writes=not inst.name.startswith("ld"),
        scope=scope,
        unit=of_name(inst["type"]).nbytes,
        acquires=semantics in ("acquire", "acq_rel"),
        releases=semantics in ("release", "acq_rel"),
    )


def fence_of(inst: Inst) -> int:
    """Returns the scope of a fence, WEAK if the instruction is no fence or has no scope."""
    if inst.name == "membar":
        return _SCOPES.get(inst["level"], WEAK)
    fences = inst.name in ("fence", "fence.proxy.tensormap::generic", "tensormap.cp_fenceproxy")
    return _SCOPES.get(inst["scope"], WEAK) if fences else WEAK
