"""Ranks that nobody spawned: processes that find each other through a file (or a host and a port)."""

import subprocess
import sys
import tempfile

import symmem


def rank(path, number):
    store = symmem.FileStore(path, 2)  # between machines: symmem.TcpStore(host, port, is_master=number == 0)
    with symmem.init(store=store, rank=number, world_size=2, timeout=30) as group:
        print(f"rank {group.rank} of {group.size} knows of {symmem.all_gather_object(number)}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        rank(sys.argv[1], int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, f"{folder}/store"]
            ranks = [subprocess.Popen([*command, str(number)]) for number in range(2)]
            assert [process.wait(60) for process in ranks] == [0, 0]
