"""Repeated calls of `ww.attention_mla` on a GPU; the GPU is host memory, and a virtual one runs its kernels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpwright as ww
from tests.kernels.attention.mla_helpers import fill_rows, latent_problem, on_few_sms, verify_mla
from tests.ops.attention.test_bound_call import aligned, guard, on_gpu, viewed
from tests.ops.host_kernels import memory
from warpwright.arrays import libraries
from warpwright.arrays.libraries import LIBRARIES
from warpwright.ops import binding
from warpwright.ops.attention import arrays, mla, plan
from warpwright.ops.memo import MEMO

SMS = 3


def bind_virtual(plan: Any, layouts: Any, device: Any) -> Any:
    """Stands for `binding.bind`: runs the launches of a plan on a virtual GPU, with the arrays at the addresses."""

    def at(values: tuple[Any, ...], stream: int) -> Any:
        named = zip(layouts, values, strict=True)
        given = {name: memory(value, layout) if layout else value for (name, layout), value in named}
        assert stream == 5 and given["workspace"] % 16 == 0
        given["workspace"] = np.zeros(plan.words, np.uint32)

        def launch() -> None:
            for each in plan.on(given):
                ww.launch(each.kernel, each.grid, args=each.args, device=on_few_sms(SMS))

        return (launch,)

    return at


@pytest.fixture(autouse=True)
def host_memory_as_gpu(monkeypatch) -> Any:
    library = replace(
        LIBRARIES["numpy"],
        view=viewed,
        guard=guard,
        stream=lambda _: lambda: 5,
        maker=lambda shape, dtype, _: lambda: aligned(shape, dtype),
        zeros=lambda shape, dtype, _: aligned(shape, dtype),
    )
    target = SimpleNamespace(name="cuda:0", spec=on_few_sms(SMS).spec)
    monkeypatch.setattr(libraries, "library_of", lambda _: library)
    monkeypatch.setattr(arrays, "resolve", lambda *_: target)
    monkeypatch.setattr(arrays, "capturing", lambda _: False)
    monkeypatch.setattr(binding, "bind", bind_virtual)
    monkeypatch.delenv(plan.SETTING, raising=False)
    for cache in (MEMO, arrays._WORKSPACES):
        cache.clear()
    yield
    for cache in (MEMO, arrays._WORKSPACES):
        cache.clear()


@pytest.mark.parametrize(("size", "with_lengths", "with_out"), [(16, True, False), (0, True, True), (0, False, False)])
def test_a_call_is_made_again_with_other_arrays(monkeypatch, size, with_lengths, with_out) -> None:
    problem = latent_problem(2, 16, 1, 150)
    for seed in range(2):
        given = fill_rows(problem, size, [150, 70] if with_lengths else [150, 150], seed=seed)
        q, k, table, lengths = (on_gpu(x) for x in (given.q, given.k, given.table, given.lengths))
        options: dict[str, Any] = {"block_table": table} if size else {}
        options |= {"lengths": lengths} if with_lengths else {}
        options |= {"out": aligned((2, 1, 16, 512), q.dtype)} if with_out else {}
        out, lse = ww.attention_mla(q, k, scale=problem.factor, return_lse=True, **options)
        verify_mla(problem, given, (out, lse))
        assert not with_out or out is options["out"]
        monkeypatch.setattr(mla, "views_of", None)  # from now on only calls that were made before


def test_an_out_that_overlaps_the_rows_is_refused_again(monkeypatch) -> None:
    """The memo has a call with ``out``, but not one for memory that is also an input."""
    problem = latent_problem(1, 16, 1, 64)
    given = fill_rows(problem, 0, [64])
    q, k, out = on_gpu(given.q), on_gpu(given.k), aligned((1, 1, 16, 512), given.q.dtype)
    ww.attention_mla(q, k, scale=problem.factor, out=out)
    inside = k.reshape(-1)[: 16 * 512].reshape(1, 1, 16, 512)
    with pytest.raises(ww.UsageError) as caught:
        ww.attention_mla(q, k, scale=problem.factor, out=inside)
    assert str(caught.value) == "attention: out overlaps kv; expected memory of its own: leave out= out"
