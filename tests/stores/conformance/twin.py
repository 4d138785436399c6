"""A store and its specification, given the same words.

A list of random operations is sent to the memory store and to a twin, whose clocks are kept equal: enqueues under keys of
all scopes, claims by several workers, words of rightful and stale holders, words repeated, admins with old views, upkeep,
pauses, and clocks that jump forward and back. Every answer must be equal, and after every step every row, field by field.

Beside that, the specification itself is held to the invariants that need no second store: see `_Witness`.

Operations are plain data; where they speak of a job, they name a place in what was seen before, so that any part of a list
is a list too and a failing one can be shortened.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from random import Random

import msgspec

from perdure.core.backoff import Backoff
from perdure.core.clock import SECOND
from perdure.core.job import ANY, FINAL, State
from perdure.core.lifecycle import (
    Cancelled,
    Completed,
    Continued,
    Deleted,
    Died,
    Expired,
    Failed,
    HandedBack,
    HoldGuard,
    LeaseLapsed,
    Retried,
    RunNow,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
    decide,
)
from perdure.core.record import Fault, Hold, NewJob, Record
from perdure.core.retention import HIDDEN_FOR, Retention
from perdure.errors import IllegalMove
from perdure.storage.contract import (
    Claim,
    Filter,
    KvWrite,
    MissingParent,
    Note,
    QueueAtCapacity,
    QueueSettings,
    Started,
    Want,
    WorkerRow,
)
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock

FAULT = Fault(1, "w", 1, 2, "ValueError", "broke", None)
BACKOFF = Backoff.exponential(5.0, jitter=2.0).text()
QUEUES, TASKS, WORKERS = ("a", "b"), ("s", "t"), ("w1", "w2")
SCOPES = ("waiting", "active", "active", "active", "any", "window")
RETENTIONS = [
    kept.text()
    for kept in (
        Retention.delete(),
        Retention.keep(),
        Retention.keep(last=1),
        Retention.keep(age=40),
        Retention.keep(last=2, age=90),
    )
]
HOLDERS_WORDS = (
    Succeeded("1", started_at=5),
    Succeeded(),
    Failed(FAULT, started_at=7),
    Failed(FAULT, delay=0),
    Failed(FAULT, retryable=False),
    Snoozed(delay=0),
    Snoozed(delay=10 * SECOND, reason="later", started_at=9),
    Skipped("nothing"),
    Died("bad", FAULT),
    HandedBack("back"),
    Stopped(),
)
OTHERS_WORDS = (
    LeaseLapsed(FAULT, charged=True),
    LeaseLapsed(suspect=True),
    LeaseLapsed(),
    Expired(),
    Cancelled("enough"),
    Cancelled(),
    Retried(),
    RunNow(),
    Deleted(),
    Completed("9"),
)
LIMITS = [
    '[["k", 1]]',
    '[["k", 2, null, null]]',
    '[["r", null, 2, 20000000]]',
    '[["all", 2], ["t", 1, 3, 50000000]]',
    '[["all", 2]]',
]
JUMPS = (0.000001, 1, 5, 5, 10, 20, 20, 30, 40, 50, 90, 601, 4000, -1, -10, -45, -4000)


@dataclass(frozen=True)
class Operation:
    """The name of a method of `Twin`, and what it is called with."""

    name: str
    arguments: tuple


# ---- what is drawn ---------------------------------------------------------------------------------
def operations(random: Random, count: int) -> list[Operation]:
    names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
    first = [_drawn("enqueue", random), _drawn("enqueue", random), _drawn("claim", random)]
    return first + [_drawn(random.choice(names), random) for _ in range(count - len(first))]


WEIGHTS = {
    "enqueue": 8,
    "claim": 8,
    "speak": 6,
    "speak_of_the_present": 10,
    "holders_speak": 3,
    "repeat": 3,
    "retry_the_dead": 3,
    "reap": 3,
    "forge": 2,
    "two_changes_of_one_job": 1,
    "renew": 3,
    "note": 2,
    "recover_claim": 1,
    "unknown": 1,
    "promote": 1,
    "lapsed": 4,
    "expired": 2,
    "prune": 3,
    "pass_time": 8,
    "pause": 2,
    "configure": 3,
    "go_on": 4,
    "resolve_edges": 1,
    "kv_write": 3,
    "find": 3,
    "workers": 1,
}


def _drawn(name: str, random: Random) -> Operation:
    return Operation(name, globals()[f"_{name}"](random))


def _place(random):
    return random.randrange(256)


def _places(random, most):
    return tuple(_place(random) for _ in range(random.randint(0, most)))


def _enqueue(random):
    fields = tuple((_job(random), _key(random), _parents(random), _place(random)) for _ in range(random.randint(1, 4)))
    return fields, _places(random, 2) if random.random() < 0.3 else ()


def _job(random):
    return dict(
        task=random.choice(TASKS),
        queue=random.choice(QUEUES),
        priority=random.choice((0, 0, 1)),
        payload=random.choice(("{}", '{"x": "Grüße"}')),
        delay=random.choice((0, 0, 0, 5 * SECOND, 50 * SECOND)),
        expires=random.choice((None, None, 20 * SECOND)),
        max_attempts=random.choice((1, 2, None)),
        lease=random.choice((30 * SECOND, 90 * SECOND)),
        backoff=BACKOFF,
        retention=random.choice(RETENTIONS),
        dead_retention=random.choice(RETENTIONS),
        routing_key=random.choice((None, None, "x")),
        tenant=random.choice((None, "acme", "acme/main")),
        tags=random.choice((None, '["red"]')),
        waits=random.choice([0] * 15 + [1]),
        run_when=random.choice(("succeeded", "succeeded", "finished")),
        limits=random.choice([None] * 6 + LIMITS),
        min_version=random.choice([1] * 15 + [2]),
    )


def _parents(random):
    """Places among the jobs so far."""
    return _places(random, 3) if random.random() < 0.3 else ()


def _key(random):
    return random.choice((None, (random.choice(SCOPES), random.choice("kkl"))))


def _wants(random, most):
    return tuple(_want(random) for _ in range(random.randint(0, most)))


def _want(random):
    if random.random() < 0.5:
        return Want(random.randint(1, 5), alone=random.random() < 0.2, limited=random.random() < 0.4)
    return Want(
        limit=random.randint(0, 4),
        queues=random.choice((None, ("a",), ("b", "a"), ())),
        tasks=random.choice((None, ("s",), ("t", "s"))),
        routing=random.choice((ANY, ANY, None, "x")),
        alone=random.random() < 0.3,
        limited=random.random() < 0.4,
    )


def _claim(random):
    suspects = (Want(2, alone=True, limited=random.random() < 0.3),) if random.random() < 0.3 else ()
    return (_want(random), *_wants(random, 1), *suspects), random.choice(WORKERS)


def _speak(random):
    spoken = [(_place(random), random.choice(HOLDERS_WORDS + OTHERS_WORDS)) for _ in range(random.randint(1, 4))]
    return tuple(spoken), _wants(random, 1)


_speak_of_the_present = _speak


def _holders_speak(random):
    return (random.choice(HOLDERS_WORDS),)


def _repeat(random):
    return (_places(random, 4),)


def _retry_the_dead(random):
    return ()


def _reap(random):
    return (random.choice((LeaseLapsed(FAULT, charged=True), LeaseLapsed(suspect=True))),)


def _forge(random):
    return _place(random), random.randint(-1, 1), random.randint(-1, 1)


def _two_changes_of_one_job(random):
    return _place(random), random.choice(HOLDERS_WORDS), random.choice(OTHERS_WORDS)


def _renew(random):
    return _places(random, 4), _places(random, 2), random.choice((None, None, 2 * SECOND, 50 * SECOND))


def _note(random):
    return _places(random, 3), random.randint(0, 60)


def _recover_claim(random):
    return random.choice(WORKERS), random.randint(0, 6)


def _unknown(random):
    return (_place(random),)


def _promote(random):
    return (random.randint(1, 5),)


def _lapsed(random):
    return random.randint(0, 5), random.choice((0, 10 * SECOND, 30 * SECOND)), random.choice(OTHERS_WORDS[:3])


def _expired(random):
    return random.randint(0, 5), random.random() < 0.5


def _prune(random):
    return ()


def _pass_time(random):
    return (random.choice(JUMPS),)


def _pause(random):
    return random.choice(QUEUES), random.random() < 0.4


def _configure(random):
    policy = random.choice(("reject", "drop", "wait"))
    depth, below = random.choice((None, 3, 6)), random.choice((None, 1))
    fair = random.random() < 0.4
    weights = random.choice((None, '{"acme": 2.5}'))
    return (QueueSettings(random.choice(QUEUES), False, depth, policy, below, fair, weights),)


def _go_on(random):
    return _place(random), _job(random), _place(random)


def _resolve_edges(random):
    return ()


def _kv_write(random):
    return tuple(_random_kv_write(random) for _ in range(random.randint(1, 3))), random.random() < 0.5


def _random_kv_write(random):
    write = KvWrite(
        kind=random.choice("xy"),
        name=random.choice("abc"),
        text=random.choice(("1", "ü\x00", "", None)),
        version=random.choice((None, None, 0, 1, 2)),
        due_at=random.choice((None, 0, 10**18)),
    )
    return write, random.choice(("", "", "hold", "job")), _place(random)


def _find(random):
    filter = Filter(
        states=random.choice((None, (State.READY, State.RUNNING), tuple(sorted(FINAL)))),
        task=random.choice((None, None, "s")),
        queue=random.choice((None, None, "a")),
        tenant=random.choice((None, None, "acme")),
        tag=random.choice((None, None, "red")),
        routing=random.choice((ANY, ANY, None, "x")),
        text=random.choice((None, None, "BROKE", "grüß")),
    )
    return filter, random.randint(1, 4)


def _workers(random):
    return random.choice(WORKERS), random.random() < 0.3, random.choice((0, 10 * SECOND))


# ---- what is done ----------------------------------------------------------------------------------
class Twin:
    """The specification and its twin, and all that was seen of them."""

    @classmethod
    async def made(cls, make, directory):
        self = cls()
        clock = ManualClock()
        twin, its_clock = await make(directory)
        its_clock.set(clock.now())
        self.stores = MemoryStorage(clock), twin
        self.clocks = clock, its_clock
        self.new: dict[str, NewJob] = {}
        self.views: list[Record] = []  # rows as somebody saw them, old ones too
        self.said = []  # changes that were sent
        self.stamp = 1000
        self.witness = _Witness()
        return self

    async def run(self, listed):
        try:
            for operation in listed:
                await getattr(self, operation.name)(*operation.arguments)
                await self._rows_are_equal()
        finally:
            for store in self.stores:
                await store.close()

    async def enqueue(self, drawn, again):
        known = list(self.new.values())
        jobs = []
        for fields in drawn:  # a job may wait for one before it in the list
            jobs.append(self._new_job(*fields))
            self.new[jobs[-1].id] = jobs[-1]
        jobs += [known[place % len(known)] for place in again if known]
        placed = await self._both(lambda store: store.enqueue(jobs))
        if isinstance(placed, list):
            self.witness.placed(placed, {row.id for row in await self._rows()})

    def _new_job(self, fields, key, parents, place):
        known = list(self.new)
        if parents and known:
            after = list(dict.fromkeys(known[-1 - parent % len(known)] for parent in parents))
            fields = {**fields, "after": json.dumps(after), "waits": len(after)}
        if key is not None:
            scope, text = key
            window = 40 * SECOND if scope == "window" else None
            fields = {**fields, "unique_key": text, "unique_scope": scope, "unique_window": window}
        self.stamp += 1
        # ids do not rise, so that nothing can lean on their order
        return NewJob(id=f"{place:08x}-0000-7000-8000-{self.stamp:012x}", **fields)

    async def claim(self, wants, worker):
        await self._exchange([], wants, worker)

    async def speak(self, spoken, wants):
        """Words about rows as somebody saw them, perhaps long ago."""
        await self._exchange([_decided(self._view(place), said) for place, said in spoken if self.views], wants)

    async def speak_of_the_present(self, spoken, wants):
        rows = await self._rows()
        await self._exchange([_decided(rows[place % len(rows)], said) for place, said in spoken if rows], wants)

    async def holders_speak(self, said):
        held = [row for row in await self._rows() if row.stamp is not None]
        await self._exchange([_decided(row, said) for row in held], ())

    async def repeat(self, places):
        await self._exchange([self.said[-1 - place % len(self.said)] for place in places if self.said], ())

    async def retry_the_dead(self):
        dead = [row for row in await self._rows() if row.state is State.DEAD]
        await self._exchange([_decided(row, Retried()) for row in dead], ())

    async def reap(self, said):
        await self.pass_time(91)
        await self.lapsed(100, 30 * SECOND, said)

    async def forge(self, place, attempt, stamp):
        """A zombie: nearly the right hold."""
        held = [row for row in await self._rows() if row.stamp is not None]
        if held:
            row = held[place % len(held)]
            near = msgspec.structs.replace(row, attempt=row.attempt + attempt, stamp=row.stamp + stamp)
            await self._exchange([_decided(near, Succeeded('"zombie"'))], ())

    async def go_on(self, place, fields, number):
        """A holder goes on with its chain."""
        running = [row for row in await self._rows() if row.state is State.RUNNING]
        if running:
            row = running[place % len(running)]
            following = self._new_job({**fields, "chain_id": row.chain_id or row.id}, None, (), number)
            self.new[following.id] = following
            change = _decided(row, Continued((following,)))
            await self._exchange([change], ())
            if any(found is not None for found in await self.stores[0].get([following.id])):
                self.witness.acknowledged.add(following.id)

    async def resolve_edges(self):
        while any([bool(await store.resolve_edges(100)) for store in self.stores]):
            pass

    async def kv_write(self, drawn, due):
        writes = []
        for write, belongs, place in drawn:
            if belongs and self.views:
                view = self._view(place)
                hold = view.hold if belongs == "hold" else None
                write = msgspec.structs.replace(write, hold=hold, job=view.id)
            writes.append(write)
        await self._both(lambda store: store.kv_write(writes))
        for kind in "xy":
            await self._both(lambda store, kind=kind: store.kv_read(kind, due=due))
        await self._both(lambda store: store.export_kv(None, 100))

    async def two_changes_of_one_job(self, place, said, other):
        if self.views:
            changes = [_decided(self._view(place), word) for word in (said, other)]
            if None not in changes:
                await self._both(lambda store: store.exchange(changes))

    async def _exchange(self, changes, wants, worker="w1"):
        changes = list({change.id: change for change in changes if change is not None}.values())
        self.stamp += 2
        claim = Claim(worker, self.stamp, tuple(wants)) if wants else None
        before = {row.id: row for row in await self._rows()}
        given = await self._both(lambda store: store.exchange(changes, claim), _lists)
        self.said += changes
        self.views += given.claimed
        self.witness.exchanged(before, changes, given, {row.id: row for row in await self._rows()})

    async def renew(self, chosen, started, lease):
        holds = [self._view(place).hold for place in chosen if self.views]
        notes = [Started(self._view(place).hold, 11 + place) for place in started if self.views]
        await self._both(lambda store: store.check(holds))
        await self._both(lambda store: store.renew(holds, notes, lease=lease))

    async def note(self, chosen, lines):
        told = tuple(f"ü{number}" for number in range(lines))
        notes = [Note(self._view(place).hold, f"[{lines}]" if lines else None, told) for place in chosen if self.views]
        await self._both(lambda store: store.note(notes))
        for note in notes:
            await self._both(lambda store, id=note.hold.id: store.log(id))

    async def recover_claim(self, worker, back):
        await self._both(lambda store: store.recover_claim(worker, self.stamp - back))

    async def unknown(self, place):
        nobody = Hold(f"ffffffff-0000-7000-8000-{place:012x}", 1, 1)
        await self._both(lambda store: store.renew([nobody]))
        await self._both(lambda store: store.get([nobody.id]))

    async def promote(self, limit):
        await self._both(lambda store: store.promote(limit))

    async def lapsed(self, limit, contact, said):
        found = await self._both(lambda store: store.lapsed(limit, contact))
        self.views += found
        await self._exchange([_decided(row, said) for row in found], ())

    async def expired(self, limit, cancel):
        found = await self._both(lambda store: store.expired(limit))
        self.views += found
        await self._exchange([_decided(row, Expired()) for row in found if cancel], ())

    async def prune(self):
        before = await self._rows()
        await self._both(lambda store: store.prune(1000))
        self.witness.pruned(before, await self._rows(), self.clocks[0].micros())
        # an id is not used again so long after: a view of its first life would fit its second by chance
        self.views = [view for view in self.views if view.id not in self.witness.gone]

    async def pass_time(self, seconds):
        for clock in self.clocks:
            clock.advance(seconds)
        await self._both(lambda store: store.now())

    async def pause(self, queue, paused):
        await self._both(lambda store: store.pause(queue, paused))

    async def configure(self, settings):
        await self._both(lambda store: store.configure(settings))

    async def find(self, filter, limit):
        await self._both(lambda store: store.count(filter))
        cursors = [None, None]
        for _ in range(3):
            asked = zip(self.stores, cursors, strict=True)
            pages = [await store.find(filter, limit, cursor) for store, cursor in asked]
            _equal(pages[0][0], pages[1][0])
            cursors = [cursor for _, cursor in pages]
            _equal(cursors[0] is None, cursors[1] is None)
            if None in cursors:
                break

    async def workers(self, worker, leaves, within):
        row = WorkerRow(worker, 1, 0, 2, "{}")
        await self._both(lambda store: store.remove_worker(worker) if leaves else store.heartbeat(row))
        await self._both(lambda store: store.workers(within))

    # ---- below -------------------------------------------------------------------------------------
    async def _both(self, ask, shown=lambda answer: answer):
        """Ask both stores; the answers must be equal. Gives the specification's."""
        answers = [await _answer(ask(store), shown) for store in self.stores]
        _equal(*answers)
        return answers[0]

    async def _rows_are_equal(self):
        await self._both(lambda store: store.get(list(self.new)))
        await self._both(lambda store: store.queues())
        await self._both(lambda store: store.followers(list(self.new)))
        self.witness.looked(await self._rows())

    async def _rows(self):
        return [row for row in await self.stores[0].get(list(self.new)) if row is not None]

    def _view(self, place):
        return self.views[-1 - place % len(self.views)]


async def _answer(asked, shown):
    try:
        return shown(await asked)
    except MissingParent as orphan:
        return "orphan", orphan.job
    except QueueAtCapacity as full:
        return "full", full.queue, full.max_depth, full.waits
    except ValueError as error:
        return type(error), str(error)


def _equal(spec, twin):
    if spec != twin:
        raise AssertionError(_difference(spec, twin))


def _difference(spec, twin):
    """What differs, as short as it can be said."""
    if isinstance(spec, list) and isinstance(twin, list) and len(spec) == len(twin):
        parts = [_difference(*pair) for pair in zip(spec, twin, strict=True) if pair[0] != pair[1]]
        return "\n".join(parts)
    if isinstance(spec, msgspec.Struct) and type(spec) is type(twin):
        names = [name for name in spec.__struct_fields__ if getattr(spec, name) != getattr(twin, name)]
        parts = [f"{name}: {_difference(getattr(spec, name), getattr(twin, name))}" for name in names]
        return f"{getattr(spec, 'id', type(spec).__name__)}: " + "; ".join(parts)
    return f"memory {spec!r}, twin {twin!r}"


def _lists(given):
    return msgspec.structs.replace(given, verdicts=list(given.verdicts), claimed=list(given.claimed))


def _decided(view, said):
    try:
        return decide(view, said, draw=0.5)
    except IllegalMove:
        return None


class _Witness:
    """Remembers what was promised, and holds the specification to the invariants of a single store:

    I1 no acknowledged job is lost · I2 ended jobs stay ended · I3 a hold is handed out once, and to one holder ·
    I4 one accepted word per hold · I5 attempt = number of claims · I6 no job outlives its budget · I12 keys are unique.
    """

    def __init__(self):
        self.acknowledged = set()
        self.gone = set()
        self.claims = Counter()
        self.holds = set()
        self.settled = set()
        self.last = {}

    def placed(self, placed, found):
        for answer in placed:
            kept_key_alone = answer.id in self.gone and answer.id not in found
            if not answer.duplicate and not answer.dropped and not kept_key_alone:
                self.acknowledged.add(answer.id)

    def exchanged(self, before, changes, given, after):
        for row in given.claimed:
            assert row.hold not in self.holds, "I3: a hold was handed out twice"
            self.holds.add(row.hold)
            self.claims[row.id] += 1
        for change, verdict in zip(changes, given.verdicts, strict=True):
            if not verdict.accepted and change.id not in {row.id for row in given.claimed}:
                same = {name: getattr(before.get(change.id), name, None) for name in ("state", "attempt", "result")}
                now = {name: getattr(after.get(change.id), name, None) for name in same}
                promoted = same["state"] is State.SCHEDULED and now["state"] is State.READY
                followed = same["state"] is State.BLOCKED  # what it waits for may have ended in the same call
                assert same == now or promoted or followed, "I4: a refused word changed the row"
            if isinstance(change.guard, HoldGuard) and verdict.accepted and not verdict.repeated:
                word = (change.id, change.guard.attempt, change.guard.stamp)
                assert word not in self.settled, "I4: two words of one hold were accepted"
                self.settled.add(word)

    def pruned(self, before, after, now):
        left = {row.id for row in after}
        for row in before:
            if row.id not in left:
                assert row.state in FINAL, "I1: prune removed a job that has not ended"
                assert row.stamp is None, "prune removed a job that somebody holds"
                assert row.hidden or row.finished_at + HIDDEN_FOR <= now, "a repeated enqueue would not find its job"
                # from here on, an enqueue of this id makes another job
                self.gone.add(row.id)
                self.acknowledged.discard(row.id)
                self.last.pop(row.id, None)
                del self.claims[row.id]

    def looked(self, rows):
        found = {row.id for row in rows}
        assert self.acknowledged <= found, "I1: an acknowledged job is gone"
        names = Counter(row.unique_key for row in rows if row.holds_key)
        assert all(count == 1 for count in names.values()), "I12: two jobs hold one key"
        for row in rows:
            assert row.attempt == self.claims[row.id], "I5: attempt is not the number of claims"
            assert row.max_attempts is None or row.failures <= row.max_attempts, "I6: more failures than the budget"
            assert row.losses <= 3, "I6: more losses than are allowed"
            held = row.stamp is not None
            assert held or row.state is not State.RUNNING, "a running job that nobody holds"
            assert not held or row.state is State.RUNNING or row.state in FINAL, "a waiting job that somebody holds"
            last = self.last.get(row.id)
            if last is not None:
                assert row.version >= last.version, "a version fell"
                ended = last.state in FINAL and last.state is not State.DEAD
                assert not ended or row.state is last.state, "I2: an ended job moved"
            self.last[row.id] = row


# ---- shortening ------------------------------------------------------------------------------------
def failure_of(make, directories, listed):
    """How the twins differ when they are told this, or None."""

    async def tell():
        await (await Twin.made(make, next(directories))).run(listed)

    try:
        asyncio.run(tell())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shortened(listed, fails):
    """A shorter list that still fails, by leaving out parts that do not matter."""
    size = len(listed) // 2
    while size:
        for start in range(len(listed) - size, -1, -size):
            shorter = listed[:start] + listed[start + size :]
            if fails(shorter):
                listed = shorter
        size //= 2
    return listed
