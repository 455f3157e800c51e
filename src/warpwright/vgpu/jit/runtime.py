"""The runtime of lane code: `*.ll` instantiated, compiled once per process, and registered with the JIT by name.

LLVM and its table of symbols belong to the process. One thread at a time uses them, under `COMPILER`; a fork waits for
that thread, so that the child finds LLVM idle.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from functools import cache
from importlib import resources
from string import Template
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from warpwright import folders
from warpwright.vgpu.jit import product
from warpwright.vgpu.jit.state import CONTROL

__all__ = [
    "BRIEF",
    "COMPILER",
    "DECLARATIONS",
    "Engine",
    "address",
    "atomic_name",
    "compile_ir",
    "function",
    "product_tile",
    "runtime",
]

_RMW = {
    "add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "inc": "uinc_wrap", "dec": "udec_wrap",
    "min.u": "umin", "max.u": "umax", "min.s": "min", "max.s": "max",
}  # fmt: skip
_HALVES = ("f16", "bf16")
COMPILER = threading.RLock()  # one thread compiles; a second runtime would replace the first and free its machine code
_OF_CHECKS = ("clocks", "named", "shadow", "runs", "sets", "rows")  # compiled at the first check
_FILES = (
    "translate", "control", "mbarrier", "exchange", "bulk", "wgmma", "hardware", "mma", "scaled", "reduce", "record",
    "signal", "watch", "bars",
)  # fmt: skip
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=COMPILER.acquire, after_in_parent=COMPILER.release, after_in_child=COMPILER.release)


class Engine:
    """Loaded machine code: alive as long as its functions are in use. A later process finds it on disk."""

    def __init__(self, text: str, level: int) -> None:
        with COMPILER:
            code = _machine_code(text, level)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(level))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))

    def variable(self, name: str) -> int:
        return int(self._engine.get_global_value_address(name))


def _machine_code(text: str, level: int) -> bytes:
    """Returns the object file of IR text, from the cache if it is there."""
    target = _target(level)
    host = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    key = hashlib.sha256(repr((llvmlite.__version__, llvm.llvm_version_info, host, level, text)).encode()).hexdigest()
    path = folders.cache() / "lanes" / key
    code = folders.read_code(path)
    if code is None:
        module = llvm.parse_assembly(text)
        if level:
            _optimise(module, target, level)
        code = bytes(target.emit_object(module))
        folders.write_code(path, code)
    return code


def _target(level: int) -> llvm.TargetMachine:
    _initialise()
    triple = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return triple.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=level, jit=True)


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _optimise(module: llvm.ModuleRef, target: llvm.TargetMachine, level: int) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)


def compile_ir(text: str, level: int = 0) -> Engine:
    """Compile IR text that may call the runtime. Kernels use level 0: compile time matters, and the code is as fast."""
    runtime()
    return Engine(text, level)


def atomic_name(op: str, bits: int, floating: str = "") -> str:
    """The routine of an atomic operation; ``floating``: its PTX type if floating point, ``"f32_flushed"`` for f32 in
    global memory."""
    return f"atomic_{op.replace('.', '_')}_{floating or bits}"


def _atomics() -> list[tuple[str, int, str]]:
    rows = []
    for bits in (32, 64):
        for op, word in _RMW.items():
            rows.append((atomic_name(op, bits), bits, f"  %old = atomicrmw {word} ptr %p, i{bits} %x monotonic"))
        rows.append((atomic_name("cas", bits), bits, _swap(bits)))
    rows += [(atomic_name("cas", bits), bits, _swap(bits)) for bits in (16, 128)]
    rows.append((atomic_name("exch", 128), 128, "  %old = atomicrmw xchg ptr %p, i128 %x monotonic"))
    rows += [(atomic_name("add", 32, type), 32, _combine("add", 32, type)) for type in ("f32", "f32_flushed")]
    rows.append((atomic_name("add", 64, "f64"), 64, _combine("add", 64, "f64")))
    for op in ("add", "min", "max"):
        for kind in _HALVES:
            rows.append((atomic_name(op, 16, kind), 16, _combine(op, 16, kind)))
            rows.append((atomic_name(op, 32, f"{kind}x2"), 32, _combine(op, 32, f"{kind}x2")))
    return rows


def _swap(bits: int) -> str:
    return (
        f"  %pair = cmpxchg ptr %p, i{bits} %c, i{bits} %x monotonic monotonic\n"
        f"  %old = extractvalue {{i{bits}, i1}} %pair, 0"
    )


def _combine(op: str, bits: int, type: str) -> str:
    """A compare-and-swap loop with a function of ``reduce.ll``, ``halves.ll`` or ``pairs.ll``."""
    return f"""  %first = load atomic i{bits}, ptr %p monotonic, align {bits // 8}
  br label %again
again:
  %old = phi i{bits} [ %first, %lane ], [ %seen, %again ]
  %new = call i{bits} @{op}_{type}(i{bits} %old, i{bits} %x)
  %pair = cmpxchg ptr %p, i{bits} %old, i{bits} %new monotonic monotonic
  %seen = extractvalue {{i{bits}, i1}} %pair, 0
  %took = extractvalue {{i{bits}, i1}} %pair, 1
  br i1 %took, label %changed, label %again
changed:"""


def _text() -> str:
    folder = resources.files(__package__)
    control = {name: str(value) for name, value in CONTROL.items()}

    def fill(file: str, **more: str) -> str:
        return Template((folder / file).read_text()).substitute(control | more)

    parts = [fill(f"{name}.ll") for name in _FILES]
    parts += [fill("access.ll", bits=str(b), bytes=str(b // 8)) for b in (8, 16, 64)]
    # tensor.ll declares the 32-bit gather and scatter of access.ll.
    parts.append(_strip_declarations(fill("access.ll", bits="32", bytes="4")))
    parts.append(fill("tensor.ll"))
    parts += [fill("halves.ll", kind=kind) for kind in _HALVES]
    parts += [fill("pairs.ll", kind=kind, op=op) for kind in _HALVES for op in ("add", "min", "max")]
    parts += [fill("atomic.ll", name=n, bits=str(b), body=body) for n, b, body in _atomics()]
    return "\n".join(parts)


def _strip_declarations(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("declare"))


_SIGNATURES = {
    "shared_cta": "i1 (ptr, i32, i64)",
    "shared_cluster": "i1 (ptr, i32, i64)",
    "local": "i1 (ptr, i32, i64)",
    "global": "i1 (ptr, i32, i64)",
    "generic": "i1 (ptr, i32, i64)",
    "fault": "i1 (ptr, i32, i32)",
    "dispatch": "i32 (ptr)",
    "set_pc": "void (ptr, i32, i32)",
    "block": "void (ptr, i32, i32)",
    "mbarrier_lanes": "i1 (ptr, i32)",
    "mbarrier_test": "i32 (ptr, i32)",
    "push": "i1 (ptr, i32, i32)",
    "spread_mask": "void (ptr, i64, i32)",
    "permute": "<32 x i64> (<32 x i64>, <32 x i32>)",
    "tmem_flush": "void (ptr)",
    "tmem_pend": "void (ptr, i32, i64)",
    "tmem_check": "i1 (ptr, i32, i32, i32)",
    "wgmma_issue": "i1 (ptr, i64, i64, i64, i64, ptr)",
    "mma_sync": "void (ptr, ptr)",
    "mma_scaled": "void (ptr, ptr, i64, i64, i64, i64)",
    "match_any": "<32 x i32> (<32 x i64>, i32)",
    "row": "void (ptr, i32, i64, i64, i64, i64)",
    "row_access": "void (ptr, i32, i64, i64, i64)",
    "row_barriers": "void (ptr, i32, i64, i64, i1)",
    "row_bar": "void (ptr, i32, i64, i64, i64, i64)",
    "row_wait": "void (ptr, i32, i32, i64, i64)",
    "spend": "void (ptr, i64)",
    "box_bytes": "i64 (ptr, i32, i64)",
    "cluster_arrive": "i32 (ptr, i32)",
    "signal": "void (ptr, i32, i64, i64, i64, i64, i64, i1)",
    "watch": "void (ptr, i32, i64, i64, i64, i64)",
    "watch_meeting": "void (ptr, i32, i64, i64)",
    **{f"gather{b}": f"<32 x i{b}> (ptr, i32, i64)" for b in (8, 16, 32, 64)},
    **{f"scatter{b}": f"void (ptr, i32, i64, <32 x i{b}>)" for b in (8, 16, 32, 64)},
    **{name: f"<32 x i{b}> (ptr, i32, <32 x i{b}>, <32 x i{b}>)" for name, b, _ in _atomics()},
}


def _declare(name: str, signature: str) -> str:
    result, _, arguments = signature.partition(" (")
    return f"declare {result} @{name}({arguments}"


DECLARATIONS = "\n".join(_declare(name, signature) for name, signature in _SIGNATURES.items())


def runtime() -> Engine:
    """The compiled runtime; its routines are registered by name for lane code."""
    with COMPILER:
        return _compile_runtime()


@cache
def _compile_runtime() -> Engine:
    engine = Engine(_text(), 2)
    for name in _SIGNATURES:
        llvm.add_symbol(name, engine.address(name))
    return engine


_WORD = ctypes.c_void_p  # an address or a number: ctypes converts this type in half the time of c_int64


def _checks() -> Engine:
    """The routines of checks, which lane code does not call; compiled for the first check."""
    with COMPILER:
        return _compile_checks()


def _products() -> Engine:
    """The routines of matrix products, compiled for the first one."""
    with COMPILER:
        return _compile_products()


@cache
def _compile_products() -> Engine:
    return Engine(product.text(product_tile()), 2)


@cache
def product_tile() -> product.Tile:
    """Returns the tile of matrix products on this host."""
    return product.tile_of(llvm.get_host_cpu_features().flatten())


@cache
def _compile_checks() -> Engine:
    folder = resources.files(__package__)
    return Engine("\n".join((folder / f"{name}.ll").read_text() for name in _OF_CHECKS), 2)


_WARPS = [ctypes.c_void_p, ctypes.c_int32]

_PYTHON: dict[str, tuple[Any, list[Any]]] = {
    "run_cluster": (ctypes.c_int32, [*_WARPS, *[ctypes.c_void_p] * 2, ctypes.c_int32, *[ctypes.c_void_p] * 2]),
    "settle_bars": (ctypes.c_int64, [*_WARPS, *[ctypes.c_void_p] * 2]),
    "settle_cluster": (ctypes.c_int64, [*_WARPS, *[ctypes.c_void_p] * 2]),
    "mbarrier_update": (ctypes.c_int32, [ctypes.c_void_p, *[ctypes.c_int64] * 4]),
    "mbarrier_update_all": (ctypes.c_int64, [ctypes.c_void_p, *[ctypes.c_int64] * 3]),
    "load_boxes": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]),
    "store_boxes": (ctypes.c_int64, [_WORD] * 5),
    "hardware_multiply": (None, [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 4 + [ctypes.c_void_p]),
    "copy_chunks": (None, [ctypes.c_void_p] * 4 + [ctypes.c_int64]),
    "widen_bf16": (None, [ctypes.c_void_p] * 3 + [ctypes.c_int64]),
    "widen_f16": (None, [ctypes.c_void_p] * 3 + [ctypes.c_int64]),
    "accumulate": (ctypes.c_int64, [_WORD] * 7),
    "watch_rows": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
    "clock_acquire": (None, [_WORD] * 5),
    "clock_release": (None, [_WORD] * 5),
    "clock_sync": (None, [_WORD] * 3),
    "clock_reach": (None, [_WORD] * 5),
    "clock_tick": (None, [_WORD] * 3),
    "clock_fence": (None, [_WORD] * 4),
    "bar_unknown": (ctypes.c_int64, [_WORD] * 3),
    "bar_arrive": (None, [_WORD] * 8),
    "bar_settle": (None, [_WORD] * 3),
    "shadow_access": (ctypes.c_int64, [_WORD] * 6),
    "shadow_touch": (ctypes.c_int64, [_WORD] * 9),
    "shadow_read": (ctypes.c_int64, [_WORD] * 4),
    "shadow_op": (ctypes.c_int64, [_WORD] * 3),
    "shadow_lanes": (ctypes.c_int64, [_WORD] * 7),
    "rows_follow": (ctypes.c_int64, [_WORD] * 5),
}


# These routines take less time than handing the interpreter lock to another thread and getting it back: that takes
# `BRIEF` seconds of the cores' time, and wakes the other thread even if the lock is taken back before it is awake.
BRIEF = 50e-6
_BRIEF = (
    "settle_bars", "settle_cluster", "mbarrier_update", "mbarrier_update_all", "copy_chunks", "clock_acquire",
    "clock_release", "clock_sync", "clock_reach", "clock_tick", "clock_fence", "bar_unknown", "bar_arrive",
    "bar_settle", "shadow_access", "shadow_touch", "shadow_read", "shadow_op", "shadow_lanes", "rows_follow",
)  # fmt: skip


@cache
def function(name: str, brief: bool = False):  # type: ignore[no-untyped-def]  # a ctypes function: its signature is data
    """A runtime routine as a ctypes function; it releases the interpreter lock unless the routine is brief, always or
    with the arguments of this call."""
    result, arguments = _PYTHON[name]
    make = ctypes.PYFUNCTYPE if brief or name in _BRIEF else ctypes.CFUNCTYPE
    return make(result, *arguments)(address(name))


@cache
def address(name: str) -> int:
    """The host address of a runtime routine, for other routines to call."""
    return _engine_of(name).address(name)


def _engine_of(name: str) -> Engine:
    if name.startswith(("bar_", "clock_", "shadow_", "rows_")):
        return _checks()
    return _products() if name == "accumulate" or name.startswith("pack_") else runtime()
