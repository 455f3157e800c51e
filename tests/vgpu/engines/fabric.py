"""A cluster of NumPy arrays with the interface that engines need, and operations from PTX opcodes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from warpwright import isa
from warpwright.errors import MemoryFault
from warpwright.layout.tensor_map import TensorMap
from warpwright.layout.tensor_map_bytes import MAP_BYTES
from warpwright.ptx import nodes
from warpwright.vgpu.engines import copy
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.program.operation import Op
from warpwright.vgpu.program.program import Inst

MAP_AT = 0x7000_0000_1000
GLOBAL_AT = 0x7000_0010_0000
TENSORS_AT = 0x7000_1000_0000
MBAR = 1024


def shared_address(rank: int, offset: int) -> int:
    return rank << 24 | offset


class Cluster:
    """A cluster for engines. ``log`` has the updates of mbarriers in order: ("tx", rank, offset, bytes) or ("arrive",
    rank, offset)."""

    def __init__(self, ranks: int = 1, limit: int = 64 * 1024, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.ranks = ranks
        self.hardware = False
        self.computes = self.tells_updates = True
        self.shared_limit = limit
        memory = np.empty(ranks * limit + 1024, np.uint8)
        start = -memory.ctypes.data % 1024
        self.shared = memory[start : start + ranks * limit].reshape(ranks, limit)
        self.shared[:] = random.integers(0, 256, self.shared.shape, dtype=np.uint8)
        self.shared_host = self.shared.ctypes.data
        self.shared_stride = limit
        self.tmem = random.integers(-(2**31), 2**31, (ranks, 512, 128), dtype=np.int32)
        self.allocated = [0xFFFF] * ranks
        self.maps: dict[int, BoundMap] = {}
        self.tensors: dict[int, NDArray[np.uint8]] = {}
        self.global_lock = threading.Lock()
        self.memory = random.integers(0, 256, 8192, dtype=np.uint8)
        self.log: list[tuple[Any, ...]] = []

    def tmem_allocated(self, rank: int) -> int:
        return self.allocated[rank]

    def arrive(self, op: Op, rank: int, offset: int) -> None:
        self.log.append(("arrive", rank, offset))

    def complete_tx(self, op: Op, rank: int, offset: int, nbytes: int) -> None:
        self.log.append(("tx", rank, offset, nbytes))

    def tensor_map(self, op: Op, address: int) -> BoundMap:
        return self.maps[address]

    def global_memory(self, op: Op, address: int, nbytes: int) -> NDArray[np.uint8]:
        for start, data in self.tensors.items():
            if start <= address and address + nbytes <= start + len(data):
                return data[address - start : address - start + nbytes]
        if not GLOBAL_AT <= address <= GLOBAL_AT + len(self.memory) - nbytes:
            raise MemoryFault(f"global 0x{address:x} to 0x{address + nbytes:x}")
        return self.memory[address - GLOBAL_AT : address - GLOBAL_AT + nbytes]

    def failure(self, kind: type[Exception], op: Op, message: str) -> Exception:
        return kind(message)

    def bind(self, tensor: TensorMap, *, address: int = MAP_AT, nbytes: int | None = None) -> NDArray[np.uint8]:
        """Place a map at an address. Returns the bytes of its tensor."""
        data = tensor.array.reshape(-1).view(np.uint8)[:nbytes]
        start = TENSORS_AT + (len(self.tensors) << 24)
        self.tensors |= {start: data, address: np.zeros(MAP_BYTES, np.uint8)}
        self.maps[address] = BoundMap(tensor, start, data, data.ctypes.data)
        return data


def operation(opcode: str, *words: int, rank: int = 0, a_in_tmem: bool = False) -> Op:
    """Returns an operation with operand words in order; the spelling is the first that accepts their number."""
    match = isa.match(opcode)
    assert match is not None, opcode
    named = [o for o in match.spelling.named if not o.slot or o.slot in match.chosen]
    spare = len(words) - sum(_width(match, o) for o in named if not o.optional)
    operands: list[Any] = []
    for operand in named:
        width = _width(match, operand)
        if operand.optional and width > spare:
            continue
        spare -= width if operand.optional else 0
        in_tmem = a_in_tmem and operand.names == ("a",)
        operands.append(_operand("a" if in_tmem else operand.kind, width))
    inst = Inst(0, opcode, isa.match(opcode, len(operands)) or match, tuple(operands))
    return Op(inst, rank, 0, 0, [word & (1 << 64) - 1 for word in words])


def refusal(kind: type[Exception], tensor: TensorMap, opcode: str, *words: int) -> str:
    """Returns the message of the exception that a copy of a tensor map, placed at ``MAP_AT``, raises."""
    cluster = Cluster(2)
    cluster.bind(tensor)
    with pytest.raises(kind) as raised:
        copy.complete(cluster, [operation(opcode, *words)])
    return str(raised.value)


def _width(match: isa.Match, operand: isa.Operand) -> int:
    """Returns the number of an operand's words: tensor coordinates after the map, elements of a vector."""
    if len(operand.names) == 2:
        return 1 + (5 if match["mode"].startswith("tile::") else int(match["dim"][0]))
    if operand.names == ("offsets",):
        return 2 if "::w" in match["mode"] else int(match["dim"][0]) - 2
    if operand.names == ("disable_output_lane",):
        return 4 * int(match["group"][-1])
    return int(match["vec"][1:] or 1) if operand.kind == "v" and "vec" in match.form.slots else 1


def _operand(kind: str, width: int) -> Any:
    register, vector = nodes.Reg("%a"), nodes.Vector((nodes.Reg("%a"),) * (width - (kind == "a")))
    if kind == "a":
        return nodes.Address(register, 0, (vector,) if vector.items else ())
    return vector if width > 1 else register
