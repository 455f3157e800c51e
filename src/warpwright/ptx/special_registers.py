"""The special registers of PTX (PTX ISA 9.1 section 10)."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["special_bits"]

_VECTORS = "tid ntid ctaid nctaid clusterid nclusterid cluster_ctaid cluster_nctaid"
_WORDS = (
    "laneid warpid nwarpid smid nsmid cluster_ctarank cluster_nctarank lanemask_eq lanemask_le lanemask_lt lanemask_ge "
    "lanemask_gt clock clock_hi globaltimer_lo globaltimer_hi total_smem_size aggr_smem_size dynamic_smem_size "
    "reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap"
)
_WIDE = "clock64 globaltimer gridid current_graph_exec"
_BITS = {
    **{f"%{name}.{axis}": 32 for name in _VECTORS.split() for axis in "xyz"},
    **{f"%{name}": 32 for name in _WORDS.split()},
    **{f"%{name}": 64 for name in _WIDE.split()},
    "%is_explicit_cluster": 1,
}
_NUMBERED = re.compile(r"%(?:envreg([0-9]|[12][0-9]|3[01])|pm[0-7]|reserved_smem_offset_[01])")


@cache
def special_bits(name: str) -> int:
    """The bits of a special register; 0 for any other name."""
    if re.fullmatch(r"%pm[0-7]_64", name):
        return 64
    return 32 if _NUMBERED.fullmatch(name) else _BITS.get(name, 0)
