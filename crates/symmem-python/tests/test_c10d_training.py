"""The backend "symmem" under what people train with: DDP, functional collectives, device meshes, FSDP2."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch_ranks import run  # noqa: E402

STEPS = 20


def train(rank: int, wrap: Any, group: Any) -> list[float]:
    """20 steps of a small network on this rank's part of the data:

    The mean loss of all ranks at every step.
    """
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(16, 20, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def ddp(rank: int) -> tuple[list[float], list[float]]:
    gloo = dist.new_group(backend="gloo")
    results = []
    for group in (None, gloo):
        results.append(train(rank, functools.partial(DistributedDataParallel, process_group=group), group))
    return results[0], results[1]


def fsdp2(rank: int) -> tuple[list[float], list[float]]:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    gloo = dist.new_group(backend="gloo")
    sharded = train(rank, lambda model: fully_shard(model, mesh=mesh), None)
    return sharded, train(rank, functools.partial(DistributedDataParallel, process_group=gloo), gloo)


def functional(rank: int) -> None:
    from torch.distributed import _functional_collectives as functions

    ranks = dist.get_world_size()
    group = dist.group.WORLD
    x = torch.arange(4.0) + rank
    total = torch.arange(4.0) * ranks + sum(range(ranks))
    assert torch.equal(functions.wait_tensor(functions.all_reduce(x, "sum", group)), total)
    gathered = functions.wait_tensor(functions.all_gather_tensor(x, 0, group))
    assert gathered.shape == (4 * ranks,) and gathered[4 * rank] == rank
    part = functions.wait_tensor(functions.reduce_scatter_tensor(x.repeat(ranks), "sum", 0, group))
    assert torch.equal(part, total)
    swapped = functions.wait_tensor(functions.all_to_all_single(x.repeat(ranks), None, None, group))
    assert swapped.view(ranks, 4)[:, 0].tolist() == list(range(ranks))
    assert torch.equal(functions.wait_tensor(functions.broadcast(x, 0, group)), torch.arange(4.0))


def dtensors(rank: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).view(6, 4)
    a = distribute_tensor(whole, mesh, [Shard(0)])
    b = distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
    assert torch.equal((a @ b).full_tensor(), whole @ whole.t())
    assert torch.equal(a.redistribute(mesh, [Shard(1)]).full_tensor(), whole)


def meshes(rank: int) -> None:
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mesh["rows"].get_group())
    assert x.item() == rank % 2 + (rank % 2 + 2)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mesh["columns"].get_group())
    assert x.item() == rank // 2 * 4 + 1


def test_ddp_trains_as_with_gloo() -> None:
    for ours, theirs in run(ddp, 2):
        assert len(ours) == STEPS and ours[-1] < ours[0] / 2
        torch.testing.assert_close(ours, theirs)


def test_fsdp2_trains_as_ddp_with_gloo() -> None:
    for ours, theirs in run(fsdp2, 2):
        assert len(ours) == STEPS
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_functional_collectives(ranks: int) -> None:
    run(functional, ranks)


def test_distributed_tensors() -> None:
    run(dtensors, 2)


def test_two_dimensional_meshes() -> None:
    run(meshes, 4)
