"""wgmma as PTX text: one warpgroup that loads shared memory and registers, executes some lines, stores its accumulator.

The layouts are those of PTX ISA 9.1 section 9.7.15.5.1, element by element, independent of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.vgpu.engines.operands import DTYPES, canonical_offset, operand_strides, swizzle_address
from warpwright import ptx, targets
from warpwright.vgpu import Device, LaunchResult

SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
B_AT = 32 * 1024  # byte offset of B from A
SMEM = 64 * 1024


class Operand(NamedTuple):
    """The layout of a matrix in shared memory."""

    type: str
    major: str = "k"
    mode: int = 128


def place(image: NDArray[np.uint8], at: int, matrix: NDArray[Any], how: Operand) -> int:
    """Write rows × K into an image of shared memory. Returns the descriptor for an image that starts at address 0."""
    size = SIZES[how.type]
    lbo, sbo, _ = operand_strides(matrix.shape[0], size, matrix.shape[1], how.major, how.mode)
    for (row, k), value in np.ndenumerate(matrix):
        to = swizzle_address(at + canonical_offset(row, k, size, how.major, how.mode, lbo, sbo), how.mode)
        image[to : to + size] = np.frombuffer(value.tobytes(), np.uint8)
    return at >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | MODES[how.mode] << 62


def d_places(n: int) -> NDArray[np.int64]:
    """Returns (row, column) of register v of thread t, for 32-bit accumulators: shape (128, n / 2, 2)."""
    places = np.empty((128, n // 2, 2), np.int64)
    for t in range(128):
        for v in range(n // 2):
            places[t, v] = 16 * (t // 32) + t % 32 // 4 + 8 * (v >> 1 & 1), 8 * (v >> 2) + 2 * (t % 4) + (v & 1)
    return places


def to_registers(matrix: NDArray[Any], d_type: str) -> NDArray[np.uint32]:
    """Returns 64 × N values as the registers of the 128 threads."""
    n = matrix.shape[1]
    where = d_places(n)
    values = matrix[where[..., 0], where[..., 1]]
    if d_type == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return np.ascontiguousarray(values.astype(np.int32 if d_type == "s32" else np.float32)).view(np.uint32)


def from_registers(words: NDArray[np.uint32], n: int, d_type: str) -> NDArray[Any]:
    """Returns the registers of the 128 threads as 64 × N values."""
    kind = {"f16": np.float16, "s32": np.int32, "f32": np.float32}[d_type]
    values, where = words.reshape(128, -1).view(kind), d_places(n)
    matrix = np.empty((64, n), kind)
    matrix[where[..., 0], where[..., 1]] = values
    return matrix


def a_registers(matrix: NDArray[Any], type: str) -> NDArray[np.uint32]:
    """Returns A, 64 × K, as the four registers of each thread."""
    size, k = SIZES[type], matrix.shape[1]
    each = 4 // size
    words = np.empty((128, 4, each), matrix.dtype)
    for t in range(128):
        for r in range(4):
            for x in range(each):
                row, column = 16 * (t // 32) + t % 32 // 4 + 8 * (r & 1), k // 2 * (r >> 1) + each * (t % 4) + x
                words[t, r, x] = matrix[row, column]
    return words.view(np.uint32).reshape(128, 4)


def mma(shape: str, d: int, a: str = "%da", b: str = "%db", tail: str = "1, 1, 1, 0, 0", first: int = 0) -> str:
    """Returns one wgmma whose accumulator is %d<first> and the ``d`` - 1 registers that follow."""
    registers = ", ".join(f"%d{first + i}" for i in range(d))
    return f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {a}, {b}, {tail};"


def text(lines: str, registers: int, target: str = "sm_90a") -> str:
    """Returns a kernel: parameters are the image, D's words, A's words, two descriptors; ``lines`` run between load and
    store.

    %da and %db are the descriptors; %a0 to %a3 registers of A; %warp and %tid the numbers of warp and thread.
    """
    loads = "\n".join(f"  ld.global.b32 %d{i}, [%pd+{4 * i}];" for i in range(registers))
    stores = "\n".join(f"  st.global.b32 [%pd+{4 * i}], %d{i};" for i in range(registers))
    return f""".version 8.7
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 image, .param .u64 words, .param .u64 left, .param .u64 da, .param .u64 db)
{{
  .reg .b32 %d<{registers + 1}>; .reg .b32 %a<4>; .reg .b32 %r<20>; .reg .b64 %q<20>; .reg .pred %p<10>;
  .reg .b64 %da, %db, %pi, %pd, %pa; .reg .b32 %tid, %warp, %smem;
  ld.param.u64 %pi, [image]; ld.param.u64 %pd, [words]; ld.param.u64 %pa, [left];
  ld.param.u64 %da, [da]; ld.param.u64 %db, [db];
  mov.u32 %tid, %tid.x; shr.u32 %warp, %tid, 5; mov.u32 %smem, smem;
  mul.lo.u32 %r0, %tid, 16;
  cvt.u64.u32 %q0, %r0; add.u64 %q0, %q0, %pi; add.u32 %r1, %smem, %r0;
copy:
  ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%q0];
  st.shared.v4.b32 [%r1], {{%r2, %r3, %r4, %r5}};
  add.u64 %q0, %q0, 2048; add.u32 %r1, %r1, 2048; add.u32 %r0, %r0, 2048;
  setp.lt.u32 %p0, %r0, {SMEM};
  @%p0 bra copy;
  shr.u32 %r1, %smem, 4; cvt.u64.u32 %q0, %r1; add.u64 %da, %da, %q0; add.u64 %db, %db, %q0;
  mad.wide.u32 %pd, %tid, {4 * registers}, %pd; mad.wide.u32 %pa, %tid, 16, %pa;
  ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%pa];
{loads}
  fence.proxy.async.shared::cta;
  bar.sync 0;
  wgmma.fence.sync.aligned;
{lines}
{stores}
  ret;
}}
"""


def run(lines: str, image: NDArray[np.uint8], words: NDArray[np.uint32], *, left: Any = None, da: int = 0, db: int = 0,
        threads: int = 128, **options: Any) -> LaunchResult:  # fmt: skip
    """Run the kernel: it loads ``words`` (128, registers), and stores them at the end."""
    module = ptx.parse(text(lines, words.shape[1]))
    registers = np.zeros((128, 4), np.uint32) if left is None else left
    machine = Device(targets.device("h200"))
    args = [image, words, registers, da, db]
    return machine.launch(module, "k", (1, 1, 1), (threads, 1, 1), (1, 1, 1), SMEM, args, **options)


def integers(random: np.random.Generator, shape: tuple[int, int], type: str) -> NDArray[Any]:
    """Returns values whose sums are exact in every format."""
    low, high = (0, 4) if type == "u8" else (-2, 3)
    return random.integers(low, high, shape).astype(DTYPES[type])
