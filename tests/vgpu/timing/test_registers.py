"""Registers that a thread needs; roles and barriers from the names of labels."""

from __future__ import annotations

import pytest

from tests.vgpu.helpers import text
from warpwright import ptx
from warpwright.vgpu.program.decode import decode
from warpwright.vgpu.program.names import Names
from warpwright.vgpu.program.program import Program
from warpwright.vgpu.timing.registers import pressure


def program(body: str) -> Program:
    return decode(ptx.parse(text(body)), "k")


def test_simultaneous_values_need_their_own_registers() -> None:
    fill = "".join(f"mov.u32 %r{i}, {i};" for i in range(100))
    use = "".join(f"add.u32 %r0, %r0, %r{i};" for i in range(100))
    assert pressure(program(fill + use)) in (104, 112)
    one_by_one = "".join(f"mov.u32 %r{i}, {i}; add.u32 %r0, %r0, %r{i};" for i in range(1, 100))
    assert pressure(program(one_by_one)) == 24


def test_a_loop_keeps_registers_of_the_next_iteration() -> None:
    fill = "".join(f"mov.u32 %r{i}, {i};" for i in range(60))
    use = "".join(f"add.u32 %r{i}, %r{i}, 1;" for i in range(60))
    body = f"{fill} LOOP: {use} setp.lt.u32 %p0, %r0, 9; @%p0 bra LOOP;"
    assert pressure(program(body)) in (64, 72)


@pytest.mark.parametrize(("directives", "limit"), [(".maxnreg 40", 40), (".reqntid 256 .minnctapersm 4", 64)])
def test_directives_limit_registers(directives: str, limit: int) -> None:
    fill = "".join(f"mov.u32 %r{i}, {i};" for i in range(100))
    use = "".join(f"add.u32 %r0, %r0, %r{i};" for i in range(100))
    limited = text(fill + use).replace("{", f"{directives} {{", 1)
    assert pressure(decode(ptx.parse(limited), "k")) == limit


def test_labels_name_roles_and_barriers() -> None:
    body = """
  bra role_load_0;
role_load_0:
wait_ab_empty_0:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], 0;
role_load_0_end:
wait_done_1:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], 0;
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], 0;
"""
    names = Names(program(body))
    waits = [inst.index for inst in program(body).insts if inst.name.startswith("mbarrier")]
    assert [names.waits(inst, 0x400) for inst in waits] == ["waits ab.empty", "waits done", "waits done"]
    assert [names.roles[inst] for inst in waits] == ["load", "all warps", "all warps"]
    plain = Names(program("mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], 0;"))
    inst = next(iter(plain.barriers))
    assert (plain.waits(inst, 0x400), plain.roles[inst]) == ("waits barrier 0x400", "kernel")
