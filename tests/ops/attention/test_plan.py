"""Plans of attention bound to a GPU that only records its calls, in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warpwright import cuda
from warpwright.kernels.attention import Problem
from warpwright.ops.attention import backward, varlen
from warpwright.ops.attention.plan import choose
from warpwright.ops.binding import bind, geometry

PROBLEM = Problem(1, 2, 2, 100, 100, 64)


class Gpu:
    """Records contexts, tensor maps and launches."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def function(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(enter=lambda: self.asked.append("enter"), at=lambda *_: self.asked.append("launch"))


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(cuda, "MovableMap", lambda _: lambda _: made.asked.append("map"))
    return made


def layouts(names: str, shape: tuple[int, ...], *plain: str) -> Any:
    return tuple((name, geometry(np.zeros(shape, PROBLEM.dtype))) for name in names) + tuple(
        (name, None) for name in plain
    )


def test_a_context_comes_before_tensor_maps(gpu) -> None:
    """The driver refuses a map to a thread without a context, such as autograd's."""
    plan = choose(PROBLEM, "sm_90a", 132, None, workspace=False)
    bound = bind(plan, layouts("qkvo", (1, 2, 100, 64), "lse", "workspace"), gpu)
    bound((0,) * 6, 0)
    assert gpu.asked == ["enter", *["map"] * 4, "launch"]
    bound((0, 0, 0, 16, 0, 0), 0)
    assert gpu.asked[6:] == ["enter", "map", "launch"]  # the maps of the other addresses are cached


def test_of_packed_sequences_too(gpu) -> None:
    plain = "lse", "workspace", "cu_seqlens_q", "cu_seqlens_k"
    bound = bind(varlen.choose(PROBLEM, 100, 100, "sm_90a", 132), layouts("qkvo", (100, 2, 64), *plain), gpu)
    bound((0,) * 8, 0)
    assert gpu.asked == ["enter", *["map"] * 4, "launch"]
    bound((0, 0, 0, 16, 0, 0, 0, 32), 0)
    assert gpu.asked[6:] == ["enter", "map", "launch"]


def test_the_second_launch_follows_the_first(gpu) -> None:
    """The keys of 64 heads that share one are split among CTAs; a second kernel combines the partial results."""
    problem = Problem(1, 64, 1, 1, 4096, 64)
    q, k = layouts("qo", (1, 64, 1, 64)), layouts("kv", (1, 1, 4096, 64))
    bound = bind(choose(problem, "sm_90a", 132, None), (q[0], *k, q[1], ("lse", None), ("workspace", None)), gpu)
    bound((0,) * 6, 0)
    assert gpu.asked == ["enter", *["map"] * 3, "launch", "enter", "launch"]


def test_in_each_launch_of_the_gradients(gpu) -> None:
    plan = backward.choose(PROBLEM, "sm_90a")
    arrays = dict.fromkeys(("q", "k", "v", "o", "do", "dq", "dk", "dv"), np.zeros((1, 2, 100, 64), PROBLEM.dtype))
    arrays["lse"] = np.zeros((1, 2, 100), np.float32)
    arrays |= {name: np.zeros(shape, np.float32) for name, shape in plan.scratch.items()}
    known = (*((name, geometry(array)) for name, array in arrays.items()), ("dlse", None))
    bind(plan, known, gpu)((0,) * len(known), 0)
    assert [word for word in gpu.asked if word != "map"] == ["enter", "launch"] * 3 and gpu.asked[0] == "enter"


def test_a_launch_of_gradients_that_begins_early_waits_for_the_one_before() -> None:
    for arch in ("sm_90a", "sm_100a", "sm_120a"):
        for each in backward.choose(Problem(1, 2, 2, 256, 256, 64), arch).launches:
            assert each.dependent == ("griddepcontrol.wait" in each.kernel.ptx)
