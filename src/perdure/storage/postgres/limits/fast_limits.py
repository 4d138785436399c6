"""Fast path: claims limited jobs in one statement, with the successes of the last ones.

Gates of one key without a rate are the most common by far. Where there are no others, one statement writes the successes,
takes a turn, reads the best gates, counts, claims and closes: one round trip, one transaction. The successes are all written
before the turn is taken. So the slots that they free serve this claim, and nobody waits for a turn that is spent on writing
them.

As in `claim.py`, a worker that claims full batches continues behind the mark of its last claim in each lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from perdure.core.record import Record
from perdure.storage.contract import Claim, Want
from perdure.storage.rules import fast_path
from perdure.storage.rules.limits import limits_of

from ..claiming.claim import ROW_EACH, Marks, claimer, marked, wanted
from ..claiming.fast_exchange import GROUP_FROM
from ..connection.server import Connection, Statement, pipeline
from ..queries import load
from ..reading.records import COLUMNS, array, claimed_of, digest, numbers

LOOK = 128  # gates that are read together at most
BEST = 16  # gates that are read for a small claim
NOTICES = 1_000  # that are read together
TRY_AGAIN_AFTER = 1.0  # seconds after a claim that needed the general path
_SHARED = (
    "wanted",
    "can_run",
    "claimed_columns",
    "grouped_columns",
    "group_by",
    "row_each",
    "grouped_rows",
    "no_successes",
)
_FORMS = {"row_each": ROW_EACH, "grouped_rows": "{is_ordinary}"}


class LimitedAnswer(NamedTuple):
    """`claimed` is None where nothing was claimed: a gate needs the general path, a followed job ended (`followed`), or a
    job is due. `more`: jobs are left that may start. `accepted`: the successes that were accepted, None: all of them.
    `limited`: the queues of jobs that released a hold. `short`: gates that were not read may have more jobs."""

    claimed: list[Record] | None
    more: bool = False
    suspects: bool = False
    accepted: list[str] | None = None
    followed: bool = False
    limited: Sequence[str] = ()
    short: bool = False


class FastLimitedClaim:
    """The statements of one schema, and the marks of whoever claims through this store."""

    def __init__(self, schema: str, doubtful: list[str]) -> None:
        self._doubtful = doubtful
        claims = load("claim", schema, no_outlook="{no_outlook}", ordinary=ROW_EACH)
        parts = {name: claims[name] for name in _SHARED}
        parts["nothing"] = ", ".join(["NULL"] * len(COLUMNS))
        ends = {
            False: {"succeeding": "{no_successes}", "something_first": "{nothing_first}"},
            True: {"succeeding": load("apply", schema)["succeeding"]},
        }
        self._statements = {
            (reports, form): load(
                "limits", schema, **parts, **words, moved=_move_part(schema, ordinary), claimed_rows=f"{{{form}}}"
            )["fast_claim"]
            for reports, words in ends.items()
            for form, ordinary in _FORMS.items()
        }
        self._sql = load("limits", schema)
        self._marks = Marks()
        self._came = 0  # with the last claim
        self._not_before = 0.0

    def is_worth_trying(self, want: Want) -> bool:
        return fast_path.enabled() and not want.alone and monotonic() >= self._not_before

    async def try_fast_claim(
        self, connection: Connection, claim: Claim, want: Want, now: int | None
    ) -> LimitedAnswer | None:
        """Claim limited jobs. None: not tried."""
        return await self.try_fast_exchange(connection, {}, 0, claim, want, now)

    async def try_fast_exchange(
        self,
        connection: Connection,
        successes: Mapping[str, Any],
        reported: int,
        claim: Claim,
        want: Want,
        now: int | None,
    ) -> LimitedAnswer | None:
        """Report that so many jobs succeeded and claim limited ones. None: not tried."""
        if not self.is_worth_trying(want):
            return None
        marks = self._marks.of(want, monotonic())
        values = {
            **wanted(want),
            **claimer(claim, want.limit),
            **marked(marks),
            **bounds(now),
            "best": gates_for(want.limit),
        }
        first = self._statements[reported > 0, "row_each" if max(reported, self._came) < GROUP_FROM else "grouped_rows"]
        rows, row = await _run(connection, [(first, {**successes, **values, "reported": reported})])
        last = row
        if row.unparsed:
            again = (self._statements[False, "row_each"], {**values, "reported": 0})
            rows, last = await _run(connection, [*await self._parse_limits(connection, want), again])
        answer = LimitedAnswer(None, False, last.suspects, row.accepted, row.followed, row.released or ())
        if row.withheld:
            return answer
        if last.simple is False:
            self._not_before = monotonic() + (0.0 if last.unparsed else TRY_AGAIN_AFTER)
            return answer
        claimed = claimed_of(rows, self._doubtful)
        self._came = len(claimed)
        self._marks.note(want, claimed, last.took or 0.0, from_start=marks is None)
        missed = marks is not None and len(claimed) < want.limit and self._marks.of(want, monotonic()) is None
        short = bool(last.bounded) and len(claimed) < want.limit
        return answer._replace(claimed=claimed, more=missed or bool(last.more), short=short)

    async def _parse_limits(self, connection: Connection, want: Want) -> list[Statement]:
        """Parse the limits of the best gates that nobody has parsed yet; returns the statements that note it."""
        cursor = await connection.execute(self._sql["unparsed"], {**wanted(want), "look": LOOK})
        unparsed: dict[str, str] = dict(await cursor.fetchall())
        values = {
            "gates": array(unparsed),
            "mosts": numbers(_most(limits) for limits in unparsed.values()),
            "keys": array(_simple_key(limits) or "NULL" for limits in unparsed.values()),
        }
        return [(self._sql["turn"], {}), (self._sql["note_parsed"], values)]


class _LastRow(NamedTuple):
    """The last row of `fast_claim`. `unparsed`: there are gates whose limits nobody has parsed yet. `bounded`: there may be
    more gates."""

    simple: bool | None
    more: bool | None
    suspects: bool
    unparsed: bool
    bounded: bool | None
    took: float | None
    accepted: list[str] | None
    withheld: bool
    followed: bool
    released: list[str] | None


async def _run(connection: Connection, statements: Sequence[Statement]) -> tuple[Sequence[Sequence[Any]], _LastRow]:
    rows = await (await pipeline(connection, statements))[-1].fetchall()
    return rows, _LastRow(*rows.pop()[len(COLUMNS) : -1])


def _move_part(schema: str, ordinary: str) -> str:
    return load("claim", schema, slot="{slot_of_lane}", ordinary=ordinary)["moved"]


def gates_for(limit: int) -> int:
    """How many of the best gates to read for so many jobs."""
    return max(BEST, min(LOOK, 2 * limit))


def bounds(now: int | None) -> dict[str, Any]:
    return {"now": now, "most": NOTICES, "look": LOOK}


def _most(limits: str) -> int:
    """How many may start at once at best."""
    return min(most for limit in limits_of(limits) for most in (limit.most, limit.starts) if most is not None)


def _simple_key(limits: str) -> str | None:
    """The key of limits that are one number of jobs that run at once."""
    (first, *others) = limits_of(limits)
    return None if others or first.most is None or first.starts is not None else digest(first.key)


def is_as_read(limits: str, most: int | None, key: str | None) -> bool:
    """Whether this is what a gate with these limits has once they were read; or they were not read yet."""
    return (most, key) in ((None, None), (_most(limits), _simple_key(limits)))
