"""The backend "symmem": works, futures, messages, failures, the end."""

from __future__ import annotations

import atexit
import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402

LATE = 0.5


def returns_before_completion(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(LATE)
    x = torch.full((1000,), float(rank + 1))
    called = []
    started = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda done: called.append(done.value()[0][0].item()) or "called")
    if rank == 0:
        assert time.monotonic() - started < LATE / 2
        assert not work.is_completed()
        with pytest.raises(symmem.Timeout):
            work.wait(timedelta(milliseconds=20))
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert x[0] == 3 and work.result()[0] is x or torch.equal(work.result()[0], x)
    assert future.wait() == "called" and called == [3]
    assert work.get_future().wait()[0][0] == 3


def callbacks_chain(rank: int) -> None:
    x, y = torch.ones(4), torch.full((4,), 10.0)

    def again(_: Any) -> Any:
        # Not one that waits: that is refused and told where a callback runs on the worker, which it does on some ranks only.
        return dist.all_reduce(y, async_op=True)

    later = dist.all_reduce(x, async_op=True).get_future().then(again)
    later.wait().wait()
    assert x[0] == 2 and y[0] == 20


def runs_in_order(rank: int) -> None:
    x = torch.ones(10)
    works = []
    for _ in range(50):
        works.append(dist.all_reduce(x, async_op=True))
        works.append(dist.broadcast(x, 0, async_op=True))
    dist.barrier()
    assert all(work.is_completed() for work in works)
    for work in works:
        work.wait()
    assert x[0].item() == 2.0**50


def mismatch_is_typed(rank: int) -> None:
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    with pytest.raises(symmem.Mismatch):
        work.wait()
    assert isinstance(work.exception(), symmem.Mismatch) and not work.is_success()
    with pytest.raises(RuntimeError, match="Mismatch"):
        work.get_future().wait()
    with pytest.raises(symmem.Invalid):
        dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(3))
    dist.barrier()


def late_rank_is_a_timeout(rank: int) -> None:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    if rank == 0:
        started = time.monotonic()
        with pytest.raises(symmem.Timeout):
            dist.all_reduce(torch.ones(1), group=group)
        assert time.monotonic() - started < 10
        got = torch.ones(1)
        with pytest.raises((symmem.Timeout, symmem.GroupFailed)):
            dist.recv(got, 1, group=group)
    dist.barrier()


def monitored(rank: int) -> None:
    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    if rank == 0:
        with pytest.raises(symmem.Timeout) as raised:
            group.monitored_barrier(timedelta(seconds=0.5))
        assert raised.value.missing == [1]
    else:
        time.sleep(2)


def monitored_by_function(rank: int) -> None:
    parts = [dist.new_group([0, 1]) for _ in range(3)]
    # Older versions of torch call it for Gloo only.
    try:
        dist.monitored_barrier()
    except ValueError as error:
        assert "GLOO" in str(error)
    symm_mem.monitored_barrier()
    symm_mem.monitored_barrier(parts[0], timedelta(seconds=30), True)
    for late in (parts[0], parts[1].group_name, symmem.Group.from_torch(parts[2])):
        symm_mem.monitored_barrier(late, 30.0)
        if rank == 0:
            with pytest.raises(symmem.Timeout, match=r"missing: ranks \[1\]") as raised:
                symm_mem.monitored_barrier(late, 0.3)
            assert raised.value.missing == [1]
        dist.barrier()


def monitored_on_gloo(rank: int) -> None:
    symm_mem.monitored_barrier(timeout=30.0)


def dead_peer(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        os._exit(9)
    started = time.monotonic()
    receive = dist.irecv(torch.ones(1), 1)
    with pytest.raises((symmem.PeerLost, symmem.GroupFailed)):
        dist.all_reduce(torch.ones(4))
    with pytest.raises((symmem.PeerLost, symmem.GroupFailed)):
        receive.wait()
    assert time.monotonic() - started < 20


def both_send_first(rank: int) -> None:
    ranks = dist.get_world_size()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for size in (0, 1, 65_536, 65_537, 5_000_000):
        mine = torch.full((size,), float(rank))
        got = torch.full((size,), -1.0)
        operations = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait(timedelta(seconds=30))
        assert (got == before).all()
    # Blocking sends to each other, too: a message is taken in while a rank sends.
    works = [dist.isend(torch.full((100_000,), float(each)), after) for each in range(5)]
    for each in range(5):
        got = torch.zeros(100_000)
        dist.recv(got, before)
        assert (got == each).all()
    for work in works:
        work.wait()


def tags_and_sources(rank: int) -> None:
    ranks = dist.get_world_size()
    if rank == 0:
        seen = set()
        for _ in range(ranks - 1):
            got = torch.zeros(3)
            source = dist.recv(got, tag=5)
            assert (got == source).all()
            seen.add(source)
        assert seen == set(range(1, ranks))
        for tag in (2, 1):
            got = torch.zeros(4, 2)[:, 1]
            dist.recv(got, 1, tag=tag)
            assert (got == 10 * tag).all()
        with pytest.raises(symmem.Error, match="32"):
            dist.recv(torch.zeros(7), 1, tag=9)
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=5)
    if rank == 1:
        for tag in (1, 2):
            dist.send(torch.full((4,), 10.0 * tag), 0, tag=tag)
        dist.send(torch.zeros(8), 0, tag=9)
    dist.barrier()


def messages_pass_collectives(rank: int) -> None:
    big = torch.full((2_000_000,), 7.0)
    if rank == 0:
        got = torch.zeros_like(big)
        receive = dist.irecv(got, 1)
        dist.all_reduce(torch.ones(1))
        receive.wait()
        assert (got == 7).all()
    else:
        dist.send(big, 0)
        dist.all_reduce(torch.ones(1))


def destroy_ends_threads(rank: int) -> None:
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    receive = dist.irecv(torch.ones(1), rank)
    future = receive.get_future()
    dist.isend(torch.ones(1), rank).wait()
    assert future.wait()[0][0] == 1
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("symmem-") for name in names) == 2, names
    group: Any = dist.group.WORLD
    dist.destroy_process_group()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("symmem-") for name in names), names
    with pytest.raises(symmem.Closed):
        group.allreduce([torch.ones(1)])


def abort_ends_everybody(rank: int) -> None:
    dist.barrier()
    group: Any = dist.group.WORLD
    started = time.monotonic()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        group.abort()
    else:
        # Another operation than rank 0's, which can therefore not succeed; it may have begun before the abort.
        with pytest.raises((symmem.GroupFailed, symmem.Mismatch)):
            dist.barrier()
            dist.all_reduce(torch.ones(1))
        return
    with pytest.raises((symmem.GroupFailed, symmem.Closed, symmem.Mismatch)):
        work.wait(timedelta(seconds=20))
    assert time.monotonic() - started < 20


def exit_without_destroy(rank: int) -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    globals()["_kept"] = dist.group.WORLD
    dist.distributed_c10d._world.default_pg = None  # as if the program had just ended


def again(rank: int, path: str) -> None:
    for round in range(3):
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x[0] == dist.get_world_size()
        dist.destroy_process_group()
        store = dist.FileStore(f"{path}/{round}", 2)
        dist.init_process_group("symmem", store=store, rank=rank, world_size=2)


def companion(rank: int) -> None:
    group: Any = dist.group.WORLD
    assert [device.type for device in group._device_types] == ["cpu", "cuda"]
    assert group._get_backend(torch.device("cpu")) is group
    other = group._get_backend(torch.device("cuda"))
    assert other.name() == "gloo"
    x = torch.ones(2)
    other.allreduce([x]).wait()
    assert x[0] == 2
    dist.all_reduce(x)
    assert x[0] == 4


def cuda_needs_a_backend(rank: int) -> None:
    group: Any = dist.group.WORLD
    with pytest.raises(symmem.Invalid, match="cpu:symmem,meta:"):
        group.allreduce([torch.ones(2, device="meta")])


def callbacks_do_not_wait(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(LATE)  # or rank 0 would find the first one done

    def wait(_: Any) -> str:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if threading.current_thread() is not threading.main_thread():
            with pytest.raises(symmem.Busy):
                work.wait()
        return "went on"

    assert dist.all_reduce(torch.ones(2), async_op=True).get_future().then(wait).wait() == "went on"
    dist.barrier()


def message_times_out(rank: int) -> None:
    if rank == 0:
        dist.group.WORLD.set_timeout(timedelta(seconds=0.3))
        started = time.monotonic()
        with pytest.raises(symmem.Timeout):
            dist.recv(torch.zeros(2), 1, tag=5)
        with pytest.raises(RuntimeError, match="Timeout"):
            dist.irecv(torch.zeros(2), 1, tag=6).get_future().wait()
        assert time.monotonic() - started < 20
        dist.group.WORLD.set_timeout(timedelta(seconds=30))
    dist.barrier()


def autograd_is_not_asked(rank: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 4).t()[:, :2])
    dist.all_reduce(parameter, async_op=True).wait()
    dist.reduce(parameter, 0, async_op=True).wait()
    assert parameter[0, 0] == (4 if rank == 0 else 2)
    with torch.inference_mode():
        x, outs = torch.full((3,), float(rank)), [torch.zeros(3) for _ in range(2)]
        dist.all_gather(outs, x, async_op=True).wait()
    assert outs[1][0] == 1


def forked_child_ends(rank: int) -> None:
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    dist.barrier()
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(0)
    end = time.monotonic() + 20
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    assert found == (child, 0)
    dist.barrier()


def test_a_callback_cannot_wait_for_its_own_group() -> None:
    run(callbacks_do_not_wait, 2)


def test_messages_time_out() -> None:
    run(message_times_out, 2)


def test_results_are_written_whatever_autograd_knows() -> None:
    run(autograd_is_not_asked, 2)


def test_a_forked_child_does_not_wait_for_the_group() -> None:
    run(forked_child_ends, 2)


def test_async_op_returns_before_completion() -> None:
    run(returns_before_completion, 2)


def test_a_callback_can_start_the_next_operation() -> None:
    run(callbacks_chain, 2)


def test_operations_run_in_the_order_they_were_started() -> None:
    run(runs_in_order, 2)


def test_a_mismatch_is_raised_by_wait() -> None:
    run(mismatch_is_typed, 2)


def test_a_late_rank_is_a_timeout() -> None:
    run(late_rank_is_a_timeout, 2)


def test_monitored_barrier_is_on_the_group() -> None:
    run(monitored, 2)


def test_monitored_barrier_is_a_function() -> None:
    run(monitored_by_function, 2)


def test_monitored_barrier_of_another_backend_is_torchs() -> None:
    run(monitored_on_gloo, 2, backend="gloo")


def test_a_dead_peer_ends_waits() -> None:
    run(dead_peer, 2, may_die=(1,))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_send_first_do_not_block(ranks: int) -> None:
    run(both_send_first, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_messages_have_tags_and_sources(ranks: int) -> None:
    run(tags_and_sources, ranks)


def test_messages_do_not_wait_for_collectives() -> None:
    run(messages_pass_collectives, 2)


def test_destroy_ends_the_threads() -> None:
    run(destroy_ends_threads, 2)


def test_abort_ends_everybody() -> None:
    run(abort_ends_everybody, 2)


def test_a_program_may_end_without_destroy() -> None:
    run(exit_without_destroy, 2)


def test_a_group_can_be_made_again(tmp_path: Any) -> None:
    run(again, 2, str(tmp_path))


def test_other_devices_have_their_own_backend() -> None:
    run(companion, 2, backend="cpu:symmem,cuda:gloo")


def test_a_device_without_backend_is_a_clear_error() -> None:
    run(cuda_needs_a_backend, 1)


def unwritable(rank: int) -> None:
    """A message that cannot be put into its tensor is an error of that receive, and of no other."""
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.ones(4), 1, tag=tag)
    else:
        # All elements are one.
        expanded = torch.zeros(1).expand(4)
        works = [dist.irecv(expanded, 0, tag=1), dist.irecv(x := torch.zeros(4), 0, tag=2)]
        futures = [work.get_future() for work in works]
        end = time.monotonic() + 20
        while not all(future.done() for future in futures):
            assert time.monotonic() < end, "a future is never done"
            time.sleep(0.01)
        futures[1].wait()
        assert x.tolist() == [1] * 4
        for _ in range(2):
            with pytest.raises(RuntimeError, match="single memory location"):
                works[0].wait()
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.recv(expanded, 0, tag=3)
    dist.barrier()


def test_a_message_that_does_not_fit_its_tensor_ends_no_other() -> None:
    run(unwritable, 2)
