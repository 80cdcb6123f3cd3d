"""torch.distributed over shared memory: the backend "symmem" under DistributedDataParallel."""

import importlib.util
import tempfile

if importlib.util.find_spec("torch") is None:
    print("nothing to show: torch is not installed")
    raise SystemExit
import torch  # knows the backend, wherever symmem is installed
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("symmem", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    for step in range(100):
        x = torch.randn(32, 8, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over the ranks meanwhile
        optimizer.step()
        if rank == 0 and step % 33 == 0:
            print(f"step {step:2}: loss {loss.item():.4f}")
    weights = model.module.weight.detach().clone()
    dist.broadcast(weights, 0)
    assert torch.equal(weights, model.module.weight) and loss < 1e-3
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(main, args=(f"{folder}/store",), nprocs=RANKS)
