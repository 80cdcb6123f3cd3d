"""DeepSpeed's all-reduce over shared memory, without the rest of DeepSpeed.

    python deepspeed.py --library OP.so --ranks N --job JOB.json --out OUT.json
"""

import importlib.util
import os
import sys

import torch
import torch.distributed as dist
from torch_loop import System, main

MODULE = "deepspeed_shm_comm"
# What `vector_kernel_level` must answer at least; below it a call would fault.
F32_LEVEL, BF16_LEVEL = 1, 2


class DeepSpeed(System):
    name = "deepspeed"
    version = "DeepSpeed shared memory"

    def start(self, rank, ranks):
        # It builds the names of its segments from these; the parent's id tells runs apart.
        os.environ |= {"LOCAL_SIZE": str(ranks), "MASTER_ADDR": "local", "MASTER_PORT": str(os.getppid())}
        spec = importlib.util.spec_from_file_location(MODULE, self.library)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.level = module.vector_kernel_level()
        if self.level < F32_LEVEL:
            sys.exit("DeepSpeed's shared memory needs AVX2")
        module.initialize(ranks, rank)
        dist.barrier()
        # It never removes them itself; everybody has mapped them by now.
        os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_local_{os.getppid()}_{rank}")
        self.token = torch.zeros(16)

    def barrier(self):
        # It has none; everybody hears from everybody in a small all-reduce.
        torch.ops.deepspeed.inference_all_reduce_(self.token)

    def all_reduce(self, buffer, _):
        if buffer.dtype == torch.bfloat16 and self.level < BF16_LEVEL:
            raise NotImplementedError("bfloat16 needs AVX-512")
        torch.ops.deepspeed.inference_all_reduce_(buffer)


if __name__ == "__main__":
    main(DeepSpeed())
