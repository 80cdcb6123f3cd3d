"""What PyTorch's own test file asks of symmetric memory, behaviour by behaviour: which test shows it here, or why none does.

The numbers are those of the project's list of that file's tests. Left out are what only torch's compiler can have (61 to 70), another
communication library (82), and the fused products (34 to 42), which `test_torch_fused.py`, `test_overlap.py` and `gpu/test_device.py` try.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem.torch as symm_mem  # noqa: E402

HERE = Path(__file__).resolve().parent
RUST = HERE.parents[1] / "symmem" / "tests"
NUMBERS = {*range(1, 34), *range(43, 61), *range(71, 82), *range(83, 87)}
SUITE = "conformance/suite"


class Row(NamedTuple):
    """A behaviour: the tests that show it, as file::name, and what they do not show."""

    what: str
    tests: tuple[str, ...] = ()
    lacking: str = ""


GPU = "the kernels run on a GPU only: tests/devices and tests/gpu_engine"
SWITCH = "no machine with multicast was there: what the switch computes was never seen"
NO_RENDEZVOUS_BY_PG = (
    "there is no such flag: a group meets by the store of the process group, and then in memory; the process group's own collectives are not asked"
)
POOL = "no pool of torch's was run on a GPU: the segments are those of the fake driver, and torch's caching allocator is not there"

ROWS: dict[int, Row] = {
    1: Row("multicast of the CPU", ("test_torch.py::test_what_needs_no_group", f"{SUITE}/any/rendezvous.rs::multicast_is_everybodys_or_nobodys")),
    2: Row("is_symm_mem_tensor", (f"{SUITE}/host/allocation.rs::only_live_allocations_are_symmetric", "gpu/cases.py::fake_array")),
    3: Row("get_backend", ("test_torch_backend.py::test_a_name_that_is_none_is_an_error_that_lists_them", "test_torch_backend.py::late")),
    4: Row(
        "connectivity by NVLink",
        (f"{SUITE}/device/allocation.rs::the_links_of_all_devices_can_be_asked_for", "test_memory.py::test_without_a_gpu_questions_about_it_have_answers"),
        "machines with one GPU only were there",
    ),
    5: Row("get_signal_pad_size", ("test_torch_class.py::test_the_class_has_the_pad_size_of_later_allocations",)),
    6: Row("set_signal_pad_size", ("test_torch_class.py::test_the_class_has_the_pad_size_of_later_allocations", f"{SUITE}/host/allocation.rs::a_new_pad_size_is_visible_and_can_be_restored")),
    7: Row("pads of that size", (f"{SUITE}/any/rendezvous.rs::pads_have_the_size_that_was_set", f"{SUITE}/host/allocation.rs::pads_have_the_size_that_was_set_before_the_allocation")),
    8: Row("2 GiB", (f"{SUITE}/host/large.rs::two_gibibytes_have_that_many_bytes",), "on the host only"),
    9: Row("allocation on the current stream", (), "otherwise on purpose: on a stream of the library's own, which the call waits for, so that no stream of the program's waits"),
    10: Row("get_signal_pad", (f"{SUITE}/host/memory.rs::pad_views_have_any_shape_and_element", f"{SUITE}/any/memory.rs::pads_are_apart_from_the_data", "test_memory.py::test_signal_pads_are_memory_too")),
    11: Row("overlapping devices", ("fake_cuda/devices.rs::overlapping_devices_are_allowed_by_either_variable",)),
    12: Row("rendezvous by the process group's all-gathers", (), NO_RENDEZVOUS_BY_PG),
    13: Row("rendezvous by a custom backend", (), NO_RENDEZVOUS_BY_PG),
    14: Row("buffers after an abort", ("test_acceptance.py::test_buffers_are_readable_after_an_abort",), "views that were there before: a handle is closed by an abort"),
    15: Row("low-contention all-gather", ("test_torch.py::test_operations", "test_torch_operators.py::test_eagerly", "gpu/test_device.py::test_operators_on_two_processes")),
    16: Row("... by multicast", ("test_torch_operators.py::test_eagerly",), SWITCH),
    17: Row("... into an output", ("test_torch_operators.py::test_eagerly", "test_torch_operators.py::test_under_fake_tensors"), SWITCH),
    18: Row("low-contention reduce-scatter", ("test_torch.py::test_operations", "test_torch_operators.py::test_eagerly", "gpu/test_device.py::test_operators_on_two_processes")),
    19: Row("subgroups", (f"{SUITE}/any/groups.rs::one_allocation_serves_the_world_and_its_halves", "test_groups.py::test_subgroups")),
    20: Row("a rank that sits out", (f"{SUITE}/any/groups.rs::a_rank_may_sit_out_a_rendezvous_of_others",)),
    21: Row("overlapping subgroups", (f"{SUITE}/any/groups.rs::overlapping_subgroups_pair_correctly",)),
    22: Row("get", (f"{SUITE}/any/memory.rs::get_reads_whole_buffers_and_parts", f"{SUITE}/any/memory.rs::get_beyond_the_end_or_from_nobody_is_refused", "test_torch.py::test_operations")),
    23: Row("handles through the dispatcher", ("test_torch_operators.py::test_a_handle_is_of_its_memory",), "as numbers: only torch can make objects of its class"),
    24: Row("barrier by multimem", ("fake_cuda/multimem.rs::with_multicast_its_kernels_are_launched_where_it_is_chosen",), SWITCH),
    25: Row("barriers on two streams", (f"{SUITE}/device/order.rs::barriers_on_two_streams_come_one_after_the_other",), GPU),
    26: Row("signals on two streams", (f"{SUITE}/device/order.rs::signals_on_two_streams_come_one_after_the_other",), GPU),
    27: Row("waits for the pad's kernel only", (f"{SUITE}/device/order.rs::only_the_last_kernel_is_waited_for",), GPU),
    28: Row("two host threads", (f"{SUITE}/device/order.rs::threads_of_a_rank_may_share_a_lane",), GPU),
    29: Row("order in graphs", (f"{SUITE}/device/graphs.rs::a_capture_orders_its_forked_streams", "gpu_engine/order.rs::a_capture_orders_its_forked_streams"), "the graph's edges are not looked at"),
    30: Row("all-reduces on two streams", (f"{SUITE}/device/order.rs::all_reduces_on_two_streams_come_one_after_the_other",), GPU),
    31: Row("a captured barrier", (f"{SUITE}/device/graphs.rs::a_fill_and_a_barrier_are_replayed",), GPU),
    32: Row("a capture that is never replayed", (f"{SUITE}/device/graphs.rs::a_capture_that_is_never_replayed_changes_nothing",), GPU),
    33: Row("forked streams in one graph", (f"{SUITE}/device/graphs.rs::a_capture_orders_its_forked_streams",), "that the pad is zero afterwards is not asked"),
    43: Row("empty_strided_p2p", ("test_torch_class.py::test_an_ordinary_tensor_has_no_handle", "test_torch_class.py::test_names_ranks_and_channels", f"{SUITE}/any/lifetime.rs::the_handle_outlives_its_allocation", f"{SUITE}/any/signals.rs::a_signal_makes_earlier_writes_visible")),
    44: Row("persistent memory", ("test_torch.py::test_persistent_memory_comes_back", "gpu/cases.py::fake_persistent")),
    45: Row("a recycled name", (f"{SUITE}/any/groups.rs::a_name_may_recur_with_other_members_on_a_new_store",)),
    46: Row("barrier timeout", (f"{SUITE}/host/failure.rs::a_barrier_that_not_all_join_times_out_and_names_the_missing", f"{SUITE}/device/failure.rs::what_nobody_joins_times_out_for_all"), "otherwise on purpose on GPUs: the context lives, and sync or the next operation says it"),
    47: Row("put_signal timeout", (f"{SUITE}/host/signal.rs::a_put_that_is_not_consumed_times_out_and_harms_nobody", f"{SUITE}/device/failure.rs::a_signal_that_nobody_answers_times_out_for_all"), "as the barrier's"),
    48: Row("wait_signal timeout", (f"{SUITE}/host/signal.rs::a_wait_without_a_put_times_out_and_harms_nobody", f"{SUITE}/device/failure.rs::a_signal_that_nobody_answers_times_out_for_all"), "as the barrier's"),
    49: Row("channels of a barrier", (f"{SUITE}/any/barrier.rs::channels_end_with_the_pad", "test_torch_class.py::test_names_ranks_and_channels")),
    50: Row("channels of signals", (f"{SUITE}/any/signals.rs::channels_end_with_the_pad", "test_torch_class.py::test_names_ranks_and_channels")),
    51: Row("ranks of signals", (f"{SUITE}/any/signals.rs::ranks_out_of_range_are_refused", "test_torch_class.py::test_names_ranks_and_channels")),
    52: Row("multimem_all_reduce_", ("test_torch_operators.py::test_eagerly", "fake_cuda/multimem.rs::with_multicast_its_kernels_are_launched_where_it_is_chosen", "gpu_engine/multimem.rs::sums_by_the_switch_are_right"), SWITCH),
    53: Row("multimem_one_shot_all_reduce", ("test_torch_operators.py::test_eagerly", "gpu_engine/multimem.rs::sums_by_the_switch_are_right"), SWITCH),
    54: Row("multimem_one_shot_reduce_out", ("test_torch_operators.py::test_eagerly",), SWITCH),
    55: Row("one_shot_all_reduce", ("test_torch.py::test_operations", f"{SUITE}/device/collectives.rs::every_form_of_all_reduce_is_right", f"{SUITE}/device/collectives.rs::all_reduce_is_right_at_every_size")),
    56: Row("two_shot_all_reduce", ("test_torch_operators.py::test_eagerly", f"{SUITE}/device/collectives.rs::all_reduce_changes_nothing_outside")),
    57: Row("reduce_scatter_out", ("test_torch.py::test_operations", f"{SUITE}/device/collectives.rs::parts_are_right_at_every_size", f"{SUITE}/device/collectives.rs::columns_are_reduced_or_refused")),
    58: Row("corner cases of it", (f"{SUITE}/device/collectives.rs::nothing_can_be_moved_and_reduced", f"{SUITE}/device/collectives.rs::columns_are_reduced_or_refused"), "48 elements over 4 ranks are taken, where torch refuses them"),
    59: Row("multimem_all_gather_out", ("test_torch_operators.py::test_eagerly", "fake_cuda/multimem.rs::a_gather_takes_what_makes_up_the_memory"), SWITCH),
    60: Row("... by multicast in a graph", ("gpu_engine/multimem.rs::barriers_gathers_and_replays_by_multicast_are_right",), SWITCH),
    71: Row("free waits for work", (f"{SUITE}/device/allocation.rs::memory_that_is_dropped_at_work_stays_until_that_is_done", "gpu_engine/drops.rs::what_is_dropped_under_pending_work_stays_until_that_is_done_as_processes"), GPU),
    72: Row("free after a lost context", ("gpu_kill/lost_context.rs::everything_can_be_dropped_after_the_context_was_lost",), GPU),
    73: Row("stream_write_value32", ("gpu/cases.py::fake_words", "test_torch.py::test_what_needs_no_group", f"{SUITE}/device/words.rs::words_are_written_one_by_one")),
    74: Row("memset32", ("gpu/cases.py::fake_words", f"{SUITE}/device/words.rs::ranges_of_words_are_set", f"{SUITE}/device/words.rs::words_need_no_group")),
    75: Row("is_symm_mem_enabled_for_group", ("test_torch.py::test_operations",), "there is no test mode with names that only count as groups"),
    76: Row("a tensor made in a pool", ("gpu/cases.py::fake_pool", "test_torch_pool.py::test_torch_takes_the_allocator"), POOL),
    77: Row("a product made in a pool", ("gpu/cases.py::fake_pool",), POOL),
    78: Row("pads of recycled memory", ("gpu/cases.py::fake_pool", "pool.rs::memory_is_used_again_and_starts_with_zeros"), POOL),
    79: Row("large tensors in a pool", ("gpu/cases.py::fake_pool", "pool.rs::large_arrays_get_memory_of_their_own_and_blocks_are_added"), POOL),
    80: Row("memory of a pool is used again", ("gpu/cases.py::fake_segments", "pool.rs::memory_is_used_again_and_starts_with_zeros"), POOL),
    81: Row("the same id, the same address", ("test_torch.py::test_persistent_memory_comes_back", "gpu/cases.py::fake_persistent")),
    83: Row("external communicators come and go", ("test_torch_external.py::test_it_has_what_it_was_given_and_is_undone_once", "test_torch_external.py::used")),
    84: Row("... hold their object", ("test_torch_external.py::test_it_holds_the_object_until_it_is_undone",)),
    85: Row("... as a context manager", ("test_torch_external.py::test_a_block_undoes_it",)),
    86: Row("... are not null", ("test_torch_external.py::test_what_cannot_be_one_is_refused",)),
}


def test_every_number_has_a_row() -> None:
    assert set(ROWS) == NUMBERS


@pytest.mark.parametrize("number", sorted(ROWS))
def test_a_row_names_tests_that_are_there_or_says_why_not(number: int) -> None:
    row = ROWS[number]
    assert row.what and (row.tests or row.lacking), "neither a test nor a reason"
    for test in row.tests:
        file, _, name = test.partition("::")
        path, word = (HERE / file, "def") if file.endswith(".py") else (RUST / file, "fn")
        assert path.is_file(), f"there is no {path}"
        assert re.search(rf"^\s*(pub(\([a-z]+\))? )?{word} {name}\b", path.read_text(), re.MULTILINE), f"{file} has no {name}"


def test_what_runs_in_a_process_of_its_own_is_started_by_a_test() -> None:
    """Cases and ranks are no tests by themselves."""
    for file, name in {tuple(test.split("::")) for row in ROWS.values() for test in row.tests if test.split("::")[0].endswith(".py")}:
        if not name.startswith("test_"):
            texts = (HERE / file).read_text(), (HERE / "gpu" / "test_fake_device.py").read_text()
            assert any(re.search(rf'"{name}"|\b{name}[,)]', text) for text in texts), f"nobody starts {name} of {file}"


def aborted(rank: int) -> None:
    x = symm_mem.empty(8, device="cpu").fill_(rank + 1)
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    view = handle.get_remote_tensor(1 - rank, (8,), torch.float32)
    dist.barrier()
    group = dist.group.WORLD
    if rank == 0:
        group.abort()
    assert view.tolist() == [2.0 - rank] * 8
    assert x.tolist() == [rank + 1.0] * 8
    group.abort()
    del handle, x
    assert view.tolist() == [2.0 - rank] * 8


def test_buffers_are_readable_after_an_abort() -> None:
    run(aborted, 2)
