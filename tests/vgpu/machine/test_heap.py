"""malloc and free of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.helpers import error_message, out
from warpwright.errors import MemoryFault
from warpwright.vgpu.program.memory_map import HEAP_BYTES

TOP = """
.extern .func (.param .b64 r) malloc (.param .b64 n);
.extern .func free (.param .b64 p);
"""
MALLOC = "{{ .param .b64 n; .param .b64 r; st.param.b64 [n], {0}; call.uni (r), malloc, (n); ld.param.b64 {1}, [r]; }}"
FREE = "{{ .param .b64 p; st.param.b64 [p], {0}; call.uni free, (p); }}"


def test_lanes_have_memory_of_their_own() -> None:
    body = f"""{MALLOC.format(40, "%d1")} mul.lo.u32 %r1, %t, 3; st.u32 [%d1+36], %r1; bar.warp.sync -1;
      ld.u32 %r2, [%d1+36]; st.global.u32 [%o], %r2; {FREE.format("%d1")} ret;"""
    assert (out(body, top=TOP) == 3 * np.arange(32)).all()


def test_addresses_are_multiples_of_16_and_apart() -> None:
    body = f"""mul.wide.u32 %d4, %t, 3; {MALLOC.format("%d4", "%d1")} mul.wide.u32 %d2, %t, 8; add.u64 %d2, %d2, %a0;
      st.global.u64 [%d2], %d1; ret;"""
    addresses = out(body, dtype=np.uint64, top=TOP)
    assert not (addresses % 16).any()
    order = np.argsort(addresses)
    assert (np.diff(addresses[order]) >= np.maximum(16, 3 * order[:-1])).all()


@pytest.mark.parametrize(("nbytes", "found"), [(HEAP_BYTES - 32, True), (HEAP_BYTES - 31, False), (1 << 62, False)])
def test_a_full_heap_gives_null(nbytes: int, found: bool) -> None:
    body = f"""setp.ne.u32 %p0, %t, 0; @%p0 ret; {MALLOC.format(nbytes, "%d1")} st.global.u64 [%a0], %d1; ret;"""
    assert (out(body, 1, dtype=np.uint64, top=TOP)[0] != 0) == found


def test_free_blocks_join() -> None:
    """Sixteen halves of a megabyte, freed, are room for seven megabytes."""
    body = "setp.ne.u32 %p0, %t, 0; @%p0 ret;"
    for number in range(15):
        body += MALLOC.format(1 << 19, f"%x{number}")
    body += "".join(FREE.format(f"%x{number}") for number in (3, 1, 0, 2, 4, *range(14, 4, -1)))
    body += MALLOC.format(7 << 20, "%d1") + "st.global.u64 [%a0], %d1; ret;"
    assert out(".reg .b64 %x<15>;" + body, 1, dtype=np.uint64, top=TOP)[0]


@pytest.mark.parametrize("twice", [False, True])
def test_only_memory_of_malloc_is_freed_once(twice: bool) -> None:
    first = MALLOC.format(8, "%d1") + FREE.format("%d1") if twice else "mov.u64 %d1, %a0;"
    message = error_message(
        MemoryFault, f"setp.ne.u32 %p0, %t, 9; @%p0 ret; {first} {FREE.format('%d1')} ret;", top=TOP
    )
    assert message.startswith("PTX line ")
    head, _, end = message.partition("; ")
    assert head.split(": free of 0x")[0].endswith("`call.free`: kernel k, CTA (0, 0, 0), warp 0, lane 9")
    assert end == "expected an address that malloc returned and that is not free yet."


def test_an_address_inside_a_block_is_not_freed() -> None:
    """The words before it look like a header of a block of 16 bytes."""
    body = f"""setp.ne.u32 %p0, %t, 0; @%p0 ret; {MALLOC.format(64, "%d1")} st.u64 [%d1], 16; st.u64 [%d1+8], 1;
      add.u64 %d1, %d1, 16; {FREE.format("%d1")} ret;"""
    message = error_message(MemoryFault, body, top=TOP)
    assert message.endswith("expected an address that malloc returned and that is not free yet.")


def test_a_damaged_heap_is_told() -> None:
    body = f"""setp.ne.u32 %p0, %t, 0; @%p0 ret; {MALLOC.format(16, "%d1")} st.u64 [%d1+16], -1;
      {MALLOC.format(16, "%d2")} ret;"""
    assert error_message(MemoryFault, body, top=TOP).endswith(
        "the heap of malloc is damaged: a kernel has written outside the memory that malloc gave it."
    )
