//! The table of all behaviours, and a test on threads for each.

use symmem::{Group, Result};

/// What every rank of a group does, and checks.
pub(crate) type Behaviour = fn(&Group) -> Result<()>;

macro_rules! behaviours {
    ($($module:ident: $($name:ident,)*;)*) => {
        /// Every behaviour, with its name.
        pub(crate) const ALL: &[(&str, Behaviour)] =
            &[$($((concat!(stringify!($module), "::", stringify!($name)), crate::$module::$name),)*)*];

        mod threads_on_shm {
            $(mod $module {
                $(#[test]
                fn $name() {
                    crate::on_threads(crate::SHM, crate::$module::$name);
                })*
            })*
        }
    };
}

behaviours! {
    allocation:
        multicast_support_can_be_asked_for,
        only_live_allocations_are_symmetric,
        memory_starts_as_zeros,
        an_empty_allocation_works_like_any_other,
        the_pad_size_is_positive_and_the_same_wherever_asked,
        a_new_pad_size_is_visible_and_can_be_restored,
        pads_have_the_size_that_was_set_before_the_allocation,
        a_pad_size_of_no_whole_words_is_refused,
        a_persistent_id_gives_the_same_memory_and_the_cached_rendezvous,
        a_persistent_id_in_use_or_of_another_size_is_refused,
        a_released_persistent_id_is_new_memory,
    ;
    borrow:
        readers_share_and_keep_writers_out,
        a_writer_keeps_everybody_of_its_rank_out,
        borrows_hold_through_every_handle_of_the_allocation,
        peers_read_through_a_borrow,
    ;
    exchange:
        all_gather_gives_every_ranks_value_in_rank_order,
        parts_may_be_empty_longer_than_a_round_and_of_different_lengths,
        broadcast_works_from_every_root,
        different_operations_are_the_same_mismatch_on_every_rank,
        different_roots_sizes_and_channels_are_the_same_mismatch_on_every_rank,
        a_second_thread_is_told_that_the_group_is_busy,
        clones_run_side_by_side,
        counters_count_operations_and_bytes,
    ;
    failure:
        an_abort_reaches_waiting_ranks_with_culprit_and_reason,
        the_first_abort_stands,
        who_waits_for_a_rank_that_left_learns_it_at_once,
        a_rank_that_left_harms_nobody_who_does_not_need_it,
        memory_of_a_failed_group_is_poisoned_and_can_be_salvaged,
        a_cancelled_wait_ends_soon_and_names_who_cancelled,
        a_cancelled_wait_for_a_signal_can_be_repeated,
        a_barrier_that_not_all_join_times_out_and_names_the_missing,
        those_who_stay_can_regroup,
    ;
    groups:
        a_rank_knows_the_groups_it_is_in_by_name,
        one_allocation_serves_the_world_and_its_halves,
        a_rank_may_sit_out_a_rendezvous_of_others,
        overlapping_subgroups_pair_correctly,
        a_name_may_recur_with_other_members_on_a_new_store,
        a_name_may_recur_with_the_same_members,
        members_have_the_order_of_the_list,
        bad_member_lists_are_refused,
        all_ranks_of_one_machine_are_local,
    ;
    memory:
        a_handle_knows_its_rank_sizes_and_offset,
        a_barrier_makes_every_write_visible,
        get_reads_whole_buffers_and_parts,
        get_beyond_the_end_or_from_nobody_is_refused,
        pad_views_have_any_shape_and_element,
        filling_the_data_leaves_the_pads_alone,
        groups_on_one_allocation_do_not_collide,
        a_second_rendezvous_is_local_and_the_same,
        the_handle_outlives_allocation_and_group,
        views_outlive_close,
        offsets_are_counted_from_where_the_docs_say,
        ranks_may_differ_in_offset,
        close_ends_all_handles_and_the_memory_can_rendezvous_again,
        written_peers_see_what_was_written,
    ;
    signal:
        signals_run_around_a_ring,
        a_signal_makes_earlier_writes_visible,
        a_put_waits_until_the_previous_signal_was_consumed,
        a_put_that_is_not_consumed_times_out_and_harms_nobody,
        a_wait_without_a_put_times_out_and_harms_nobody,
        channels_and_sources_do_not_mix,
        channels_end_with_the_pad,
        the_last_channel_works,
        ranks_out_of_range_are_refused,
    ;
}

/// What takes gigabytes.
pub(crate) const LARGE: &[(&str, Behaviour)] = &[
    ("two_gibibytes_have_that_many_bytes", crate::large::two_gibibytes_have_that_many_bytes),
    ("bytes_beyond_4_gib_are_reached", crate::large::bytes_beyond_4_gib_are_reached),
];
