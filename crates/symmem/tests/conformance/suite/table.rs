//! The table of all behaviours: for which memory, how many ranks each needs at least, and what else.

use symmem::Result;

use super::device::rank::Rank;
use super::host::seat::Host;
use super::stage::{Need, Place, Stage};

/// What every rank of a stage does, and checks.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    pub(crate) on_host: Option<fn(&Host) -> Result<()>>,
    pub(crate) on_device: Option<fn(&Rank) -> Result<()>>,
    ranks: usize,
    needs: &'static [Need],
    mark: &'static str,
}

impl Behaviour {
    /// What `world` ranks of `stage` lack for it.
    pub(crate) fn missing(&self, stage: &Stage, world: usize) -> Option<String> {
        if stage.place == Place::Host && self.on_host.is_none() {
            return Some(
                "it is about streams, engines and device addresses, which only devices have".to_owned(),
            );
        }
        if stage.place != Place::Host && self.on_device.is_none() {
            return Some(
                "it is about borrowed views and host operations, which only host memory has".to_owned(),
            );
        }
        if world < self.ranks {
            return Some(format!("it needs {} ranks", self.ranks));
        }
        self.needs.iter().find_map(|need| stage.lacks(*need, world)).map(str::to_owned)
    }

    /// Why no world of `stage` can do it; the largest one lacks the least.
    pub(crate) fn why_not(&self, stage: &Stage) -> String {
        let most = stage.worlds.iter().max().copied().unwrap_or(0);
        self.missing(stage, most).unwrap_or_else(|| "no world is right for it".to_owned())
    }

    /// Whether any world of `stage` has what it needs.
    pub(crate) fn runs_on(&self, stage: &Stage) -> bool {
        stage.worlds.iter().any(|world| self.missing(stage, *world).is_none())
    }

    /// The worlds of `stage` that have what it needs; the first of them, if one is enough.
    pub(crate) fn worlds(&self, stage: &Stage) -> Vec<usize> {
        let all = stage.worlds.iter().copied().filter(|world| self.missing(stage, *world).is_none());
        all.take(if self.mark.is_empty() { usize::MAX } else { 1 }).collect()
    }

    /// Whether it wants processes of its own.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.mark, "alone" | "deadly")
    }

    /// Whether a rank dies of it.
    pub(crate) fn is_deadly(&self) -> bool {
        self.mark == "deadly"
    }
}

/// The behaviour of this name.
pub(crate) fn find(name: &str) -> &'static Behaviour {
    ALL.iter()
        .find(|behaviour| behaviour.name == name)
        .unwrap_or_else(|| panic!("no behaviour is named {name}"))
}

/// Gives the whole table to the macro `$then`, behind its arguments. A row: ranks, needs, and a mark: `once`
/// where one world is enough of what takes long, `alone` for processes of its own, `deadly` where a rank dies
/// of it.
macro_rules! table {
    ($then:ident $($argument:ident)*) => { $then! { $($argument)*;
        any rendezvous:
            every_rank_sees_every_ranks_values(1),
            memory_starts_as_zeros(1),
            an_empty_allocation_works_like_any_other(1),
            a_handle_knows_its_rank_sizes_and_pointers(1),
            a_second_rendezvous_is_the_same(1),
            sizes_that_differ_are_the_same_mismatch_on_every_rank(2),
            types_that_differ_are_the_same_mismatch_on_every_rank(2),
            an_offset_beyond_the_end_on_one_rank_fails_on_all(2),
            pads_have_the_size_that_was_set(1),
            a_rank_whose_allocation_failed_is_named_by_all_with_the_cause(2),
            a_call_that_fails_on_one_rank_is_the_same_error_on_all_and_passes(2, Failures),
            multicast_is_everybodys_or_nobodys(1),
        ;
        any memory:
            get_reads_whole_buffers_and_parts(1),
            get_beyond_the_end_or_from_nobody_is_refused(1),
            what_is_written_is_read(1),
            slices_are_parts_of_the_same_memory(1),
            ranks_may_differ_in_offset(1),
            bytes_meet_as_elements(1),
            pads_are_apart_from_the_data(1),
            who_is_out_of_reach_is_named(2, Far),
        ;
        any barrier:
            a_barrier_makes_every_write_visible(1, Work),
            many_barriers_keep_ranks_in_step(1, Work),
            a_late_rank_is_waited_for(2, Work, Streams),
            channels_end_with_the_pad(1),
        ;
        any signals:
            signals_run_around_a_ring(2, Work),
            a_signal_makes_earlier_writes_visible(2, Work),
            channels_and_sources_do_not_mix(2, Work, Direct),
            channels_end_with_the_pad(2, Work),
            ranks_out_of_range_are_refused(1),
        ;
        any collectives:
            every_type_is_moved_by_every_collective(1, Work),
            every_type_is_reduced_or_refused_by_every_collective(1, Work),
            every_type_is_reduced_or_refused_by_every_operation(1, Work),
            every_root_reduces(1, Work),
            every_algorithm_gives_the_same(1, Work),
            collectives_are_right_where_offsets_differ(1, Work),
            nothing_can_be_moved_and_reduced(1, Work),
            wrong_roots_and_lengths_are_told_before_anything_changes(1),
        ;
        any place:
            one_function_works_wherever_the_memory_is(1, Work),
        ;
        any groups:
            one_allocation_serves_the_world_and_its_halves(1),
            a_rank_may_sit_out_a_rendezvous_of_others(2),
            overlapping_subgroups_pair_correctly(3),
            members_have_the_order_of_the_list(1),
            a_name_may_recur_with_other_members_on_a_new_store(3),
            groups_on_one_allocation_do_not_collide(1),
            a_group_that_is_gone_leaves_room_for_the_next(1),
        ;
        any lifetime:
            the_handle_outlives_its_allocation(1),
            the_handle_outlives_group_and_engine(1),
            handles_are_dropped_in_any_order(1),
            memory_comes_and_goes(1),
            many_allocations_are_kept_apart(1) as once,
            nothing_stays_behind(1) as alone,
        ;
        any failure:
            an_abort_is_everybodys_first_cause(1),
            a_rank_that_left_is_named(2),
            a_rendezvous_that_a_rank_does_not_come_to_times_out(2) as once,
            ranks_that_disagree_on_what_they_do_get_the_same_error(2),
            a_killed_rank_is_lost_for_all_survivors(2, Mortals) as deadly,
        ;
        any meaning:
            a_second_rendezvous_is_local(2),
            a_rendezvous_at_an_offset_is_always_collective(2) as once,
            a_table_is_kept_until_the_allocation_goes(2),
            the_pads_size_is_fixed_when_memory_is_allocated(1),
            pads_whose_sizes_differ_are_a_mismatch(2),
            the_length_is_what_all_ranks_have_behind_their_offsets(2),
            offsets_are_the_handles(1, Work),
            peers_are_seen_from_their_own_offsets_on(2),
            close_ends_all_handles_and_the_memory_can_rendezvous_again(1),
            memory_of_a_failed_group_is_poisoned(1),
            an_algorithm_that_cannot_be_had_is_an_error_on_every_rank(1),
        ;
        host allocation:
            only_live_allocations_are_symmetric(1),
            an_empty_allocation_works_like_any_other(1),
            the_pad_size_is_positive_and_the_same_wherever_asked(1),
            a_new_pad_size_is_visible_and_can_be_restored(1),
            pads_have_the_size_that_was_set_before_the_allocation(1),
            a_pad_size_of_no_whole_words_is_refused(1),
            a_persistent_id_gives_the_same_memory_and_the_cached_rendezvous(1),
            a_persistent_id_in_use_or_of_another_size_is_refused(1),
            a_released_persistent_id_is_new_memory(1),
        ;
        host borrow:
            readers_share_and_keep_writers_out(1),
            a_writer_keeps_everybody_of_its_rank_out(1),
            borrows_hold_through_every_handle_of_the_allocation(1),
            peers_read_through_a_borrow(1),
        ;
        host exchange:
            all_gather_gives_every_ranks_value_in_rank_order(1),
            parts_may_be_empty_longer_than_a_round_and_of_different_lengths(1),
            broadcast_works_from_every_root(1),
            different_operations_are_the_same_mismatch_on_every_rank(1),
            different_roots_sizes_and_channels_are_the_same_mismatch_on_every_rank(1),
            a_second_thread_is_told_that_the_group_is_busy(1),
            clones_run_side_by_side(1),
            counters_count_operations_and_bytes(1),
        ;
        host failure:
            an_abort_reaches_waiting_ranks_with_culprit_and_reason(1),
            the_first_abort_stands(1),
            who_waits_for_a_rank_that_left_learns_it_at_once(1),
            a_rank_that_left_harms_nobody_who_does_not_need_it(1),
            memory_of_a_failed_group_is_poisoned_and_can_be_salvaged(1),
            a_cancelled_wait_ends_soon_and_names_who_cancelled(1),
            a_cancelled_wait_for_a_signal_can_be_repeated(1),
            a_barrier_that_not_all_join_times_out_and_names_the_missing(1),
            those_who_stay_can_regroup(1),
        ;
        host groups:
            a_rank_knows_the_groups_it_is_in_by_name(1),
            a_name_may_recur_with_the_same_members(1),
            members_have_the_order_of_the_list(1),
            bad_member_lists_are_refused(1),
            all_ranks_of_one_machine_are_local(1),
        ;
        host large:
            two_gibibytes_have_that_many_bytes(1, Room),
            bytes_beyond_4_gib_are_reached(1, Room),
        ;
        host memory:
            a_handle_knows_its_rank_sizes_and_offset(1),
            get_reads_into_parts_of_the_destination(1),
            a_refused_get_changes_nothing(1),
            pad_views_have_any_shape_and_element(1),
            filling_the_data_leaves_the_pads_alone(1),
            a_signal_of_one_group_is_none_of_another(1),
            a_second_rendezvous_is_local_and_the_same(1),
            the_handle_outlives_allocation_and_group(1),
            views_outlive_close(1),
            offsets_are_counted_from_where_the_docs_say(1),
            close_ends_all_handles_and_the_memory_can_rendezvous_again(1),
            written_peers_see_what_was_written(1),
        ;
        host signal:
            a_put_waits_until_the_previous_signal_was_consumed(1),
            a_put_that_is_not_consumed_times_out_and_harms_nobody(1),
            a_wait_without_a_put_times_out_and_harms_nobody(1),
            channels_and_sources_do_not_mix(1),
            channels_end_with_the_pad(1),
            ranks_out_of_range_are_refused(1),
        ;
        device allocation:
            an_allocation_knows_where_it_came_from(1),
            a_handle_knows_its_device_and_its_tables(1),
            the_tables_on_the_device_say_what_those_on_the_host_say(1),
            a_second_rendezvous_has_the_same_window(1, Work),
            memory_that_is_dropped_at_work_stays_until_that_is_done(1, Work),
            nothing_is_made_in_a_capture(1),
            the_pads_last_channel_is_there(1),
            the_links_of_all_devices_can_be_asked_for(1),
        ;
        device memory:
            what_is_written_has_the_right_length(1),
            slices_and_casts_are_parts_of_the_same_memory(1, Work),
            ranks_may_differ_in_offset(1),
            bytes_meet_as_elements(1, Work),
            pads_are_apart_from_the_data(1),
            get_reads_whole_buffers_and_parts(1),
            threads_read_whole_buffers_and_parts(1, Kernels),
            what_is_put_is_there_after_a_barrier(1, Work),
            copies_and_puts_beyond_the_end_are_refused(1),
            who_is_out_of_reach_is_named(2, Far),
        ;
        device words:
            ranges_of_words_are_set(1),
            words_are_written_one_by_one(1),
            words_need_no_group(1),
            symmetric_words_are_seen_by_peers(1, Work),
        ;
        device signals:
            signals_are_queued_around_a_ring(2, Work),
            a_signal_makes_earlier_writes_visible(2, Work),
            a_put_waits_until_the_previous_signal_was_consumed(2, Direct),
            channels_and_sources_do_not_mix(2, Direct),
            channels_end_with_the_pad(2, Work),
        ;
        device barrier:
            a_barrier_makes_every_write_visible(1, Work),
            many_barriers_keep_ranks_in_step(1, Work),
            a_late_rank_is_waited_for(2, Work, Streams),
        ;
        device order:
            barriers_on_two_streams_come_one_after_the_other(1, Work, Queues),
            signals_on_two_streams_come_one_after_the_other(2, Work, Queues),
            all_reduces_on_two_streams_come_one_after_the_other(1, Work, Queues),
            operations_behind_each_other_see_what_came_before(1, Work),
            operations_see_what_other_work_of_the_stream_did(1, Graphs, Queues),
            only_the_last_kernel_is_waited_for(2, Direct, Queues),
            threads_of_a_rank_may_share_a_lane(1, Queues),
        ;
        device collectives:
            every_form_of_all_reduce_is_right(1, Work),
            all_reduce_changes_nothing_outside(1, Work),
            all_reduce_is_right_at_every_size(1, Work),
            private_memory_may_be_reduced_in_its_place(1, Work),
            averages_are_exact_where_they_can_be(1, Work),
            every_operation_is_reduced_or_refused(1, Work),
            parts_are_right_at_every_size(1, Work),
            parts_are_right_where_offsets_differ(1, Work),
            portions_of_a_reduction_are_right(1, Work),
            columns_are_reduced_or_refused(1, Work),
            nothing_can_be_moved_and_reduced(1, Work),
            wrong_outputs_and_roots_are_told_before_anything_runs(1),
        ;
        device graphs:
            replays_are_right_with_other_operations_in_between(1, Graphs),
            a_fill_and_a_barrier_are_replayed(1, Graphs),
            parts_are_replayed(1, Graphs),
            a_graph_keeps_what_it_works_on(1, Graphs),
            a_capture_that_is_never_replayed_changes_nothing(1, Graphs),
            a_capture_orders_its_forked_streams(1, Graphs, Processes),
        ;
        device groups:
            halves_gather_beside_the_world(2, Parts),
            several_engines_and_memories_work_side_by_side(1, Work),
            an_engine_that_is_gone_leaves_room_for_the_next(1, Work),
            ranks_must_agree_on_the_engine(2),
        ;
        device failure:
            an_abort_is_everybodys_first_cause(1, Work),
            an_abort_ends_work_that_waits(2, Streams, Work),
            a_sync_that_ends_early_changes_nothing(2, Streams),
            what_nobody_joins_times_out_for_all(2, Streams),
            a_signal_that_nobody_answers_times_out_for_all(2, Direct),
            ranks_that_disagree_get_the_same_error_and_keep_their_bytes(2, Direct),
            a_rank_that_left_is_named(2, Streams),
        ;
    } };
}
pub(crate) use table;

macro_rules! on_host {
    (any $module:ident $name:ident) => {
        Some(super::any::$module::$name::<Host>)
    };
    (host $module:ident $name:ident) => {
        Some(|seat: &Host| super::host::$module::$name(&seat.group))
    };
    (device $module:ident $name:ident) => {
        None
    };
}

macro_rules! on_device {
    (any $module:ident $name:ident) => {
        Some(super::any::$module::$name::<Rank>)
    };
    (host $module:ident $name:ident) => {
        None
    };
    (device $module:ident $name:ident) => {
        Some(super::device::$module::$name)
    };
}

macro_rules! rows {
    (; $($kind:ident $module:ident: $($name:ident($ranks:literal $(, $need:ident)*) $(as $mark:ident)?,)*;)*) => {
        /// Every behaviour.
        pub(crate) static ALL: &[Behaviour] = &[$($(Behaviour {
            name: concat!(stringify!($kind), "::", stringify!($module), "::", stringify!($name)),
            on_host: on_host!($kind $module $name),
            on_device: on_device!($kind $module $name),
            ranks: $ranks,
            needs: &[$(Need::$need),*],
            mark: concat!($(stringify!($mark))?),
        },)*)*];
    };
}

table!(rows);

/// The tests of a stage: `host` or `device`, and its name. What only the other kind of memory has makes no
/// test.
macro_rules! cases {
    ($side:ident $stage:ident; $($kind:ident $module:ident: $($name:ident($($row:tt)*) $(as $mark:ident)?,)*;)*) => {
        mod $stage {
            mod any { $($crate::suite::table::cases!(@ any $kind $side $stage $module $($name)*);)* }
            mod $side { $($crate::suite::table::cases!(@ $side $kind $side $stage $module $($name)*);)* }
        }
    };
    (@ any any $side:ident $stage:ident $module:ident $($name:ident)*) => {
        $crate::suite::table::cases!(= any $stage $module $($name)*);
    };
    (@ host host $side:ident $stage:ident $module:ident $($name:ident)*) => {
        $crate::suite::table::cases!(= host $stage $module $($name)*);
    };
    (@ device device $side:ident $stage:ident $module:ident $($name:ident)*) => {
        $crate::suite::table::cases!(= device $stage $module $($name)*);
    };
    (@ $($other:tt)*) => {};
    (= $kind:ident $stage:ident $module:ident $($name:ident)*) => {
        mod $module {
            $(#[test]
            fn $name() {
                let behaviour = concat!(stringify!($kind), "::", stringify!($module), "::", stringify!($name));
                let test = concat!(
                    stringify!($stage), "::", stringify!($kind), "::", stringify!($module), "::", stringify!($name)
                );
                crate::suite::run::case(&crate::suite::stage::$stage, behaviour, test);
            })*
        }
    };
}
pub(crate) use cases;
