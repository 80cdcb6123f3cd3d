"""`with group.within(0.5):` bounds what is called in it, and does not close the group."""

import time

import symmem


def main(group):
    if group.rank == 1:
        time.sleep(3)
        return None
    start = time.monotonic()
    try:
        with group.within(0.5):
            group.barrier()
    except symmem.Timeout:
        return time.monotonic() - start < 2.5, group.closed
    return "no timeout"


if __name__ == "__main__":
    print(symmem.spawn(main, ranks=2)[0])
