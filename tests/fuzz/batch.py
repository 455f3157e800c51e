"""One batch of mutants: load, launch some, ask ptxas about some, and print a line of JSON for each.

``python -m tests.fuzz.batch SEED FIRST COUNT LAUNCH ASK`` runs in a process of its own, so that a crash or a hang of
this process is a result and does not end the run. Each ``LAUNCH``-th mutant that loads is launched and each
``ASK``-th is shown to ptxas; 0 for none.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
import traceback
import warnings
from typing import Any

import numpy as np

import warpwright as ww
from tests.foreign.cases import CASES
from tests.fuzz.corpus import DEVICES, corpus
from tests.fuzz.mutators import MUTATORS, Mutant, mutant
from warpwright import targets, vgpu
from warpwright.errors import DeviceError, LimitReached, UnsupportedInstruction, UsageError, WarpwrightError
from warpwright.ptx import nodes
from warpwright.ptx.ptxas import assemble
from warpwright.run.launch import Entry

JUMPS = 2_000
PTXAS_SECONDS = 20.0  # an alignment of 1 << 28 takes it minutes
MOST_MEMORY = 8 << 30  # bytes of this process, and of each ptxas: one took 15 GiB for a mutant
_LARGEST_GRID = 8
_CASES = {(case.file, case.entry): case for case in CASES}


def arch_of(file: str) -> str:
    """Returns the target of the unmutated file: the architecture on which its mutants run."""
    found = re.search(r"\.target\s+(\w+)", corpus()[file])
    assert found
    return found[1] if found[1] in DEVICES else "sm_90a"


def check(made: Mutant, launch: bool, ask: bool) -> dict[str, Any]:
    """Returns what happened to a mutant: ``load``, ``launch`` and ``ptxas`` with an outcome and a message each."""
    result: dict[str, Any] = {"number": made.number, "mutator": made.mutator, "file": made.file}
    result |= {"line": made.line, "before": made.before, "after": made.after}
    outcome, module = _try(lambda: ww.load_ptx(made.text, whole=True))
    result["load"] = outcome
    if launch and module is not None:
        names = list(module)
        if names:
            entry = module[names[made.number // len(MUTATORS) % len(names)]]
            result["launch"] = _try(lambda: _launch(entry, made))[0]
    if ask:
        result["ptxas"] = _ask(made)
    return result


def _ask(made: Mutant) -> list[str]:
    """Returns what ptxas says to a mutant."""
    try:
        said = assemble(made.text, arch_of(made.file), seconds=PTXAS_SECONDS)
    except UsageError as error:
        return ["refused", str(error)]
    return (
        ["accepted", ""] if said.ok else ["refused", next(iter(said.errors.values()), said.log[:200] or "no message")]
    )


def _try(act: Any) -> tuple[list[str], Any]:
    """Returns the outcome and what ``act`` returns: "ok", or the class of the error and its message."""
    try:
        return ["ok", ""], act()
    except LimitReached as error:
        return ["limit", str(error)], None
    except UnsupportedInstruction as error:
        return ["refused", f"{type(error).__name__}: {error}"], None
    except DeviceError as error:
        return ["fault", f"{type(error).__name__}: {error}"], None
    except WarpwrightError as error:
        return ["refused", f"{type(error).__name__}: {error}"], None
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return ["bare", f"{type(error).__name__} at {frame.filename[-40:]}:{frame.lineno}: {error}"[:300]], None


def _launch(entry: Entry, made: Mutant) -> None:
    """Launch an entry with the arguments of its test if there is one, else with plausible ones."""
    case = _CASES.get((made.file.split("/")[-1].split(".")[0], entry.name))
    params = entry.function.params
    grid, block, smem = (1, 1, 1), entry.block or (64, 1, 1), 4096
    args = None
    if case is not None and len(case.make(np.random.default_rng(0))[0]) == len(params):
        args = case.make(np.random.default_rng(0))[0]
        grid = (*case.grid, 1, 1)[:3] if np.prod(case.grid) <= _LARGEST_GRID else (1, 1, 1)
        block, smem = (*(case.block or block), 1, 1)[:3], case.smem
    device = vgpu.Device(targets.device(DEVICES[arch_of(made.file)]))
    passed = [_argument(param) for param in params] if args is None else args
    cluster = entry.cluster or (1, 1, 1)
    grid = tuple(-(-g // max(1, c)) * c for g, c in zip(grid, cluster, strict=True))
    device.launch(entry.module, entry.name, grid, block, cluster, smem, passed, limit=JUMPS)


def _argument(param: nodes.Variable) -> Any:
    if param.dims == (128,) or param.dims == (16,):
        return ww.TensorMap(np.zeros((128, 64), np.float16), box=(32, 64), swizzle=128)
    if param.dims:
        return bytes(int(np.prod(param.dims)) * max(1, ptx_bytes(param.type)))
    if param.type in ("u64", "b64", "s64"):
        return np.zeros(1 << 14, np.float32)
    return 1.5 if param.type.startswith("f") else 3


def ptx_bytes(name: str) -> int:
    """Returns the bytes of a type."""
    return int(re.sub(r"\D", "", name) or 8) // 8


def main() -> None:
    seed, first, count, launch, ask = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for number in range(first, first + count):
        turn = number // len(MUTATORS)  # each mutator has the same share of launches and questions
        started = time.perf_counter()
        made = mutant(seed, number)
        launched, asked = bool(launch) and turn % launch == 0, bool(ask) and turn % ask == 0
        result = check(made, launched, (launched and bool(ask)) or asked)
        print(json.dumps(result | {"seconds": round(time.perf_counter() - started, 3)}), flush=True)


if __name__ == "__main__":
    main()
