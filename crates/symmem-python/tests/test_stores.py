"""The stores that ranks meet in: PyTorch's methods, and PyTorch's own stores."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import symmem


@pytest.fixture(params=["hash", "file", "prefix", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "hash":
        yield symmem.HashStore()
    elif request.param == "file":
        yield symmem.FileStore(str(tmp_path / "store"))
    elif request.param == "prefix":
        yield symmem.PrefixStore("mine", symmem.HashStore())
    else:
        master = symmem.TcpStore("127.0.0.1", 0, is_master=True)
        yield symmem.TcpStore("127.0.0.1", master.port)


def test_a_store_says_which_one_it_is(tmp_path: Path) -> None:
    master = symmem.TcpStore("127.0.0.1", 0, is_master=True)
    path = str(tmp_path / "store")
    for one, text in [
        (symmem.HashStore(), "HashStore()"),
        (symmem.HashStore().clone(), "Store(timeout=300)"),
        (symmem.FileStore(path), f'FileStore("{path}")'),
        (symmem.PrefixStore("mine", symmem.HashStore()), 'PrefixStore("mine", HashStore())'),
        (master, f'TcpStore("127.0.0.1", {master.port}, is_master=True)'),
        (symmem.TcpStore("127.0.0.1", master.port), f'TcpStore("127.0.0.1", {master.port})'),
    ]:
        assert repr(one) == text


def listening(port: int) -> list[str]:
    """The addresses that somebody listens on at `port`, as the kernel writes them."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, number = local.split(":")
            if state == "0A" and int(number, 16) == port:
                found.append(address)
    return found


def test_a_master_listens_on_its_host_and_nowhere_else() -> None:
    master = symmem.TcpStore("127.0.0.1", 0, is_master=True)
    assert listening(master.port) == ["0100007F"]


@pytest.mark.parametrize("name", ["*", "::", "0.0.0.0"])
def test_every_interface_has_a_name(name: str) -> None:
    master = symmem.TcpStore("127.0.0.1", 0, is_master=True, bind=name)
    (address,) = listening(master.port)
    assert set(address) == {"0"}
    symmem.TcpStore("127.0.0.1", master.port).set("key", "value")


def test_an_address_of_another_machine_is_refused_with_the_name_of_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(symmem.StoreFailed, match="SYMMEM_STORE_BIND"):
        symmem.TcpStore("192.0.2.1", 0, is_master=True)
    monkeypatch.setenv("SYMMEM_STORE_BIND", "127.0.0.1")
    master = symmem.TcpStore("192.0.2.1", 0, is_master=True)
    assert listening(master.port) == ["0100007F"]
    master.set("key", "value")


def test_the_file_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.touch(mode=0o644)
    symmem.FileStore(str(path)).set("key", "value")
    assert path.stat().st_mode & 0o777 == 0o600


def test_values_and_counters(store: Any) -> None:
    store.set("key", "value")
    assert store.get("key") == b"value"
    store.set("bytes", b"\0\1")
    assert store.get("bytes") == b"\0\1"
    assert store.add("n", 2) == 2 and store.add("n", 3) == 5
    assert store.check(["key", "n"]) and not store.check(["missing"])
    assert store.delete_key("key") and not store.check(["key"])


def test_compare_and_append(store: Any) -> None:
    assert store.compare_set("key", "", "one") == b"one"
    assert store.compare_set("key", "other", "two") == b"one"
    assert store.compare_set("key", "one", "two") == b"two"
    store.append("log", "a")
    store.append("log", "b")
    assert store.get("log") == b"ab"


def test_many_at_once(store: Any) -> None:
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]


def test_waiting_for_a_key(store: Any) -> None:
    def later() -> None:
        time.sleep(0.2)
        store.set("late", "here")

    thread = threading.Thread(target=later)
    thread.start()
    store.wait(["late"], datetime.timedelta(seconds=20))
    assert store.get("late") == b"here"
    thread.join(20)


def test_waiting_in_vain_times_out(store: Any) -> None:
    with pytest.raises(symmem.Timeout):
        store.wait(["never"], datetime.timedelta(milliseconds=100))
    with pytest.raises(TimeoutError):
        store.wait(["never"], 0.1)


def test_queues() -> None:
    store = symmem.HashStore()
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    assert store.queue_pop("q") == b"first" and store.queue_pop("q") == b"second"
    with pytest.raises(symmem.QueueEmpty):
        store.queue_pop("q", block=False)


def test_prefixes_keep_keys_apart() -> None:
    base = symmem.HashStore()
    symmem.PrefixStore("a", base).set("key", "1")
    symmem.PrefixStore("b", base).set("key", "2")
    assert symmem.PrefixStore("a", base).get("key") == b"1"
    assert base.num_keys() == 2


class Plain:
    """What anybody could write: PyTorch's methods over a dict."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self.changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self.changed.notify_all()
        return total

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        limit = 20 if timeout is None else timeout.total_seconds()
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), limit):
                raise RuntimeError("wait timeout")

    def compare_set(self, key: str, expected: str, desired: bytes | str) -> bytes:
        with self.changed:
            now = self.values.get(key, b"")
            wanted = expected.encode() if isinstance(expected, str) else expected
            if now == wanted:
                self.values[key] = desired.encode() if isinstance(desired, str) else desired
                self.changed.notify_all()
            return self.values.get(key, wanted)

    def delete_key(self, key: str) -> bool:
        with self.changed:
            return self.values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self.values)


def meet(store: Any, size: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(size)]

    def rank(rank: int) -> None:
        group = symmem.Group(store, rank, size, timeout=20, context=symmem.Context())
        found[rank] = group.all_gather_object(rank)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_ranks_meet_in_any_store(store: Any) -> None:
    assert meet(store, 2) == [[0, 1]] * 2


def test_ranks_meet_in_whatever_looks_like_a_store() -> None:
    assert meet(Plain(), 3) == [[0, 1, 2]] * 3


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="(?i)store"):
        symmem.Group(object(), 0, 1)


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_ranks_meet_in_torchs_stores(kind: str, tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    if kind == "hash":
        store = dist.HashStore()
    elif kind == "file":
        store = dist.FileStore(str(tmp_path / "store"), 2)
    else:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert meet(store, 2) == [[0, 1]] * 2


def test_torch_talks_to_our_server() -> None:
    dist = pytest.importorskip("torch.distributed")
    server = symmem.TcpStore("127.0.0.1", 0, is_master=True)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=datetime.timedelta(seconds=20))
    client.set("key", "from torch")
    assert server.get("key") == b"from torch"
    assert client.add("n", 4) == 4 and server.add("n", 1) == 5
