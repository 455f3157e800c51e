"""Repeated calls of attention's operators, which run without torch's dispatcher.

The GPU is host memory, and its kernels are NumPy.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import warpwright.interop.torch  # noqa: F401
from tests.ops.attention.test_bound_call import aligned
from tests.ops.host_kernels import bind_host
from warpwright import targets
from warpwright.arrays import libraries
from warpwright.arrays.device import DeviceArray, dtype_of_name
from warpwright.errors import UsageError
from warpwright.interop import attention, attention_grad
from warpwright.ops import binding
from warpwright.ops.attention import arrays, backward, plan, varlen
from warpwright.ops.memo import MEMO

operator, packed_operator = torch.ops.warpwright.attention, torch.ops.warpwright.attention_varlen
stand_in, theirs = attention.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention


def on_gpu(tensor: Any) -> DeviceArray:
    dtype = dtype_of_name(str(tensor.dtype).removeprefix("torch."))
    strides = tuple(step * dtype.itemsize for step in tensor.stride())
    return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, 0, tensor)


class Gpu:
    """``started`` has the kernel and stream of each launch; ``problems`` are the problems by plan; ``stream`` is the
    current stream; ``logs`` counts the launches that wrote the log-sum-exp."""

    def __init__(self) -> None:
        self.started, self.problems, self.blocks, self.stream = list[Any](), dict[Any, Any](), dict[int, Any](), 5
        self.logs = 0

    def note_problems(self, choose: Any) -> Any:
        """Returns ``choose`` with a record of the problem of each plan."""

        def choose_and_note(problem: Any, *more: Any, **options: Any) -> Any:
            plan = choose(problem, *more, **options)
            self.problems[plan] = problem
            return plan

        return choose_and_note

    def note(self, plan: Any, given: dict[str, Any], stream: int) -> None:
        self.started.append((plan.kernel or "gradients", stream))
        self.logs += bool(given["lse"]) and plan.kernel not in ("", "sm90.attention_varlen")

    def allocator(self, nbytes: int, _: Any) -> Any:
        def allocate(stream: int) -> int:
            block = aligned((nbytes,), np.uint8)
            return self.blocks.setdefault(block.ctypes.data, block).ctypes.data

        return allocate, self.blocks.pop


@pytest.fixture
def gpu(monkeypatch) -> Iterator[Gpu]:
    device, target = Gpu(), SimpleNamespace(name="cuda:0", spec=targets.device("h200"))
    monkeypatch.setattr(libraries, "device_array", on_gpu)
    library = replace(libraries.LIBRARIES["torch"], stream=lambda _: lambda: device.stream, allocator=device.allocator)
    monkeypatch.setitem(libraries.LIBRARIES, "torch", library)
    libraries._of_type.cache_clear()
    monkeypatch.setattr(arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(arrays, "capturing", lambda _: False)
    for each in (plan, varlen, backward):
        monkeypatch.setattr(each, "choose", device.note_problems(each.choose))
    monkeypatch.setattr(binding, "bind", bind_host(lambda chosen, _: device.problems[chosen], device.note))
    monkeypatch.setattr(attention, "_has_kernels", lambda _: True)
    monkeypatch.delenv(plan.SETTING, raising=False)
    caches = MEMO, arrays._WORKSPACES
    for cache in caches:
        cache.clear()
    yield device
    libraries._of_type.cache_clear()
    for cache in caches:
        cache.clear()


@pytest.fixture
def long_way(monkeypatch) -> list[Any]:
    """The operators, packets or overloads, that torch's dispatcher called."""
    asked: list[Any] = []
    for kind in (torch._ops.OpOverloadPacket, torch._ops.OpOverload):

        def called(self: Any, /, *args: Any, theirs: Any = kind.__call__, **keywords: Any) -> Any:
            if "warpwright" in str(self):
                asked.append(self)
            return theirs(self, *args, **keywords)

        monkeypatch.setattr(kind, "__call__", called)
    return asked


def inputs(seed: int = 0, q_len: int = 20, kv_len: int = 20, heads: int = 2, grad: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (1, 2, q_len, 64), (1, heads, kv_len, 64), (1, heads, kv_len, 64)
    return [torch.randn(shape, generator=generator).bfloat16().requires_grad_(grad) for shape in shapes]


def near(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    assert (found.double() - expected.double()).abs().max() <= 2.0**-7 * expected.double().abs().max()


def exact(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return theirs(q.double(), k.double(), v.double(), **options)


def test_a_call_is_made_again_without_torchs_dispatcher(gpu, long_way) -> None:
    for seed in range(3):
        q, k, v = inputs(seed)
        out, lse = operator(q, k, v, True)
        near(out, exact(q, k, v, is_causal=True))
        scores = (q.double() @ k.double().mT / 8).masked_fill(~torch.ones(20, 20).tril().bool(), -torch.inf)
        torch.testing.assert_close(lse.double(), torch.logsumexp(scores, -1), rtol=0, atol=1e-5)
        assert torch.equal(operator(q=q, k=k, v=v, causal=True, layout="bhsd")[0], out)
    assert long_way == [operator] and [stream for _, stream in gpu.started] == [5] * 6


def test_other_calls_ask_torch(gpu, long_way, monkeypatch) -> None:
    q, k, v = inputs()
    operator(q, k, v)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    single = inputs(heads=1)
    for given, options in (
        (turned, {}),
        ([q, *turned[1:]], {}),
        ([x.half() for x in (q, k, v)], {}),
        (single, {"enable_gqa": True}),
        ((q, k, v), {"scale": 0.5}),
    ):
        asked = len(long_way)
        for _ in range(2):
            found = operator(*given, scale=options.get("scale"))[0]
            assert (found.double() - exact(*given, **options)).abs().max() < 0.02
        assert len(long_way) == asked + 1
    monkeypatch.setenv(plan.SETTING, "0")
    operator(q, k, v)
    monkeypatch.setenv(plan.SETTING, "2")
    with pytest.raises(UsageError, match="WARPWRIGHT_ATTENTION_TMA='2'; expected 0"):
        operator(q, k, v)
    monkeypatch.delenv(plan.SETTING)
    gpu.stream, asked = 6, len(long_way)
    operator(q, k, v)
    assert gpu.started[-2:] == [("sm120.attention_cp_async", 5), ("sm120.attention_cp_async", 6)]
    assert len(long_way) == asked


def test_what_torch_refuses_it_refuses_after_a_call_that_is_its_equal(gpu) -> None:
    q, k, v = inputs()
    refused = [
        ((q, k, v), {"left": 3.0}),
        ((q, k, v), {"scale": 0.5 + 0j}),
        ((q, k, v, "x"), {}),
        ((q, k), {}),
        ((q, k, 3), {}),
        ((3, k, v), {}),
    ]
    said: list[str] = []
    for _ in range(2):
        for arguments, keywords in refused:
            with pytest.raises((RuntimeError, TypeError)) as caught:
                operator(*arguments, **keywords)
            said.append(str(caught.value))
        with pytest.raises(UsageError) as caught:
            operator(q, k, v[:, :, :10])
        said.append(str(caught.value))
        for keywords in ({}, {"causal": True}, {"left": 3}, {"scale": 0.5}):
            operator(q, k, v, **keywords)
    assert said[:7] == said[7:]
    assert said[6] == "attention: k is 1 × 2 × 20 × 64 and v is 1 × 2 × 10 × 64; expected one shape for both"


def test_gradients_are_recorded_again(gpu, long_way) -> None:
    for seed in range(3):
        given = inputs(seed, grad=True)
        do = inputs(seed + 9)[0]
        found = torch.autograd.grad(operator(*given, True)[0], given, do)
        for each, expected in zip(found, torch.autograd.grad(exact(*given, is_causal=True), given, do), strict=True):
            near(each, expected)
        with torch.no_grad():
            assert not operator(*given, True)[0].requires_grad
    assert long_way.count(operator) == 1 and len(long_way) == 2 and not gpu.blocks
    q, k, v = inputs()
    assert not operator(q, k, v, True)[0].requires_grad
    out = operator(q, k, v.requires_grad_(), True)[0]
    out.sum().backward()
    assert out.requires_grad and v.grad is not None and q.grad is None


def test_gradients_in_any_order_are_refused_again(gpu, monkeypatch) -> None:
    given, do = inputs(grad=True), inputs(9)[0]
    for _ in range(2):
        out = operator(*given)[0]
        torch.autograd.grad(out, given, do, retain_graph=True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(attention_grad, "_target", lambda q: "sm_100a")
    with pytest.raises(UsageError, match="the gradient by q is summed in any order"):
        torch.autograd.grad(out, given, do)


def test_gradients_in_a_fixed_order_are_made_again(gpu, long_way, monkeypatch) -> None:
    """The memo tells calls by their order, that of the operator and that of torch."""
    chosen, do = list[bool](), inputs(9)[0]
    monkeypatch.setattr(backward, "choose", noting_order(backward.choose, chosen))
    for fixed in (False, True, False, True):
        given = inputs(grad=True)
        found = torch.autograd.grad(operator(*given, True, None, None, None, "bhsd", fixed)[0], given, do)
        for each, expected in zip(found, torch.autograd.grad(exact(*given, is_causal=True), given, do), strict=True):
            near(each, expected)
    assert chosen == [False, True]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    given = inputs(grad=True)
    torch.autograd.grad(operator(*given, True)[0], given, do)
    assert chosen == [False, True] and len(gpu.started) == 10


def noting_order(choose, chosen):
    """Returns ``choose`` of gradients with a record of whether each plan has a fixed order."""

    def choose_and_note(*given):
        plan = choose(*given)
        chosen.append(plan.config.ordered)
        return plan

    return choose_and_note


def test_the_stand_in_makes_a_call_again(gpu, long_way) -> None:
    for q_len, kv_len, causal in ((20, 20, False), (20, 20, True), (24, 20, True), (20, 24, False)):
        del long_way[:]
        for seed in range(3):
            given = inputs(seed, q_len, kv_len)
            near(stand_in(*given, is_causal=causal), exact(*given, is_causal=causal))
        assert long_way == [operator]
    assert (gpu.logs, len(gpu.started)) == (4, 12)  # the log-sum-exp, which nobody gets, the first time only
    for seed in range(2):
        given = inputs(seed, 20, 24)
        operator(*given, True)  # whose mask is aligned bottom right
        near(stand_in(*given, is_causal=True), exact(*given, is_causal=True))
    stood_in = [key for key in MEMO._entries if key[-1][0] == "stand_in"]
    assert len(stood_in) == 4  # the last one's arrays are slices of those that were given


def test_the_stand_in_records_again(gpu, long_way, monkeypatch) -> None:
    for seed in range(2):
        given, do = inputs(seed, grad=True), inputs(9)[0]
        found = torch.autograd.grad(stand_in(*given, is_causal=True), given, do)
        for each, expected in zip(found, torch.autograd.grad(exact(*given, is_causal=True), given, do), strict=True):
            near(each, expected)
    assert len(long_way) == 2
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(attention_grad, "_target", lambda q: "sm_100a")
    assert torch.equal(stand_in(*given, is_causal=True), theirs(*given, is_causal=True))


def test_a_misaligned_tensor_is_copied_where_gradients_are_recorded(gpu) -> None:
    given = inputs(grad=True)
    for _ in range(2):
        operator(*given, True)
    moved = [torch.cat([torch.zeros(1).bfloat16(), x.detach().flatten()])[1:].view(x.shape) for x in given]
    assert moved[0].data_ptr() % 16 and not given[0].data_ptr() % 16
    out = operator(*(x.requires_grad_() for x in moved), True)[0]
    assert out.requires_grad
    near(out, exact(*given, is_causal=True))


@pytest.mark.parametrize("leaf", [0, 2])
def test_a_call_without_a_record_is_not_made_again_where_one_is_kept(gpu, leaf: int) -> None:
    given = inputs()
    given[leaf].requires_grad_()
    for _ in range(3):
        with torch.no_grad():
            assert not stand_in(*given).requires_grad
        assert stand_in(*given).requires_grad


def test_what_the_stand_in_does_not_serve_is_torchs_after_a_call_that_it_does(gpu) -> None:
    given, grouped = inputs(), inputs(heads=1)
    stand_in(*given)
    stand_in(*grouped, enable_gqa=True)
    started = len(gpu.started)
    mask = torch.zeros(20, 20).bool()
    mask[:, 3] = True
    near(stand_in(*given, attn_mask=mask), given[2][:, :, 3:4].expand(1, 2, 20, 64))
    assert stand_in(*given, dropout_p=1.0).abs().max() == 0
    with torch.no_grad():
        torch.testing.assert_close(stand_in(*grouped), theirs(*grouped))
    assert len(gpu.started) == started
    stand_in(*given)
    assert len(gpu.started) == started + 1


def test_packed_sequences_again(gpu, long_way) -> None:
    cu = torch.tensor([0, 5, 20], dtype=torch.int32)
    for seed in range(3):
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in inputs(seed))
        out, lse = packed_operator(q, k, v, cu, cu, True)
        for first, end in ((0, 5), (5, 20)):
            part = [x[None, first:end].transpose(1, 2) for x in (q, k, v)]
            near(out[None, first:end].transpose(1, 2), exact(*part, is_causal=True))
        assert torch.equal(packed_operator(q, k, v, cu, cu, True)[1], lse)
    assert long_way == [packed_operator]
    with pytest.raises(UsageError, match="attention: cu_seqlens_k is int64; expected int32"):
        packed_operator(q, k, v, cu, cu.long(), True)
    wide = [torch.zeros(20, 2, 264, dtype=torch.bfloat16, requires_grad=number == 0) for number in range(3)]
    with pytest.raises(UsageError, match="attention: q requires gradients, for which packed sequences have kernels"):
        packed_operator(*wide, cu, cu, True)
    q.requires_grad_()
    with torch.no_grad():
        assert torch.equal(packed_operator(q, k, v, cu, cu, True)[0], out)


class Dispatched(TorchDispatchMode):
    """Notes what torch dispatches."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(call)
        return call(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(call)
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [False, True])
def test_what_watches_calls_sees_those_that_are_made_again(gpu, grad) -> None:
    given, seen = inputs(grad=grad), list[Any]()
    cu = torch.tensor([0, 20], dtype=torch.int32)
    rows = [x.detach()[0].transpose(0, 1).contiguous() for x in given]
    for mode in (None, Dispatched, Called):
        for _ in range(2):
            with mode(seen) if mode else torch.enable_grad():
                operator(*given)
                stand_in(*given)
                packed_operator(*rows, cu, cu)
    expected = [operator.default] * 2 + [packed_operator.default], [operator] * 2 + [packed_operator]
    assert [call for call in seen if "warpwright" in str(call)] == expected[0] * 2 + expected[1] * 2
    with torch.profiler.profile() as profile:
        operator(*given)
        stand_in(*given)
        packed_operator(*rows, cu, cu)
    names = [event.name for event in profile.events()]
    assert names.count("warpwright::attention") == 2 and names.count("warpwright::attention_varlen") == 1


def test_tensors_that_stand_for_others_reach_no_kernel(gpu) -> None:
    given = inputs()
    for _ in range(2):
        operator(*given)
        stand_in(*given)
    started = len(gpu.started)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in given]
        assert operator(*fake)[0].shape == stand_in(*fake).shape == (1, 2, 20, 64)
    assert operator(*(x.to("meta") for x in given))[0].device.type == "meta"
    compiled = torch.compile(lambda *x: stand_in(*x) + operator(*x)[0], fullgraph=True, backend="aot_eager")
    assert len(gpu.started) == started
    near(compiled(*given), 2 * exact(*given))


def test_arrays_are_not_kept_alive(gpu) -> None:
    given = inputs(grad=True)
    stand_in(*given).sum().backward()
    with torch.no_grad():
        stand_in(*given)
    alive = [weakref.ref(x) for x in given]
    del given
    gc.collect()
    assert [each() for each in alive] == [None] * 3


def test_threads_make_calls_again_at_once(gpu) -> None:
    def run(seed: int) -> bool:
        given = inputs(seed, grad=bool(seed % 2))
        out = operator(*given)[0]
        near(out, exact(*given))
        return bool(out.requires_grad)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(32))) == [bool(seed % 2) for seed in range(32)]
