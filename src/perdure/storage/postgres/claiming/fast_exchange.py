"""Fast path: the successes of ended jobs and the claim of the next ones, in one statement.

This is what a busy worker sends most of the time: every change is an ordinary success, and no want asks for suspects. The
statement claims nothing where a job is due, because that has to be promoted first, or where a followed job ended, because
its followers come first. The caller then goes on with the general path.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

from perdure.core.record import Record
from perdure.storage.contract import Claim
from perdure.storage.rules import fast_path

from ..connection.server import Connection
from ..queries import load
from ..reading.records import COLUMNS, claimed_of
from .claim import LANES, ROW_EACH, Claims, claimer, lanes_from_start, marked, wanted

GROUP_FROM = 20  # jobs from which one row for ordinary jobs that are alike is quicker than a row each


class ExchangeAnswer(NamedTuple):
    """`accepted` are the successes that were accepted, None: all of them. `due`: a job is due, and nothing was claimed.
    `followed`: a job that others follow ended, and nothing was claimed. `limited`: the queues of limited jobs that ended."""

    claimed: list[Record]
    next_due: int | None
    suspects: bool
    accepted: list[str] | None
    followed: bool
    limited: list[str]

    @property
    def due(self) -> bool:
        return self.next_due is not None and self.next_due <= 0


class FastExchange:
    """The statements of one schema: with or without successes, for each kind of lanes and of picking jobs from them."""

    def __init__(self, schema: str, claims: Claims, doubtful: list[str]) -> None:
        self._claims = claims
        self._doubtful = doubtful
        parts = load("claim", schema, ordinary=ROW_EACH, line_lock="")
        successes = load("apply", schema)["succeeding"]
        forms = {
            "claim only": {"succeeding": parts["no_successes"], "claimed_rows": "{row_each}", "ordinary": ROW_EACH},
            "row each": {"succeeding": successes, "claimed_rows": "{row_each}", "ordinary": ROW_EACH},
            "grouped": {"succeeding": successes, "claimed_rows": "{grouped_rows}", "ordinary": "{is_ordinary}"},
        }
        nothing = ", ".join(["NULL"] * len(COLUMNS))
        self.statements = {
            (form, lanes, picking): load(
                "claim", schema, lanes=parts[lanes], picking=parts[picking], nothing=nothing, **words
            )["exchange"]
            for form, words in forms.items()
            for lanes in LANES
            for picking in ("picking_locked", "picking_merged")
        }

    async def try_fast_exchange(
        self, connection: Connection, successes: Mapping[str, Any], reported: int, claim: Claim, now: int | None
    ) -> ExchangeAnswer | None:
        """Report that so many jobs succeeded and claim for one want. None: fast paths are switched off."""
        if not fast_path.enabled():
            return None
        (want,) = claim.wants
        marks = self._claims.marks.of(want, monotonic())
        values = {
            **successes,
            "reported": reported,
            **wanted(want),
            **claimer(claim, want.limit),
            **marked(marks),
            "now": now,
        }
        lanes = lanes_from_start(want) if marks is None else "marked_lanes"
        picking = "picking_locked" if marks is not None and len(marks) == 1 else "picking_merged"
        # as many jobs as ended are likely to be claimed
        form = "claim only" if not reported else "row each" if reported < GROUP_FROM else "grouped"
        cursor = await connection.execute(self.statements[form, lanes, picking], values)
        rows = await cursor.fetchall()
        next_due, suspects, took, passed_over, accepted, followed, limited = rows.pop()[len(COLUMNS) :]
        answer = ExchangeAnswer(claimed_of(rows, self._doubtful), next_due, suspects, accepted, followed, limited or [])
        found, withheld = answer.claimed, followed or answer.due
        if passed_over and len(found) < want.limit and not withheld:
            found += await self._claims.claim_passed_over(connection, claim, want, want.limit - len(found), now)
        self._claims.marks.note(want, found, took, from_start=marks is None)
        if marks is not None and not withheld:
            found += await self._claims.claim_before_marks(connection, claim, want, want.limit - len(found), now)
        return answer
