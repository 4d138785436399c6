"""Names of the public API that this version does not have yet. Using one raises an error that says so, instead of one that
looks like a misspelling. They are no attributes: `hasattr` is False, and a type checker does not know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

NAMES = frozenset(
    ("Alert", "Event", "JobDied", "JobFailed", "JobProgressed", "JobReaped", "JobStarted", "JobSucceeded")
)
_VERBS = {
    "Perdure": frozenset(("asgi", "health", "metrics", "observe", "stats")),
    "Registry": frozenset(("observe",)),
    "Jobs": frozenset(("explain",)),
}


class NotReleased:
    """Something that lacks verbs which are still to come."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            for kind in type(self).__mro__:
                if name in _VERBS.get(kind.__name__.removeprefix("Sync"), ()):
                    raise AttributeError(not_yet(f"{kind.__name__}.{name}"), name=name, obj=self)
            return object.__getattribute__(self, name)  # raises as if this method were not there


def not_yet(what: str) -> str:
    """The message for somebody who uses a name that is not released yet."""
    return (
        f"{what} is not in this version of Perdure; metrics, alerts, explain, an admin API and a dashboard are to come"
    )
