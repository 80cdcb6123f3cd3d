"""Gloo, as torch.distributed calls it.

    python gloo.py --ranks N --job JOB.json --out OUT.json
"""

import torch
import torch.distributed as dist
from torch_loop import System, main


class Gloo(System):
    name = "gloo"
    version = f"Gloo of torch {torch.__version__}"

    def barrier(self):
        dist.barrier()

    def all_reduce(self, buffer, _):
        dist.all_reduce(buffer)

    def broadcast(self, buffer, _):
        dist.broadcast(buffer, src=0)

    def all_gather(self, part, whole):
        dist.all_gather_into_tensor(whole, part)

    def reduce_scatter(self, whole, part):
        dist.reduce_scatter_tensor(part, whole)

    def all_to_all(self, given, taken):
        dist.all_to_all_single(taken, given)


if __name__ == "__main__":
    main(Gloo())
