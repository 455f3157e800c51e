"""One warp as PTX text: registers from one array, some lines, registers into another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright import ptx, targets
from warpwright.vgpu import Device

DEVICES = {"sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090"}
SMEM = 4096


def run_warp(lines: str, registers: NDArray[Any], results: int, image: NDArray[np.uint8] | None = None, *,
             target: str = "sm_90a", wide: bool = False, **options: Any) -> NDArray[np.uint32]:  # fmt: skip
    """Returns %o0 on of each lane, (32, results), after ``lines``. ``registers``, (32, n) words, are %r0 on (64-bit:
    %q0 on) of each lane.

    ``image`` becomes shared memory at %smem, and gets the contents of shared memory at the end.
    """
    bits, name = (64, "%q") if wide else (32, "%r")
    words = np.ascontiguousarray(registers).view(np.uint64 if wide else np.uint32)
    out, memory = np.zeros((32, results), words.dtype), np.zeros(SMEM, np.uint8) if image is None else image
    n, size = words.shape[1], bits // 8
    loads = "\n".join(f"  ld.global.b{bits} {name}{i}, [%pg+{size * i}];" for i in range(n))
    stores = "\n".join(f"  st.global.b{bits} [%po+{size * i}], %o{i};" for i in range(results))
    module = ptx.parse(f""".version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 s[];
.visible .entry k(.param .u64 given, .param .u64 out, .param .u64 image)
{{
  .reg .b{bits} %o<{max(results, 1)}>; .reg .b32 %r<40>; .reg .b64 %q<40>;
  .reg .b64 %pg, %po, %pi, %t; .reg .b32 %lane, %smem, %x;
  .reg .pred %p<4>;
  ld.param.u64 %pg, [given]; ld.param.u64 %po, [out]; ld.param.u64 %pi, [image];
  mov.u32 %lane, %laneid; mov.u32 %smem, s;
  mad.wide.u32 %pg, %lane, {size * n}, %pg; mad.wide.u32 %po, %lane, {size * results}, %po;
  mad.wide.u32 %pi, %lane, {SMEM // 32}, %pi; mad.lo.u32 %x, %lane, {SMEM // 32}, %smem;
{copies("ld.global.b64 %t, [%pi+{0}]; st.shared.b64 [%x+{0}], %t;")}
{loads}
  bar.warp.sync -1;
{lines}
  bar.warp.sync -1;
{stores}
{copies("ld.shared.b64 %t, [%x+{0}]; st.global.b64 [%pi+{0}], %t;")}
  ret;
}}
""")
    Device(targets.device(DEVICES[target])).launch(
        module, "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), SMEM, [words, out, memory], **options
    )
    return out


def copies(line: str) -> str:
    return "\n".join("  " + line.replace("{0}", str(at)) for at in range(0, SMEM // 32, 8))
