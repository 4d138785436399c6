"""What every store promises.

The rules of a job's life are in `lifecycle`; a store applies them. It looks at nothing but the guard of a change,
its own clock, the unique keys, the depth of bounded queues, the edges between jobs and, for a claim, limits and the order:
**priority descending, then rank, then id**. The memory store is the specification: where these words leave a question
open, it answers.

Promises that hold for every verb:

- **Whole or not at all.** Each call is one transaction, up to `chunk` jobs or changes; a longer list is the caller's to
  cut. A cancelled or failed call leaves nothing half done.
- **Lists in, lists out.** Answers stand in the order of the questions.
- **The store's clock decides.** Durations come in, instants go out, both in microseconds.
- **Durable when it returns**, in the sense of the store's durability class.
- **Safe to repeat.** After a broken connection the caller repeats: an enqueue of a known id stores nothing twice, an
  applied change answers "repeated", a claim is asked for by `recover_claim`.
- **Nobody waits for a signal.** `signal` and `listen` only shorten sleeps; they may lose and invent wake-ups.
- **Texts come back bit by bit**: payload, result, progress, errors, tags, meta.
- **One unreadable row stops nothing else.** A row may hold what no version of Perdure writes. Verbs that change jobs
  (exchange, lapsed, expired, recover_claim, resolve_edges, promote, prune) set such a row aside in the same call, or at
  once after it, and go on with the others; they never hand it out, and what they hand out is as it was stored. Verbs that
  only read (get, find, export) leave the row as it is and mark it: what cannot be read has a neutral value and is named in
  the reason, the state stays. `rules.unreadable.mend` and `rules.unreadable.mark` say what these records are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from ..core.lifecycle import Change
from ..core.record import Hold, NewJob, Record
from ..errors import StoreError
from .database_identity import DatabaseIdentity
from .types import (
    ACCEPTED,
    LOSS_OF,
    REFUSED,
    REPEATED,
    CallerSession,
    CallerStatements,
    Claim,
    Durability,
    EnqueueResult,
    ExchangeResult,
    Filter,
    Finding,
    JobDump,
    KeptKey,
    KvEntry,
    KvWrite,
    MissingParent,
    Note,
    QueueAtCapacity,
    QueueCapacity,
    QueueRow,
    QueueSettings,
    Refusal,
    Started,
    Topic,
    Unreadable,
    Verdict,
    Want,
    WorkerRow,
    bound_of,
)

__all__ = [
    "ACCEPTED",
    "CHUNK",
    "ENDED_BY_HANDLER",
    "LOG_LINES",
    "LOSS_OF",
    "PARENT_CANCELLED",
    "REFUSED",
    "REPEATED",
    "CallerSession",
    "CallerStatements",
    "Claim",
    "Durability",
    "EnqueueResult",
    "ExchangeResult",
    "Filter",
    "Finding",
    "JobDump",
    "KeptKey",
    "KvEntry",
    "KvWrite",
    "MissingParent",
    "Note",
    "QueueAtCapacity",
    "QueueCapacity",
    "QueueRow",
    "QueueSettings",
    "Refusal",
    "Started",
    "Storage",
    "StoreTransaction",
    "Topic",
    "Unreadable",
    "Verdict",
    "Want",
    "WorkerRow",
    "bound_of",
    "refuse_two_changes_of_one_job",
]

CHUNK = 500
LOG_LINES = 100
PARENT_CANCELLED = "a job that it waits for was cancelled"
ENDED_BY_HANDLER = (
    "this transaction was ended by the handler itself; Perdure commits it together with the job's completion, so leave "
    "out COMMIT and ROLLBACK, and what commits by itself (executescript of sqlite3)"
)


class Storage(ABC):
    """One store, as one event loop uses it. See the module for what holds for every verb."""

    name: str  # the word for it in messages: "SQLite", "memory" …
    place: str = ""  # what `StoreUnavailable.place` says when this very store is in trouble
    chunk: int = CHUNK
    exchanges_in_flight: int = 1  # exchanges that a worker may have under way at once
    bulk_chunk: int = CHUNK  # jobs with short payloads of one long list, at most, that are best given to one enqueue
    # enqueues of one list that may be under way at once; their jobs are claimed in the order of their calls
    bulk_in_flight: int = 1
    # seconds that a loop gives the store to begin with such an enqueue, before it makes the next one: a thread of the store
    # needs the interpreter for that, an answer of its server needs the loop
    bulk_yield_seconds: float = 0.0
    # seconds without an answer after which a worker gives a question up and asks on another connection; a slow store is
    # given longer. Infinite where that would mend nothing.
    answer_timeout: float = float("inf")
    # seconds after which every verb has answered or raised, however many callers wait for a store that is down or busy
    gives_up_after: float = 60.0

    # -- life ----------------------------------------------------------------------------------------
    @abstractmethod
    async def open(self) -> None:
        """Connect, check the schema (migrating it when the settings say so) and the durability. Opening twice is harmless.
        StoreError says what is wrong and what to do."""

    async def reconnect(self) -> None:
        """Give up all connections to the server and what runs on them, and reach it over new ones. StoreError: it cannot be
        reached. Who waits for an answer gets an error or goes on over the new ones. A store without connections only shows
        that it answers."""
        await self.now()

    @abstractmethod
    async def close(self) -> None:
        """Free connections and threads. Calls under way are finished first."""

    @abstractmethod
    async def durability(self) -> Durability:
        """Read from the server's or file's real settings."""

    @abstractmethod
    async def now(self) -> int:
        """The store's clock."""

    # -- enqueue -------------------------------------------------------------------------------------
    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store new jobs, all or none. `QueueAtCapacity`: a bounded queue has no room for one that may not be dropped.

        run_at = `at`, or now + `delay`; state blocked if it waits for parents, else scheduled if run_at > now, else ready;
        rank = run_at. A unique key that is taken makes the job a duplicate of its owner: nothing is stored for it, and
        two of one key in one list are duplicates too. An id that is on record already (hidden rows too) is this very
        job, enqueued again by a caller who did not hear the answer: it is left as it is and is no duplicate.
        Jobs of one kind may come as `Alike`, which makes them when they are asked for: a store that writes by kind need not.
        The jobs are looked at one by one in list order: known id, then key, then room, so that only a job that would be
        stored can be dropped or find the queue full, and a dropped one takes no key.

        Keys: "waiting" and "active" belong to the row while it `holds_key`; "any" and "window" are kept apart from the
        rows, outlive them, and belong to the job that took them first ("window": until now + window has passed).
        The two kinds never meet: one namespace for waiting and active, another for any and window. A job that meets its
        own kept key (its row was pruned) is not stored again and is no duplicate.

        In a fair queue the rank is a share, as `fairness` says, whatever the state; suspects and parked jobs are no heads.
        A job with `after` is blocked, and there is an edge from each parent to it. A parent that is neither on record nor in
        the list, or is hidden and was not done (see `rules.records.is_gone`): `MissingParent`. The edges are resolved at
        once.
        """

    @abstractmethod
    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        """The same enqueue as statements for the caller's own transaction. Stores without SQL raise StoreError.

        There, parents are not looked at, and a job of a fair queue gets no share yet: such jobs are stored as blocked, and
        `resolve_edges` places them afterwards, in a transaction of our own; one whose parent is not on record it cancels."""

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        """The database that a caller's connection must lead to before it may run an insertion. `fresh`: looked at anew,
        since the server may have been restarted."""
        raise StoreError(f"the {self.name} store has no transaction that a connection could join")

    def caller_session(self, jobs: Sequence[NewJob]) -> CallerSession:
        """The same enqueue for a session of the store's own driver that is in a transaction of the caller's, on stores whose
        driver has such sessions."""
        raise StoreError(f"connection= is a session of MongoDB, the app's store is {self.name}")

    # -- claim, renew, apply -------------------------------------------------------------------------
    @abstractmethod
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        """Apply the changes, note the started, then claim: one transaction.

        Apply, as if in list order: each change whose guard holds is written as `Change` says; the others are refused
        one by one and hurt nobody. A holder's change that was accepted before (its stamp is the row's `accepted_stamp`) is
        "repeated". Two changes of one job in a call are a mistake: ValueError, before anything is written. Refusals to
        a holder: no row → NOT_FOUND; a later attempt, or dead without a word of this holder → TAKEN; a hidden row →
        NOT_FOUND; cancelled → CANCELLED; another final state → COMPLETED; anything else → TAKEN. To anybody else: no
        row → NOT_FOUND, otherwise STALE, or KEY_TAKEN. A followed job that ends has its edges resolved at once, up to
        `chunk` of them; `unresolved` tells of more.

        Claim: first, scheduled jobs whose time has come become ready (at least `chunk` of them, the earliest first;
        their version rises). Then, for each want in turn, up to `limit` jobs that are ready, not parked (only parked
        ones that may start now, for `limited`), not suspect (only suspect ones, for `alone`), not expired, of a queue
        that is not paused, of a wanted task and routing key, with a min_version that we know, best first over all
        wanted queues and tasks. Each becomes running: attempt + 1, the claim's stamp, leased_by, leased_until = now +
        its lease, started_at cleared, version + 1; a "waiting" key is freed. Answered in claim order. Jobs that cannot
        run cost the claim nothing. Who may start is said in `rules.limits`, and is exact however many claim at once; where
        very many gates wait for one key, the best 64 of them may be looked at in turns. A hold of a limited job that is
        given up signals its queue.

        A job is expired when expires_at ≤ now and it has not started (started_at is None): a started one may be retried.
        Started: started_at is written for holds that stand; the version stays.
        """

    @abstractmethod
    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        """Prolong leases to now + the job's lease, or to now + `lease`, for holds that still stand, even when the lease is
        over but nobody has reaped it. If `lease` is longer than the job's own, it becomes the job's own, for later attempts
        too. Refusals as in `exchange`. The version stays."""

    @abstractmethod
    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        """Whether these holds stand: what `renew` would answer. Reads, and writes nothing."""

    @abstractmethod
    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        """What this worker holds under this stamp: the answer to a claim whose answer was lost. Running jobs only, in the
        order of a claim."""

    @abstractmethod
    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        """Write progress and append log lines (the last 100 are kept) for holds that stand. The version stays."""

    # -- edges ---------------------------------------------------------------------------------------
    @abstractmethod
    async def resolve_edges(self, limit: int) -> int:
        """Look at up to `limit` edges whose parent is new to them or has ended, each once and for ever in one atomic
        step with what follows; those that are there at once as if by the parents' ids. Gives how many were looked at; 0:
        there is nothing to resolve. By the parent's state:

        - not ended: the edge stays; the parent is marked `followed`, its version stays;
        - it has a next_id: the edge leads from that job from now on, and is looked at again;
        - succeeded or skipped; and any ended one if the child's run_when is "finished": the edge is closed, the child's
          `waits` falls by one, and at 0 it is scheduled if its run_at is to come and lies behind created_at, else
          ready and due now: run_at = now, and
          rank too unless it is a share (version + 1);
        - cancelled, or not on record: the child is cancelled as by `decide(child, Cancelled(PARENT_CANCELLED))`, its
          `waits` is 0, and its other edges are closed;
        - dead: the edge stays, until the parent ends otherwise; a hidden one, which nobody can retry, is as if cancelled.

        A child that is not blocked any more only has its edge closed. A closed edge stays on record until its child has
        ended: it keeps the parent from being pruned."""

    @abstractmethod
    async def followers(self, ids: Sequence[str]) -> list[list[str]]:
        """For each of these jobs, the jobs that still wait for it (open edges), by id."""

    # -- kv entries ----------------------------------------------------------------------------------
    @abstractmethod
    async def kv_read(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        job: str | None = None,
        due: bool = False,
        limit: int = CHUNK,
    ) -> list[KvEntry]:
        """Texts of a kind, by name: those with one of these names, those of a job, or the first `limit` of all. With `due`:
        those whose due_at has come, the earliest first (due_at, then name)."""

    @abstractmethod
    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        """Write kv entries, as if in list order. A write whose guards hold is stored together with its jobs; the others
        store nothing. The answer says which were stored. `QueueAtCapacity` and `MissingParent` as in `enqueue`: nothing of
        the call is written."""

    # -- upkeep --------------------------------------------------------------------------------------
    @abstractmethod
    async def promote(self, limit: int) -> int:
        """Make scheduled jobs ready whose time has come, the earliest first (run_at, then id). Gives how many."""

    @abstractmethod
    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        """Jobs whose lease is over, the longest over first, hidden and ended ones with a hold included. Only those of
        which a third of the lease is at most `contact`: how long the caller has reached the store without a gap.

        Leases that reach further than now + lease (the clock went back) are cut to that first; the version stays."""

    @abstractmethod
    async def next_lapse(self) -> int | None:
        """How many microseconds it takes at least until a lease is over, by the ends of leases on record. 0 or less: one may
        be over now. None: nothing is held. Reads, and writes nothing."""

    @abstractmethod
    async def expired(self, limit: int) -> list[Record]:
        """Waiting jobs that were not started within their `expires`, the longest over first."""

    @abstractmethod
    async def prune(self, limit: int) -> int:
        """Take away ended jobs past their prune_at, those beyond the newest `keep_last` of their task (dead ones counted
        apart from the others), and window keys that are over. Never one that still carries a hold, nor one with an edge
        whose child has not ended. Newest by finished_at, then id, among the visible ended jobs of the task.

        One that is hidden, or that ended `HIDDEN_FOR` ago or longer, is removed. Any other is hidden until then, so that
        an enqueue or a word that is repeated finds it: prune_at = finished_at + HIDDEN_FOR, no keep_last, version + 1.

        Gives how many jobs were hidden or removed. A store that drops its history in pieces may keep jobs that were to be
        kept for a day or more for a day longer, and drop more than `limit` of them at once."""

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        """Read `limit` stored rows, or a few times as many, going on where the last call ended and beginning again after the
        last row. Set aside those that cannot be read, as `rules.unreadable.mend` says. A job that runs under a lease that is
        not over is left to its holder. What is not a job is put right where it can be made again (counters, gates), else set
        aside alone: queue settings become the defaults, any other row is removed. Gives how many rows were set aside or put
        right. A store that can look through many more rows at little cost, for those that no search of another verb finds,
        does so in every call.

        A blocked job that waits for another number of jobs than it has open edges, or that has none, has lost edges: those
        of all jobs that it names in `after` are made again, and `resolve_edges` looks at them. `resolve_edges` also looks at
        the parents of open edges that are not marked as followed, that are not on record, or that have ended and were not
        looked at.

        For what no other verb meets: it finds rows that are in no index because their state is not one of ours."""
        return 0

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        """What was set aside, the oldest first: of these jobs, or the first `limit` of all. It is kept until its job is
        removed; that of a row without a job is kept until somebody removes it."""
        return []

    # -- reading and settings ------------------------------------------------------------------------
    @abstractmethod
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        """Jobs by id, hidden ones included (`hidden` tells)."""

    @abstractmethod
    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        """Visible jobs, newest first (created_at, then id, descending), and a cursor for what follows, None at the end.
        A cursor stays good while jobs come and go. A malformed one: InvalidCall."""

    @abstractmethod
    async def count(self, filter: Filter) -> int:
        """How many visible jobs fit."""

    @abstractmethod
    async def log(self, id: str) -> list[str]:
        """The job's log lines, oldest first."""

    @abstractmethod
    async def queues(self) -> list[QueueRow]:
        """Every queue that has settings or waiting jobs, by name."""

    async def queue_capacities(self) -> dict[str, QueueCapacity]:
        """How many more jobs each bounded queue takes; no other queue is counted, if the store can help it."""
        rows = [(row.settings, row.depth) for row in await self.queues()]
        return {
            queue.name: QueueCapacity(bound_of(queue), queue.max_depth - depth)
            for queue, depth in rows
            if queue.max_depth is not None
        }

    @abstractmethod
    async def configure(self, settings: QueueSettings) -> None:
        """Write a queue's settings. `paused` is written by `pause` alone and stays."""

    @abstractmethod
    async def pause(self, queue: str, paused: bool) -> None:
        """Jobs of a paused queue are not claimed; those running go on. Resuming signals the queue."""

    @abstractmethod
    async def heartbeat(self, worker: WorkerRow) -> None:
        """Note a worker's sign of life; `seen_at` is the store's clock."""

    @abstractmethod
    async def remove_worker(self, worker: str) -> None:
        """A worker has stopped: forget it."""

    @abstractmethod
    async def workers(self, seen_within: int) -> list[WorkerRow]:
        """Workers seen within this time, by id; older ones are forgotten."""

    # -- transfer ------------------------------------------------------------------------------------
    @abstractmethod
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        """Whole jobs with their logs, hidden ones too, in the order of (created_at, id): the first `limit` that come after
        this position, None for the first of all. Fewer mean the end. Reads, and writes nothing."""

    @abstractmethod
    async def restore(self, jobs: Sequence[JobDump]) -> None:
        """Put jobs on record exactly as they are: every field, the log, the keys of scope waiting and active that they
        hold. What is on record under their ids is replaced, so that saying it again changes nothing; the edges that
        lead to them are those of `waits_for`, and are not resolved (a parent may come later; those that are there are
        marked by their own record), and closed ones lead to those of `kept_for`, who may come later too. Neither the
        bounds of queues nor the clock are looked at. StoreError, and nothing written, when another job holds one of the
        keys."""

    @abstractmethod
    async def export_kv(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        """All kv entries in the order of (kind, name), in pages as `export`."""

    @abstractmethod
    async def restore_kv(self, rows: Sequence[KvEntry]) -> None:
        """Store entries exactly as they are. They replace what is stored under their kinds and names."""

    @abstractmethod
    async def export_keys(self, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
        """Keys of scope any and window, about `limit` of them in the store's own order, and a cursor for what follows, None
        at the end. Those whose window is over may be among them. One that stays is told of at least once."""

    @abstractmethod
    async def restore_keys(self, keys: Sequence[KeptKey]) -> None:
        """Put kept keys on record exactly as they are, in place of what was known of them."""

    # -- signals -------------------------------------------------------------------------------------
    @abstractmethod
    async def signal(self, queues: Sequence[str]) -> None:
        """Wake listeners of these queues, in this process and others. Never raises. The store does this by itself after
        an enqueue or a change that makes jobs ready or scheduled: who sleeps must learn when the next job is due."""

    @abstractmethod
    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        """Call `wake` in this loop's thread when something became ready or scheduled ("ready"; of these queues, None:
        any), or when some job ended or told progress ("changed"). Gives the function that stops it."""

    # -- the handler's own transaction ---------------------------------------------------------------
    @abstractmethod
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        """A transaction for a handler, undone after `longest` microseconds. Stores that have none raise StoreError."""

    async def begin_for(self, hold: Hold, longest: int) -> StoreTransaction:
        """The same for the handler of a held job. A store may keep others from moving that job meanwhile, if their moves
        would undo the transaction."""
        return await self.begin_transaction(longest)

    # -- a process that dies -------------------------------------------------------------------------
    def open_transactions(self) -> frozenset[str]:
        """What the server would keep open, and others would wait for, if this process died now: names for
        `abort_transactions`. Most servers notice by themselves."""
        return frozenset()

    async def abort_transactions(self, left: Collection[str]) -> None:
        """Undo what a process that is dead has left open."""
        return

    # -- the doctor ----------------------------------------------------------------------------------
    async def diagnose(self) -> list[Finding]:
        """What is worth knowing beyond durability and clock. Most stores have nothing to add."""
        return []

    # -- short forms ---------------------------------------------------------------------------------
    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Apply changes and claim nothing."""
        return list((await self.exchange(changes)).verdicts)

    async def claim(self, claim: Claim) -> list[Record]:
        """Claim and apply nothing."""
        return list((await self.exchange((), claim)).claimed)


class StoreTransaction(ABC):
    """A handler's transaction: its rows and the job's completion are committed together or not at all. When the handler
    has ended it by a statement of its own, every verb but `rollback` raises StoreError(ENDED_BY_HANDLER)."""

    connection: Any  # the driver's own object
    exclusive: bool = False  # it holds the store's only write lock: any other verb would wait for this one

    @abstractmethod
    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement inside; gives its rows."""

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Put jobs on record inside; they exist when it commits."""

    @abstractmethod
    async def complete(self, change: Change) -> Verdict:
        """Apply the change as the last statement and commit; anything but "accepted" rolls back."""

    @abstractmethod
    async def rollback(self) -> None:
        """Undo everything. Harmless when it is over."""

    async def is_lost(self, error: BaseException) -> bool:
        """Whether an error that the handler got from `connection` came of a store that is out of reach."""
        return False


_id: Callable[[Change], str] = attrgetter("id")


def refuse_two_changes_of_one_job(changes: Sequence[Change]) -> None:
    """The contract's own check: at most one change of a job in a call."""
    if len(changes) > 1 and len({*map(_id, changes)}) != len(changes):
        raise ValueError("two changes of one job in one call")
