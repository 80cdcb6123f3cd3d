"""A tensor-parallel MLP on 2 processes: each holds half of both weights; one all-reduce makes the output whole."""

import numpy as np
import symmem

BATCH, WIDTH, HIDDEN = 8, 64, 256


def weights():
    rng = np.random.default_rng(0)
    w1 = rng.standard_normal((WIDTH, HIDDEN), dtype=np.float32) / 8
    w2 = rng.standard_normal((HIDDEN, WIDTH), dtype=np.float32) / 16
    return rng.standard_normal((BATCH, WIDTH), dtype=np.float32), w1, w2


def mlp(group, steps):
    x, w1, w2 = weights()
    mine = slice(group.rank * HIDDEN // group.size, (group.rank + 1) * HIDDEN // group.size)
    w1, w2 = w1[:, mine], w2[mine]
    y = symmem.empty(BATCH, WIDTH)  # symmetric: the all-reduce reads it where it is
    mem = symmem.rendezvous(y, group)
    for _ in range(steps):
        np.matmul(np.maximum(x @ w1, 0), w2, out=y.numpy())
        mem.all_reduce("sum")
    return y.numpy().copy()


if __name__ == "__main__":
    x, w1, w2 = weights()
    whole = np.maximum(x @ w1, 0) @ w2
    for rank, y in enumerate(symmem.spawn(mlp, ranks=2, args=(100,))):
        print(f"rank {rank}: {y.shape}, largest error {np.abs(y - whole).max():.0e}")
        assert np.allclose(y, whole, atol=1e-4)
