"""Rows and columns of a grid: every rank is in two groups, and collectives name the one they mean."""

import numpy as np
import symmem


def main(group):
    row, column = divmod(group.rank, 2)
    rows = group.subgroup([2 * row, 2 * row + 1], "row")
    columns = group.subgroup([column, column + 2], "column")
    x = np.array([1.0 + group.rank])
    along_row = symmem.all_reduce(x.copy(), group=rows)
    with columns:  # the current group, for everything inside
        along_column = symmem.all_reduce(x.copy())
    return float(along_row[0]), float(along_column[0])


if __name__ == "__main__":
    results = symmem.spawn(main, ranks=4)
    print(results)
    assert results == [(3, 4), (3, 6), (7, 4), (7, 6)]
