"""What every store promises.

The rules of a job's life are in `lifecycle`; a store applies them. It reads nothing but the guard of a change, its own
clock, the unique keys, the depth of bounded queues, the edges between jobs and, for a claim, limits and the order:
**priority descending, then rank, then id**. The memory store is the specification: it answers every question that this
text leaves open.

Promises that hold for every verb:

- **Whole or not at all.** Each call is one transaction, up to `chunk` jobs or changes; the caller splits a longer list. A
  cancelled or failed call leaves nothing half done.
- **Lists in, lists out.** Results have the order of the arguments.
- **The store's clock decides.** Durations come in, instants go out, both in microseconds.
- **Durable when it returns**, in the sense of the store's durability class.
- **Safe to repeat.** After a broken connection the caller repeats: an enqueue of a known id stores nothing twice, an
  applied change answers "repeated", a claim is asked for by `recover_claim`.
- **Nobody waits for a signal.** `signal` and `listen` only shorten sleeps; they may lose and invent wake-ups.
- **Texts come back bit by bit as they were stored**: payload, result, progress, errors, tags, meta.
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

    name: str  # its name in messages: "SQLite", "memory" …
    place: str = ""  # the value of `StoreUnavailable.place` when this very store is in trouble
    chunk: int = CHUNK
    exchanges_in_flight: int = 1  # exchanges that a worker may have under way at once
    bulk_chunk: int = CHUNK  # the most jobs with short payloads that one enqueue of a long list should have
    # enqueues of one list that may be under way at once; their jobs are claimed in the order of their calls
    bulk_in_flight: int = 1
    # seconds that the client sleeps after it started such an enqueue, before it builds the next one: a thread of the store
    # needs the interpreter meanwhile, or the answer of its server needs the event loop
    bulk_yield_seconds: float = 0.0
    # seconds without an answer after which a worker asks again on another connection; a slow store gets more. Infinite
    # where another connection would not help.
    answer_timeout: float = float("inf")
    # seconds after which every verb has returned or raised, however many callers wait for a store that is down or busy
    gives_up_after: float = 60.0

    # -- life ----------------------------------------------------------------------------------------
    @abstractmethod
    async def open(self) -> None:
        """Connect, check the schema (and migrate it if the settings say so) and the durability. Opening twice is harmless.
        StoreError says what is wrong and what to do."""

    async def reconnect(self) -> None:
        """Close all connections to the server with what runs on them, and open new ones. StoreError: the server cannot be
        reached. A caller that waits for an answer gets an error, or its call goes on over a new connection. A store without
        connections only checks that it answers."""
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
        """Store new jobs, all or none. `QueueAtCapacity`: a bounded queue has no room for a job that may not be dropped.

        run_at = `at`, or now + `delay`; state blocked if it waits for parents, else scheduled if run_at > now, else ready;
        rank = run_at. A unique key that is taken makes the job a duplicate of its owner: nothing is stored for it, and
        two of one key in one list are duplicates too. An id that is stored already (also in a hidden row) is this very job,
        enqueued again by a caller who did not get the answer: it stays as it is and is no duplicate. Jobs that differ only
        in id and payload may come as `UniformJobs`, which builds them when they are read. The store checks the jobs one by
        one in list order: known id, then key, then room. So only a job that would be stored can be dropped or find the queue
        full, and a dropped job takes no key.

        Keys: "waiting" and "active" belong to the row while it `holds_key`; "any" and "window" are kept apart from the rows,
        outlive them, and belong to the job that took them first ("window": until now + window has passed). The two kinds
        have different namespaces: one for waiting and active, one for any and window. A job that finds its own kept key (its
        row was pruned) is not stored again and is no duplicate.

        In a fair queue the rank is a share, as `rules.fairness` says, whatever the state; suspects and parked jobs are no
        heads. A job with `after` is blocked, with an edge from each parent. `MissingParent`: a parent is neither stored nor
        in the list, or is hidden and had not succeeded (see `rules.records.is_gone`). The edges are resolved at once.
        """

    @abstractmethod
    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        """The same enqueue as statements for the caller's own transaction. Stores without SQL raise StoreError.

        These statements do not check parents, and give a job of a fair queue no share yet: such jobs are stored as blocked.
        `resolve_edges` releases them afterwards, in a transaction of the store, and cancels one whose parent is missing."""

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        """The database that a caller's connection must lead to before it may run the statements. `fresh`: ask the server
        again, because it may have been restarted."""
        raise StoreError(f"the {self.name} store has no transaction that a connection could join")

    def caller_session(self, jobs: Sequence[NewJob]) -> CallerSession:
        """The same enqueue for a session of the store's own driver that is in a transaction of the caller, on stores whose
        driver has such sessions."""
        raise StoreError(f"connection= is a session of MongoDB, the app's store is {self.name}")

    # -- claim, renew, apply -------------------------------------------------------------------------
    @abstractmethod
    async def exchange(
        self, changes: Sequence[Change], claim: Claim | None = None, started: Sequence[Started] = ()
    ) -> ExchangeResult:
        """Apply the changes, note the starts, then claim: one transaction.

        Apply, as if in list order: each change whose guard holds is written as `Change` says; the others are refused one
        by one and affect no other. A holder's change that was accepted before (its stamp is the row's `accepted_stamp`) is
        "repeated". Two changes of one job in a call are a mistake: ValueError, before anything is written. Refusals to a
        holder: no row → NOT_FOUND; a later attempt, or dead without a report of this holder → TAKEN; a hidden row →
        NOT_FOUND; cancelled → CANCELLED; another final state → COMPLETED; anything else → TAKEN. To anybody else: no row →
        NOT_FOUND, otherwise STALE, or KEY_TAKEN. A followed job that ends has its edges resolved at once, up to `chunk` of
        them; `unresolved` says that there are more.

        Claim: first, scheduled jobs whose time has come become ready (at least `chunk` of them, the earliest first;
        their version rises). Then, for each want in turn, up to `limit` jobs that are ready, not parked (only parked
        ones that may start now, for `limited`), not suspect (only suspect ones, for `alone`), not expired, of a queue
        that is not paused, of a wanted task and routing key, with a min_version that we know, best first over all
        wanted queues and tasks. Each becomes running: attempt + 1, the claim's stamp, leased_by, leased_until = now +
        its lease, started_at cleared, version + 1; a "waiting" key is freed. Answered in claim order. Jobs that cannot
        run cost the claim nothing. `rules.limits` says which limited jobs may start, exactly, however many claim at once;
        where very many gates wait for one key, a store may look at the best 64 of them in turns. When a limited job gives
        up its hold, its queue is signalled.

        A job is expired when expires_at ≤ now and it has not started (started_at is None): a started one may be retried.
        Started: started_at is written for valid holds; the version stays.
        """

    @abstractmethod
    async def renew(
        self, holds: Sequence[Hold], started: Sequence[Started] = (), *, lease: int | None = None
    ) -> list[Verdict]:
        """Prolong leases to now + the job's lease, or to now + `lease`, for holds that are still valid, even when the
        lease has lapsed but nobody has reaped the job. If `lease` is longer than the job's own, it becomes the job's own,
        for later attempts too. Refusals as in `exchange`. The version stays."""

    @abstractmethod
    async def check(self, holds: Sequence[Hold]) -> list[Verdict]:
        """Whether these holds are valid: what `renew` would answer. Reads, and writes nothing."""

    @abstractmethod
    async def recover_claim(self, worker: str, stamp: int) -> list[Record]:
        """The running jobs that this worker holds under this stamp, in claim order: for a claim whose answer was lost."""

    @abstractmethod
    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        """Write progress and append log lines (the last 100 are kept) for valid holds. The version stays."""

    # -- edges ---------------------------------------------------------------------------------------
    @abstractmethod
    async def resolve_edges(self, limit: int) -> int:
        """Resolve up to `limit` edges that are new or whose parent has ended, each in one atomic step with what follows; in
        the order of the parents' ids. Returns how many it checked; 0: there is nothing to resolve. By the parent's state:

        - not ended: the edge stays; the parent is marked `followed`, its version stays;
        - it has a next_id: the edge leads from that job from now on, and is resolved again;
        - succeeded or skipped; and any ended one if the child's run_when is "finished": the edge is closed, the child's
          `waits` falls by one. At 0 the child is scheduled if its run_at is in the future and after created_at, else ready
          and due now: run_at = now, and rank too unless it is a share (version + 1);
        - cancelled, or not stored: the child is cancelled as by `decide(child, Cancelled(PARENT_CANCELLED))`, its
          `waits` is 0, and its other edges are closed;
        - dead: the edge stays until the parent ends otherwise; a hidden parent, which nobody can retry, counts as cancelled.

        If the child is no longer blocked, its edge is only closed. A closed edge is kept until its child has ended, and the
        parent is not pruned before."""

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
        """Entries of a kind, by name: those with one of these names, those of a job, or the first `limit` of all. With
        `due`: those whose due_at has passed, the earliest first (due_at, then name)."""

    @abstractmethod
    async def kv_write(self, writes: Sequence[KvWrite]) -> list[bool]:
        """Write kv entries, as if in list order. A write whose guards hold is stored together with its jobs; the others
        store nothing. The answer says which were stored. `QueueAtCapacity` and `MissingParent` as in `enqueue`: nothing of
        the call is written."""

    # -- upkeep --------------------------------------------------------------------------------------
    @abstractmethod
    async def promote(self, limit: int) -> int:
        """Make scheduled jobs ready that are due, the earliest first (run_at, then id). Returns how many."""

    @abstractmethod
    async def lapsed(self, limit: int, contact: int) -> list[Record]:
        """Jobs whose lease has lapsed, the earliest first, including hidden and ended jobs with a hold. Only jobs whose
        lease is at most three times `contact`: the time for which the caller has reached the store without a gap.

        Leases that end after now + lease (the clock went back) are cut to that first; the version stays."""

    @abstractmethod
    async def next_lapse(self) -> int | None:
        """Microseconds until the first stored lease lapses, at least. 0 or less: one may have lapsed. None: nothing is held.
        Reads, and writes nothing."""

    @abstractmethod
    async def expired(self, limit: int) -> list[Record]:
        """Waiting jobs that were not started within their `expires`, the earliest first."""

    @abstractmethod
    async def prune(self, limit: int) -> int:
        """Prune ended jobs past their prune_at, those beyond the newest `keep_last` of their task (dead ones are counted
        apart from the others), and window keys that have ended. A job that still has a hold, or an edge to a child that has
        not ended, is never pruned. Newest: by finished_at, then id, among the visible ended jobs of the task.

        A job that is hidden, or ended at least `HIDDEN_FOR` ago, is removed. Any other is hidden until then, so that a
        repeated enqueue or report finds it: prune_at = finished_at + HIDDEN_FOR, no keep_last, version + 1.

        Returns how many jobs were hidden or removed. A store that drops its history in pieces may keep jobs with a retention
        of a day or more for a day longer, and drop more than `limit` of them at once."""

    # -- rows that cannot be read --------------------------------------------------------------------
    async def inspect(self, limit: int) -> int:
        """Read `limit` stored rows, or a few times as many, from where the last call ended, and from the first row after the
        last. Set aside those that cannot be read, as `rules.unreadable.mend` says. A job that runs under a valid lease is
        left to its holder. A row that is not a job is put right where it can be built again (counters, gates), else it is
        set aside: queue settings become the defaults, any other row is removed. Returns how many rows were set aside or put
        right. A store that can check many more rows at little cost does so in every call.

        A blocked job whose `waits` differs from the number of its open edges, or that has none, has lost edges: the edges
        from all jobs in its `after` are made again, and `resolve_edges` resolves them. `resolve_edges` then also resolves
        open edges whose parent is not marked as followed, is not stored, or has ended.

        It also finds rows that are in no index, because their state is none that Perdure knows."""
        return 0

    async def unreadable(self, ids: Sequence[str] | None = None, limit: int = CHUNK) -> list[Unreadable]:
        """The rows that were set aside, the oldest first: of these jobs, or the first `limit` of all. Each is kept until its
        job is removed; one without a job is kept until somebody removes it."""
        return []

    # -- reading and settings ------------------------------------------------------------------------
    @abstractmethod
    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        """Jobs by id, including hidden ones."""

    @abstractmethod
    async def find(self, filter: Filter, limit: int, cursor: str | None) -> tuple[list[Record], str | None]:
        """Visible jobs, newest first (created_at, then id, descending), and a cursor for the next page, None at the end. A
        cursor stays valid while jobs come and go. InvalidCall: it is malformed."""

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
        """How many more jobs each bounded queue takes. A store counts no other queue if it can."""
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
        """Pause or resume a queue. Jobs of a paused queue are not claimed; running ones go on. Resuming signals the
        queue."""

    @abstractmethod
    async def heartbeat(self, worker: WorkerRow) -> None:
        """Store a worker's heartbeat; `seen_at` is set by the store's clock."""

    @abstractmethod
    async def remove_worker(self, worker: str) -> None:
        """Remove a worker that has stopped."""

    @abstractmethod
    async def workers(self, seen_within: int) -> list[WorkerRow]:
        """Workers seen within this time, by id; older ones are removed."""

    # -- transfer ------------------------------------------------------------------------------------
    @abstractmethod
    async def export(self, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
        """Whole jobs with their logs, hidden ones too, in the order of (created_at, id): the first `limit` that come after
        this position, None for the first of all. Fewer mean the end. Reads, and writes nothing."""

    @abstractmethod
    async def restore(self, jobs: Sequence[JobDump]) -> None:
        """Store jobs exactly as they are: every field, the log, the keys of scope waiting and active that they hold. They
        replace what is stored under their ids, so repeating the call changes nothing. The edges that lead to them are those
        of `waits_for`, and are not resolved, because a parent may come later. Closed edges lead to the jobs of `kept_for`,
        which may come later too. Neither the bounds of queues nor the clock are checked. StoreError, and nothing is
        written: another job holds one of the keys."""

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
        """Call `wake` in this loop's thread when a job became ready or scheduled ("ready"; of these queues, None:
        any), or when a job ended or reported progress ("changed"). Returns the function that stops it."""

    # -- the handler's own transaction ---------------------------------------------------------------
    @abstractmethod
    async def begin_transaction(self, longest: int) -> StoreTransaction:
        """A transaction for a handler, rolled back after `longest` microseconds. Stores without transactions raise
        StoreError."""

    async def begin_for(self, hold: Hold, longest: int) -> StoreTransaction:
        """The same for the handler of a held job. A store may keep others from changing that job meanwhile, if their changes
        would roll back the transaction."""
        return await self.begin_transaction(longest)

    # -- a process that dies -------------------------------------------------------------------------
    def open_transactions(self) -> frozenset[str]:
        """Names for `abort_transactions` of what the server would keep open, and others would wait for, if this process died
        now. Most servers notice a dead client themselves."""
        return frozenset()

    async def abort_transactions(self, left: Collection[str]) -> None:
        """Roll back what a dead process has left open."""
        return

    # -- the doctor ----------------------------------------------------------------------------------
    async def diagnose(self) -> list[Finding]:
        """Findings for `perdure doctor`, beyond durability and clock. Most stores have none."""
        return []

    # -- short forms ---------------------------------------------------------------------------------
    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Apply changes and claim nothing."""
        return list((await self.exchange(changes)).verdicts)

    async def claim(self, claim: Claim) -> list[Record]:
        """Claim and apply nothing."""
        return list((await self.exchange((), claim)).claimed)


class StoreTransaction(ABC):
    """A handler's transaction: its rows and the job's completion are committed together or not at all. After the handler
    has ended it by a statement of its own, every verb but `rollback` raises StoreError(ENDED_BY_HANDLER)."""

    connection: Any  # the driver's own object
    exclusive: bool = False  # it holds the store's only write lock: any other verb would wait for this one

    @abstractmethod
    async def execute(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement inside and return its rows."""

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Enqueue jobs inside; they exist when it commits."""

    @abstractmethod
    async def complete(self, change: Change) -> Verdict:
        """Apply the change as the last statement and commit; anything but "accepted" rolls back."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back everything. Harmless after the end."""

    async def is_lost(self, error: BaseException) -> bool:
        """Whether an error that the handler got from `connection` means that the store is out of reach."""
        return False


_id: Callable[[Change], str] = attrgetter("id")


def refuse_two_changes_of_one_job(changes: Sequence[Change]) -> None:
    """ValueError if a call has two changes of one job."""
    if len(changes) > 1 and len({*map(_id, changes)}) != len(changes):
        raise ValueError("two changes of one job in one call")
