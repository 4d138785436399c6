"""Plain successes, the most common changes of all: few statements, each for many jobs.

They are guarded like all changes. Where a statement touches fewer rows than it should, somebody's guard did not hold: then
everything is undone, and done again carefully.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from perdure.core.lifecycle import Change

from .queries import load
from .records import Many, json_text
from .writer import Work

_sql = load("fast_success")
_EACH = Many(_sql["succeed"], 7, (100, 20, 5, 1), padded=True)

# attempt, stamp, failures, how long they are kept, and whether they have results
_Common = tuple[int, int, int, int | None, bool]
_common = attrgetter("guard.attempt", "guard.stamp", "failures", "keep")


class Successes:
    """Made in the loop, so that the writer has little to do."""

    def __init__(self, plain: Sequence[Change]) -> None:
        groups: dict[_Common, list[Change]] = {}
        for common, alike in groupby(plain, _common):  # those of a claim mostly follow each other
            for told, ended in groupby(alike, _has_result):
                groups.setdefault((*common, told), []).extend(ended)
        self._groups = [_Group(common, ended) for common, ended in groups.items()]

    def write(self, work: Work, now: int) -> bool:
        """Write all. False: somebody's guard does not hold."""
        return all(group.write(work, now) for group in self._groups)


def _has_result(change: Change) -> bool:
    return change.result is not None


class _Group:
    """Those that have in common whatever they can, but for their starts and results."""

    def __init__(self, common: _Common, ended: Sequence[Change]) -> None:
        self._common = common
        self._many = len(ended)
        self._starts, self._ended = "", ended
        if not common[-1]:
            self._starts = json_text({change.id: change.started_at for change in ended})

    def write(self, work: Work, now: int) -> bool:
        attempt, stamp, failures, keep, told = self._common
        prune_at = None if keep is None else now + keep
        if not told:
            values = (failures, now, prune_at, stamp, self._starts, attempt, stamp)
            return work.connection.change(_sql["succeed_alike"], values) == self._many
        rows = [(each.id, attempt, stamp, failures, each.result, prune_at, each.started_at) for each in self._ended]
        return _EACH.run(work.connection, rows, now) == self._many
