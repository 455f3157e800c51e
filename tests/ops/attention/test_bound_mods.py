"""Repeated calls of modified attention and of its gradients, and of packed gradients, on a GPU.

The GPU is host memory, and its kernels run on the virtual GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.attention_helpers import normal_qkv
from tests.kernels.attention.varlen_helpers import pack_sequences
from tests.ops.attention.test_bound_call import OnGpu, aligned, guard, on_gpu, viewed
from tests.ops.attention.test_varlen_backward import arrays as packed_arrays
from tests.ops.host_kernels import memory
from warpwright import cuda, targets
from warpwright.arrays import libraries
from warpwright.arrays.libraries import LIBRARIES
from warpwright.errors import UsageError
from warpwright.kernels.attention import Problem
from warpwright.lang import Kernel, f32
from warpwright.ops import binding
from warpwright.ops.attention import arrays, backward, forward, fp8, mods, plan, varlen_backward
from warpwright.ops.attention.backward import gradients
from warpwright.ops.attention.varlen_backward import gradients_varlen
from warpwright.ops.memo import MEMO

PROBLEM = Problem(1, 2, 1, 20, 150, 64)
Run = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Target:
    """A device with a hash."""

    name: str
    spec: Any
    function: Run


class Gpu:
    """``blocks`` are the blocks of memory in use, ``longest`` how many of them there were at a launch."""

    def __init__(self) -> None:
        self.blocks, self.longest = dict[int, Any](), 0

    def allocator(self, nbytes: int, _: Any) -> Any:
        def allocate(stream: int) -> int:
            block = aligned((nbytes,), np.uint8)
            return self.blocks.setdefault(block.ctypes.data, block).ctypes.data

        return allocate, self.blocks.pop

    def bind(self, plan: Any, layouts: Any, device: Any) -> Any:
        def at(values: tuple[Any, ...], stream: int) -> tuple[Any, ...]:
            given = {
                name: memory(value, layout) if layout and value else value
                for (name, layout), value in zip(layouts, values, strict=True)
            }
            if given.get("workspace"):
                given["workspace"] = np.zeros(plan.words or 1, np.uint32)

            def launch() -> None:
                self.longest = max(self.longest, len(self.blocks))
                for each in plan.on(given):
                    ww.launch(each.kernel, each.grid, args=each.args, device="h200")

            return (launch,)

        return at


def use(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``gpu`` the GPU of all arrays, with an empty memo."""
    library = replace(
        LIBRARIES["numpy"],
        view=viewed,
        guard=guard,
        stream=lambda _: lambda: 5,
        maker=lambda shape, dtype, _: lambda: aligned(shape, dtype),
        zeros=lambda shape, dtype, _: on_gpu(np.zeros(shape, dtype)),
        allocator=gpu.allocator,
        copying="{name}.copy()",
    )

    def library_of(value: Any) -> Any:
        return library if isinstance(value, np.ndarray) else None

    target = SimpleNamespace(name="cuda:0", spec=targets.device("h200"))
    for module in (libraries, mods, fp8):
        monkeypatch.setattr(module, "library_of", library_of)
    monkeypatch.setattr(arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(arrays, "capturing", lambda _: False)
    monkeypatch.setattr(binding, "bind", gpu.bind)
    monkeypatch.delenv(plan.SETTING, raising=False)
    monkeypatch.setattr(MEMO, "_entries", {})
    monkeypatch.setattr(arrays, "_WORKSPACES", {})


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("given a call that was made before; expected the call of the memo")


def refuse_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each further description, plan, trace and binding an error."""
    for module in (forward, backward, varlen_backward):
        monkeypatch.setattr(module, "views_of", refuse)
    for module, names in (
        (mods, ("plan_modified", "plan_lists")),
        (fp8, ("plan_fp8",)),
        (backward, ("choose",)),
        (varlen_backward, ("choose",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(Kernel, "trace", refuse)
    monkeypatch.setattr(binding, "bind", refuse)


def both(monkeypatch: pytest.MonkeyPatch, run: Run, given: list[list[Any]]) -> int:
    """Assert that ``run`` of arrays on a GPU returns what it returns for arrays of the host, up to a rounding of the
    largest element; all calls but the first are those of the memo. Returns the blocks of memory in use during a launch.
    """
    wanted, gpu = [run(*each) for each in given], Gpu()
    use(gpu, monkeypatch)
    for inputs, expected in zip(given, wanted, strict=True):
        found = run(*map(on_gpu, inputs))
        for each, other in zip(found, expected, strict=True):
            exact = other.astype(np.float64)
            assert (np.abs(each.astype(np.float64) - exact) <= 2.0**-7 * np.abs(exact).max()).all()
        refuse_the_long_way(monkeypatch)
    assert not gpu.blocks
    return gpu.longest


def options_of(slopes: Any, sinks: Any) -> dict[str, Any]:
    """Functions of the user that are made again at each call."""
    functions = {
        "score_mod": lambda score, b, h, q, k: score + slopes[h] * (k - q).to(f32),
        "mask_mod": lambda b, h, q, k: k <= q + 90,
    }
    return {**functions, "softcap": 2.0, "sinks": sinks, "device": device_of(slopes)}


def inputs(seed: int) -> list[Any]:
    """q, k, v, slopes and sinks."""
    return [*normal_qkv(PROBLEM, seed), *np.random.default_rng(seed).standard_normal((2, 2)).astype(np.float32)]


def test_modified_attention_again(monkeypatch) -> None:
    def run(q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> Any:
        return ww.attention(q, k, v, return_lse=True, **options_of(slopes, sinks))

    assert both(monkeypatch, run, [inputs(seed) for seed in range(2)]) == 1


def test_modified_attention_writes_out_again(monkeypatch) -> None:
    def run(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        out = on_gpu(np.zeros(q.shape, q.dtype))
        assert ww.attention(q, k, v, sinks=sinks, out=out, device=device_of(q)) is out
        return (out,)

    assert both(monkeypatch, run, [[*inputs(seed)[:3], inputs(seed)[4]] for seed in range(2)]) == 0


@pytest.mark.parametrize("with_dlse", [False, True])
def test_modified_gradients_again(monkeypatch, with_dlse) -> None:
    def run(q: Any, k: Any, v: Any, slopes: Any, sinks: Any, o: Any, lse: Any, do: Any, dlse: Any) -> Any:
        given = options_of(slopes, sinks)
        return gradients(q, k, v, o, lse, do, dlse=dlse if with_dlse else None, **given)

    def arrays_of(seed: int) -> list[Any]:
        q, k, v, slopes, sinks = inputs(seed)
        random = np.random.default_rng(seed + 9)
        o, do = (random.standard_normal(q.shape).astype(q.dtype) for _ in range(2))
        lse, dlse = (random.standard_normal(q.shape[:3]).astype(np.float32) + 5 for _ in range(2))
        return [q, k, v, slopes, sinks, o, lse, do, dlse]

    assert both(monkeypatch, run, [arrays_of(seed) for seed in range(2)]) == 1


@pytest.mark.parametrize("with_dlse", [False, True])
def test_packed_gradients_again(monkeypatch, with_dlse) -> None:
    """Also with other lengths: they are values in memory."""
    problem = Problem(1, 2, 1, 1, 1, 64, causal=True)

    def run(*given: Any) -> Any:
        *most, dlse = given
        return gradients_varlen(*most, dlse=dlse if with_dlse else None, causal=True, device=device_of(most[0]))

    def arrays_of(seed: int, lengths: list[int]) -> list[Any]:
        values = packed_arrays(problem, pack_sequences(problem, lengths, [70, 10], seed))
        names = "q", "k", "v", "o", "lse", "do", "cu_seqlens_q", "cu_seqlens_k", "dlse"
        return [values[name] for name in names]

    assert both(monkeypatch, run, [arrays_of(0, [40, 9]), arrays_of(1, [7, 42])]) == 1


def device_of(q: Any) -> str | None:
    return None if isinstance(q, OnGpu) else "h200"


def test_other_functions_go_the_long_way(monkeypatch) -> None:
    use(Gpu(), monkeypatch)
    monkeypatch.setattr(binding, "bind", lambda *_: lambda *_: ())
    q, k, v, slopes, sinks = map(on_gpu, inputs(0))
    asked, library = list[Any](), forward.views_of
    monkeypatch.setattr(forward, "views_of", lambda *given: asked.append(1) or library(*given))

    def calls(number: Any, *, cap: float = 2.0, of: Any = slopes, **more: Any) -> int:
        ww.attention(q, k, v, score_mod=lambda score, b, h, q, k: score * (of[h].to(f32) * number), softcap=cap, **more)
        return len(asked)

    assert [calls(1), calls(1)] == [1, 1]
    assert [calls(2), calls(2.0), calls(1, cap=3.0), calls(1, sinks=sinks)] == [2, 3, 4, 5]
    assert [calls(1, of=on_gpu(np.ones(3, np.float32))), calls(1, of=on_gpu(np.ones(2, np.int32)))] == [6, 7]
    assert [calls(1), calls(2)] == [7, 7]


def test_maps_are_encoded_once(monkeypatch) -> None:
    """The plans of a repeated call keep their tensor maps, which move to new addresses."""
    bind, made, started = binding.bind, list[Any](), list[Any]()
    use(Gpu(), monkeypatch)
    function = SimpleNamespace(enter=lambda: None, at=lambda *_: lambda: started.append(1))
    target = Target("cuda:0", targets.device("h200"), lambda *_, **__: function)
    monkeypatch.setattr(arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(binding, "bind", bind)
    monkeypatch.setattr(cuda, "MovableMap", lambda tensor: made.append(tensor) or (lambda pointer: pointer))
    counts = []
    for seed in range(3):
        q, k, v, slopes, sinks = map(on_gpu, inputs(seed))
        out, lse = ww.attention(q, k, v, return_lse=True, **options_of(slopes, sinks))
        gradients(q, k, v, out, lse, out, **options_of(slopes, sinks))
        counts.append((len(made), len(started)))
    assert counts == [(15, 7), (15, 14), (15, 21)]


def test_strided_sinks_are_refused(monkeypatch) -> None:
    use(Gpu(), monkeypatch)
    q, k, v, *_ = map(on_gpu, inputs(0))
    with pytest.raises(UsageError) as caught:
        ww.attention(q, k, v, sinks=on_gpu(np.zeros(4, np.float32))[::2])
    assert str(caught.value) == ("attention: sinks has strides of (8,) bytes; expected a dense array: sinks.copy()")
