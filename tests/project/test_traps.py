"""The index of the traps: ways in which the design would break if it were built naively, and the tests that hold each
of them shut. A trap's number is its number in the design's own list. Conformance cases run on every store.

`safeguards.py` says for each trap how its safeguard is switched off, and which of the trap's tests has to fail then."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.safeguards import CONFORMANCE, SAFEGUARDS

ROOT = Path(__file__).parents[2]
CASES = "src/perdure/testing/conformance"

TRAPS = {
    1: (
        "the attempt alone is no fence: a random stamp goes with it",
        [
            f"{CASES}/refusals.py::case_same_attempt_other_stamp",
            f"{CASES}/refusals.py::case_other_attempt_same_stamp",
            "tests/system/races/test_workers.py::test_a_zombies_word_is_refused",
        ],
    ),
    2: (
        "stale views of anyone but the holder: a version, raised by every move",
        [
            f"{CASES}/refusals.py::case_any_move_makes_a_view_stale",
            f"{CASES}/refusals.py::case_same_state_twice_is_stale",
            f"{CASES}/refusals.py::case_lapse_is_checked_again",
            "tests/unit/client/test_handles.py::test_a_word_about_a_job_that_moves_meanwhile_is_said_again",
            "tests/system/races/test_words.py::test_cancel_against_finish_against_reap",
            "tests/system/races/test_words.py::test_a_dead_letter_is_retried_once_from_two_sides",
        ],
    ),
    3: (
        "two changes of one job in a batch are refused",
        [f"{CASES}/apply.py::case_two_changes_of_one_job"],
    ),
    4: (
        "renewals against ends: rows are locked in the order of ids, or skipped",
        ["tests/stores/postgres/test_locks.py::test_many_words_about_the_same_jobs_in_any_order_never_deadlock"],
    ),
    5: (
        "mass reap after an outage: reap only after an unbroken contact",
        [
            f"{CASES}/lapsed.py::case_contact_of_a_third_of_the_lease",
            "tests/unit/worker/leases/test_losses.py::test_nothing_is_reaped_before_the_store_was_reached_for_a_third_of_the_lease",
            "tests/unit/worker/leases/test_losses.py::test_contact_starts_again_after_a_gap_and_after_a_clock_jump",
        ],
    ),
    6: (
        "the clock goes back: leases are cut to what they may be",
        [
            f"{CASES}/lapsed.py::case_leases_are_cut_when_the_clock_went_back",
            f"{CASES}/renew.py::case_after_the_clock_went_back",
            f"{CASES}/promote.py::case_after_the_clock_went_back",
            "tests/unit/schedules/test_firing.py::test_a_clock_that_went_back_fires_nothing_twice_and_is_told",
            "tests/stores/conformance/test_twin.py::test_a_store_answers_as_the_specification_does",
        ],
    ),
    7: (
        "a dead host with a live backend: the server ends what nobody is heard from",
        ["tests/stores/postgres/test_locks.py::test_a_host_that_dies_does_not_keep_its_locks"],
    ),
    8: (
        "a repeated apply is told from a refused one; renewed until confirmed, not until sent",
        [
            f"{CASES}/apply.py::case_a_repeated_report",
            f"{CASES}/apply.py::case_a_repeated_report_about_a_hidden_row",
            "tests/system/crashes/test_unknown_outcomes.py::test_a_repeated_end_after_a_broken_answer_counts_once",
            "tests/system/crashes/test_unknown_outcomes.py::test_an_end_that_cannot_be_told_keeps_its_lease_until_it_is",
        ],
    ),
    9: (
        "delete on success, and a prune, hide first, so that a repeated enqueue finds its first self",
        [
            f"{CASES}/apply.py::case_delete_on_success_hides",
            f"{CASES}/enqueue.py::case_repeated_after_delete_on_success",
            f"{CASES}/prune.py::case_hidden_ones_after_ten_minutes",
            f"{CASES}/prune.py::case_nothing_is_removed_within_ten_minutes",
            "tests/unit/test_app.py::test_a_broken_connection_is_tried_again_with_the_same_ids",
        ],
    ),
    10: (
        "an unknown claim is asked for by its stamp, adopted or handed back",
        [
            f"{CASES}/recover_claim.py::case_only_of_this_worker_and_stamp",
            "tests/system/crashes/test_unknown_outcomes.py::test_jobs_of_a_claim_without_an_answer_are_asked_for_and_run",
            "tests/system/crashes/test_unknown_outcomes.py::test_a_claim_without_an_answer_at_shutdown_is_handed_back_free",
        ],
    ),
    11: (
        "one bad change fails alone",
        [
            f"{CASES}/apply.py::case_a_stale_report_beside_good_ones",
            "tests/stores/sqlite/test_database.py::test_one_that_fails_fails_alone",
            "tests/system/crashes/test_unknown_outcomes.py::test_one_bad_end_fails_its_own_job_only",
        ],
    ),
    12: (
        "counters inside an end would be a lock shared by all: each worker tells its own",
        ["tests/unit/observe/test_scale.py::test_a_worker_tells_what_ended_in_it"],
    ),
    13: (
        "what a job asked for at its death cannot be lost in a crash: it is stored in the same step",
        ["tests/unit/flow/test_undo.py::test_what_a_job_asked_for_at_its_death_is_stored_with_it"],
    ),
    14: (
        "jobs are handed back after the kill, not before: none runs twice at once",
        [
            "tests/unit/worker/supervisor/test_supervisor.py::test_what_ran_beside_a_job_that_does_not_stop_goes_back_free",
            "tests/unit/worker/supervisor/test_supervisor.py::test_the_children_of_a_killed_runner_are_killed_and_their_jobs_go_back_free",
            "tests/unit/worker/supervisor/test_supervisor.py::test_a_thread_that_does_not_stop_at_a_stop_costs_its_job_nothing",
        ],
    ),
    15: (
        "a claim that was under way when its runner died is asked for again and goes back free",
        [
            "tests/unit/worker/leases/test_board.py::test_what_a_claim_under_way_takes_after_the_death_goes_back",
            "tests/system/healing/test_healing.py::test_a_claim_that_was_given_up_and_took_hold_later",
        ],
    ),
    16: (
        "a renewal that is refused because the job has just ended is no loss",
        [
            "tests/unit/worker/leases/test_lost.py::test_a_renewal_that_is_refused_since_the_job_has_just_ended_is_no_loss"
        ],
    ),
    17: (
        "a supervisor that is dead or stopped: runners renew by themselves, finish and end, and start nothing they may not",
        [
            "tests/unit/worker/supervisor/test_supervisor.py::test_when_the_supervisor_dies_runners_finish_and_end",
            "tests/unit/worker/supervisor/test_supervisor.py::test_zombies_are_harmless",
            "tests/unit/worker/leases/test_board.py::test_a_runner_renews_what_its_supervisor_does_not",
            "tests/unit/worker/leases/test_board.py::test_a_renewal_reaches_the_hold_it_is_for_and_no_other",
        ],
    ),
    18: (
        "who killed the runner: charge only what was alone, run suspects alone, three losses are poison",
        [
            "tests/unit/worker/leases/test_losses.py::test_a_job_that_was_alone_is_charged",
            "tests/unit/worker/leases/test_losses.py::test_several_are_suspects_and_run_alone_whatever_start_was_noted",
            "tests/unit/worker/leases/test_losses.py::test_leases_that_end_one_after_the_other_are_judged_together",
            "tests/system/crashes/test_blame.py::test_poison_that_kills_at_once_is_not_blamed_on_its_neighbour",
            "tests/system/crashes/test_blame.py::test_jobs_whose_leases_end_one_after_the_other_were_not_alone",
            "tests/system/crashes/test_worker_kills.py::test_poison_dies_after_three_losses_and_its_neighbours_succeed",
        ],
    ),
    19: (
        "a handler's transaction takes no lock when it begins: its completion is the last statement",
        [
            "tests/system/transactions/test_handlers.py::test_nothing_waits_for_a_handlers_transaction",
            "tests/system/transactions/test_handlers.py::test_a_zombies_transaction_is_undone",
            "tests/system/transactions/test_handlers.py::test_rows_and_completion",
        ],
    ),
    20: (
        "on SQLite a handler's transaction holds the only write lock: other verbs raise at once, and its time is short",
        [
            "tests/unit/handler/test_context.py::test_verbs_that_would_wait_for_themselves_raise_at_once",
            f"{CASES}/transaction.py::case_the_time_limit",
            f"{CASES}/transaction.py::case_the_time_limit_frees_the_store",
        ],
    ),
    21: (
        "the next of a chain is inserted by the same guarded step",
        [
            f"{CASES}/continue_chain.py::case_a_refused_report_adds_nothing",
            f"{CASES}/continue_chain.py::case_a_repeated_report_adds_nothing_twice",
            f"{CASES}/continue_chain.py::case_in_a_handlers_transaction",
        ],
    ),
    22: (
        "cancel does not free the key while the code still runs",
        [
            f"{CASES}/unique.py::case_cancelled_while_running_keeps_the_key_until_stopped",
            f"{CASES}/unique.py::case_cancelled_while_running_keeps_the_key_until_the_lease_ends",
            "tests/unit/worker/running/test_stopping.py::test_cancel_reaches_running_code_and_frees_the_key_when_it_stops",
        ],
    ),
    23: (
        "kept keys outlive their rows; a retry whose key is taken is refused alone",
        [
            f"{CASES}/unique.py::case_any_outlives_its_job",
            f"{CASES}/unique.py::case_window_outlives_its_row",
            f"{CASES}/unique.py::case_retry_whose_key_is_held",
            "tests/unit/client/test_handles.py::test_a_dead_letter_whose_key_is_taken_stays_dead",
            "tests/system/races/test_keys.py::test_processes_that_ask_at_once_have_one_winner",
            "tests/system/races/test_keys.py::test_an_active_key_passes_from_job_to_job_and_is_never_held_twice",
        ],
    ),
    24: (
        "an expired window key gets a new row, so that nothing is updated in a caller's transaction",
        [
            f"{CASES}/unique.py::case_window_holds_until_it_has_passed",
            "tests/stores/sqlite/test_insertion.py::test_keys_are_unique_there_too",
            "tests/system/transactions/test_law.py::test_nobody_waits_for_the_caller",
        ],
    ),
    25: (
        "unique keys in a caller's transaction: keys are taken in order, conflicts are the caller's to repeat",
        [
            "tests/unit/transactional/test_transactions.py::test_unique_keys_in_a_transaction",
            "tests/system/transactions/test_libraries.py::test_unique_keys",
            "tests/system/transactions/test_keys.py::test_two_at_once",
            "tests/system/transactions/test_keys.py::test_keys_of_one_list_are_taken_in_order",
            "tests/system/transactions/test_keys.py::test_lists_in_opposite_order_that_both_have_to_wait_do_not_wait_for_each_other",
            "tests/system/transactions/test_keys.py::test_opposite_orders_in_several_steps_are_the_callers_to_repeat",
            "tests/system/transactions/test_keys.py::test_stricter_isolation",
            "tests/system/transactions/test_keys.py::test_a_key_that_becomes_free_between_the_statements",
        ],
    ),
    26: (
        "a singleton has no flag to be armed again: a key among those that wait, and one slot",
        ["tests/unit/worker/claiming/test_limits.py::test_a_singleton_loses_no_work_and_never_runs_beside_itself"],
    ),
    27: (
        "a parent ends while its child is stored: whoever comes first, nobody is stranded",
        [
            f"{CASES}/edges.py::case_no_follower_is_stranded",
            "tests/system/races/test_stranded.py::test_nobody_is_stranded",
            "tests/stores/postgres/test_flow.py::test_no_child_is_stranded_while_its_parent_ends",
            "tests/stores/postgres/test_flow_locks.py::test_a_parent_cannot_end_while_it_is_marked_as_followed",
            "tests/stores/redis/test_edges.py::test_no_child_is_stranded",
            "tests/stores/mongo/test_flow.py::test_no_child_is_stranded_while_its_parent_ends",
            "tests/stores/mongo/test_flow.py::test_a_parent_that_ends_before_the_caller_commits",
        ],
    ),
    28: (
        "who waits for many counts them down: the last one lets it go, once",
        [
            f"{CASES}/edges.py::case_many_parents",
            f"{CASES}/edges.py::case_two_links_of_one_chain",
            "tests/stores/postgres/test_flow.py::test_many_who_end_at_once_let_their_child_go_once",
            "tests/stores/mongo/test_flow.py::test_many_who_end_at_once_release_their_child_once",
            "tests/system/crashes/test_flow_kills.py::test_followers_are_released_once_whoever_is_killed",
        ],
    ),
    29: (
        "very many children are let go step by step, and a large group is whole before it begins",
        [
            f"{CASES}/edges.py::case_many_children",
            "tests/stores/postgres/test_flow.py::test_thousands_of_children_and_of_parents",
            "tests/stores/redis/test_edges.py::test_a_fan_out_and_a_fan_in",
            "tests/stores/mongo/test_flow.py::test_a_fan_out_and_a_fan_in_of_thousands",
            "tests/stores/mongo/test_flow.py::test_more_edges_than_a_transaction_has_room_for",
            "tests/unit/flow/test_graphs.py::test_a_large_group",
        ],
    ),
    30: (
        "a parent stays until its followers have ended; one that is gone cannot be waited for",
        [
            f"{CASES}/edges.py::case_a_parent_is_kept_for_its_followers",
            f"{CASES}/edges.py::case_an_unknown_parent_is_refused",
            f"{CASES}/edges.py::case_a_deleted_parent_is_unknown",
            f"{CASES}/edges.py::case_a_dead_parent_that_is_not_kept",
            "tests/stores/postgres/test_flow.py::test_nobody_prunes_a_job_that_is_about_to_be_followed",
            "tests/unit/flow/test_graphs.py::test_unknown_parents_are_refused",
        ],
    ),
    31: (
        "in a caller's transaction only INSERT and plain SELECT",
        [
            "tests/system/races/test_callers.py::test_nothing_but_insert_and_plain_select",
            "tests/unit/transactional/test_transactions.py::test_a_full_queue_is_told_and_never_waited_for",
            "tests/system/races/test_workers.py::test_jobs_of_callers_transactions_run_if_and_only_if_they_were_committed",
            "tests/system/transactions/test_law.py::test_nothing_but_insert_and_plain_select_is_sent",
            "tests/system/transactions/test_law.py::test_nobody_waits_for_the_caller",
        ],
    ),
    32: (
        "no hook after a raw commit: the store notices by itself; autocommit is found out",
        [
            "tests/stores/sqlite/test_signals.py::test_a_raw_commit_wakes_us",
            "tests/stores/sqlite/test_signals.py::test_what_is_rolled_back_leaves_nothing_and_wakes_nobody",
            "tests/unit/transactional/test_transactions.py::test_autocommit_is_refused",
            "tests/unit/transactional/test_transactions.py::test_no_signal_for_what_was_rolled_back",
            "tests/unit/transactional/test_transactions.py::test_sqlalchemy_savepoints_do_not_signal_early",
            "tests/system/transactions/test_waking.py::test_workers_are_woken",
            "tests/system/transactions/test_waking.py::test_a_raw_commit_is_found_by_the_next_poll",
            "tests/system/transactions/test_refusals.py::test_autocommit",
        ],
    ),
    33: (
        "durability in a caller's transaction is that of the caller's session",
        [
            "tests/system/races/test_callers.py::test_a_callers_session_that_does_not_sync_is_warned_of_once",
            "tests/system/transactions/test_refusals.py::test_a_session_that_does_not_wait_for_the_disk_is_warned_of_once",
        ],
    ),
    34: (
        "no counter of what runs can drift: ends of every kind and lapses make room",
        [
            f"{CASES}/limits.py::case_at_most_so_many_run",
            f"{CASES}/limits.py::case_every_end_of_a_hold_makes_room",
            f"{CASES}/limits.py::case_a_lapsed_hold_makes_room_when_reaped",
            f"{CASES}/limits.py::case_cancelled_code_counts_until_it_stops",
            "tests/unit/worker/claiming/test_limits.py::test_at_most_so_many_run_over_all_workers",
            "tests/unit/worker/claiming/test_limits.py::test_failures_snoozes_and_cancels_leave_no_slot_taken",
        ],
    ),
    35: (
        "a rate counts starts in a sliding window, by the store's clock, and nothing under it is claimed ahead",
        [
            f"{CASES}/limits.py::case_starts_in_a_window",
            f"{CASES}/limits.py::case_a_clock_that_goes_back_spends_no_more_than_a_window",
            "tests/unit/worker/claiming/test_limits.py::test_a_rate_is_never_exceeded_and_well_used",
        ],
    ),
    36: (
        "shares of tenants: nobody waits behind a long line, nobody saves up, a retry keeps its place and a snooze pays",
        [
            f"{CASES}/fairness.py::case_a_long_queue_delays_no_other",
            f"{CASES}/fairness.py::case_weights",
            f"{CASES}/fairness.py::case_idle_tenants_save_nothing",
            f"{CASES}/fairness.py::case_a_retry_keeps_its_place_and_a_snooze_pays",
            "tests/unit/worker/claiming/test_limits.py::test_a_long_line_of_one_tenant_delays_nobody",
        ],
    ),
    37: (
        "tick keys vanish with history: firing is a guarded move of the schedule, with the job",
        [
            f"{CASES}/kv.py::case_one_of_many_writers",
            f"{CASES}/kv.py::case_with_jobs",
            "tests/unit/schedules/test_firing.py::test_two_look_at_the_same_time",
            "tests/unit/schedules/test_firing.py::test_ten_years_and_ten_workers",
            "tests/unit/schedules/test_kills.py::test_every_tick_once_under_kills",
            "tests/unit/schedules/test_declared.py::test_written_when_new_and_when_the_text_changed",
        ],
    ),
    38: (
        "SQLite starves renewals: writers take turns",
        [
            "tests/stores/sqlite/test_turns.py::test_who_has_just_written_comes_after_who_waits",
            "tests/stores/sqlite/test_processes.py::test_a_program_that_always_writes_does_not_starve_renewals",
        ],
    ),
    39: (
        "another program can switch the file to WAL under us",
        [
            "tests/stores/sqlite/test_journal.py::test_another_program_that_switches_the_mode_is_noticed",
            "tests/stores/sqlite/test_journal.py::test_wal_on_an_affected_version_is_class_c",
            "tests/stores/sqlite/test_journal.py::test_a_file_left_in_wal_mode_is_brought_back",
        ],
    ),
    40: (
        "SQLite is busy: only the COMMIT is repeated; a caller who read first is told of BEGIN IMMEDIATE",
        [
            "tests/stores/sqlite/test_database.py::test_a_commit_waits_for_a_reader_and_the_transaction_stays",
            "tests/unit/transactional/test_transactions.py::test_busy_tells_to_begin_immediate",
            "tests/system/crashes/test_fifty.py::test_many_processes_on_one_store",
        ],
    ),
    41: (
        "opening and closing the file ourselves would drop SQLite's locks",
        [
            "tests/stores/sqlite/test_files.py::test_the_file_is_never_opened_by_us",
            "tests/stores/sqlite/test_files.py::test_never_two_drivers_on_one_file",
            "tests/stores/sqlite/test_files.py::test_network_file_systems_are_refused",
            "tests/stores/sqlite/test_database.py::test_a_forked_child_opens_its_own",
        ],
    ),
    42: (
        "a script of Redis is no transaction: every key is declared, and what lost its place is put back",
        [
            "tests/stores/redis/test_scripts.py::test_every_command_names_a_declared_key",
            "tests/stores/redis/test_audit.py::test_orphans_are_put_back",
            "tests/stores/redis/test_audit.py::test_an_index_that_names_jobs_which_are_gone",
            "tests/stores/redis/test_limits.py::test_what_lost_its_place_or_kept_a_slot_is_mended",
            "tests/stores/redis/test_edges.py::test_an_end_that_nobody_followed_is_found",
        ],
    ),
    43: (
        "long lists and a full memory of Redis: taken whole or not at all, and ends find room",
        [
            "tests/stores/redis/test_scripts.py::test_lists_as_long_as_a_chunk_and_longer",
            "tests/stores/redis/test_scripts.py::test_promotions_and_cancels_of_many",
            "tests/stores/redis/test_trouble.py::test_a_full_memory_takes_no_jobs_and_ends_those_it_has",
            "tests/stores/redis/test_limits.py::test_limited_jobs_and_a_full_memory",
        ],
    ),
    44: (
        "what Redis writes only now and then can be lost: it is graded by its settings",
        [
            "tests/stores/redis/test_opening.py::test_grades",
            "tests/stores/redis/test_worker.py::test_a_killed_server_loses_nothing_that_was_acknowledged",
        ],
    ),
    45: (
        "MongoDB: moves of many documents are transactions, so a replica set is required",
        [
            "tests/stores/mongo/test_faults.py::test_a_standalone_server_is_told_how_to_become_a_replica_set",
            "tests/stores/mongo/test_faults.py::test_a_primary_that_steps_down_in_the_middle",
            "tests/stores/mongo/test_processes.py::test_claimers_that_race_take_every_job_once",
            "tests/stores/mongo/test_faults.py::test_many_large_jobs_in_one_call",
        ],
    ),
    46: (
        "rows that move between tables are read in one statement",
        ["tests/stores/postgres/test_locks.py::test_who_reads_sees_every_job_wherever_it_moves"],
    ),
    47: (
        "a mark to go on behind hides nothing for long",
        [
            "tests/stores/postgres/test_marks.py::test_what_lies_before_the_mark_is_found",
            "tests/stores/postgres/test_marks.py::test_under_full_speed_it_is_found_within_the_time_between_two_starts",
            "tests/stores/postgres/test_marks.py::test_a_short_claim_begins_at_the_start",
        ],
    ),
    48: (
        "an id only breaks ties; a row names the oldest version that may claim it",
        [
            "tests/unit/core/test_ids.py::test_ids_rise_when_the_clock_stands_or_goes_back",
            f"{CASES}/claim.py::case_a_batch_keeps_its_order",
            f"{CASES}/claim.py::case_rows_of_a_newer_version",
        ],
    ),
}


def test_every_trap_is_covered_and_has_a_safeguard_that_can_be_switched_off():
    assert list(TRAPS) == list(range(1, 49))
    assert {safeguard.trap for safeguard in SAFEGUARDS} == set(TRAPS)


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=str)
def test_the_test_of_a_safeguard_is_one_of_its_traps(safeguard):
    _, named = TRAPS[safeguard.trap]
    assert _listed(safeguard.test) in named


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=str)
def test_what_is_switched_off_stands_in_the_sources_once(safeguard):
    for file, text, _ in [(safeguard.file, safeguard.text, safeguard.without), *safeguard.more]:
        assert (ROOT / "src/perdure" / file).read_text().count(text) == 1, f"{file}: {text}"


def _listed(test: str) -> str:
    """How a test is named above: without its parameters, a conformance case by its own file."""
    name, _, parameters = test.partition("[")
    if name != CONFORMANCE:
        return name
    _, file, case = parameters.removesuffix("]").split("-", 2)
    return f"{CASES}/{file}.py::case_{case}"


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_has_its_tests(trap):
    _, named = TRAPS[trap]
    missing = [each for each in named if not _exists(each)]
    assert named
    assert not missing


def test_conformance_cases_run_on_every_store():
    """The cases named above are not tests by themselves: this is what runs them."""
    assert _exists("tests/stores/conformance/test_stores.py::test_case")


def _exists(name: str) -> bool:
    path, _, function = name.partition("::")
    folder, _, file = path.rpartition("/")
    files = (ROOT / CASES).glob(f"*/{file}") if folder == CASES else [ROOT / path]
    return any(each.is_file() and function in _functions(each) for each in files)


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
