"""What to write instead of a name that Perdure does not have: verbs and options of other queues, misspelled options, and
options in the wrong place. Everything here is text for error messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

_ENQUEUE = "await {task}.enqueue(…), or {task}.sync.enqueue(…)"
_OPTIONS = "await {task}.using(delay=…, queue=…).enqueue(…)"
_CALL = "{task}.call(…)"

# Celery, Procrastinate, Dramatiq, RQ, taskiq, arq, Huey
_VERBS = {
    "apply": "await {task}.run(…)",
    "apply_async": _OPTIONS,
    "apply_async_on_commit": "await {task}.using(connection=…).enqueue(…)",
    "batch_defer": "await app.enqueue([{task}.call(…), …])",
    "configure": "{task}.using(…)",
    "defer": _ENQUEUE,
    "defer_async": _ENQUEUE,
    "delay": _ENQUEUE,
    "delay_on_commit": "await {task}.using(connection=…).enqueue(…)",
    "kicker": "{task}.using(…)",
    "kiq": _ENQUEUE,
    "map": "await app.enqueue([{task}.call(each) for each in …])",
    "message": _CALL,
    "message_with_options": "{task}.using(…).call(…)",
    "options": "{task}.using(…)",
    "push": _ENQUEUE,
    "s": _CALL,
    "schedule": "await {task}.using(delay=…).enqueue(…), or @app.schedule(…) above @app.task",
    "send": _ENQUEUE,
    "send_with_options": _OPTIONS,
    "set": "{task}.using(…)",
    "si": _CALL,
    "signature": _CALL,
    "starmap": "await app.enqueue([{task}.call(*each) for each in …])",
    "submit": _ENQUEUE,
}

# names that other queues give to options of ours; a text with a space is a whole advice
_OPTION_NAMES = {
    "at_time": "at",
    "attempts": "max_attempts",
    "autoretry_for": "retry_on",
    "bind": "the handler takes its context as first parameter: (ctx: Context, …)",
    "countdown": "delay",
    "cron": 'write @app.schedule("0 3 * * *") above @app.task',
    "defer_by": "delay",
    "defer_until": "at",
    "eta": "at",
    "idempotency_key": 'write unique=Unique("…")',
    "ignore_result": "write retention=Retention.delete()",
    "job_timeout": "timeout",
    "keep_result": "write retention=Retention.keep(age=…)",
    "lock": 'write limit=Limit(max_running=1, per="key")',
    "max_retries": "max_attempts",
    "max_tries": "max_attempts",
    "min_backoff": "write backoff=Backoff.exponential(1.0)",
    "queue_name": "queue",
    "queueing_lock": 'write unique=Unique("…", scope="waiting")',
    "rate_limit": 'write limit=Limit(rate="10/s")',
    "result_ttl": "write retention=Retention.keep(age=…)",
    "retries": "max_attempts",
    "retry": "max_attempts",
    "retry_backoff": "write backoff=Backoff.exponential(1.0)",
    "run_at": "at",
    "schedule_at": "at",
    "schedule_in": "delay",
    "soft_time_limit": "timeout",
    "task_id": 'write unique=Unique("…"): ids are made by Perdure',
    "time_limit": "timeout",
    "ttl": "expires",
    "unique_key": 'write unique=Unique("…")',
}

# of the options that tasks and calls do not share: whose they are
_OF_CALLS = frozenset(("after", "at", "connection", "delay", "key", "meta", "routing_key", "run_when", "tenant"))
_OF_TASKS = frozenset(("concurrency", "critical", "lease", "limit", "name", "aliases", "retry_on", "run_in"))


class VerbsOfOthers:
    """A task, or its blocking twin: somebody who asks for a verb of another queue is told ours. `hasattr` says no, and a
    type checker does not know these verbs."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in _VERBS:
                task = getattr(self, "_inner", self)
                advice = _VERBS[name].format(task=task._spelled())
                raise AttributeError(f"a task has no {name!r}; write {advice}", name=name, obj=self)
            return object.__getattribute__(self, name)  # raises as if this method were not there


def option_instead(option: str, known: Collection[str]) -> str | None:
    """What to write instead of an option that is not among `known`."""
    if option in _OF_CALLS:
        return f"{option} is an option of the call: task.using({option}=…).enqueue(…)"
    if option in _OF_TASKS:
        return f"{option} is an option of the task: @app.task({option}=…)"
    ours = _OPTION_NAMES.get(option)
    if ours is not None:
        return ours if " " in ours else f"the option is named {ours}"
    close = get_close_matches(option, known, n=1, cutoff=0.75)
    return f"you may mean {close[0]}" if close else None


def argument_instead(names: Iterable[str], task: str, of_calls: Collection[str]) -> str | None:
    """Where an option belongs that was given as an argument, which the handler does not take."""
    for name in names:
        if name in of_calls:
            return f"{name} is an option of the call: {task}.using({name}=…).enqueue(…)"
        if name in _OF_TASKS:
            return f"{name} is an option of the task: @app.task({name}=…)"
        ours = _OPTION_NAMES.get(name)
        if ours is not None:
            return f"the option is named {ours}: {task}.using({ours}=…).enqueue(…)" if " " not in ours else ours
    return None
