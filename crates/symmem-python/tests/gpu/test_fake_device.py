"""Device memory without a device, on the fake CUDA driver: everything but what kernels compute."""

from __future__ import annotations

import fake
import harness


def test_arrays_show_their_memory_and_keep_it() -> None:
    fake.run_ranks("fake_array", 1)


def test_an_id_is_the_same_memory_one_array_at_a_time() -> None:
    fake.run_ranks("fake_persistent", 1)


def test_words_are_checked_and_written() -> None:
    fake.run_ranks("fake_words", 1)


def test_everybody_maps_everybody() -> None:
    for world in (1, 2, 3):
        fake.run_ranks("fake_handle", world)


def test_private_memory_goes_through_a_room() -> None:
    for world in (1, 2):
        fake.run_ranks("fake_private", world)


def test_norms_take_what_they_can_and_refuse_the_rest() -> None:
    for world in (1, 2):
        fake.run_ranks("fake_norm", world)


def test_a_second_thread_is_busy_while_the_first_one_has_the_room() -> None:
    fake.run_ranks("fake_busy", 2)


def test_ranks_meet_for_private_arrays_of_nothing() -> None:
    for world in (1, 2):
        fake.run_ranks("fake_nothing", world)


def test_segments_of_torchs_pools_are_symmetric() -> None:
    fake.run_ranks("fake_segments", 1)
    for world in (1, 2):
        fake.run_ranks("fake_pool", world)


def test_ranks_may_be_threads() -> None:
    assert fake.run_ranks("fake_threads", 1, devices=3) == [[2, 3, 1]]


def test_graphs_keep_the_arrays_of_their_operations() -> None:
    fake.run_ranks("fake_captures", 2)


def test_ranks_that_disagree_get_the_same_error() -> None:
    fake.run_ranks("fake_mismatch", 2)


def test_an_operation_costs_little() -> None:
    (nanoseconds,) = fake.run_ranks("fake_cost", 1)
    # On a driver that counts every call under a lock, in any build; a look-up gone wrong costs more.
    assert isinstance(nanoseconds, float) and nanoseconds < 50_000, nanoseconds
    print(f"all_reduce_ptr takes {nanoseconds:.0f} ns on the fake driver")


if __name__ == "__main__":
    harness.main(dict(globals()))
