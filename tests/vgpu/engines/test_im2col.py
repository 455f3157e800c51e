"""Tensor copies of im2col mode against windows of a padded array."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.vgpu.engines.fabric import MAP_AT, MBAR, Cluster, operation, refusal
from warpwright.errors import ProtocolError, UnsupportedInstruction
from warpwright.layout import swizzle
from warpwright.layout.tensor_map import TensorMap
from warpwright.vgpu.engines import copy

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.im2col_no_offs.bulk_group"
ADD = "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.add.im2col_no_offs.bulk_group"
MARGIN = 40  # channels of the padded array beside those of the image: more than a copy reaches


class Case:
    """A map of images, the number of the first pixel in the order of a convolution's outputs, and offsets of a filter;
    all in axis order."""

    def __init__(self, tensor: TensorMap, first: int, offsets: list[int], channel: int) -> None:
        self.tensor, self.offsets, self.channel = tensor, offsets, channel
        lower, upper = (corner[::-1] for corner in tensor.corners)
        shape, steps = tensor.array.shape, tensor.elem_strides[::-1]
        axes = [
            range(low, extent + high, step)
            for low, high, extent, step in zip(lower, upper, shape[1:-1], steps[1:-1], strict=True)
        ]
        images = shape[0] + tensor.box[1]  # copies may end after the last image
        places = list(itertools.product(range(images), *axes))
        self.places = np.array(places[first : first + tensor.box[1]])

    @property
    def words(self) -> tuple[int, ...]:
        """The coordinates of the copy, innermost first."""
        return (self.channel, *(int(n) for n in self.places[0][::-1]))

    def pixels(self, fill: float = 0) -> NDArray[Any]:
        """Returns the pixels and channels that a load finds."""
        array, (channels, _) = self.tensor.array, self.tensor.box
        images, pixels = self.places[:, 0], self.places[:, 1:] + np.array(self.offsets)
        margin = max(0, -int(pixels.min()), int((pixels - array.shape[1:-1]).max()) + 1)
        ends = [(0, self.tensor.box[1] + 1), *[(margin, margin)] * (array.ndim - 2), (MARGIN, MARGIN)]
        padded = np.pad(array, ends, constant_values=fill)
        index = tuple(np.minimum(images, len(array))), *(pixels + margin).T
        return padded[index][:, MARGIN + self.channel : MARGIN + self.channel + channels]

    def bytes_at(self, at: int) -> NDArray[np.int64]:
        """Returns the first byte in shared memory of each channel of each pixel."""
        size, (channels, pixels) = self.tensor.dtype.nbytes, self.tensor.box
        row = max(channels * size, self.tensor.swizzle)
        offsets: NDArray[np.int64] = at + np.arange(pixels)[:, None] * row + np.arange(channels) * size
        return swizzle(offsets, self.tensor.swizzle)

    def read(self, cluster: Cluster, at: int) -> NDArray[Any]:
        found = cluster.shared[0][self.bytes_at(at)[:, :, None] + np.arange(self.tensor.dtype.nbytes)]
        return np.ascontiguousarray(found).view(self.tensor.array.dtype)[..., 0]


@st.composite
def cases(draw: st.DrawFn, inside: bool = False) -> Case:
    """Draws a case; ``inside``: with no pixels in front of or after the image, and no offsets, for stores."""
    spatial = draw(st.integers(1, 3))
    dtype = np.dtype(draw(st.sampled_from([np.float16, np.float32])))
    unit, mode = 16 // dtype.itemsize, draw(st.sampled_from([0, 32, 64, 128]))
    shape = [
        draw(st.integers(1, 3)),
        *(draw(st.integers(1, 6)) for _ in range(spatial)),
        draw(st.integers(1, 4)) * unit,
    ]
    lower = [draw(st.integers(0 if inside else -3, 2)) for _ in range(spatial)]
    lower = [min(low, extent - 1) for low, extent in zip(lower, shape[1:], strict=False)]
    upper = [
        draw(st.integers(low - extent + 1, 0 if inside else 3)) for low, extent in zip(lower, shape[1:], strict=False)
    ]
    box = draw(st.integers(1, 20)), draw(st.integers(1, (mode or 64) // 16)) * unit
    steps = [1, *(draw(st.integers(1, 3)) for _ in range(spatial)), 1]
    array = np.random.default_rng(len(shape)).integers(1, 100, shape).astype(dtype)
    tensor = TensorMap(array, box, corners=(lower, upper), element_strides=steps, swizzle=mode)
    offsets = [0 if inside else draw(st.integers(0, 4)) for _ in range(spatial)]
    channel = draw(st.integers(0 if inside else -1, shape[-1] // unit)) * unit
    outputs = [-(-(n + high - low) // s) for n, low, high, s in zip(shape[1:], lower, upper, steps[1:], strict=False)]
    return Case(tensor, draw(st.integers(0, shape[0] * int(np.prod(outputs)) - 1)), offsets, channel)


@given(cases())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_load_moves_pixels_in_the_order_of_a_convolution(case: Case) -> None:
    cluster, at, rank = Cluster(), 2048 + 128, case.tensor.rank
    cluster.bind(case.tensor)
    before = cluster.shared[0].copy()
    copy.complete(cluster, [operation(LOAD.format(rank), at, MAP_AT, *case.words, MBAR, *case.offsets[::-1])])
    np.testing.assert_array_equal(case.read(cluster, at), case.pixels())
    touched = case.bytes_at(at)[:, :, None] + np.arange(case.tensor.dtype.nbytes)
    before[touched] = cluster.shared[0][touched]
    np.testing.assert_array_equal(cluster.shared[0], before)
    assert cluster.log == [("tx", 0, MBAR, case.tensor.box[0] * case.tensor.box[1] * case.tensor.dtype.nbytes)]


@pytest.mark.parametrize("opcode", [STORE, ADD])
@given(case=cases(inside=True))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_store_writes_the_pixels_inside_the_images(opcode: str, case: Case) -> None:
    cluster, at = Cluster(), 2048 + 128
    cluster.bind(case.tensor)
    values = np.random.default_rng(0).integers(1, 100, case.tensor.box[::-1]).astype(case.tensor.array.dtype)
    cluster.shared[0][case.bytes_at(at)[:, :, None] + np.arange(values.itemsize)] = values[..., None].view(np.uint8)
    expected = case.tensor.array.copy()
    for place, pixel in zip(case.places, values, strict=True):
        if place[0] < len(expected):
            part = expected[tuple(place)][case.channel : case.channel + len(pixel)]
            part[:] = pixel[: len(part)] + (part if opcode is ADD else 0)
    copy.complete(cluster, [operation(opcode.format(case.tensor.rank), MAP_AT, *case.words, at)])
    np.testing.assert_array_equal(case.tensor.array, expected)
    assert cluster.log == []


def test_pixels_outside_the_images_are_filled_with_nan() -> None:
    array = np.ones((2, 3, 4, 8), np.float16)
    tensor = TensorMap(array, (30, 16), corners=((-1, -1), (0, 1)), fill="nan")
    case, cluster = Case(tensor, 0, [0, 1], 0), Cluster()
    cluster.bind(tensor)
    copy.complete(cluster, [operation(LOAD.format(4), 2048, MAP_AT, *case.words, MBAR, 1, 0)])
    expected = case.pixels(np.nan)
    assert 0 < np.isfinite(expected).sum() < expected.size // 2
    np.testing.assert_array_equal(case.read(cluster, 2048), expected)


def test_a_pixel_between_the_steps_begins_a_line() -> None:
    """The next line begins at the corner."""
    tensor = TensorMap(
        np.arange(72, dtype=np.float32).reshape(2, 9, 4), (6, 4), corners=((0,), (0,)), element_strides=(1, 4, 1)
    )
    cluster = Cluster()
    cluster.bind(tensor)
    copy.complete(cluster, [operation(LOAD.format(3), 2048, MAP_AT, 0, 3, 0, MBAR, 0)])
    found = cluster.shared[0, 2048 : 2048 + 96].view(np.float32).reshape(6, 4)
    np.testing.assert_array_equal(found[:, 0], [12, 28, 36, 52, 68, 0])


IMAGE = np.zeros((2, 8, 8, 16), np.float16)
PADDED = TensorMap(IMAGE, (16, 16), corners=((-1, -1), (0, 1)))
TILE = TensorMap(IMAGE, (1, 4, 4, 16))
REFUSED: list[tuple[str, TensorMap, tuple[int, ...], type[Exception], str]] = [
    (LOAD.format(4), PADDED, (2048, MAP_AT, 0, 9, 0, 0, MBAR, 0, 0), ProtocolError,
     "im2col mode is given coordinates (0, 9, 0, 0), innermost first; expected a pixel between the map's corners, W "
     "from -1 to 8; mend the coordinates or the corners"),
    (LOAD.format(4), PADDED, (2048, MAP_AT, 0, -2, 8, 0, MBAR, 0, 0), ProtocolError,
     "im2col mode is given coordinates (0, -2, 8, 0), innermost first; expected a pixel between the map's corners, W "
     "from -1 to 8 and H from -1 to 7; mend the coordinates or the corners"),
    (LOAD.format(4), PADDED, (2048, MAP_AT, 0, 0, 0, 0, MBAR, 256, 0), ProtocolError,
     "im2col mode is given offsets (256, 0); expected 0 to 255 with 4 dimensions; add the rest to the coordinates"),
    (STORE.format(4), PADDED, (MAP_AT, 0, 0, 0, 0, 2048), ProtocolError,
     "pixels are stored through a map with corners (-1, -1) and (1, 0), innermost first; expected none outside the "
     "image; encode a map without the padding for stores"),
    (LOAD.format(4), TILE, (2048, MAP_AT, 0, 0, 0, 0, MBAR, 0, 0), ProtocolError,
     ".im2col is given a tensor map of tile mode; expected one of im2col mode; encode it by cuTensorMapEncodeIm2col, "
     "or by ww.TensorMap with corners=…"),
    (LOAD.format(4).replace("im2col", "tile"), PADDED, (2048, MAP_AT, 0, 0, 0, 0, MBAR), ProtocolError,
     ".tile is given a tensor map of im2col mode; expected one of tile mode; encode it by cuTensorMapEncodeTiled, "
     "or by ww.TensorMap with no corners"),
    (LOAD.format(4).replace("im2col", "im2col::w"), PADDED, (2048, MAP_AT, 0, 0, 0, 0, MBAR, 0, 0),
     UnsupportedInstruction,
     "mode .im2col::w is not executed by the virtual GPU; expected .tile, .tile::gather4, .tile::scatter4, .im2col, "
     ".im2col_no_offs; load the pixels by .im2col"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "tensor", "words", "kind", "sentence"), REFUSED)
def test_im2col_mode_refuses_bad_operands(
    opcode: str, tensor: TensorMap, words: tuple[int, ...], kind: type[Exception], sentence: str
) -> None:
    assert refusal(kind, tensor, opcode, *words) == sentence
