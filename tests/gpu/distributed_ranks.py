"""Checks of `warpwright.distributed` on real GPUs: ``torchrun --nproc-per-node 2 tests/gpu/distributed_ranks.py``.

Each check prints its name; the first that fails ends the program. ``tests/gpu/test_distributed.py`` runs it.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("WARPWRIGHT_TIME_LIMIT", "20")

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from warpwright.distributed import (
    AllGatherLinear,
    LinearReduceScatter,
    all_gather_matmul,
    gather,
    matmul_reduce_scatter,
    operators,
    replace_symm_mem,
    scatter,
)
from warpwright.distributed.choice import takes
from warpwright.distributed.problem import describe_gather
from warpwright.distributed.watch import GRACE, within
from warpwright.distributed.workspace import workspace_of
from warpwright.errors import UsageError

BOUND = 2.0**-7  # two roundings to bfloat16, of the largest value
SHAPES = ((1024, 512, 4096), (1400, 1000, 520), (130, 264, 64), (4096, 3072, 4096))  # rows of a rank, N, K


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def all_rows(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def own_rows(sums: torch.Tensor) -> torch.Tensor:
    own = sums.new_empty(sums.shape[0] // dist.get_world_size(), *sums.shape[1:])
    dist.reduce_scatter_tensor(own, sums.contiguous())
    return own


def poison() -> None:
    workspace_of(dist.group.WORLD).data.fill_(0xFF)
    torch.cuda.synchronize()
    dist.barrier()


def require_close(found: torch.Tensor, expected: torch.Tensor, what: str, bound: float = BOUND) -> None:
    found, expected = found.detach().float(), expected.detach().float()
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= bound and not math.isnan(error), f"{what}: an error of {error:.2e}; the bound is {bound:.2e}"


def check_engines() -> None:
    for rows, n, k in SHAPES:
        for name in gather.ENGINES:
            x, weights = random(rows, k), [random(n, k).T, random(k, n)]
            if not takes(name, describe_gather(x, weights, dist.get_world_size())):
                weights = [random(n, k).T, random(n + 8, k).T]
            poison()
            found = operators.run_gather(x, weights, dist.group.WORLD, name)
            for result, weight in zip(found, weights, strict=True):
                require_close(result, all_rows(x).float() @ weight.float(), f"{name}, {(rows, n, k)}")
        for name in scatter.ENGINES:
            x, weight = random(rows * dist.get_world_size(), k), random(n, k).T
            poison()
            found = operators.run_scatter(x, weight, dist.group.WORLD, name)
            require_close(found, own_rows(x.float() @ weight.float()), f"{name}, {(rows, n, k)}")


def check_many_calls() -> None:
    """Repeated calls with other data, without synchronisation between them."""
    weight, into = random(1024, 512).T, random(512, 1024).T
    inputs = [random(512, 512) for _ in range(20)]
    found = [matmul_reduce_scatter(all_gather_matmul(x, weight), into) for x in inputs]
    for x, result in zip(inputs, found, strict=True):
        middle = (all_rows(x).float() @ weight.float()).bfloat16().float()
        require_close(result, own_rows(middle @ into.float()), "many calls", 2 * BOUND)


def check_gradients() -> None:
    x, y = random(256, 512).requires_grad_(), random(256, 512).requires_grad_()
    weights = [random(768, 512).T.requires_grad_(), random(256, 512).T.requires_grad_()]
    last, other = random(512, 768).T.requires_grad_(), random(512, 768).T.requires_grad_()
    direction = random(256, 512)
    first, second = all_gather_matmul(x, weights)
    (matmul_reduce_scatter(first, last) * direction).sum().backward(retain_graph=True)
    (second.float().square().sum()).backward()
    whole, products = all_rows(x.detach()).float(), all_rows(direction).float()
    of_first = products @ last.detach().float().T
    of_second = 2 * (whole @ weights[1].detach().float())
    require_close(last.grad, (whole @ weights[0].detach().float()).T @ products, "gradient of the last weight", 0.03)
    require_close(weights[0].grad, whole.T @ of_first, "gradient of a weight", 0.03)
    require_close(weights[1].grad, whole.T @ of_second, "gradient of the other weight", 0.03)
    of_x = of_first @ weights[0].detach().float().T + of_second @ weights[1].detach().float().T
    require_close(x.grad, own_rows(of_x), "gradient of x", 0.03)
    del y, other


def check_graph() -> None:
    """A captured call follows its inputs; calls outside the graph lie between its replays."""
    x, weight, into = random(512, 512), random(1024, 512).T, random(512, 1024).T
    for name in gather.ENGINES:
        if name == "in turn":
            continue
        run = lambda: matmul_reduce_scatter(operators.run_gather(x, [weight], dist.group.WORLD, name)[0], into)  # noqa: E731, B023
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()
        for replay in range(5):
            x.copy_(random(512, 512))
            graph.replay()
            if replay % 2:
                all_gather_matmul(x, weight)
            middle = (all_rows(x).float() @ weight.float()).bfloat16().float()
            require_close(result, own_rows(middle @ into.float()), f"graph of {name}", 2 * BOUND)


def check_compile() -> None:
    weight, into = random(1024, 512).T, random(512, 1024).T
    compiled = torch.compile(
        lambda x: matmul_reduce_scatter(torch.relu(all_gather_matmul(x, weight)), into), fullgraph=True
    )
    x = random(512, 512)
    require_close(compiled(x), matmul_reduce_scatter(torch.relu(all_gather_matmul(x, weight)), into), "compile")


def check_two_groups() -> None:
    """Two groups of the same ranks in turn, on two streams at once."""
    ranks = list(range(dist.get_world_size()))
    groups = [dist.new_group(ranks) for _ in range(2)]
    weight, x = random(1024, 512).T, random(512, 512)
    expected = all_rows(x).float() @ weight.float()
    streams = [torch.cuda.Stream() for _ in groups]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for group, stream in zip(groups, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(all_gather_matmul(x, weight, group))
    torch.cuda.synchronize()
    for result in found:
        require_close(result, expected, "two groups")


def check_disagreement() -> None:
    rows = 128 + 128 * dist.get_rank()
    try:
        all_gather_matmul(random(rows, 512), random(1024, 512).T)
    except UsageError as error:
        assert "the ranks of a group make different calls" in str(error), error
    else:
        raise AssertionError("ranks with different rows were not told so")


def check_symm_mem() -> None:
    """PyTorch's own operators, by the engines of this package."""
    group, ops, ranks = dist.group.WORLD.group_name, torch.ops.symm_mem, dist.get_world_size()
    x, weights = random(128, 256, 512), [random(1024, 512).T, random(64, 512).T]
    restore = replace_symm_mem()
    calls = workspace_of(dist.group.WORLD).counters[0].item()
    for axis in (0, 1):
        whole = torch.cat(all_rows(x.unsqueeze(0)).unbind(), axis)
        found, products = ops.fused_all_gather_matmul(x, weights, axis, group)
        assert torch.equal(found, whole)
        for product, weight in zip(products, weights, strict=True):
            require_close(product, whole.float() @ weight.float(), f"symm_mem, gather along {axis}")
        for name, divisor in (("sum", 1), ("avg", ranks)):
            sums = (x.float() @ weights[0].float()).movedim(axis, 0)
            expected = own_rows(sums).movedim(0, axis) / divisor
            found = ops.fused_matmul_reduce_scatter(x, weights[0], name, axis, group)
            require_close(found, expected, f"symm_mem, {name} along {axis}")
    assert workspace_of(dist.group.WORLD).counters[0].item() > calls
    restore()


def check_watch() -> None:
    """The words of the host follow the calls; the flags of a call can be read, also while a graph is captured."""
    x, weight, shared = random(256, 512), random(1024, 512).T, workspace_of(dist.group.WORLD)
    operators.run_gather(x, [weight], dist.group.WORLD, "parts")
    torch.cuda.synchronize()
    digest, flags = shared.digest(describe_gather(x, [weight], shared.ranks)), [1] * shared.ranks
    assert shared.watch.running.value == digest << 32 | int(shared.counters[0].item())
    flags[shared.rank] = 0
    assert shared.watch.awaited[digest] == {rank: (1, rank) for rank in range(shared.ranks) if rank != shared.rank}
    assert within(GRACE, lambda: shared.host.read_flags(shared.ranks)) == flags
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = operators.run_gather(x, [weight], dist.group.WORLD, "parts")
        assert within(GRACE, lambda: shared.host.read_flags(shared.ranks)) == flags
    graph.replay()
    require_close(found, all_rows(x).float() @ weight.float(), "watch")


def check_missing_rank() -> None:
    """A rank that dies or hangs, in processes of their own, for the GPU of rank 0 stops."""
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        program = Path(__file__).parent / "distributed_killed.py"
        for kind in ("known", "new", "parts", "copies 128x128", "sends 128x256", "adds", "kernel 128x128"):
            result = subprocess.run([sys.executable, program, kind], capture_output=True, text=True, check=False)
            assert result.returncode == 0, f"{kind}: {result.stdout}{result.stderr}"
    dist.barrier()


def check_modules() -> None:
    torch.manual_seed(7)
    first = torch.nn.Linear(512, 1024, device="cuda", dtype=torch.bfloat16)
    last = torch.nn.Linear(1024, 512, device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(dist.get_rank())
    x, one, two = random(256, 512), AllGatherLinear.from_linear(first), LinearReduceScatter.from_linear(last)
    found, inner = two(torch.relu(one(x))), torch.relu(first(x))
    require_close(found, last(inner), "modules", 2 * BOUND)


def check_restart(count: int = 3) -> None:
    """A group that was destroyed and made again, each time with keys of its own: NCCL's of the last one are stale."""
    x, weight = random(256, 512), random(1024, 512).T
    store, ranks = c10d._get_default_store(), {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    for number in range(count):
        dist.destroy_process_group()
        own = dist.PrefixStore(f"restart {number} of {count}", store)
        dist.init_process_group("nccl", store=own, device_id=x.device, **ranks)
        require_close(all_gather_matmul(x, weight), all_rows(x).float() @ weight.float(), "restart")


def check_hundred_restarts() -> None:
    check_restart(100)


CHECKS = (
    check_engines,
    check_many_calls,
    check_gradients,
    check_two_groups,
    check_disagreement,
    check_compile,
    check_graph,
    check_symm_mem,
    check_modules,
    check_watch,
    check_missing_rank,
    check_restart,
)
BY_NAME = (check_hundred_restarts,)  # a minute or more


def main() -> int:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    torch.manual_seed(dist.get_rank())
    wanted = sys.argv[1:]
    for check in (*CHECKS, *BY_NAME):
        if check.__name__ not in wanted if wanted else check in BY_NAME:
            continue
        check()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"{check.__name__}: ok", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
