"""PTX of the probes: short kernels; the output of each shows one rule of the hardware."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["addresses", "bulk_reduce", "elected", "load", "multicast", "phases", "store", "wgmma"]

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"

# A wait with a timeout: a wrong count gives 0 in `done` and not a kernel that hangs.
WAIT = """
    mov.u32 %tries, 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;
    @%done bra WAITED;
    add.u32 %tries, %tries, 1;
    setp.lt.u32 %more, %tries, 1000;
    @%more bra WAIT;
WAITED:
"""

START = """
    .reg .b32 %t, %at, %to, %base, %bar, %tries, %word, %total, %offset, %nbytes, %flag, %rank, %row, %self;
    .reg .b64 %map, %out, %place, %wide, %list;
    .reg .b16 %mask;
    .reg .pred %first, %done, %more, %mine;
    mov.u32 %t, %tid.x;
    mov.u32 %bar, arena;
    add.u32 %base, %bar, 1024;
    ld.param.u64 %out, [out];
    ld.param.u32 %total, [total];
    setp.eq.u32 %first, %t, 0;
"""


def module(entry: str, params: str, body: str, demands: str = "", align: int = 1024) -> str:
    """A kernel with dynamic memory; where data is copied, an mbarrier is at its start and data from 1024 on."""
    arena = f".extern .shared .align {align} .b8 arena[];" if align else ""
    return (
        f".version 8.6\n.target sm_90a\n.address_size 64\n{arena}\n"
        f".visible .entry {entry}({params})\n{demands}{{\n{body}    ret;\n}}\n"
    )


def coordinates(rank: int) -> tuple[str, str, str]:
    """Returns parameters c0, c1, …, their loads, and the vector of their registers."""
    names = range(rank)
    params = "".join(f", .param .s32 c{n}" for n in names)
    loads = f"    .reg .b32 %c<{rank}>;\n" + "".join(f"    ld.param.s32 %c{n}, [c{n}];\n" for n in names)
    return params, loads, "{" + ", ".join(f"%c{n}" for n in names) + "}"


def each_word(label: str, first: str, body: str) -> str:
    """Returns a loop of ``body`` over this thread's words of the arena; ``%at`` is the offset of a word."""
    return f"""
    shl.b32 %at, %t, 2;
{label}:
    setp.lt.u32 %more, %at, {first};
    @!%more bra {label}_END;
{body}
    mov.u32 %word, %ntid.x;
    shl.b32 %word, %word, 2;
    add.u32 %at, %at, %word;
    bra {label};
{label}_END:
"""


FILL = each_word("FILL", "%total", "    add.u32 %to, %base, %at;\n    st.shared.u32 [%to], 0xEEEEEEEE;")
TAKE = each_word(
    "TAKE",
    "%total",
    "    cvt.u64.u32 %wide, %at;\n    add.u64 %place, %out, %wide;\n    ld.global.u32 %word, [%place];\n"
    "    add.u32 %to, %base, %at;\n    st.shared.u32 [%to], %word;",
)
DUMP = each_word(
    "DUMP",
    "%total",
    "    add.u32 %to, %base, %at;\n    ld.shared.u32 %word, [%to];\n    cvt.u64.u32 %wide, %at;\n"
    "    add.u64 %place, %out, %wide;\n    st.global.u32 [%place], %word;",
)
DONE = """
    selp.u32 %flag, 1, 0, %done;
    cvt.u64.u32 %wide, %total;
    add.u64 %place, %out, %wide;
    @%first st.global.u32 [%place], %flag;
"""
READY = """
    @%first mbarrier.init.shared::cta.b64 [%bar], 1;
    @%first fence.mbarrier_init.release.cluster;
    fence.proxy.async;
    bar.sync 0;
"""


def load(rank: int) -> str:
    """A tensor load to ``offset`` of an arena filled with 0xEE; ``out``: the arena, then whether the bytes counted
    were ``nbytes`` exactly."""
    params, loads, vector = coordinates(rank)
    signature = (
        ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total, .param .u32 offset, .param .u32 nbytes"
    )
    copy = f"""
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    ld.param.u32 %offset, [offset];
    ld.param.u32 %nbytes, [nbytes];
    add.u32 %to, %base, %offset;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %nbytes;
    @%first {LOAD.format(rank)} [%to], [%map, {vector}], [%bar];
"""
    return module("load", signature + params, START + loads + FILL + READY + copy + WAIT + DUMP + DONE)


def store(rank: int, op: str = "") -> str:
    """A tensor store (or reduction ``op``) of an arena that holds ``source``."""
    params, loads, vector = coordinates(rank)
    signature = ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total, .param .u32 offset"
    name = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}" if op else ""
    name = name or f"cp.async.bulk.tensor.{rank}d.global.shared::cta"
    copy = f"""
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    ld.param.u32 %offset, [offset];
    add.u32 %to, %base, %offset;
    fence.proxy.async;
    bar.sync 0;
    @%first {name}.tile.bulk_group [%map, {vector}], [%to];
    @%first cp.async.bulk.commit_group;
    @%first cp.async.bulk.wait_group 0;
"""
    return module("store", signature + params, START + loads + TAKE + copy)


def bulk_reduce(op: str) -> str:
    """The linear reduction ``op`` (with its type) of ``total`` bytes of ``out`` into ``target``."""
    signature = ".param .u64 target, .param .u64 out, .param .u32 total"
    copy = f"""
    ld.param.u64 %list, [target];
    fence.proxy.async;
    bar.sync 0;
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%list], [%base], %total;
    @%first cp.async.bulk.commit_group;
    @%first cp.async.bulk.wait_group 0;
"""
    return module("bulk_reduce", signature, START + TAKE + copy)


def multicast() -> str:
    """CTA r sends row r of the tensor to the CTAs of ``masks[r]`` and expects ``expected[r]`` bytes itself; ``out``:
    each CTA's arena and whether its bytes came to that."""
    signature = (
        ".param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 total, .param .u32 nbytes, "
        ".param .u64 masks, .param .u64 expected"
    )
    copy = f"""
    mov.b64 %map, tensor;
    cvta.param.u64 %map, %map;
    mov.u32 %rank, %cluster_ctarank;
    ld.param.u64 %list, [expected];
    mad.wide.u32 %list, %rank, 4, %list;
    ld.global.u32 %nbytes, [%list];
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %nbytes;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    ld.param.u64 %list, [masks];
    mad.wide.u32 %list, %rank, 2, %list;
    ld.global.u16 %mask, [%list];
    setp.ne.u16 %mine, %mask, 0;
    and.pred %mine, %mine, %first;
    ld.param.u32 %row, [nbytes];
    mad.lo.u32 %to, %rank, %row, %base;
    mov.u32 %self, 0;
    @%mine {LOAD.format(2)}.multicast::cluster [%to], [%map, {{%self, %rank}}], [%bar], %mask;
"""
    place = """
    mov.u32 %rank, %ctaid.x;
    add.u32 %row, %total, 4;
    mul.wide.u32 %wide, %rank, %row;
    add.u64 %out, %out, %wide;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    return module(
        "multicast", signature, START + FILL + READY + copy + WAIT + place + DUMP + DONE, ".explicitcluster\n"
    )


def phases(count: int, steps: Sequence[str]) -> str:
    """One thread applies ``steps`` to an mbarrier with ``count`` arrivals and notes what every wait sees.

    After each step: whether the phases of parity 0 and 1 count as complete, and the current and preceding tokens'.
    ``pending`` notes the pending count in the token of an arrival that completes nothing.
    """
    body = """
    .reg .b32 %bar, %note, %count;
    .reg .b64 %out, %token;
    .reg .pred %p;
    .shared .align 8 .b64 barrier;
    mov.u32 %bar, barrier;
    ld.param.u64 %out, [out];
"""
    body += f"    mbarrier.init.shared::cta.b64 [%bar], {count};\n"
    for number, step in enumerate(("", *steps)):
        body += f"    {spelled(step)}\n"
        if not step.startswith("pending"):
            body += "    mov.u32 %count, 0xFFFFFFFF;\n"
        body += "    mov.u32 %note, 0;\n"
        for bit, wait in enumerate(("parity 0", "parity 1")):
            body += f"    mbarrier.test_wait.parity.shared::cta.b64 %p, [%bar], {wait[-1]};\n"
            body += f"    @%p or.b32 %note, %note, {1 << bit};\n"
        body += f"    st.global.v2.u32 [%out+{8 * number}], {{%note, %count}};\n"
    return module("phases", ".param .u64 out", body, align=0)


def spelled(step: str) -> str:
    """``"arrive 2"`` as PTX."""
    if not step:
        return ""
    name, *operand = step.split()
    last = f", {operand[0]}" if operand else ""
    if name == "init":
        return f"mbarrier.inval.shared::cta.b64 [%bar];\n    mbarrier.init.shared::cta.b64 [%bar]{last};"
    if name == "pending":
        keep = f"mbarrier.arrive.noComplete.shared::cta.b64 %token, [%bar]{last};"
        return f"{keep}\n    mbarrier.pending_count.b64 %count, %token;"
    if name in ("expect_tx", "complete_tx"):
        return f"mbarrier.{name}.relaxed.cta.shared::cta.b64 [%bar]{last};"
    return f"mbarrier.{name}.shared::cta.b64 _, [%bar]{last};"


def elected() -> str:
    """``out[lane]``: the lane that elect.sync names for ``mask``, plus 100 in the lane whose predicate is true."""
    body = """
    .reg .b32 %lane, %mask, %leader, %bit;
    .reg .b64 %out;
    .reg .pred %in, %p;
    ld.param.u64 %out, [out];
    ld.param.u32 %mask, [mask];
    mov.u32 %lane, %laneid;
    shl.b32 %bit, 1, %lane;
    and.b32 %bit, %bit, %mask;
    setp.ne.u32 %in, %bit, 0;
    @!%in bra END;
    elect.sync %leader|%p, %mask;
    @%p add.u32 %leader, %leader, 100;
    mad.wide.u32 %out, %lane, 4, %out;
    st.global.u32 [%out], %leader;
END:
"""
    return module("elected", ".param .u64 out, .param .u32 mask", body)


def addresses() -> str:
    """``out``: addresses of a static variable of 100 bytes and of dynamic memory, then the sizes that PTX tells."""
    names = ("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size")
    body = """
    .reg .b32 %value;
    .reg .b64 %out;
    .shared .align 4 .b8 fixed[100];
    ld.param.u64 %out, [out];
    mov.u32 %value, fixed;
    st.global.u32 [%out], %value;
    mov.u32 %value, arena;
    st.global.u32 [%out+4], %value;
"""
    for number, name in enumerate(names, start=2):
        body += f"    mov.u32 %value, {name};\n    st.global.u32 [%out+{4 * number}], %value;\n"
    return module("addresses", ".param .u64 out", body, align=16)


def wgmma(form: str, registers: int, immediates: str) -> str:
    """One wgmma of ``form`` on an arena that holds ``out``; descriptors ``a`` and ``b`` count from its start.

    ``d``: ``registers`` words for each thread, the accumulator before and after.
    """
    names = [f"%d{n}" for n in range(registers)]
    body = f"""
    .reg .b32 %d<{registers}>;
    .reg .b64 %a, %b, %acc;
    mul.wide.u32 %wide, %t, {4 * registers};
    ld.param.u64 %acc, [d];
    add.u64 %acc, %acc, %wide;
"""
    body += "".join(f"    ld.global.b32 {name}, [%acc+{4 * n}];\n" for n, name in enumerate(names))
    body += f"""
    shr.u32 %to, %base, 4;
    cvt.u64.u32 %wide, %to;
    ld.param.u64 %a, [a];
    ld.param.u64 %b, [b];
    add.u64 %a, %a, %wide;
    add.u64 %b, %b, %wide;
    fence.proxy.async;
    bar.sync 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.{form} {{{", ".join(names)}}}, %a, %b, {immediates};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
"""
    body += "".join(f"    st.global.b32 [%acc+{4 * n}], {name};\n" for n, name in enumerate(names))
    signature = ".param .u64 out, .param .u32 total, .param .u64 d, .param .u64 a, .param .u64 b"
    return module("wgmma", signature, START + TAKE + body)
