"""The bytes of tensor maps on a real GPU: as the driver writes them, and as a kernel makes them of zeros."""

from __future__ import annotations

import numpy as np

import warpwright as ww
from tests.conformance.tensor_maps import cases, connect, differences, encode
from tests.vgpu.machine.test_maps import COLUMNS, ROWS, X, build_map
from warpwright.layout.tensor_map_bytes import decode


def test_our_bytes_are_those_of_the_driver() -> None:
    bindings, accepted = connect(), 0
    for name, given in cases():
        found = encode(bindings, given)
        if len(found) == 256:  # else a map that the driver refuses
            assert not differences(given, found), name
            accepted += 1
    assert accepted > 300


def test_a_map_is_made_of_zeros_on_the_device() -> None:
    """The GPU makes the bytes that the virtual GPU makes, and loads the box."""
    found = {}
    for device in ("h200", "cuda"):
        map, y = np.zeros(32, np.uint32), np.zeros(ROWS * COLUMNS, np.float32)
        direct = ww.TensorMap(X, (ROWS, COLUMNS), swizzle=64)
        ww.launch(build_map, grid=1, args=[direct, X, map, y], device=device)
        assert np.array_equal(y.reshape(ROWS, COLUMNS), X[2 : 2 + ROWS, 16:])
        found[device] = decode(map.tobytes())._replace(address=0)
    assert found["h200"] == found["cuda"]
