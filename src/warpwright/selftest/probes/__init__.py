"""The probes: each asks about one rule, and names the section of docs/machine.md that describes the assumed answer.

A probe is a function that yields cases: name, PTX, arguments, and the argument that has the answer. The first sentence
of its docstring says what it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warpwright.selftest.probes import (
    arithmetic,
    atomics,
    barriers,
    copies,
    pixels,
    refusals,
    tensor_copies,
    tensor_memory,
    warp_copies,
    warpgroups,
    warps,
)
from warpwright.selftest.probes.cases import Case
from warpwright.targets import runs

__all__ = ["PAGE", "PROBES", "REFUSALS", "Cases", "Probe", "find_probe", "probes_of"]

PAGE = "docs/machine.md"
Cases = Callable[[], Iterator[Case]]


@dataclass(frozen=True)
class Probe:
    """A family of launches of one rule. ``section`` is the anchor of a heading of docs/machine.md, ``target`` the least
    target that has the instructions."""

    cases: Cases
    section: str
    target: str = "sm_90"

    @property
    def name(self) -> str:
        return self.cases.__name__

    @property
    def rule(self) -> str:
        """What the probe asks."""
        return " ".join(str(self.cases.__doc__).split("\n\n")[0].split())

    @property
    def page(self) -> str:
        """Where the answer that the virtual GPU assumes is described."""
        return f"{PAGE}#{self.section}"


def _probes(section: str, *cases: Cases, target: str = "sm_90") -> list[Probe]:
    return [Probe(each, section, target) for each in cases]


PROBES = [
    *_probes("tensor-copies", tensor_copies.swizzles, tensor_copies.edges, tensor_copies.corners, tensor_copies.steps),
    *_probes("tensor-copies", tensor_copies.fills, tensor_copies.hints, tensor_copies.multicasts, tensor_copies.stores),
    *_probes("tensor-copies", tensor_copies.reductions, tensor_copies.edge_reductions),
    *_probes("tensor-copies", pixels.pixel_loads, pixels.pixel_stores),
    *_probes("other-copies", tensor_copies.bulk_reductions, copies.bulk_copies, copies.remote_copies),
    *_probes("other-copies", copies.async_stores, copies.lane_copies),
    *_probes("copies-by-a-whole-warp", warp_copies.load_copies, warp_copies.store_copies),
    *_probes("phases-and-tokens", barriers.mbarrier_phases, barriers.tokens, barriers.parities),
    *_probes("phases-and-tokens", barriers.remote_arrivals, barriers.copy_arrivals),
    *_probes("wgmma", warpgroups.wgmma_sums, warpgroups.wgmma_starts, warpgroups.wgmma_fragments, target="sm_90a"),
    *_probes("wgmma", warpgroups.wgmma_widths, warpgroups.wgmma_majors, warpgroups.wgmma_offsets, target="sm_90a"),
    *_probes("wgmma", warpgroups.wgmma_bases, warpgroups.wgmma_signs, target="sm_90a"),
    *_probes("tcgen05", tensor_memory.tensor_loads, tensor_memory.tensor_stores, target="sm_100f"),
    *_probes("tcgen05", tensor_memory.tensor_addresses, tensor_memory.tensor_layouts, target="sm_100f"),
    *_probes("tcgen05", tensor_memory.tensor_types, tensor_memory.tensor_sums, target="sm_100f"),
    *_probes("tcgen05", tensor_memory.tensor_integers, target="sm_100a"),
    *_probes("tcgen05", tensor_memory.tensor_starts, tensor_memory.tensor_modifiers, target="sm_100f"),
    *_probes("tcgen05", tensor_memory.tensor_weights, tensor_memory.tensor_pairs, target="sm_100f"),
    *_probes("tcgen05", tensor_memory.tensor_smem_copies, tensor_memory.tensor_shifts, target="sm_100f"),
    *_probes("instructions-of-a-warp", warps.matrix_loads, warps.matrix_stores, warps.warp_products),
    *_probes("instructions-of-a-warp", warps.double_products, warps.lane_exchanges, warps.elections),
    *_probes("instructions-of-a-warp", warps.special_registers, warps.barrier_votes, warps.no_ops),
    *_probes("addresses-and-atomics", atomics.atomics, atomics.vector_atomics, atomics.lane_reductions),
    *_probes("addresses-and-atomics", copies.remote_accesses, barriers.cluster_addresses, warps.shared_addresses),
    *_probes("arithmetic", arithmetic.arithmetic, arithmetic.flushes, arithmetic.tf32_nans),
]
REFUSALS = [  # a fault ends a process's use of a real GPU
    *_probes("faults", tensor_copies.refused_boxes, refusals.refused_accesses, refusals.refused_copies),
    *_probes("faults", refusals.refused_barriers, pixels.refused_pixels),
]


def probes_of(arch: str) -> list[Probe]:
    """Returns the probes that a chip of ``arch`` can answer."""
    return [probe for probe in (*PROBES, *REFUSALS) if runs(probe.target, arch)]


def find_probe(name: str) -> Probe:
    """Returns the probe of a name."""
    return next(probe for probe in (*PROBES, *REFUSALS) if probe.name == name)
