"""Every field of a record has its place in the store: restore and get, with every field set.

The records are built from the annotations of `Record`. A field that is added later is set here without a change, so a
store that forgets it fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_type_hints

from perdure.core.backoff import Backoff
from perdure.core.clock import SECOND
from perdure.core.ids import new_id
from perdure.core.job import State
from perdure.core.record import ROW_VERSION, Record, defaults_of
from perdure.core.retention import Retention
from perdure.storage.contract import JobDump, Storage

from ..tools import MovableClock, assert_equal, job, read_job

DEFAULTS = defaults_of(Record)

# texts that must follow a grammar, and numbers that must not be greater than others
VALUES: Mapping[str, Any] = {
    "id": new_id(),
    "state": State.SUCCEEDED,
    "backoff": Backoff.fixed(7).text(),
    "retention": Retention.keep(age=70).text(),
    "dead_retention": Retention.keep(last=7).text(),
    "errors": '[[1,"w",1000000,2000000,"ValueError","no",null]]',
    "tags": '["t"]',
    "meta": '{"m":"v"}',
    "unique_scope": "active",
    "chain_id": new_id(),
    "next_id": new_id(),
    "run_when": "finished",
    "limits": '[["k",1,null,null]]',
    "min_version": ROW_VERSION,
}
# of a job that has not ended: parked while it is ready, waiting for parents while it is blocked
IN_OTHER_STATES = ("parked", "after", "waits")


async def case_an_ended_job_with_every_field(store: Storage, clock: MovableClock) -> None:
    record = _record(0)
    missing = [name for name, default in DEFAULTS.items() if getattr(record, name) == default]
    assert_equal(
        sorted(missing), sorted((*IN_OTHER_STATES, "min_version")), "every field has another value than its default"
    )
    await _check_round_trip(store, JobDump(record))


async def case_a_parked_job(store: Storage, clock: MovableClock) -> None:
    record = _waiting(State.READY, limits=VALUES["limits"], parked=True)
    await _check_round_trip(store, JobDump(record))


async def case_a_blocked_job(store: Storage, clock: MovableClock) -> None:
    parent = job()
    await store.enqueue([parent])
    record = _waiting(State.BLOCKED, after=f'["{parent.id}"]', waits=1)
    await _check_round_trip(store, JobDump(record, waits_for=(parent.id,)))


async def case_a_job_of_a_newer_version(store: Storage, clock: MovableClock) -> None:
    await _check_round_trip(store, JobDump(_waiting(State.READY, min_version=ROW_VERSION + 1)))


async def _check_round_trip(store: Storage, dump: JobDump) -> None:
    await store.restore([dump])
    read = await read_job(store, dump.record.id)
    for name in Record.__struct_fields__:
        assert_equal(getattr(read, name), getattr(dump.record, name), f"field {name} comes back as it was stored")


def _waiting(state: State, **values: Any) -> Record:
    """A job that nobody has claimed, with these values and defaults otherwise."""
    required = {name: _value(name, 0) for name in Record.__struct_fields__ if name not in DEFAULTS}
    return Record(**{**required, "id": new_id(), "state": state, "rank": required["run_at"], **values})


def _record(number: int) -> Record:
    """An ended job whose holder has not stopped, with a value in every field that such a job can have."""
    values = {name: _value(name, number) for name in Record.__struct_fields__ if name not in IN_OTHER_STATES}
    return Record(**{**values, "id": new_id()})


def _value(name: str, number: int) -> Any:
    if name in VALUES:
        return VALUES[name]
    hint = get_type_hints(Record)[name]
    kinds = [kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if kind is not type(None)]
    position = Record.__struct_fields__.index(name)
    return {bool: True, int: (1_000 + position) * SECOND, str: f'"{name} {position}"'}[kinds[0]]
