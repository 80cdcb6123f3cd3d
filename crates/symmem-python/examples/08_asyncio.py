"""Operations that run while an event loop does something else: start them, and await them."""

import asyncio

import numpy as np
import symmem


async def work(group):
    x = np.full(1 << 18, group.rank + 1, dtype="float32")
    pending = group.all_reduce_start(x)
    ticks = 0
    while not pending.test():
        ticks += 1
        await asyncio.sleep(0)  # other tasks run here
    assert await pending is x
    return float(x[0])


def main(group):
    return asyncio.run(work(group))


if __name__ == "__main__":
    results = symmem.spawn(main, ranks=2)
    print(results)
    assert results == [3.0, 3.0]
