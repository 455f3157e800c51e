"""The protocol among the four warps of a warpgroup: wgmma and setmaxnreg, and the errors where they break it."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww
from tests.vgpu.machine.test_wgmma import FINISH, bf16_case, mma
from tests.vgpu.machine.warpgroup_text import SMEM, run, text
from warpwright import ptx, targets
from warpwright.errors import Deadlock, DescriptorError, ProtocolError, UnsupportedInstruction
from warpwright.ptx.ptxas import assemble, find_ptxas
from warpwright.vgpu import Device
from warpwright.vgpu.program.decode import decode

ONE = mma("m64n16k16.f32.bf16.bf16", 8)
OPCODE = "`wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16`"


def line_of(lines: str, part: str) -> int:
    return next(number for number, line in enumerate(text(lines, 8).splitlines(), 1) if part in line)


def error(kind: type[Exception], lines: str, threads: int = 128, da: int | None = None) -> str:
    _, _, image, good, db = bf16_case()
    with pytest.raises(kind) as caught:
        run(lines, image, np.zeros((128, 8), np.uint32), da=good if da is None else da, db=db, threads=threads)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ("@%p1 add.u64 %db, %db, 2;", "the descriptor of B is 0x{b2:x}, but 0x{b:x} in warp 0 of its warpgroup"),
        ("@%p1 add.u64 %da, %da, 2;", "the descriptor of A is 0x{a2:x}, but 0x{a:x} in warp 0 of its warpgroup"),
    ],
)
def test_another_descriptor_is_refused(edit: str, what: str) -> None:
    _, _, _, da, db = bf16_case()
    base = 1024 >> 4
    what = what.format(a=da + base, a2=da + base + 2, b=db + base, b2=db + base + 2)
    lines = f"setp.eq.u32 %p1, %warp, 2;\n{edit}\n{ONE}\n{FINISH}"
    assert error(ProtocolError, lines) == (
        f"PTX line {line_of(lines, 'wgmma.mma')}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 2: {what}; expected one "
        "value in all 128 threads."
    )


def test_another_scale_d_is_refused() -> None:
    lines = f"setp.ne.u32 %p1, %warp, 3;\n{ONE.replace('1, 1, 1, 0, 0', '%p1, 1, 1, 0, 0')}\n{FINISH}"
    assert error(ProtocolError, lines) == (
        f"PTX line {line_of(lines, 'wgmma.mma')}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 3: scale-d is 0x0, but 0x1 "
        "in warp 0 of its warpgroup; expected one value in all 128 threads."
    )


def test_another_instruction_is_refused() -> None:
    lines = f"setp.eq.u32 %p1, %warp, 1;\n@%p1 bra other;\n{ONE}\nbra done;\nother:\n{ONE} // other\ndone:\n{FINISH}"
    first, other = line_of(lines, "wgmma.mma"), line_of(lines, "// other")
    assert error(ProtocolError, lines) == (
        f"PTX line {other}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 1: warp 0 of its warpgroup issues the instruction "
        f"of PTX line {first} instead; expected the same in all 4."
    )


def test_lanes_with_other_descriptors_are_refused() -> None:
    lines = f"setp.eq.u32 %p1, %tid, 70;\n@%p1 add.u64 %da, %da, 2;\n{ONE}\n{FINISH}"
    assert error(ProtocolError, lines) == (
        f"PTX line {line_of(lines, 'wgmma.mma')}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 2: its lanes have different "
        "descriptors or scale-d; expected one value in all 128 threads."
    )


def test_a_partial_warpgroup_is_refused() -> None:
    lines = f"{ONE}\n{FINISH}"
    assert error(ProtocolError, lines, threads=96) == (
        f"PTX line {line_of(lines, 'wgmma.mma')}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 0: warpgroup 0 has 3 warps; "
        "expected 4; launch a multiple of 128 threads."
    )


def test_a_missing_warp_is_a_deadlock() -> None:
    lines = f"setp.eq.u32 %p1, %warp, 3;\n@%p1 bra done;\n{ONE}\n{FINISH}\ndone:\nbar.sync 1;"
    found = error(Deadlock, lines)
    wait = line_of(lines, "wgmma.wait")
    assert (
        "CTA (0, 0, 0), warps 0-2, lanes 0-31: waits for its wgmma: warp 3 has issued fewer wgmma than others of the "
        f"warpgroup (PTX line {wait})" in found
    )


def test_a_fast_profile_names_the_missing_warp() -> None:
    """A run that only signals keeps no log of wgmma."""
    lines = f"setp.eq.u32 %p1, %warp, 3;\n@%p1 bra done;\n{ONE}\n{FINISH}\ndone:\nbar.sync 1;"
    _, _, image, da, db = bf16_case()
    args = [image, np.zeros((128, 8), np.uint32), np.zeros((128, 4), np.uint32), da, db]
    with pytest.raises(Deadlock) as caught:
        ww.profile(ww.load_ptx(text(lines, 8))["k"], grid=1, block=128, smem=SMEM, args=args, device="h200")
    assert str(caught.value).splitlines()[1:-1] == [
        "  CTA (0, 0, 0), warps 0-2, lanes 0-31: waits for its wgmma: warp 3 has issued fewer wgmma than others of the "
        f"warpgroup (PTX line {line_of(lines, 'wgmma.wait')})",
        "  CTA (0, 0, 0), warp 3, lanes 0-31: waits at barrier 1 (32 of 128 threads have arrived) "
        f"(PTX line {line_of(lines, 'bar.sync 1')})",
    ]


def test_an_early_exit_is_refused() -> None:
    """No warp waits: the machine finds the mistake when the cluster ends."""
    lines = f"setp.eq.u32 %p1, %warp, 3;\n@%p1 ret;\n{ONE}"
    assert error(ProtocolError, lines) == ("kernel k: warp 3 has issued fewer wgmma than others of the warpgroup.")


def test_a_descriptor_outside_shared_memory_faults() -> None:
    lines = f"{ONE}\n{FINISH}"
    _, _, _, da, _ = bf16_case()
    far = da + (64 * 1024 >> 4)
    assert error(DescriptorError, lines, da=far) == (
        f"PTX line {line_of(lines, 'wgmma.mma')}: {OPCODE}: kernel k, CTA (0, 0, 0), warp 0: descriptor points outside "
        f"shared memory: 0x{far + 64:016x} reads bytes 66560 to 74751; expected them within 1024 to 66559; mend the "
        "start address or the byte offsets"
    )


def test_operands_are_checked_without_a_wait() -> None:
    _, _, _, da, _ = bf16_case()
    assert "descriptor points outside shared memory" in error(DescriptorError, ONE, da=da + (64 * 1024 >> 4))


def test_single_bits_are_refused() -> None:
    line = "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%d0, %d1, %d2, %d3}, %da, %db, 1;"
    assert "the virtual GPU does not execute wgmma of single bits" in error(UnsupportedInstruction, f"{line}\n{FINISH}")


REGISTERS = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k() {heads}
{{
  .reg .b32 %r<4>; .reg .pred %p<4>;
  mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 7; shr.u32 %r2, %r0, 5;
  setp.eq.u32 %p0, %r1, 0;
{body}
}}
"""


def registers(body: str, threads: int = 384, heads: str = ".maxntid 384 .minnctapersm 1") -> None:
    module = ptx.parse(REGISTERS.format(heads=heads, body=body))
    Device(targets.device("h200")).launch(module, "k", (1, 1, 1), (threads, 1, 1))


SPLIT = """  @%p0 bra producer;
  setmaxnreg.inc.sync.aligned.u32 {consumer};
  bra done;
producer:
  setmaxnreg.dec.sync.aligned.u32 {producer};
done:
  ret;"""


@pytest.mark.parametrize("heads", [".maxntid 384 .minnctapersm 1", ".reqntid 384 .minnctapersm 1", ".maxnreg 168"])
def test_setmaxnreg_moves_registers(heads: str) -> None:
    """Consumers come first and wait for the registers that the producers release: 3 × 168 = 40 + 2 × 232."""
    registers(SPLIT.format(consumer=232, producer=40), heads=heads)


def test_setmaxnreg_of_too_many_registers_is_a_deadlock() -> None:
    with pytest.raises(Deadlock) as caught:
        registers(SPLIT.format(consumer=240, producer=40))
    assert str(caught.value).splitlines()[1:-1] == [
        "  CTA (0, 0, 0), warp 11, lanes 0-31: waits for 2304 registers (256 are free) (PTX line 10)"
    ]


def test_setmaxnreg_without_maxnreg_is_ignored() -> None:
    registers(SPLIT.format(consumer=240, producer=40), heads=".maxntid 384")


def findings(body: str) -> list[str]:
    """Returns the messages of strict checks for a kernel, each with the PTX lines of its steps."""
    module = ww.load_ptx(REGISTERS.format(heads=".maxntid 384 .minnctapersm 1", body=body))
    verdict = ww.check(module["k"], grid=1, block=384, strict=True)
    return [f"{[step.where for step in finding.steps]}: {finding.message}" for finding in verdict.findings]


def test_setmaxnreg_of_different_counts_in_a_warpgroup_is_a_finding() -> None:
    """The launch goes on, as on a GPU, where each warp moves its own registers."""
    body = """  setp.eq.u32 %p1, %r2, 5;
  @!%p1 setmaxnreg.dec.sync.aligned.u32 40;
  @%p1 setmaxnreg.dec.sync.aligned.u32 48;
  ret;"""
    registers(body)
    assert findings(body) == [
        "['PTX line 10', 'PTX line 11']: warp 4 executes .dec 40, warp 5 of its warpgroup .dec 48"
    ]


def test_setmaxnreg_needs_the_whole_warpgroup() -> None:
    body = "  setp.eq.u32 %p1, %r2, 6;\n  @%p1 ret;\n  setmaxnreg.dec.sync.aligned.u32 40;\n  ret;"
    registers(body)
    assert findings(body) == ["['PTX line 11']: warp 6 of its warpgroup exits without it"]


def test_setmaxnreg_of_one_warp_does_not_wait_for_a_larger_one() -> None:
    """Warps 0 to 3 want 64 × 32 registers each, of which warps 5 to 11 release a part; warp 4 gets the 8 × 32 that it
    wants, and then releases the rest."""
    body = """  setp.eq.u32 %p1, %r2, 4;
  @%p0 setmaxnreg.inc.sync.aligned.u32 232;
  @%p0 ret;
  @%p1 setmaxnreg.dec.sync.aligned.u32 160;
  @%p1 setmaxnreg.inc.sync.aligned.u32 168;
  @%p1 setmaxnreg.dec.sync.aligned.u32 24;
  @!%p1 setmaxnreg.dec.sync.aligned.u32 144;
  ret;"""
    registers(body)


# threads, CTAs an SM (.minnctapersm), largest count of setmaxnreg.inc (0: none), registers at launch by ptxas 13.0
ENTRY_COUNTS = [
    (256, 1, 232, 232), (256, 1, 160, 160), (256, 1, 240, 240), (128, 1, 232, 232), (384, 1, 240, 168),
    (384, 1, 160, 160), (384, 1, 152, 152), (512, 1, 160, 128), (512, 1, 120, 120), (256, 2, 200, 128),
    (320, 1, 240, 168), (416, 1, 240, 128), (160, 2, 240, 168), (100, 3, 240, 168), (800, 1, 240, 72),
    (384, 1, 0, 168), (256, 1, 0, 255),
]  # fmt: skip


@pytest.mark.parametrize(("threads", "least", "most", "count"), ENTRY_COUNTS)
def test_the_registers_at_launch_are_those_of_ptxas(threads: int, least: int, most: int, count: int) -> None:
    body = SPLIT.format(consumer=most, producer=24) if most else "  setmaxnreg.dec.sync.aligned.u32 24;\n  ret;"
    text = REGISTERS.format(heads=f".maxntid {threads} .minnctapersm {least}", body=body)
    assert decode(ptx.parse(text), "k").thread_registers == -(-count // 8) * 8
    assert find_ptxas() is None or f"Used {count} registers" in assemble(text, "sm_90a", "-v").log


def message(body: str) -> str:
    with pytest.raises(ProtocolError) as caught:
        registers(body)
    return str(caught.value)


@pytest.mark.parametrize(("action", "count", "word"), [("dec", 200, "at most"), ("inc", 40, "at least")])
def test_setmaxnreg_refuses_the_wrong_direction(action: str, count: int, word: str) -> None:
    first = "setmaxnreg.inc.sync.aligned.u32 168;"
    assert message(f"  {first}\n  setmaxnreg.{action}.sync.aligned.u32 {count};\n  ret;") == (
        f"PTX line 10: `setmaxnreg.{action}.sync.aligned.u32`: kernel k, CTA (0, 0, 0), warp 0, lane 0: a thread of "
        f"the warp has 168 registers; expected a count of {word} as many."
    )
