"""What was written for torch.distributed._symmetric_memory, with a changed import:

Here it runs on CPUs too.
"""

import importlib.util
import tempfile

if importlib.util.find_spec("torch") is None:
    print("nothing to show: torch is not installed")
    raise SystemExit
import symmem.torch as symm_mem
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS = 2


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    group = dist.group.WORLD.group_name
    x = symm_mem.empty(1024, dtype=torch.bfloat16, device="cpu")
    hdl = symm_mem.rendezvous(x, group)
    x.fill_(rank + 1)
    hdl.barrier()
    total = symm_mem.one_shot_all_reduce(x, "sum", group)
    theirs = hdl.get_remote_tensor((rank + 1) % RANKS, x.shape, x.dtype)
    print(f"rank {rank}: mine {x[0]:.0f}, theirs {theirs[0]:.0f}, together {total[0]:.0f}")
    assert (total == 3).all()
    hdl.barrier()  # nobody leaves while others still read
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(main, args=(f"{folder}/store",), nprocs=RANKS)
