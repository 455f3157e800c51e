"""Rings: stage and phase of each slot, the cost of an advance, labels, and errors."""

from __future__ import annotations

import pytest

from tests.lang.ops.emission import emit, instructions, opcodes, text
from tests.lang.ptx_evaluator import accesses
from warpwright.errors import KernelError
from warpwright.lang import If, Ring, bf16, f32, loop, role, smem, tcgen05, tma, tmem

A_BYTES, B_BYTES = 16384, 8192
STRIDE = A_BYTES + B_BYTES


def ring(stages, **counts):
    a = smem.tile(bf16, (128, 64), swizzle=128)
    return Ring(stages, a=a, b=smem.tile(bf16, (64, 64), swizzle=128), **counts)


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_the_nth_slot_is_stage_n_modulo_stages_in_phase_n_over_stages(stages) -> None:
    slots = 3 * stages + 1

    def body(a, x, n):
        cursor = ring(stages).producer()
        for _ in range(slots):
            slot = next(cursor)
            slot.empty.wait()
            slot.full.arrive_expect_tx(slot.nbytes)
            slot.full.wait()

    touched = accesses(emit(body))
    assert len(touched) == 3 * slots
    for number in range(slots):
        stage, parity = number % stages, number // stages & 1
        empty, arrive, full = touched[3 * number : 3 * number + 3]
        assert (empty[1], empty[2]) == (8 * (stages + stage), str(parity ^ 1))
        assert (arrive[1], arrive[2]) == (8 * stage, str(STRIDE))
        assert (full[1], full[2]) == (8 * stage, str(parity))


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 5, 7, 16])
def test_a_cursor_skips_slots_that_another_thread_uses(stages, count) -> None:
    def body(a, x, n):
        cursor = ring(stages).consumer()
        for _ in range(4):
            next(cursor).full.wait()
            cursor.skip(count)

    found = [(address, parity) for _, address, parity in accesses(emit(body))]
    numbers = [each * (count + 1) for each in range(4)]
    assert found == [(8 * (number % stages), str(number // stages & 1)) for number in numbers]


@pytest.mark.parametrize("stages", [1, 3])
def test_tiles_of_a_slot_are_in_its_stage(stages) -> None:
    def body(a, x, n):
        cursor = ring(stages).consumer()
        for _ in range(2 * stages):
            slot = next(cursor)
            for tile in (slot.a, slot.b, slot.b[:, 16:32]):
                tma.load(tile.address, a[0, 0], n)

    found = [address for opcode, address, _ in accesses(emit(body)) if opcode.startswith("cp.async")]
    expected = []
    for number in range(2 * stages):
        start = 1024 + number % stages * STRIDE
        expected += [start, start + A_BYTES, start + A_BYTES + 32]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("", ["wait_empty_0", "wait_full_0", "wait_full_1"]),
        ("ab", ["wait_ab_empty_0", "wait_ab_full_0", "wait_full_0"]),
    ],
)
def test_the_label_of_a_wait_names_the_ring(name, labels) -> None:
    def body(a, x, n):
        slot = next(ring(2, name=name).producer())
        slot.empty.wait()
        slot.full.wait()
        next(Ring(2).consumer()).full.wait()

    assert [line[:-1] for line in emit(body) if line.startswith("wait_")] == labels


def test_a_ring_in_tensor_memory_has_a_name_too() -> None:
    def body(a, x, n):
        acc = Ring(2, name="acc", d=tmem.tile(f32, (128, 64)))
        next(acc.consumer()).full.wait()
        acc.empty[1].wait(0)

    assert [line for line in emit(body) if line.startswith("wait_")] == ["wait_acc_full_0:", "wait_acc_empty_0:"]


def test_an_older_slot_keeps_its_stage() -> None:
    def body(a, x, n):
        cursor = ring(4).consumer()
        first, second = next(cursor), next(cursor)
        second.empty.arrive()
        first.empty.arrive()

    assert [address for _, address, _ in accesses(emit(body))] == [8 * 5, 8 * 4]


def test_advance_costs_four_instructions_and_no_division() -> None:
    def body(a, x, n):
        cursor = ring(5).producer()
        for _ in loop(n):
            next(cursor).full.arrive()

    codes = opcodes(emit(body))
    loop_body = codes[codes.index("loop_0:") :]
    assert [code for code in loop_body if code.startswith(("rem", "div"))] == []
    assert codes.count("mbarrier.arrive.shared::cta.b64") == 1
    advance = loop_body[loop_body.index("setp.eq.u32") - 1 :][:4]
    assert advance == ["add.u32", "setp.eq.u32", "mov.u32", "xor.b32"]


def test_barriers_expect_the_counts_of_the_ring_and_precede_the_tiles() -> None:
    def body(a, x, n):
        shared = ring(2, full=2, empty=1)
        shared.init()
        tma.load(next(shared.producer()).a, a[0, 0], shared.full[0])

    touched = accesses(emit(body))
    inits = [(address, count) for opcode, address, count in touched if opcode.startswith("mbarrier.init")]
    assert inits == [(0, "2"), (8, "2"), (16, "1"), (24, "1")]
    assert touched[-1][1] == 1024


def test_wait_all_empty_waits_for_every_stage() -> None:
    def body(a, x, n):
        cursor = ring(3).producer()
        cursor.wait_all_empty()

    lines = emit(body)
    assert sum(line.startswith("mbarrier.try_wait") for line in lines) == 1
    assert any(line.startswith("setp.lt.u32") and line.endswith(" 3") for line in lines)


def test_stages_of_tensor_memory_are_columns_apart() -> None:
    def body(a, x, n):
        before = tmem.tile(f32, (128, 32))
        acc = Ring(2, d=tmem.tile(f32, (128, 64)))
        tmem.alloc()
        tmem.open()
        cursor = acc.producer()
        for _ in loop(n):
            tcgen05.ld(next(cursor).d[:, 32:64])
            tcgen05.ld(before)

    lines = emit(body)
    assert any(line.startswith("tcgen05.alloc") and line.endswith(", 256") for line in lines)
    assert any(line.startswith("mad.lo.u32") and ", 64, " in line for line in lines)
    loads = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("tcgen05.ld")]
    assert loads[0].endswith("+64]") and "+" not in loads[1]


def test_a_cursor_advances_inside_a_branch() -> None:
    def body(a, x, n):
        cursor = ring(2).producer()
        with If(n > 0):
            next(cursor)
        next(cursor).full.arrive()

    assert any(line.startswith("mbarrier.arrive") for line in emit(body))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Ring(0), "given a Ring of 0 stages; expected at least 1"),
        (
            lambda: Ring(2, phase=smem.tile(bf16, (8, 64))),
            "given a Ring member called phase; expected another name: rings and slots have a phase of their own",
        ),
        (
            lambda: Ring(2, name=smem.tile(bf16, (8, 64))),
            "given a Ring member called name; expected another name: rings and slots have a name of their own",
        ),
        (
            lambda: Ring(2, name="a b"),
            "given the name 'a b_full'; expected letters, digits and underscores, for labels of waits",
        ),
        (lambda: Ring(2, full=0), "given count=0 to mbarrier full; expected 1 to 1048575 arrivals a phase"),
    ],
)
def test_misuse_is_named(call, sentence) -> None:
    with pytest.raises(KernelError) as caught:
        text(lambda a, x, n: call())
    assert str(caught.value) == f"{caught.value.where}: {sentence}"


def test_a_slot_names_its_members() -> None:
    def body(a, x, n):
        next(ring(2).producer()).c  # noqa: B018

    with pytest.raises(AttributeError, match=r"a slot of this ring has full, empty, a, b; not c"):
        text(body)


def test_a_cursor_belongs_to_its_role() -> None:
    def body(a, x, n):
        cursors = []

        @role(warp=0, elect=True)
        def load():
            cursors.append(ring(2).producer())

        @role(warp=1, elect=True)
        def mma():
            next(cursors[0]).full.arrive()

    with pytest.raises(KernelError, match=r"role load.*role mma"):
        instructions(text(body))
