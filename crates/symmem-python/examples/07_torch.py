"""torch tensors: symmetric memory that torch computes on, and collectives on any tensor."""

import importlib.util

import symmem

if importlib.util.find_spec("torch") is None:
    print("nothing to show: torch is not installed")
    raise SystemExit
import torch


def main(group):
    x = symmem.empty(4, 4)
    tensor = x.torch()  # the same memory
    tensor.fill_(group.rank + 1)
    mem = symmem.rendezvous(tensor, group)
    mem.all_reduce("sum")
    assert (tensor == 3).all() and (x.numpy() == 3).all()
    # Any view of it rendezvouses; what torch allocated itself works too, through a staging copy.
    half = symmem.rendezvous(tensor[2:], group)
    assert half.offset == 32
    private = torch.full((1000,), group.rank, dtype=torch.bfloat16)
    group.all_reduce(private, "max")
    return private.float().mean().item()


if __name__ == "__main__":
    results = symmem.spawn(main, ranks=2)
    print(results)
    assert results == [1.0, 1.0]
