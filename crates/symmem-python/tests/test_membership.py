"""Who may be a rank, and whose pickles are loaded."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import symmem

#: The victim: rank 0, which serves the store, and takes objects from rank 1.
VICTIM = """
import symmem
try:
    with symmem.init() as group:
        print("joined", group.size)
        try:
            print("took", group.all_gather_object("hello"))
        except symmem.Unproven as error:
            print("refused", error.ranks, error)
        try:
            print("took", group.broadcast_object(None, root=1))
        except symmem.Unproven as error:
            print("refused", error.ranks, error)
except symmem.Unproven as error:
    print("alone", error.ranks, error)
"""

#: The stranger: says that it is rank 1 on another host, and puts its pickle where rank 1's part of the exchange belongs.
STRANGER = """
import os, pickle, sys, time
import symmem

class Harm:
    def __reduce__(self):
        return (os.system, (f"touch {sys.argv[1]}",))

group = symmem.init()
store = symmem.TcpStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
# The gathering of objects, then the broadcast from rank 1. The first exchange is the join's, which rank 0 may still be in.
for number, head in (2, b"3 0 0\\n"), (3, b"4 1 0\\n"):
    store.set(f"symmem/{group.id}/x/{number}/1", head + pickle.dumps(Harm()))
time.sleep(5)
"""


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def start(program: str, rank: int, port: int, *args: str, **env: str) -> subprocess.Popen[str]:
    launcher = {
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "SYMMEM_TIMEOUT": "10",
    }
    return subprocess.Popen(
        [sys.executable, "-c", program, *args], env={**os.environ, **launcher, **env}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )


def meet(tmp_path: Path, victim: dict[str, str], stranger: dict[str, str]) -> tuple[str, bool]:
    """What the victim says, and whether the stranger's code ran."""
    harm, port = tmp_path / "harm", free_port()
    ranks = [start(VICTIM, 0, port, **victim), start(STRANGER, 1, port, str(harm), **stranger)]
    try:
        said = ranks[0].communicate(timeout=40)[0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return said, harm.exists()


ALLOWED = {"SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS": "1"}


def test_a_stranger_that_claims_another_host_is_no_rank_and_its_pickle_is_not_loaded(tmp_path: Path) -> None:
    said, harmed = meet(tmp_path, {}, {"SYMMEM_HOST_ID": "elsewhere", **ALLOWED})
    assert not harmed, said
    assert said.startswith("alone [1]") and "SYMMEM_SECRET_FILE" in said, said


def test_objects_of_a_group_that_was_allowed_without_proof_are_not_loaded(tmp_path: Path) -> None:
    said, harmed = meet(tmp_path, ALLOWED, {"SYMMEM_HOST_ID": "elsewhere", **ALLOWED})
    assert not harmed, said
    assert said.startswith("joined 2") and said.count("refused [1]") == 2 and "took" not in said, said


def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(os.urandom(32).hex().encode())
    path.chmod(0o600)
    return str(path)


def test_a_stranger_without_the_secret_is_no_rank(tmp_path: Path) -> None:
    secret = {"SYMMEM_SECRET_FILE": secret_file(tmp_path), "SYMMEM_TIMEOUT": "3"}
    said, harmed = meet(tmp_path, secret, {"SYMMEM_HOST_ID": "elsewhere", **ALLOWED})
    assert not harmed, said
    assert said.startswith("alone [1]") and "proof" in said, said


RANK = """
import symmem
with symmem.init() as group:
    print(group.all_gather_object({"rank": group.rank}), group.broadcast_object(group.rank, root=1))
"""


@pytest.mark.parametrize("hosts", [("", ""), ("a", "b")])
def test_objects_travel_where_ranks_are_proven(tmp_path: Path, hosts: tuple[str, str]) -> None:
    # One host needs no secret; two need one.
    secret = {"SYMMEM_SECRET_FILE": secret_file(tmp_path)} if all(hosts) else {}
    port = free_port()
    ranks = [start(RANK, rank, port, SYMMEM_HOST_ID=host, **secret) for rank, host in enumerate(hosts)]
    try:
        said = [rank.communicate(timeout=40)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert said == ["[{'rank': 0}, {'rank': 1}] 1"] * 2


def test_the_exception_can_travel_itself() -> None:
    error = symmem.Unproven("text")
    assert isinstance(error, symmem.Error) and str(pickle.loads(pickle.dumps(error))) == "text"
