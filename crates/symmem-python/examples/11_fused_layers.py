"""A transformer block whose heads and hidden columns are split over ranks, with the rows (tokens) split between its layers.

Each layer gathers rows while it multiplies them, and scatters the sums of what it made: no rank ever holds all of `x` and all weights.
"""

import numpy as np
import symmem

TOKENS, WIDTH, HEADS, HIDDEN = 64, 128, 4, 256
HEAD = WIDTH // HEADS


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attention(q, k, v):
    """Of heads that are side by side in the columns; a token sees those before it."""
    heads = [each.reshape(TOKENS, -1, HEAD).swapaxes(0, 1) for each in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(1, 2) / np.float32(np.sqrt(HEAD))
    scores = np.exp(np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf) - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True) @ heads[2]).swapaxes(0, 1).reshape(TOKENS, -1)


def weights():
    """Those of the whole block, the same on every rank: query, key, value, out, up, down."""
    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    random = np.random.default_rng(1)
    return [random.standard_normal(shape, dtype="float32") / np.float32(np.sqrt(shape[0])) for shape in shapes]


def block(x, group, q, k, v, out, up, down):
    """The block on this rank's rows `x`, with its columns of the first weights of each layer and its rows of the last."""
    x = x + group.matmul_reduce_scatter(attention(*group.all_gather_matmul(norm(x), [q, k, v])), out)
    return x + group.matmul_reduce_scatter(np.maximum(group.all_gather_matmul(norm(x), up), 0), down)


def main(group):
    def columns(whole):
        return np.array_split(whole, group.size, axis=1)[group.rank]

    def rows(whole):
        return np.array_split(whole, group.size)[group.rank]

    q, k, v, out, up, down = weights()
    x = np.random.default_rng(0).standard_normal((TOKENS, WIDTH), dtype="float32")
    mine = block(rows(x), group, *map(columns, (q, k, v)), rows(out), columns(up), rows(down))

    # What one rank alone would compute.
    y = x + attention(*(norm(x) @ each for each in (q, k, v))) @ out
    y = y + np.maximum(norm(y) @ up, 0) @ down
    return float(np.abs(mine - rows(y)).max() / np.abs(y).max())


if __name__ == "__main__":
    errors = symmem.spawn(main, 2)
    assert max(errors) < 1e-5, errors
    print(f"a block of {TOKENS} tokens on 2 ranks, as one rank alone would: off by {max(errors):.0e} at most")
