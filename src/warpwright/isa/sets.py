"""Named sets of modifiers used by the tables of instruction forms."""

from __future__ import annotations

__all__ = ["SETS", "TAILS"]

SETS = {
    "INT": "u16|u32|u64|s16|s32|s64",
    "INTEGER": "u8|u16|u32|u64|s8|s16|s32|s64",
    "INT32": "u32|s32",
    "INT3264": "u32|u64|s32|s64",
    "BITS": "b16|b32|b64",
    "B3264": "b32|b64",
    "WORD": "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
    "MEMORY": "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
    "IRND": "rni|rzi|rmi|rpi",
    "RND": "rn|rz|rm|rp",
    "SCOPE": "cta|cluster|gpu|sys",
    "SHARED": "shared|shared::cta|shared::cluster",
    "SHARED_CTA": "shared|shared::cta",
    "MEMORY32": "b8|b16|b32|u8|u16|u32|s8|s16|s32|f32",
    "MEMORY64": "b64|u64|s64|f64",
    "CMP_BITS": "eq|ne",
    "CMP_SIGNED": "eq|ne|lt|le|gt|ge",
    "CMP_UNSIGNED": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs",
    "CMP_FLOAT": "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan",
    "BOOL": "and|or|xor",
    "EVICT_L1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "EVICT_L2": "L2::evict_normal|L2::evict_first|L2::evict_last",
    "PREFETCH": "L2::64B|L2::128B|L2::256B",
    "POLICY": "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged",
    "LDSPACE": "const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster",
    "STSPACE": "global|local|param|param::func|shared|shared::cta|shared::cluster",
    "RED": "and|or|xor|add|inc|dec|min|max",
    "HALF": "f16|f16x2|bf16|bf16x2",
    "DIM": "1d|2d|3d|4d|5d",
    "NUM32": "x1|x2|x4|x8|x16|x32",
    "NUM64": "x1|x2|x4|x8|x16|x32|x64",
    "NUM2": "x2|x4|x8|x16|x32|x64|x128",
    "NUM": "x1|x2|x4|x8|x16|x32|x64|x128",
    "COLLECTOR_A": "collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard",
    "COLLECTOR_B": "|".join(f"collector::b{i}::{op}" for i in range(4) for op in ("fill", "use", "lastuse", "discard")),
    "GROUP": "cta_group::1|cta_group::2",
}

TAILS = {
    "VALUE": ("{.vec=v2|v4}.type=MEMORY32", "{.vec=v2}.type=MEMORY64", ".type=b128"),
    "WIDE": (".vec=v8.type=b32|u32|s32|f32", ".vec=v4.type=MEMORY64"),
    "REDUCTION": (
        ".op=and|or|xor{.hint=L2::cache_hint}.type=B3264",
        ".op=add{.hint=L2::cache_hint}.type=u32|s32|u64|f32|f64",
        ".op=inc|dec{.hint=L2::cache_hint}.type=u32",
        ".op=min|max{.hint=L2::cache_hint}.type=INT3264",
        ".op=add.noftz{.hint=L2::cache_hint}.type=HALF",
    ),
    "SHARED_REDUCTION": (
        ".op=and|or|xor.type=B3264",
        ".op=add.type=u32|s32|u64|f32|f64",
        ".op=inc|dec.type=u32",
        ".op=min|max.type=INT3264",
        ".op=add.noftz.type=HALF",
    ),
    "VECTOR_REDUCTION": (
        ".op=add{.hint=L2::cache_hint}.vec=v2|v4.type=f32",
        ".op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4|v8.type=f16|bf16",
        ".op=add|min|max.noftz{.hint=L2::cache_hint}.vec=v2|v4.type=f16x2|bf16x2",
    ),
    "CLAMP": ("{.relu}{.satfinite}", ".satfinite.relu"),
    "INTEGERS": (
        ".cmp=CMP_SIGNED{.bool=BOOL}.dtype=u32|s32|f32.type=s16|s32|s64",
        ".cmp=CMP_UNSIGNED{.bool=BOOL}.dtype=u32|s32|f32.type=u16|u32|u64",
        ".cmp=CMP_BITS{.bool=BOOL}.dtype=u32|s32|f32.type=BITS",
    ),
}
