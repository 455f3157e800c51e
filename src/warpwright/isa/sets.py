"""Named sets of modifiers used by the tables of instruction forms."""

from __future__ import annotations

__all__ = ["SETS"]

SETS = {
    "INT": "u16|u32|u64|s16|s32|s64",
    "INT32": "u32|s32",
    "INT3264": "u32|u64|s32|s64",
    "BITS": "b16|b32|b64",
    "B3264": "b32|b64",
    "WORD": "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
    "MEMORY": "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
    "RND": "rn|rz|rm|rp",
    "SCOPE": "cta|cluster|gpu|sys",
    "SHARED": "shared|shared::cta|shared::cluster",
    "SHARED_CTA": "shared|shared::cta",
    "CMP": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan",
    "BOOL": "and|or|xor",
    "L1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "L2": "L2::evict_normal|L2::evict_first|L2::evict_last",
    "PREFETCH": "L2::64B|L2::128B|L2::256B",
    "POLICY": "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged",
    "SCALAR": "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64",
    "LDSPACE": "const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster",
    "STSPACE": "global|local|param|param::func|shared|shared::cta|shared::cluster",
    "ATOM": "and|or|xor|exch|add|inc|dec|min|max",
    "RED": "and|or|xor|add|inc|dec|min|max",
    "HALF": "f16|f16x2|bf16|bf16x2",
    "DIM": "1d|2d|3d|4d|5d",
    "NUM": "x1|x2|x4|x8|x16|x32|x64|x128",
    "COLLECTOR_A": "collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard",
    "COLLECTOR_B": "|".join(f"collector::b{i}::{op}" for i in range(4) for op in ("fill", "use", "lastuse", "discard")),
    "GROUP": "cta_group::1|cta_group::2",
}
