//! The table of all behaviours: how many ranks each needs at least, and what else.

use symmem::Result;

use crate::stage::{Kind, Need, Rank};

/// What every rank of a group does, and checks.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Rank) -> Result<()>,
    ranks: usize,
    needs: &'static [Need],
}

impl Behaviour {
    /// What ranks of this kind lack for it.
    pub(crate) fn missing(&self, kind: Kind, world: usize) -> Option<String> {
        if world < self.ranks {
            return Some(format!("{} ranks", self.ranks));
        }
        self.needs.iter().find(|need| kind.lacks(**need, world)).map(ToString::to_string)
    }

    pub(crate) fn runs_on(&self, kind: Kind, world: usize) -> bool {
        self.missing(kind, world).is_none()
    }
}

macro_rules! behaviours {
    ($($module:ident: $($name:ident($ranks:literal $(, $need:ident)*),)*;)*) => {
        /// Every behaviour.
        pub(crate) const ALL: &[Behaviour] = &[$($(Behaviour {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: crate::$module::$name,
            ranks: $ranks,
            needs: &[$(Need::$need),*],
        },)*)*];
    };
}

behaviours! {
    allocation:
        memory_starts_as_zeros(1),
        an_empty_allocation_works_like_any_other(1),
        an_allocation_knows_where_it_came_from(1),
        a_handle_knows_its_rank_sizes_and_pointers(1),
        the_tables_on_the_device_say_what_those_on_the_host_say(1),
        a_second_rendezvous_is_the_same(1),
        the_handle_outlives_its_allocation(1),
        sizes_and_types_must_agree(2),
        memory_that_is_dropped_at_work_stays_until_that_is_done(1),
        memory_comes_and_goes(1),
        nothing_is_made_in_a_capture(1),
        pads_have_the_size_that_was_set(1),
        the_links_of_all_devices_can_be_asked_for(1),
    ;
    memory:
        what_is_written_is_read(1),
        slices_and_casts_are_parts_of_the_same_memory(1),
        ranks_may_differ_in_offset(1),
        bytes_meet_as_elements(1),
        pads_are_apart_from_the_data(1),
        get_reads_whole_buffers_and_parts(1),
        threads_read_whole_buffers_and_parts(1, Kernels),
        what_is_put_is_there_after_a_barrier(1),
        get_beyond_the_end_or_from_nobody_is_refused(1),
        who_is_out_of_reach_is_named(2),
    ;
    words:
        ranges_of_words_are_set(1),
        words_are_written_one_by_one(1),
        words_need_no_group(1),
        symmetric_words_are_seen_by_peers(1),
    ;
    signals:
        signals_run_around_a_ring(2),
        a_signal_makes_earlier_writes_visible(2),
        a_put_waits_until_the_previous_signal_was_consumed(2, Direct),
        channels_and_sources_do_not_mix(2, Direct),
        channels_end_with_the_pad(2),
        ranks_out_of_range_are_refused(1),
    ;
    barrier:
        a_barrier_makes_every_write_visible(1),
        many_barriers_keep_ranks_in_step(1),
        a_late_rank_is_waited_for(2, Streams),
        channels_end_with_the_pad(1),
    ;
    order:
        barriers_on_two_streams_come_one_after_the_other(1, Queues),
        signals_on_two_streams_come_one_after_the_other(2, Queues),
        all_reduces_on_two_streams_come_one_after_the_other(1, Queues),
        operations_behind_each_other_see_what_came_before(1),
        operations_see_what_other_work_of_the_stream_did(1, Graphs, Queues),
        only_the_last_kernel_is_waited_for(2, Direct, Queues),
        threads_of_a_rank_may_share_a_lane(1, Queues),
    ;
    collectives:
        every_form_of_all_reduce_is_right(1),
        all_reduce_changes_nothing_outside(1),
        all_reduce_is_right_at_every_size(1),
        private_memory_may_be_reduced_in_its_place(1),
        averages_are_exact_where_they_can_be(1),
        every_type_is_reduced_or_refused(1),
        every_operation_is_reduced_or_refused(1),
        every_type_is_moved(1),
        parts_are_right_at_every_size(1),
        parts_are_right_where_offsets_differ(1),
        portions_of_a_reduction_are_right(1),
        columns_are_reduced_or_refused(1),
        nothing_can_be_moved_and_reduced(1),
        wrong_outputs_and_roots_are_told_before_anything_runs(1),
    ;
    graphs:
        replays_are_right_with_other_operations_in_between(1, Graphs),
        a_fill_and_a_barrier_are_replayed(1, Graphs),
        parts_are_replayed(1, Graphs),
        a_graph_keeps_what_it_works_on(1, Graphs),
        a_capture_that_is_never_replayed_changes_nothing(1, Graphs),
        a_capture_orders_its_forked_streams(1, Graphs, Processes),
    ;
    groups:
        one_allocation_serves_the_world_and_its_halves(2),
        a_rank_may_sit_out_a_rendezvous_of_others(3),
        overlapping_subgroups_pair_correctly(3),
        members_have_the_order_of_the_list(2),
        several_engines_and_memories_work_side_by_side(1),
        an_engine_that_is_gone_leaves_room_for_the_next(1),
        a_name_may_recur_with_other_members_on_a_new_store(3),
        ranks_must_agree_on_the_engine(2),
    ;
    failure:
        an_abort_is_everybodys_first_cause(1),
        an_abort_ends_work_that_waits(2, Streams),
        a_sync_that_ends_early_changes_nothing(2, Streams),
        what_nobody_joins_times_out_for_all(2, Streams),
        a_signal_that_nobody_answers_times_out_for_all(2, Direct),
        ranks_that_disagree_get_the_same_error_and_keep_their_bytes(2, Direct),
        a_rank_that_left_is_named(2, Streams),
    ;
}
