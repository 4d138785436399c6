"""How each safeguard is switched off: the text in the source that is the safeguard, what stands there without it, and the
test that has to fail then. The numbers are those of the traps in test_traps.py; test_ablations.py runs the table.

A safeguard is switched off in a copy of the sources, so that Python, SQL and Lua are treated alike and the processes that a
test starts are without it too.
"""

# ruff: noqa: E501 — the texts stand as they do in the sources

from __future__ import annotations

from dataclasses import dataclass

CONFORMANCE = "tests/stores/conformance/test_stores.py::test_case"


@dataclass(frozen=True)
class Safeguard:
    trap: int
    file: str  # in src/perdure
    text: str  # occurs once
    without: str
    test: str  # a test's full name
    more: tuple[tuple[str, str, str], ...] = ()  # file, text and replacement of what else guards against the same

    def __str__(self) -> str:
        return f"{self.trap:02}-{self.test.rpartition('::')[2].removeprefix('test_')}"


def _case(name: str) -> str:
    return f"{CONFORMANCE}[{name}]"


SAFEGUARDS = [
    # ---- hold and fence
    Safeguard(
        1,
        "storage/rules/guards.py",
        "row.attempt == attempt and row.stamp == stamp",
        "row.attempt == attempt",
        _case("memory-refusals-same_attempt_other_stamp"),
    ),
    Safeguard(
        2,
        "storage/rules/guards.py",
        "if row.version != guard.version or (guard.lapsed and not lapsed):",
        "if guard.lapsed and not lapsed:",
        _case("memory-refusals-any_move_makes_a_view_stale"),
    ),
    Safeguard(
        2,
        "storage/rules/guards.py",
        "or (guard.lapsed and not lapsed):",
        ":",
        _case("memory-refusals-lapse_is_checked_again"),
    ),
    Safeguard(
        3,
        "storage/contract.py",
        "if len(changes) > 1 and len({*map(_id, changes)}) != len(changes):",
        "if False:",
        _case("memory-apply-two_changes_of_one_job"),
    ),
    Safeguard(
        4,
        "storage/postgres/queries/apply.sql",
        "WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;",
        "WHERE id = ANY(%(ids)s::uuid[]) ORDER BY array_position(%(ids)s::uuid[], id) FOR UPDATE;",
        "tests/stores/postgres/test_locks.py::test_many_words_about_the_same_jobs_in_any_order_never_deadlock",
        more=(
            (
                "storage/postgres/writing/apply.py",
                '(self._lock[table], {"ids": array(sorted(ids))})',
                '(self._lock[table], {"ids": array(ids)})',
            ),
            ("storage/postgres/writing/apply.py", 'for within in (GIVES_WAY, "0"))', 'for within in ("0", "0"))'),
        ),
    ),
    Safeguard(
        5,
        "upkeep/store_contact.py",
        "if self._since is None or now - self._last > GAP:",
        "if self._since is None:",
        "tests/unit/worker/leases/test_losses.py::test_contact_starts_again_after_a_gap_and_after_a_clock_jump",
    ),
    Safeguard(
        6,
        "storage/sqlite/queries/upkeep.sql",
        "WHERE leased_until IS NOT NULL AND limits IS NULL AND leased_until > lease + :now\n    UNION ALL",
        "WHERE 0\n    UNION ALL",
        _case("sqlite-lapsed-leases_are_cut_when_the_clock_went_back"),
    ),
    Safeguard(
        7,
        "storage/postgres/connection/server.py",
        '    "idle_in_transaction_session_timeout": "60s",\n',
        "",
        "tests/stores/postgres/test_locks.py::test_a_host_that_dies_does_not_keep_its_locks",
    ),
    # ---- reporter and unknown outcomes
    Safeguard(
        8,
        "storage/rules/guards.py",
        "return REPEATED if row.accepted_stamp == guard.stamp else _refusal_of(",
        "return _lost(",
        _case("memory-apply-a_repeated_report"),
    ),
    Safeguard(
        9,
        "storage/rules/records.py",
        "return hidden or (finished_at or 0) + HIDDEN_FOR <= now",
        "return True",
        _case("memory-prune-nothing_is_removed_within_ten_minutes"),
    ),
    Safeguard(
        10,
        "worker/claiming/claim_loop.py",
        "records = await self._timeout.answer(self._store.recover_claim(claim.worker, claim.stamp))",
        "records: list[Any] = []",
        "tests/system/crashes/test_unknown_outcomes.py::test_jobs_of_a_claim_without_an_answer_are_asked_for_and_run[memory]",
    ),
    Safeguard(
        11,
        "worker/claiming/claim_loop.py",
        "            await self._single_reports.report(batch)\n            return\n",
        "            self._put_back(batch, claim)\n            raise\n",
        "tests/system/crashes/test_unknown_outcomes.py::test_one_bad_end_fails_its_own_job_only[memory]",
    ),
    Safeguard(
        12,
        "worker/health/throughput.py",
        "            self._sums[queue] = (jobs_before + jobs, kept_before + kept)\n",
        "            pass\n",
        "tests/unit/observe/test_scale.py::test_a_worker_tells_what_ended_in_it",
    ),
    Safeguard(
        13,
        "upkeep/reap.py",
        "changes = await add_undos(store, list(changes_of(records, now, still_held)))",
        "changes = list(changes_of(records, now, still_held))",
        "tests/unit/flow/test_undo.py::test_what_a_job_asked_for_at_its_death_is_stored_with_it[memory]",
    ),
    # ---- supervisor and poison
    Safeguard(
        14,
        "worker/supervisor/supervisor.py",
        "        await asyncio.sleep(DUMP_WITHIN)\n        member.kill()\n",
        '        await self._report_loss(member, "handed back too early", list(member.board.seen()), member.board.claims())\n        await asyncio.sleep(5)\n        member.kill()\n',
        "tests/unit/worker/supervisor/test_supervisor.py::test_what_ran_beside_a_job_that_does_not_stop_goes_back_free",
    ),
    Safeguard(
        15,
        "worker/supervisor/loss_reports.py",
        "    if not death.claims:\n        return\n",
        "    return\n",
        "tests/unit/worker/leases/test_board.py::test_what_a_claim_under_way_takes_after_the_death_goes_back",
    ),
    Safeguard(
        16,
        "worker/completion_queue.py",
        "        if attempt.reported:\n            return  # its end",
        "        if False:\n            return  # its end",
        "tests/unit/worker/leases/test_lost.py::test_a_renewal_that_is_refused_since_the_job_has_just_ended_is_no_loss",
        more=(("worker/running/attempt.py", "if self.lost is not None or self.ended:", "if self.lost is not None:"),),
    ),
    Safeguard(
        17,
        "worker/leases/held_jobs.py",
        "return [attempt for attempt in due if not self._is_renewed_by_supervisor(attempt, now)]",
        "return []",
        "tests/unit/worker/leases/test_board.py::test_a_runner_renews_what_its_supervisor_does_not",
    ),
    Safeguard(
        18,
        "upkeep/reap.py",
        "alone = not others and len(group) == 1",
        "alone = True",
        "tests/unit/worker/leases/test_losses.py::test_several_are_suspects_and_run_alone_whatever_start_was_noted",
    ),
    # ---- ctx.transaction()
    Safeguard(
        19,
        "storage/postgres/transaction.py",
        '                if verdict is ACCEPTED:\n                    await connection.execute("COMMIT")\n',
        '                await connection.execute("COMMIT")\n',
        "tests/system/transactions/test_handlers.py::test_a_zombies_transaction_is_undone",
    ),
    Safeguard(
        20,
        "handler/context.py",
        "if self._transaction is not None and self._transaction._inner.exclusive:",
        "if False:",
        "tests/unit/handler/test_context.py::test_verbs_that_would_wait_for_themselves_raise_at_once",
    ),
    Safeguard(
        21,
        "storage/sqlite/writing/apply.py",
        "                self._write(row, change)\n                self._add_jobs(change)\n",
        "                self._write(row, change)\n            self._add_jobs(change)\n",
        _case("sqlite-continue_chain-a_refused_report_adds_nothing"),
    ),
    # ---- cancel, keys, singletons
    Safeguard(
        22,
        "core/lifecycle.py",
        "key=KeyMove.LEAVE if running else KeyMove.FREE,",
        "key=KeyMove.FREE,",
        _case("memory-unique-cancelled_while_running_keeps_the_key_until_stopped"),
    ),
    Safeguard(
        23,
        "storage/memory/rows.py",
        "return owner in (None, record.id)",
        "return True",
        _case("memory-unique-retry_whose_key_is_held"),
    ),
    Safeguard(
        24,
        "storage/postgres/queries/caller_insert.sql",
        "ON CONFLICT (key) DO NOTHING;",
        "ON CONFLICT (key) DO UPDATE SET key = excluded.key WHERE false;",
        "tests/system/transactions/test_law.py::test_nobody_waits_for_the_caller",
    ),
    Safeguard(
        25,
        "storage/postgres/queries/caller_insert.sql",
        "SELECT DISTINCT ON (given.unique_key) given.unique_key, given.id\nFROM given\nWHERE given.unique_scope IN ('waiting', 'active')\n    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = given.id)\nORDER BY given.unique_key, given.number\n",
        "SELECT given.unique_key, given.id\nFROM given\nWHERE given.unique_scope IN ('waiting', 'active')\n    AND NOT EXISTS (SELECT 1 FROM {schema}.waiting WHERE waiting.id = given.id)\nORDER BY given.number\n",
        "tests/system/transactions/test_keys.py::test_lists_in_opposite_order_that_both_have_to_wait_do_not_wait_for_each_other",
    ),
    Safeguard(
        26,
        "storage/rules/records.py",
        '    if record.unique_scope == "waiting":\n',
        "    if False:\n",
        "tests/unit/worker/claiming/test_limits.py::test_a_singleton_loses_no_work_and_never_runs_beside_itself[memory]",
        more=(("storage/memory/rows.py", 'if record.unique_scope == "waiting":', "if False:"),),
    ),
    # ---- followers
    Safeguard(
        27,
        "storage/memory/edges.py",
        "        if unresolved:\n            self.unresolved[parent] = None\n",
        "",
        _case("memory-edges-no_follower_is_stranded"),
    ),
    Safeguard(
        27,
        "storage/postgres/queries/edges.sql",
        "SELECT id::text, followed FROM {schema}.holds WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE;",
        "SELECT id::text, followed FROM {schema}.holds WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id;",
        "tests/stores/postgres/test_flow_locks.py::test_a_parent_cannot_end_while_it_is_marked_as_followed",
    ),
    Safeguard(
        28,
        "storage/rules/records.py",
        "    if child.waits > 0:\n        return\n    child.version += 1\n",
        "    child.version += 1\n",
        _case("memory-edges-many_parents"),
    ),
    Safeguard(
        29,
        "storage/memory/rows.py",
        "            if looked > limit:\n                return looked\n",
        "            if looked > limit:\n                break\n",
        _case("memory-edges-many_children"),
    ),
    Safeguard(
        30,
        "storage/memory/rows.py",
        "return record.stamp is not None or self.edges.needed(record.id, self._is_over)",
        "return record.stamp is not None",
        _case("memory-edges-a_parent_is_kept_for_its_followers"),
    ),
    # ---- enqueue in the caller's transaction
    Safeguard(
        31,
        "storage/postgres/queries/caller_insert.sql",
        "ON CONFLICT (key, starts) DO NOTHING;",
        "ON CONFLICT (key, starts) DO UPDATE SET ends = excluded.ends;",
        "tests/system/transactions/test_law.py::test_nothing_but_insert_and_plain_select_is_sent",
    ),
    Safeguard(
        32,
        "transactional/driver_adapters.py",
        'if getattr(connection, "isolation_level", "") is None or getattr(connection, "autocommit", -1) is True:',
        "if False:",
        "tests/unit/transactional/test_transactions.py::test_autocommit_is_refused",
    ),
    Safeguard(
        33,
        "storage/sqlite/database_identity.py",
        "SYNCED = 2",
        "SYNCED = 0",
        "tests/system/races/test_callers.py::test_a_callers_session_that_does_not_sync_is_warned_of_once",
    ),
    # ---- limits, fairness, schedules
    Safeguard(
        34,
        "storage/rules/limits.py",
        "left = min(left, limit.most - self._running(limit))",
        "left = min(left, limit.most)",
        _case("memory-limits-at_most_so_many_run"),
    ),
    Safeguard(
        35,
        "storage/rules/limits.py",
        "left = min(left, limit.starts - sum(n for _, n in counted))",
        "left = min(left, limit.starts)",
        _case("memory-limits-starts_in_a_window"),
    ),
    Safeguard(
        36,
        "storage/rules/fairness.py",
        "last = max(changed[floor], changed.get(payer_, _rank_or(accounts, payer_, 0, now)))",
        "last = changed.get(payer_, accounts.get(payer_, changed[floor]))",
        _case("memory-fairness-idle_tenants_save_nothing"),
    ),
    Safeguard(
        37,
        "storage/memory/kv.py",
        "return write.version is None or write.version == (0 if entry is None else entry.version)",
        "return True",
        _case("memory-kv-one_of_many_writers"),
    ),
    # ---- stores
    Safeguard(
        38,
        "storage/sqlite/connection/fair_write_lock.py",
        "            if self._take(next_):\n                try:\n                    self._has_turn = self._take(turn)\n                finally:\n                    _drop(next_)\n",
        "            self._has_turn = self._take(turn)\n",
        "tests/stores/sqlite/test_turns.py::test_who_has_just_written_comes_after_who_waits",
    ),
    Safeguard(
        38,
        "storage/sqlite/connection/fair_write_lock.py",
        "            return\n        next_, turn = self._files\n",
        "            return\n        return\n        next_, turn = self._files\n",
        "tests/stores/sqlite/test_processes.py::test_a_program_that_always_writes_does_not_starve_renewals",
    ),
    Safeguard(
        39,
        "storage/sqlite/connection/writer.py",
        "            self.retry_while_busy(self._check_mode, connection)\n",
        "",
        "tests/stores/sqlite/test_journal.py::test_another_program_that_switches_the_mode_is_noticed",
    ),
    Safeguard(
        40,
        "storage/sqlite/connection/writer.py",
        'self.retry_while_busy(connection.rows, "COMMIT")',
        'connection.rows("COMMIT")',
        "tests/stores/sqlite/test_database.py::test_a_commit_waits_for_a_reader_and_the_transaction_stays",
    ),
    Safeguard(
        41,
        "storage/sqlite/connection/process_shared.py",
        "elif shared.driver.name != name:",
        "elif False:",
        "tests/stores/sqlite/test_files.py::test_never_two_drivers_on_one_file",
    ),
    Safeguard(
        42,
        "storage/redis/lua/audit.lua",
        "  if lacks then",
        "  if false then",
        "tests/stores/redis/test_audit.py::test_orphans_are_put_back",
    ),
    Safeguard(
        43,
        "storage/redis/lua/constants.lua",
        "local AT_ONCE = 500",
        "local AT_ONCE = 50000",
        "tests/stores/redis/test_scripts.py::test_lists_as_long_as_a_chunk_and_longer",
    ),
    Safeguard(
        44,
        "storage/redis/health.py",
        'return Durability("C", detail, "CONFIG SET appendfsync always',
        'return Durability("B", detail, "CONFIG SET appendfsync always',
        "tests/stores/redis/test_opening.py::test_grades",
    ),
    Safeguard(
        45,
        "storage/mongo/connection/health.py",
        'if "setName" not in hello:',
        "if False:",
        "tests/stores/mongo/test_faults.py::test_a_standalone_server_is_told_how_to_become_a_replica_set",
    ),
    Safeguard(
        46,
        "storage/postgres/reading/listing.py",
        '        cursor = await connection.execute(self._sql["get"], {"ids": array(ids)})\n        found = {record.id: record for record in shown_of(await cursor.fetchall(), now)}\n',
        '        found = {}\n        for table in ("o.id IS NULL", "o.id IS NOT NULL"):\n            statement = self._sql["get"].replace("WHERE j.id", f"WHERE {table} AND j.id")\n            cursor = await connection.execute(statement, {"ids": array(ids)})\n            found |= {record.id: record for record in shown_of(await cursor.fetchall(), now)}\n',
        "tests/stores/postgres/test_locks.py::test_who_reads_sees_every_job_wherever_it_moves",
    ),
    Safeguard(
        47,
        "storage/postgres/claiming/claim.py",
        "if want.limit < MARKED_FROM or now >= self._until.get(_kind(want), 0.0):",
        "if want.limit < MARKED_FROM:",
        "tests/stores/postgres/test_marks.py::test_under_full_speed_it_is_found_within_the_time_between_two_starts",
    ),
    Safeguard(
        48,
        "storage/memory/indexes.py",
        "if record.min_version <= ROW_VERSION:",
        "if True:",
        _case("memory-claim-rows_of_a_newer_version"),
    ),
]
