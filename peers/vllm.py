"""vLLM's collectives over shared memory for CPUs, without the rest of vLLM.

    python vllm.py --library _C_AVX512.abi3.so --ranks N --job JOB.json --out OUT.json
"""

import glob
import os

import torch
import torch.distributed as dist
from torch_loop import System, main


class Vllm(System):
    name = "vllm"
    version = "vLLM shared memory"

    def start(self, rank, ranks):
        torch.ops.load_library(self.library)
        # The parent's id tells runs apart.
        name = f"symmem-peer-{os.getppid()}"
        self.handle = torch.ops._C.init_shm_manager(name, ranks, rank, torch.get_num_threads())
        dist.barrier()
        torch.ops._C.join_shm_manager(self.handle, name)
        dist.barrier()
        if rank == 0:
            # Everybody has mapped them; this way none outlives a rank that is killed.
            for segment in glob.glob(f"/dev/shm/*{name}*"):
                os.unlink(segment)
        self.token = torch.zeros(16)

    def barrier(self):
        # It has none; everybody hears from everybody in a small all-reduce.
        torch.ops._C.shm_allreduce(self.handle, self.token)

    def all_reduce(self, buffer, _):
        torch.ops._C.shm_allreduce(self.handle, buffer)

    def all_gather(self, part, whole):
        torch.ops._C.shm_all_gather(self.handle, part, whole)


if __name__ == "__main__":
    main(Vllm())
