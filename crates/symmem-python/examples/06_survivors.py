"""One process dies; the others notice at once, learn who it was, regroup and go on."""

import os
import signal

import numpy as np
import symmem


def main(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as if it had crashed
    try:
        group.barrier()
    except (symmem.PeerLost, symmem.GroupFailed) as error:
        assert error.culprit == 1
    rest = group.survivors()
    return rest.all_reduce(np.array([group.rank])).tolist()


if __name__ == "__main__":
    for rank, result in enumerate(symmem.spawn(main, ranks=3, return_exceptions=True)):
        print(f"rank {rank}: {result}")
        assert isinstance(result, symmem.Spawned) if rank == 1 else result == [2]
