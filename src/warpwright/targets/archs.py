"""Limits of the targets.

Sources: shared memory a block is the maximum that ptxas 13.0 accepts; shared memory, threads, CTAs and registers an SM
are from the CUDA 13.0 occupancy tables; cluster sizes are from cuda.h (8 portable, 16 with
``CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED``); tensor memory is PTX ISA 9.1 section 9.7.16.1; ``ptx_version``
is the lowest ``.version`` that ptxas 13.0 accepts for the target. For sm_90 it is the lowest version that has every
instruction which `warpwright.isa` lists for sm_90 without a version.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARCHS", "FAMILIES", "PTX_VERSIONS", "Arch", "kernels_of", "runs"]


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits of a target. Memory is in bytes; ``tensor_memory_columns`` counts columns of 128 lanes by 32 bits."""

    name: str
    ptx_version: str
    family: str
    smem_per_block: int
    smem_per_sm: int
    max_ctas_per_sm: int
    max_threads_per_sm: int
    max_cluster_size: int
    tensor_memory_columns: int
    smem_reserved_per_block: int = 1024
    max_threads_per_block: int = 1024
    max_block_dim: tuple[int, int, int] = (1024, 1024, 64)
    max_grid_dim: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    warp_size: int = 32

    def fitting_ctas(self, threads: int, smem: int) -> int:
        """Returns how many CTAs fit on an SM together, by threads and by shared memory with its reserve, in bytes."""
        return min(self.max_ctas_per_sm, self.max_threads_per_sm // threads, self.smem_per_sm // max(1, smem))


# The targets that run the code of a family (PTX ISA 9.1 section 11.1.2).
FAMILIES = {
    "sm_100f": ("sm_100a", "sm_100f", "sm_103a", "sm_103f"),
    "sm_103f": ("sm_103a", "sm_103f"),
    "sm_110f": ("sm_110a", "sm_110f"),
    "sm_120f": ("sm_120a", "sm_120f", "sm_121a", "sm_121f"),
}


KERNELS = {"sm_103a": "sm_100a"}  # targets that run another target's kernels, compiled for themselves


def kernels_of(arch: str) -> str:
    """Returns the target whose kernels a chip of ``arch`` runs, compiled for its own: sm_100a for sm_103a."""
    return KERNELS.get(arch, arch)


def runs(target: str, arch: str) -> bool:
    """Returns whether a chip of ``arch`` (``"sm_90a"``) runs PTX for ``target``: its own, its family's, and plain ones
    up to its own number."""
    plain = target[3:].isdigit() and int(target[3:]) <= int(arch[3:].rstrip("af"))
    return plain or arch in FAMILIES.get(target, (target,))


def _hopper(name: str, version: str) -> Arch:
    return Arch(name, version, "hopper", 232448, 228 * 1024, 32, 2048, 16, 0)


def _blackwell(name: str, version: str, columns: int) -> Arch:
    return Arch(name, version, "blackwell", 232448, 228 * 1024, 32, 2048, 16, columns)


def _consumer_blackwell(name: str, version: str) -> Arch:
    return Arch(name, version, "consumer blackwell", 101376, 100 * 1024, 24, 1536, 8, 0)


ARCHS = {
    arch.name: arch
    for arch in (
        _hopper("sm_90", "8.6"),
        _hopper("sm_90a", "8.6"),
        _blackwell("sm_100", "8.6", 0),
        _blackwell("sm_100a", "8.6", 512),
        _blackwell("sm_100f", "8.8", 512),
        _blackwell("sm_103a", "8.8", 512),
        _consumer_blackwell("sm_120", "8.7"),
        _consumer_blackwell("sm_120a", "8.7"),
        _consumer_blackwell("sm_120f", "8.8"),
    )
}

# The lowest ``.version`` that has a target (PTX ISA 9.1 section 13, table of targets).
PTX_VERSIONS = {
    **dict.fromkeys(("sm_50", "sm_52", "sm_53"), "4.0"),
    **dict.fromkeys(("sm_60", "sm_61", "sm_62"), "5.0"),
    **dict.fromkeys(("sm_70", "sm_72", "sm_75"), "6.0"),
    **dict.fromkeys(("sm_80", "sm_86", "sm_87", "sm_88", "sm_89"), "7.0"),
    "sm_90": "7.8",
    "sm_90a": "8.0",
    **dict.fromkeys(("sm_100", "sm_100a", "sm_101", "sm_101a"), "8.6"),
    **dict.fromkeys(("sm_120", "sm_120a"), "8.7"),
    **dict.fromkeys(("sm_100f", "sm_101f", "sm_120f"), "8.8"),
    **dict.fromkeys((f"sm_{number}{kind}" for number in (103, 121) for kind in ("", "a", "f")), "8.8"),
    **dict.fromkeys((f"sm_110{kind}" for kind in ("", "a", "f")), "9.0"),
}
