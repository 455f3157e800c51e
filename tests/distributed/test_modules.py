"""The layers and the gradients of both operators in two processes with gloo, against one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is an extra: pip install 'warpwright[torch]'")

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from warpwright.distributed import AllGatherLinear, LinearReduceScatter, all_gather_matmul

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)
side = torch.randn(6, 4, requires_grad=True)  # another weight of the same gather
whole, direction = torch.randn(10, 3, 6, requires_grad=True), torch.randn(10, 3, 6)
inner = torch.relu(first(whole))
expected = last(inner)
((expected * direction).sum() + (whole @ side).square().sum()).backward()

rows = slice(5 * rank, 5 * rank + 5)
x = whole.detach()[rows].clone().requires_grad_()
one, two = AllGatherLinear.from_linear(first), LinearReduceScatter.from_linear(last)
own_side = side.detach()[:, 2 * rank : 2 * rank + 2].clone().requires_grad_()
found = two(torch.relu(one(x)))
both = all_gather_matmul(x, [one.weight.T, own_side])
assert torch.allclose(both[1], (whole @ side)[..., 2 * rank : 2 * rank + 2], atol=1e-5)
assert torch.allclose(found, expected[rows], atol=1e-5)
((found * direction[rows]).sum() + both[1].square().sum()).backward()
assert torch.allclose(x.grad, whole.grad[rows], atol=1e-4)
assert torch.allclose(one.weight.grad, first.weight.grad.chunk(2)[rank], atol=1e-4)
assert torch.allclose(one.bias.grad, first.bias.grad.chunk(2)[rank], atol=1e-4)
assert torch.allclose(two.weight.grad, last.weight.grad.chunk(2, 1)[rank], atol=1e-4)
assert torch.allclose(own_side.grad, side.grad.chunk(2, 1)[rank], atol=1e-4)
dist.all_reduce(two.bias.grad)
assert torch.allclose(two.bias.grad, last.bias.grad, atol=1e-4)
print("equal")
"""


def test_two_processes_compute_what_one_computes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=100)[0].strip() for process in processes] == ["equal", "equal"]
