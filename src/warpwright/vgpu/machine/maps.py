"""The tensor maps of a launch, each known by its 128 bytes (`layout.tensor_map_bytes`), wherever those are."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from warpwright.errors import UsageError
from warpwright.layout.tensor_map import TensorMap
from warpwright.layout.tensor_map_bytes import MAP_BYTES, USED_BYTES, decode, encode, fields_of, tensor_of
from warpwright.vgpu.engines.op import BoundMap
from warpwright.vgpu.jit.state import SHARED_WINDOW
from warpwright.vgpu.machine.memory import GlobalMemory

__all__ = ["Maps"]


@dataclass(slots=True)
class Maps:
    """The tensor maps that a launch was given or that its copies have used. Maps whose used bytes are equal are one
    map with one number, its place in ``bound``."""

    memory: GlobalMemory
    numbers: dict[bytes, int] = field(default_factory=dict)
    bound: list[BoundMap] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def bind(self, map: TensorMap) -> bytes:
        """Returns the bytes of a map over an array of the launch."""
        address = self.memory.address(map.array)
        raw = encode(fields_of(map, address))
        self._add(raw, map, address)
        return raw

    def number_at(self, address: int) -> int:
        """Returns the number of the map at a generic address. Raises UsageError if there is no valid map."""
        raw = self.memory.view(address)[:MAP_BYTES].tobytes()
        found = self.numbers.get(raw[:USED_BYTES]) if len(raw) == MAP_BYTES else None
        return self._number(raw, address) if found is None else found

    def _number(self, raw: bytes, address: int) -> int:
        if len(raw) < MAP_BYTES or not any(raw[:USED_BYTES]):
            where = "shared memory; a tensor copy reads its map from global memory, constants or parameters"
            what = where if address >> 32 == SHARED_WINDOW >> 32 else "zeros" if raw else "no allocated memory"
            raise UsageError(f"there is no tensor map at 0x{address:x}, which is {what}; pass a ww.TensorMap")
        try:
            fields = decode(raw)
            return self._add(raw, tensor_of(fields, self.memory.view(fields.address)), fields.address)
        except UsageError as error:
            raise UsageError(f"the bytes at 0x{address:x} are no valid tensor map: {error}") from None

    def _add(self, raw: bytes, map: TensorMap, address: int) -> int:
        data = self.memory.view(address)
        with self.lock:
            if raw[:USED_BYTES] not in self.numbers:
                self.bound.append(BoundMap(map, address, data, data.ctypes.data))
                self.numbers[raw[:USED_BYTES]] = len(self.bound) - 1
            return self.numbers[raw[:USED_BYTES]]
