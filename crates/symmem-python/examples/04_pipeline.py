"""A pipeline of signals: each stage waits for its input, works, writes into the next stage's memory, and says so."""

import symmem

STEPS, SIZE, FULL, FREE = 5, 1000, 0, 1


def stage(group):
    x = symmem.empty(SIZE, dtype="float64")
    mem = symmem.rendezvous(x, group)
    first, last = group.rank == 0, group.rank == group.size - 1
    results = []
    for step in range(STEPS):
        if first:
            x[:] = step
        else:
            mem.wait_signal(group.prev, channel=FULL)
        worked = x.numpy() * 2
        if not first:
            mem.put_signal(group.prev, channel=FREE)  # the input is consumed
        if last:
            results.append(worked[0])
            continue
        if step > 0:
            mem.wait_signal(group.next, channel=FREE)
        mem.put(group.next, worked)
        mem.put_signal(group.next, channel=FULL)
    mem.barrier()
    return results


if __name__ == "__main__":
    results = symmem.spawn(stage, ranks=4)[-1]
    print([float(value) for value in results])
    assert results == [16.0 * step for step in range(STEPS)]
