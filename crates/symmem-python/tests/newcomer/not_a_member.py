"""A rank that is not in a subgroup, and forgets to ask, is told; nobody's sum is wrong."""

import numpy as np
import symmem


def main(group):
    even = group.subgroup(range(0, group.size, 2))
    for step in range(3):
        part = symmem.all_reduce(np.array([1.0 + group.rank]), "sum", even)
        total = symmem.all_reduce(np.array([100.0]))
        print(f"step {step} rank {group.rank}: part {part[0]}, total {total[0]}")


if __name__ == "__main__":
    symmem.spawn(main, ranks=4)
