"""The code has the public API that api.pyi fixes: every name, parameter, default and type, and nothing else unless listed.

The lists below may only shrink or be added to with a reason: a name that is built must leave NOT_RELEASED, and an entry that
no longer says anything must go.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure

from .api_code import Code
from .api_stub import Stub
from .api_text import Table

NOT_RELEASED = {
    "not released yet: events, observers and alerts": (
        "Event",
        "JobDied",
        "Alert",
        "Alerts",
        "alias Observer",
        "Registry.observe",
        "Perdure.alerts",
        "Perdure.__init__(alerts)",
    ),
    "not released yet: health, metrics and statistics": (
        "Health",
        "Check",
        "Stats",
        "Perdure.health",
        "Perdure.metrics",
        "Perdure.stats",
    ),
    "not released yet: reasons why a job waits": ("Explanation", "Jobs.explain", "Queues.pending"),
    "not released yet: groups of errors": ("ErrorGroup", "Errors", "Perdure.errors"),
    "not released yet: search and changes of many jobs": (
        "Jobs.where",
        "Page.whole",
        "Operation",
        "Operations",
        "Perdure.operations",
    ),
    "not released yet: the HTTP API": ("Access", "alias Role", "Perdure.asgi"),
    "not released yet: tasks that change at run time": ("TaskInfo", "Tasks", "Perdure.tasks"),
    "not released yet: versions of payloads": ("Task.upcast", "TaskDefaults.version"),
    "not released yet: ordered keys and breakers": ("Breaker", "TaskDefaults.breaker", "TaskDefaults.ordered"),
    "not released yet: errors that are never tried again": ("TaskDefaults.dont_retry_on",),
    "not released yet: debounce and replacement": ("Debounce", "CallOptions.debounce", "Unique.replace"),
    "not released yet: named limits": ("Limit.name",),
    "not released yet: weight of batches": ("Registry.batch_task(weigh)", "Registry.batch_task(max_weight)"),
    "not released yet: encryption": ("Perdure.__init__(keys)",),
    "not released yet: schedules by interval": (
        "Registry.schedule[0](every)",
        "Registry.schedule[1](every)",
        "Schedules.put(every)",
    ),
}

# What the code says in other words than the stub.
DIFFERENT = {
    "a cron expression may be left out once every= is there": (
        "Registry.schedule[0](cron)",
        "Registry.schedule[1](cron)",
        "Schedules.put(cron)",
    ),
    "plain context managers are taken too": ("Registry.provide(make)",),
    "a protocol that Perdure fulfils": ("WorkerPool.__init__(app)",),
    "one overload for coroutines and one for functions: a type checker infers T exactly": ("Context.step",),
}

# What the code has beyond the stub.
BEYOND = {
    "documented; the default of a parameter that is provided": ("PROVIDED",),
    "documented; the limit of the size of payloads and results": ("Perdure.__init__(max_bytes)",),
    "the job that goes on with a chain": ("Job.next_id",),
    "why a hold was lost": ("HoldLost.reason",),
    "a pool can be started and looked at as a worker can": ("WorkerPool.id", "WorkerPool.start", "WorkerPool.workers"),
    "the settings of a queue": (
        "QueueInfo.drop_below",
        "QueueInfo.fair",
        "QueueInfo.max_depth",
        "QueueInfo.on_full",
        "QueueInfo.weights",
    ),
    "the rule and the state of a schedule": (
        "ScheduleInfo.declared",
        "ScheduleInfo.end",
        "ScheduleInfo.last_at",
        "ScheduleInfo.max_runs",
        "ScheduleInfo.missed",
        "ScheduleInfo.orphan",
        "ScheduleInfo.overlap",
        "ScheduleInfo.paused",
        "ScheduleInfo.runs",
        "ScheduleInfo.skipped",
        "ScheduleInfo.start",
        "ScheduleInfo.timezone",
        "ScheduleInfo.unreadable",
    ),
    "what an outcome was made with": (
        "Dead.reason",
        "Retry.at",
        "Retry.delay",
        "Retry.reason",
        "Skip.reason",
        "Skip.result",
        "Snooze.at",
        "Snooze.delay",
        "Snooze.reason",
    ),
    "for Perdure's own modules, without an underscore since they are in several": (
        "Backoff.delay",
        "Backoff.initial",
        "Backoff.jitter",
        "Backoff.kind",
        "Backoff.maximum",
        "Backoff.multiplier",
        "Backoff.parse",
        "Backoff.text",
        "Context.detached",
        "Limit.starts",
        "Perdure.clock",
        "Perdure.imports",
        "Perdure.settings",
        "Perdure.url",
        "Registry.definitions",
        "Retention.age",
        "Retention.brief",
        "Retention.drop",
        "Retention.last",
        "Retention.parse",
        "Retention.text",
        "Worker.refused",
    ),
}

# Types that are reached through objects and parameters, and are not imported from `perdure`.
NOT_EXPORTED = {
    *("BatchMaker", "CallOptions", "Clock", "DeadLetters", "Duration", "JobFilter", "JobId", "JobRef", "Jobs", "Lost"),
    *("Middleware", "Node", "Queues", "Routing", "Schedules", "TaskDefaults", "TaskMaker", "TaskOptions", "Workers"),
}


def names_in(lists: dict[str, tuple[str, ...]]) -> list[str]:
    return [name for names in lists.values() for name in names]


def covers(entry: str, key: str) -> bool:
    """Whether a listed name means this entry of a table: itself, its members, its parameters, its result."""
    return key == entry or key.startswith(tuple(entry + sign for sign in (".", "(", "[", ":", " -> ")))


def covered(key: str, lists: dict[str, tuple[str, ...]]) -> bool:
    return any(covers(entry, key) for entry in names_in(lists))


def same(wanted: str, actual: str) -> bool:
    """Whether two descriptions agree. A default that the stub leaves open may be any; a type may not show in the code."""
    if wanted.endswith(" = ...") and " = " in actual:
        return wanted.removesuffix(" = ...") == actual.rpartition(" = ")[0]
    return wanted == actual or actual == ""


@pytest.fixture(scope="module")
def stub() -> Stub:
    return Stub(Path(__file__).with_name("api.pyi"))


@pytest.fixture(scope="module")
def code() -> Code:
    return Code(perdure)


@pytest.fixture(scope="module")
def tables(stub, code) -> tuple[Table, Table]:
    return stub.table(), code.table(stub)


@pytest.fixture(scope="module")
def blocking_tables(stub, code) -> tuple[Table, Table]:
    """The same of the blocking twins, under the names of their originals."""
    wanted, twins = stub.sync_tables()
    actual = code.sync_table(twins)

    def renamed(table: Table) -> Table:
        return {twins[key.partition(".")[0]] + "." + key.partition(".")[2]: text for key, text in table.items()}

    assert set(twins) == {key.partition(".")[0] for key in actual}
    return renamed(wanted), renamed(actual)


@pytest.fixture(params=["tables", "blocking_tables"])
def compared(request) -> tuple[Table, Table]:
    return request.getfixturevalue(request.param)


def test_everything_in_the_stub_is_in_the_code(compared):
    wanted, actual = compared
    missing = [key for key in wanted if key not in actual]
    assert [key for key in missing if not covered(key, NOT_RELEASED) and not covered(key, DIFFERENT)] == []


def test_everything_in_the_code_is_in_the_stub(compared):
    wanted, actual = compared
    extra = [key for key in actual if key not in wanted]
    assert [key for key in extra if not covered(key, BEYOND) and not covered(key, DIFFERENT)] == []


def test_signatures_defaults_and_types_agree(compared):
    wanted, actual = compared
    differing = {
        key: f"stub: {wanted[key]}  code: {actual[key]}"
        for key in wanted.keys() & actual.keys()
        if not same(wanted[key], actual[key]) and not covered(key, DIFFERENT)
    }
    assert differing == {}


def test_fields_come_in_the_order_of_the_stub(stub, code):
    for name, fields in stub.fields().items():
        if (kind := code.find(name)) is not None:
            actual = [field for field in kind.__match_args__ if field in fields]
            assert actual == [field for field in fields if field in actual], name


def test_what_is_built_is_no_longer_listed_as_not_released(stub, code, tables):
    wanted, actual = tables
    built = [
        entry
        for entry in names_in(NOT_RELEASED)
        if any(covers(entry, key) for key in actual) or code.find(entry) is not None
    ]
    assert built == [], "built: take these out of NOT_RELEASED"
    unknown = [entry for entry in names_in(NOT_RELEASED) if not any(covers(entry, key) for key in wanted)]
    assert unknown == []


def test_the_other_lists_hold_nothing_that_is_gone(stub, code, tables):
    wanted, actual = tables
    differing = differences(stub, code)
    gone = [name for name in names_in(DIFFERENT) if not any(covers(name, key) for key in differing)]
    extra = {*actual.keys() - wanted.keys(), *code.exported.keys()}
    gone += [name for name in names_in(BEYOND) if not any(covers(name, key) for key in extra)]
    assert gone == []


def test_names_are_exported(stub, code):
    not_yet = {name.removeprefix("alias ") for name in names_in(NOT_RELEASED)}
    assert stub.names - code.exported.keys() - not_yet == NOT_EXPORTED
    assert code.exported.keys() - stub.names == {name for name in names_in(BEYOND) if "." not in name}


# ---- the comparison itself -------------------------------------------------------------------------
CHANGES = {
    "a parameter's name": ("async def run_now(self, *ids: JobRef)", "async def run_now(self, *jobs: JobRef)"),
    "a parameter's kind": ("def then(self, task: _Takes[R_co, S], /)", "def then(self, task: _Takes[R_co, S])"),
    "a parameter's type": ("async def pause(self, name: str, /)", "async def pause(self, name: bytes, /)"),
    "a default": ("max_wait: Duration = 0.0", "max_wait: Duration = 1.0"),
    "a default that is gone": ("cascade: bool = False", "cascade: bool"),
    "async": ("async def signal(", "def signal("),
    "a result": ("async def refresh(self) -> Job:", "async def refresh(self) -> Job | None:"),
    "a verb": ("    async def reschedule(self, name: str, cron: str, /) -> None: ...\n", ""),
    "a verb that is not there": (
        "    async def refresh(",
        "    async def reload(self) -> Job: ...\n    async def refresh(",
    ),
    "a field's type": ("    losses: int\n", "    losses: float\n"),
    "a field's default": ("    depth: int = 100", "    depth: int = 99"),
    "a value": ('READY = "ready"', 'READY = "waiting"'),
    "a base": ("class NoLoop(PerdureError, RuntimeError)", "class NoLoop(PerdureError, OSError)"),
    "an option": ("    run_when: Literal[", "    run_if: Literal["),
    "an alias": ("Duration = float | timedelta", "Duration = float"),
    "the type of a property": ("def sync(self) -> SyncQueues", "def sync(self) -> SyncJobs"),
    "an overload": ("call: Call[Any], /, *, every", "call: Call[int], /, *, every"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_stub_shows(what, stub, code, tmp_path):
    before, after = CHANGES[what]
    text = Path(__file__).with_name("api.pyi").read_text()
    assert before in text
    (tmp_path / "api.pyi").write_text(text.replace(before, after))
    changed = Stub(tmp_path / "api.pyi")
    assert differences(changed, code) != differences(stub, code)


def differences(stub: Stub, code: Code) -> set[str]:
    wanted, actual = stub.table(), code.table(stub)
    return {key for key in wanted.keys() | actual.keys() if not same(wanted.get(key, "-"), actual.get(key, "-"))}
