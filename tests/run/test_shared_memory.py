"""Arguments that share memory are one memory of the device, or a clear error; a read-only array is never written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpwright as ww
from warpwright.errors import UsageError
from warpwright.lang import Global, If, b16, kernel, tid, tma, u8, u32

DEVICE = "h200"  # tests/gpu/test_shared_memory.py runs this file's launches on the GPU of the machine
COUNT = 24
Array = np.ndarray[Any, Any]


@kernel("sm_90a", threads=32)
def add_five(a: Global[u32], b: Global[u32], n: u32):
    """One warp: every thread reads before one writes."""
    with If(tid.x < n):
        a[tid.x] = b[tid.x] + 5


def add(a: Any, b: Any) -> None:
    ww.launch(add_five, 1, args=[a, b, min(a.size, b.size, 32)], device=DEVICE)


def sentence(a: Any, b: Any) -> str:
    with pytest.raises(UsageError) as caught:
        add(a, b)
    return str(caught.value)


def test_a_strided_view_beside_its_base_is_refused() -> None:
    z = np.zeros(4, np.uint32)
    assert sentence(z, z[::2]) == (
        "launch of 'add_five': given 'b', an array with strides of (8,) bytes that shares memory with 'a'; expected a "
        "C-contiguous view, or memory of its own: pass a copy, np.ascontiguousarray(b)"
    )
    assert not z.any()
    add(z, np.ascontiguousarray(z[::2]))
    assert z.tolist() == [5, 5, 0, 0]


def test_a_transpose_beside_its_base_is_refused() -> None:
    z = np.arange(4, dtype=np.uint32).reshape(2, 2)
    assert sentence(z, z.T).startswith("launch of 'add_five': given 'b', an array with strides of (4, 8) bytes that")
    assert sentence(z.T, z).startswith("launch of 'add_five': given 'a', an array with strides of (4, 8) bytes that")
    assert z.tolist() == [[0, 1], [2, 3]]


def test_a_strided_view_beside_a_tensor_map_of_its_base_is_refused() -> None:
    @kernel("sm_90a", threads=32)
    def both(x: tma.Map[u32], y: Global[u32]):
        y[tid.x] = 1

    z = np.zeros((8, 32), np.uint32)
    with pytest.raises(UsageError, match=r"given 'y', an array with strides of .* shares memory with 'x'; "):
        ww.launch(both, 1, args=[ww.TensorMap(z, (8, 32)), z[:, ::2]], device=DEVICE)


def test_equal_views_are_one_memory() -> None:
    z = np.arange(8, dtype=np.uint32)
    locked = z[::2]
    locked.flags.writeable = False
    for first, second in ((z[::2], z[::2]), (z[::2], locked), (locked, z[::2])):
        z[:] = np.arange(8)
        add(first, second)
        assert z.tolist() == [5, 1, 7, 3, 9, 5, 11, 7]


def test_views_of_two_element_types_are_one_memory() -> None:
    @kernel("sm_90a", threads=32)
    def double(words: Global[u32], octets: Global[u8]):
        with If(tid.x < 4):
            octets[tid.x] = (words[0] + tid.x).to(u8)

    z = np.array([258, 7], np.uint32)
    ww.launch(double, 1, args=[z, z.view(np.uint8)], device=DEVICE)
    assert z.view(np.uint8).tolist() == [2, 3, 4, 5, 7, 0, 0, 0]


def test_interleaved_views_are_apart() -> None:
    z = np.arange(8, dtype=np.uint32)
    add(z[::2], z[1::2])
    assert z.tolist() == [6, 1, 8, 3, 10, 5, 12, 7]


WRITTEN = (
    "kernel 'add_five' wrote argument 'a', an array that is read-only or has several elements at one address; "
    "it is unchanged and all other results are stored; expected an array of its own: x.copy()"
)


def test_a_read_only_array_that_is_written_is_an_error_and_the_other_results_stay() -> None:
    @kernel("sm_90a", threads=32)
    def both(a: Global[u32], b: Global[u32], c: Global[u32]):
        a[tid.x] = tid.x
        b[tid.x] = tid.x
        c[tid.x * 2] = tid.x

    a, b, c = (np.zeros(64, np.uint32) for _ in range(3))
    a.flags.writeable = False
    with pytest.raises(UsageError) as caught:
        ww.launch(both, 1, args=[a, b, c.reshape(2, 32).T[:, :]], device=DEVICE)
    assert str(caught.value) == WRITTEN.replace("add_five", "both")
    assert not a.any() and b[:32].tolist() == list(range(32))
    assert c.reshape(2, 32).T.ravel().tolist()[:64:2] == list(range(32))


@pytest.mark.parametrize("strides", [(0,), (2,)])
def test_an_array_with_several_elements_at_one_address_is_read_and_not_written(strides: tuple[int, ...]) -> None:
    z, out = np.arange(4, dtype=np.uint32), np.zeros(3, np.uint32)
    several = np.lib.stride_tricks.as_strided(z, (3,), strides)
    assert several.flags.writeable
    expected = several.copy() + np.uint32(5)
    add(out, several)
    assert out.tolist() == expected.tolist()
    assert sentence(several, out) == WRITTEN
    assert z.tolist() == [0, 1, 2, 3]


def test_an_array_of_another_library_on_the_host_is_used_in_place() -> None:
    z = np.arange(6, dtype=np.uint32)
    by_interface = SimpleNamespace(__array_interface__=z.__array_interface__)
    by_dlpack = SimpleNamespace(__dlpack__=z.__dlpack__, __dlpack_device__=z.__dlpack_device__)
    ww.launch(add_five, 1, args=[by_interface, by_dlpack, 6], device=DEVICE)
    assert z.tolist() == [5, 6, 7, 8, 9, 10]


def test_tensors_of_torch_on_the_cpu_are_used_in_place() -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

    @kernel("sm_90a", threads=32)
    def copy(a: Global[b16], b: Global[b16]):
        with If(tid.x < 3):
            a[tid.x] = b[tid.x]

    z = torch.arange(6, dtype=torch.bfloat16)
    ww.launch(copy, 1, args=[z[:3], z[2:5]], device=DEVICE)
    assert z.tolist() == [2, 3, 4, 3, 4, 5]
    with pytest.raises(UsageError, match=r"given 'b', an array with strides of \(4,\) bytes that shares memory"):
        ww.launch(copy, 1, args=[z, z[::2]], device=DEVICE)


def test_bfloat16_views_and_odd_addresses() -> None:
    @kernel("sm_90a", threads=32)
    def swap(a: Global[b16], b: Global[b16]):
        with If(tid.x < 3):
            a[tid.x] = b[tid.x]

    bytes_ = np.zeros(13, np.uint8)
    z = bytes_[1:].view(ml_dtypes.bfloat16)
    z[:] = [1, 2, 3, 4, 5, 6]
    ww.launch(swap, 1, args=[z[:3], z[2:5]], device=DEVICE)
    assert z.astype(int).tolist() == [3, 4, 5, 4, 5, 6]


def test_a_check_and_a_profile_refuse_what_a_launch_refuses() -> None:
    z, locked = np.zeros(4, np.uint32), np.zeros(4, np.uint32)
    locked.flags.writeable = False
    for run in (ww.check, ww.profile):
        with pytest.raises(UsageError, match="shares memory with 'a'"):
            run(add_five, 1, args=[z, z[::2], 2], device="h200")
    with pytest.raises(UsageError) as caught:
        ww.check(add_five, 1, args=[locked, z, 4], device="h200")
    assert str(caught.value) == WRITTEN


def test_a_check_knows_that_a_writable_argument_changes_a_read_only_view() -> None:
    z = np.zeros(8, np.uint32)
    locked = z[:4]
    locked.flags.writeable = False
    assert ww.check(add_five, 1, args=[z, locked, 4], device="h200").findings == ()
    assert not z.any()


@st.composite
def views(draw: st.DrawFn, of: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns a random view of the base, and the same view of the indices of the base's elements."""
    shape = draw(st.sampled_from([(24,), (4, 6), (2, 3, 4)]))
    parts = tuple(
        slice(*draw(st.sampled_from([(None, None, 1), (None, None, -1), (1, None, 1), (None, -1, 2), (None, None, 2)])))
        for _ in shape
    )
    order = draw(st.permutations(range(len(shape))))
    repeat, locked = draw(st.sampled_from([False, False, False, True])), draw(st.sampled_from([False, False, True]))
    found = []
    for array in of:
        view = array.reshape(shape)[parts].transpose(order)
        if repeat:
            view = np.lib.stride_tricks.as_strided(view, (2, *view.shape), (0, *view.strides))
        if locked:
            view.flags.writeable = False
        found.append(view)
    return found[0], found[1]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_random_views_are_one_memory_or_an_error(data: st.DataObject) -> None:
    base, index = np.arange(COUNT, dtype=np.uint32) * 100, np.arange(COUNT)
    (a, to), (b, at) = data.draw(views((base, index))), data.draw(views((base, index)))
    count = min(a.size, b.size, 32)
    expected, error = model(base.copy(), (a, to), (b, at), count)
    try:
        add(a, b)
    except UsageError as refused:
        assert error is not None and error in str(refused), (refused, error)
    else:
        assert error is None
    assert base.tolist() == expected.tolist()


def model(base: Array, first: tuple[Array, Array], second: tuple[Array, Array], count: int) -> tuple[Array, str | None]:
    """Returns the base after the launch, and a part of the error if there is one."""
    (a, to), (b, at) = first, second
    equal = to.shape == at.shape and (to == at).all()
    packed = not a.flags.c_contiguous, not b.flags.c_contiguous
    if any(packed) and not equal and (a.flags.writeable or b.flags.writeable) and np.intersect1d(to, at).size:
        return base, "shares memory"
    values, targets = base[at.ravel()[:count]] + 5, to.ravel()[:count]
    writable: set[int] = set()
    for array, places in (first, second):
        if array.flags.writeable and len(np.unique(places)) == places.size:
            writable |= set(places.ravel().tolist())
    error = None
    for target, value in zip(targets.tolist(), values.tolist(), strict=True):
        if target in writable:
            base[target] = value
        else:
            error = "wrote argument 'a'"
    return base, error
