"""tensormap: a kernel changes fields of a tensor map in memory (PTX ISA 9.1 sections 9.7.9.28 and 9.7.13.16).

A tensor copy reads its map through the tensormap proxy. It sees a changed map after a release (`cp_fenceproxy`, or
``fence.proxy_tensormap_release``) and an acquire in the thread that copies (``fence.proxy_tensormap_acquire``).
"""

from __future__ import annotations

from typing import Any

from warpwright.lang.context import misuse
from warpwright.lang.expr import Value, operand
from warpwright.lang.ops.fence import TENSOR_MAP_BYTES
from warpwright.lang.pointer import Pointer
from warpwright.lang.trace import current
from warpwright.types import u32, u64

__all__ = ["FIELDS", "cp_fenceproxy", "replace"]

# field: (its type, whether each dimension has one)
FIELDS = {
    "global_address": ("b64", False),
    "rank": ("b32", False),
    "box_dim": ("b32", True),
    "global_dim": ("b32", True),
    "global_stride": ("b64", True),
    "element_stride": ("b32", True),
    "elemtype": ("b32", False),
    "interleave_layout": ("b32", False),
    "swizzle_mode": ("b32", False),
    "fill_mode": ("b32", False),
}


def replace(map: Pointer[Any], field: str, value: Value, dimension: int | None = None) -> None:
    """Change one field of the map at ``map``, in global or the CTA's shared memory.

    ``dimension`` counts from the innermost. ``value`` of ``rank`` is the rank minus one; the fields that end in type,
    layout and mode take the codes of PTX.

    Raises KernelError for an unknown field, and for a dimension that is missing or superfluous.
    Issued by each thread for itself.
    Completes by itself, as a weak store of all 128 bytes.
    Targets: sm_90a, sm_100a, sm_100f, sm_120a, sm_120f.
    PTX ISA 9.1 section 9.7.9.28 (tensormap.replace).
    """
    if field not in FIELDS:
        raise misuse(f"given tensormap.replace of {field!r}; expected one of {', '.join(FIELDS)}")
    type, ranked = FIELDS[field]
    if ranked != (dimension is not None):
        raise misuse(f"given tensormap.replace of {field} with dimension={dimension}; "
                     f"expected {'0 to 4, innermost first' if ranked else 'none'}")  # fmt: skip
    where = {"shared": ".shared::cta", "global": ".global"}.get(map.space, "")
    ordinals = () if dimension is None else (dimension,)
    new = operand(value, u64 if type == "b64" else u32)
    current().emit(f"tensormap.replace.tile.{field}{where}.b1024.{type}", map.node, *ordinals, new)


def cp_fenceproxy(destination: Pointer[Any], source: Pointer[Any], scope: str = "gpu") -> None:
    """Copy a map from the CTA's shared memory to global memory and release it to tensor copies in ``scope``.

    Issued by all lanes of a warp together.
    Completes by itself.
    Targets: sm_90 and later.
    PTX ISA 9.1 section 9.7.13.16 (tensormap.cp_fenceproxy).
    """
    opcode = f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned"
    current().emit(opcode, destination.node, source.node, TENSOR_MAP_BYTES)
