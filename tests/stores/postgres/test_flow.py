"""Edges, limits and shares where several connections meet, in transactions of others, and in great numbers."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import psycopg
import pytest

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Continued, Died, Failed, Succeeded, decide
from perdure.storage.contract import (
    ACCEPTED,
    PARENT_CANCELLED,
    Claim,
    Filter,
    KvWrite,
    MissingParent,
    QueueSettings,
    Want,
)
from perdure.storage.rules.fairness import SHARE
from perdure.storage.urls import parse
from perdure.testing import ManualClock
from perdure.testing.conformance.tools import FORGET, claim, enqueue_and_claim, fault, job, read_job
from tests.support.real_servers import kinds_with_a_store, server

from .helpers import opened

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
ONCE = '[["k",1,null,null]]'


@pytest.fixture(params=KINDS)
def url(request):
    return server(request.param).fresh()


def after(*parents, **fields):
    return job(after=json.dumps([parent.id for parent in parents]), waits=len(parents), **fields)


async def settle_all(store):
    while await store.resolve_edges(500):
        pass


async def states(store, *jobs):
    return [None if row is None else row.state for row in await store.get([each.id for each in jobs])]


async def told(store, record, said):
    (verdict,) = await store.apply([decide(record, said)])
    assert verdict.accepted


# ---- several connections ---------------------------------------------------------------------------
async def test_no_child_is_stranded_while_its_parent_ends(url):
    """A hundred times: one connection enqueues the child, another ends the parent."""
    async with opened(url) as one, opened(url) as other:
        await one.enqueue([job() for _ in range(100)])
        parents = await claim(one, 100)
        children = [after(parent, run_when="finished") for parent in parents]
        ends = [Succeeded(), Cancelled(), Failed(fault(), retryable=False)]

        async def meet(number):
            said = ends[number % 3]
            await asyncio.gather(one.enqueue([children[number]]), told(other, parents[number], said))

        for begin in range(0, 100, 10):
            await asyncio.gather(*(meet(number) for number in range(begin, begin + 10)))
        await settle_all(one)
        assert set(await states(one, *children)) == {State.READY}


async def test_many_who_end_at_once_let_their_child_go_once(url):
    async with opened(url) as one, opened(url) as other:
        await one.enqueue([job() for _ in range(60)])
        parents = await claim(one, 60)
        child = after(*parents)
        await one.enqueue([child])
        ends = [decide(parent, Succeeded()) for parent in parents]
        await asyncio.gather(*((one, other)[begin % 2].apply(ends[begin : begin + 5]) for begin in range(0, 60, 5)))
        await settle_all(one)
        row = await read_job(one, child.id)
        assert (row.state, row.waits, row.version) == (State.READY, 0, 2)


async def test_a_graph_whose_jobs_are_children_and_parents_at_once(url):
    """Each layer follows the whole one before it; layers end on two connections, in both directions of their ids."""
    async with opened(url) as one, opened(url) as other:
        layers = [[job() for _ in range(8)]]
        for _ in range(5):
            layers.append([after(*layers[-1]) for _ in range(8)])
        await one.enqueue([new for layer in layers for new in layer])
        for layer in layers:
            held = await claim(one, 99)
            assert sorted(record.id for record in held) == sorted(new.id for new in layer)
            ends = [decide(record, Succeeded()) for record in held]
            await asyncio.gather(one.apply(ends[:4]), other.apply(ends[:3:-1]))
            await settle_all(one)
        assert await one.count(Filter(states=(State.SUCCEEDED,))) == 48


async def test_what_was_left_by_a_process_that_died_is_found(url):
    """The list of what is to be looked at is written with the end itself."""
    async with opened(url) as store:
        parent = await enqueue_and_claim(store)
        child = after(parent)
        await store.enqueue([child])
        statement, values = store._apply.succeed([decide(await read_job(store, parent.id), Succeeded())], None)

        async def end_alone(connection):
            await connection.execute(statement, values)

        await store._server().run_indexed(end_alone)
        assert await states(store, child) == [State.BLOCKED]
        await settle_all(store)
        assert await states(store, child) == [State.READY]


async def test_thousands_of_children_and_of_parents(url):
    async with opened(url) as store:
        parent = await enqueue_and_claim(store)
        children = [after(parent) for _ in range(2_000)]
        for begin in range(0, len(children), 500):
            await store.enqueue(children[begin : begin + 500])
        answer = await store.exchange([decide(await read_job(store, parent.id), Succeeded())])
        assert answer.unresolved
        assert await store.resolve_edges(100) in range(100, 202)
        await settle_all(store)
        assert await store.count(Filter(states=(State.READY,))) == 2_000
        last = after(*children)
        await store.enqueue([last])
        while held := await claim(store, 500):
            await store.apply([decide(record, Succeeded()) for record in held])
            await settle_all(store)
        row = await read_job(store, last.id)
        assert (row.state, row.waits, row.attempt) == (State.SUCCEEDED, 0, 1)


# ---- kept for its followers ------------------------------------------------------------------------
async def test_nobody_prunes_a_job_that_is_about_to_be_followed(url):
    clock = ManualClock()
    async with opened(url, clock=clock) as store, opened(url, clock=clock) as other:
        for _ in range(10):
            parent = await enqueue_and_claim(store, retention=FORGET)
            await told(store, parent, Succeeded("7"))
            clock.advance(3600)
            child = after(parent)
            stored, _ = await asyncio.gather(store.enqueue([child]), other.prune(99), return_exceptions=True)
            if isinstance(stored, MissingParent):
                assert await states(store, parent, child) == [None, None]
            else:
                assert await states(store, parent, child) == [State.SUCCEEDED, State.READY]
                await told(store, (await claim(store, 9))[0], Succeeded())


# ---- limits ----------------------------------------------------------------------------------------
async def test_limits_hold_for_all_connections(url):
    async with opened(url) as store:
        shared = ["all", 5, None, None]
        jobs = [job(limits=json.dumps([shared, [f"t{number % 4}", 2, None, None]])) for number in range(60)]
        await store.enqueue(jobs)
        peak, done = 0, 0

        async def work(name):
            nonlocal peak, done
            async with opened(url) as own:
                while done < 60:
                    held = await claim(own, 3, name, limited=True)
                    peak = max(peak, await own.count(Filter(states=(State.RUNNING,))))
                    await own.apply([decide(record, Succeeded()) for record in held])
                    done += len(held)

        async with asyncio.timeout(60):
            await asyncio.gather(*(work(f"w{number}") for number in range(4)))
        assert 1 < peak <= 5
        assert done == 60


async def test_many_gates_behind_one_key(url):
    """Many more than are looked at together: no room is left unused, all run in the end, and nothing is left of them."""
    async with opened(url) as store:
        limits = [json.dumps([["all", 20, None, None], [f"t{number}", 1, None, None]]) for number in range(600)]
        for begin in range(0, 600, 300):
            await store.enqueue([job(limits=each) for each in limits[begin : begin + 300]])
        held = await claim(store, 50, limited=True)
        assert len(held) == 20
        done = 0
        while held:
            done += len(held)
            asked = Claim("w", new_stamp(), (Want(50, limited=True),))
            held = (await store.exchange([decide(record, Succeeded()) for record in held], asked)).claimed
            assert len(held) == min(20, 600 - done)
        assert await claim(store, 20, limited=True) == []
        assert rows_of(url, "limit_gates", "limit_slots", "limit_notices", "limit_free_keys") == [0] * 4


async def test_blocked_jobs_cost_a_claim_nothing(url):
    """A claim that finds all gates closed looks at none."""
    async with opened(url) as store:
        await store.enqueue([job(limits=json.dumps([["all", 1], [f"t{number}", 1]])) for number in range(300)])
        (held,) = await claim(store, 9, limited=True)
        asked = Claim("w", new_stamp(), (Want(9, limited=True),))
        while (await store.exchange([], asked)).next_due == 0:  # until all gates are known to be closed
            pass
        assert rows_of(url, "limit_gates where closed_by is null") == [0]
        assert await claim(store, 9, limited=True) == []
        await told(store, held, Succeeded())
        assert len(await claim(store, 9, limited=True)) == 1


async def test_lost_word_about_limits_is_mended_by_upkeep(url):
    clock = ManualClock()
    async with opened(url, clock=clock) as store:
        twice = '[["k",1],["l",1]]'
        await store.enqueue([job(limits=twice), job(limits=twice), job(limits='[["other",1]]')])
        held = await claim(store, 9, limited=True)
        assert len(held) == 2
        await store.apply([decide(record, Succeeded()) for record in held])
        run(url, "delete from SCHEMA.limit_notices")  # as if an older version had ended them
        assert await claim(store, 9, limited=True) == []
        run(url, "delete from SCHEMA.limit_gates")
        clock.advance(60)
        await store.prune(9)
        assert len(await claim(store, 9, limited=True)) == 1
        assert rows_of(url, "limit_slots") == [2]


async def test_who_waited_for_a_turn_passes_over_what_is_gone(url):
    """The claim began before another one took the best job, and finds the next."""
    async with opened(url) as store:
        jobs = [job(limits='[["k",9]]') for _ in range(3)]
        await store.enqueue(jobs)
        assert len(await claim(store, 1, limited=True)) == 1
        address = parse(url).server
        with psycopg.connect(address.dsn) as other:
            turn = f'perdure limits "{address.schema}"'
            other.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [turn])
            waiting = asyncio.create_task(claim(store, 1, limited=True))
            while not run(url, "select 1 from pg_locks where locktype = 'advisory' and not granted"):
                await asyncio.sleep(0)
            taken = f'delete from "{address.schema}".waiting where id = %s'
            other.execute(taken.encode(), [jobs[1].id])
        assert [record.id for record in await waiting] == [jobs[2].id]


async def test_who_waits_for_a_turn_keeps_no_others_waiting(url):
    """However many claims of limited jobs wait, there are connections for everything else."""
    async with opened(url) as store:
        jobs = [job(limits='[["k",9]]') for _ in range(9)]
        await store.enqueue(jobs)
        held = await claim(store, 1, limited=True)
        address = parse(url).server
        with psycopg.connect(address.dsn) as other:
            turn = f'perdure limits "{address.schema}"'
            other.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [turn])
            waiting = [asyncio.create_task(claim(store, 1, limited=True)) for _ in range(8)]
            while not run(url, "select 1 from pg_locks where locktype = 'advisory' and not granted"):
                await asyncio.sleep(0)
            async with asyncio.timeout(15):
                await store.enqueue([job()])
                assert await store.renew([held[0].hold]) == [ACCEPTED]
        claimed = [record.id for records in await asyncio.gather(*waiting) for record in records]
        assert sorted(claimed) == sorted(each.id for each in jobs[1:])


async def test_ends_make_room_for_the_claim_that_comes_with_them(url):
    """Whatever is among them: one that was told before, one that was never claimed, one that another waits for."""
    async with opened(url) as store:
        jobs = [job(limits='[["k",4]]') for _ in range(12)]
        follower = after(jobs[5], limits='[["k",4]]', priority=5)
        await store.enqueue(jobs)
        await store.enqueue([follower])
        wants = (Want(1), Want(50, limited=True))
        held = (await store.exchange([], Claim("w", new_stamp(), wants))).claimed
        assert [record.id for record in held] == [each.id for each in jobs[:4]]
        await told(store, held[0], Succeeded())
        never = msgspec.structs.replace(held[1], id=jobs[11].id)
        ends = [decide(record, Succeeded()) for record in [*held, never]]
        said = await store.exchange(ends, Claim("w", new_stamp(), wants))
        assert [verdict.accepted for verdict in said.verdicts] == [True, True, True, True, False]
        assert [record.id for record in said.claimed] == [each.id for each in jobs[4:8]], "all four places are taken"
        ends = [decide(record, Succeeded()) for record in said.claimed]
        said = await store.exchange(ends, Claim("w", new_stamp(), wants))
        assert [record.id for record in said.claimed] == [follower.id, *(each.id for each in jobs[8:11])]


async def test_ends_are_told_and_jobs_that_are_due_promoted_before_limited_ones_are_claimed(url):
    clock = ManualClock()
    async with opened(url, clock=clock) as store:
        first, later = job(limits=ONCE), job(limits=ONCE)
        due = job(limits=ONCE, delay=5 * SECOND, priority=9)
        await store.enqueue([first, due, later])
        (held,) = await claim(store, 9, limited=True)
        clock.advance(6)
        asked = Claim("w", new_stamp(), (Want(1), Want(9, limited=True)))
        said = await store.exchange([decide(held, Succeeded())], asked)
        assert [record.id for record in said.claimed] == [due.id]


async def test_lanes_of_several_limits_are_claimed_together(url):
    """The best of all lanes come first, whatever their limits, and none of them beyond its own."""
    async with opened(url) as store:
        kinds = [("a", 2), ("b", 3), ("c", 100)]
        jobs = [job(task=task, limits=json.dumps([[task, most]])) for _ in range(5) for task, most in kinds]
        await store.enqueue(jobs)
        held = await claim(store, 6, limited=True)
        assert [record.id for record in held] == [each.id for each in jobs[:6]]
        rest = await claim(store, 50, limited=True)
        assert [record.task for record in rest] == ["b", "c", "c", "c"]
        assert await claim(store, 50, limited=True) == []
        await told(store, held[0], Succeeded())
        assert [record.task for record in await claim(store, 50, limited=True)] == ["a"]


# ---- in the caller's transaction -------------------------------------------------------------------
@asynccontextmanager
async def both(url, clock=None):
    """A store, and a connection of somebody else's to its database."""
    async with opened(url, clock=clock) as store:
        async with await psycopg.AsyncConnection.connect(parse(url).server.dsn) as caller:
            yield store, caller


async def insert(store, caller, *jobs):
    insertion = store.caller_statements(jobs)
    for statement, text in insertion.inserts:
        assert statement.count("?") == 1
        assert "%" not in statement
        await caller.execute(statement.replace("?", "%s").encode(), (text,))
    statement, text = insertion.readback
    rows = await (await caller.execute(statement.replace("?", "%s").encode(), (text,))).fetchall()
    return [id for _, id in rows]


async def test_jobs_that_wait_for_jobs(url):
    async with both(url) as (store, caller):
        over, still = await enqueue_and_claim(store), await enqueue_and_claim(store)
        await told(store, over, Succeeded())
        children = [after(over), after(over, still), after(job()), after(over, run_when="finished", delay=99 * SECOND)]
        gone = after(still)
        await insert(store, caller, gone)
        await caller.rollback()
        await insert(store, caller, *children)
        await caller.commit()
        assert await states(store, *children, gone) == [State.BLOCKED] * 4 + [None]
        await settle_all(store)
        assert await states(store, *children) == [State.READY, State.BLOCKED, State.CANCELLED, State.SCHEDULED]
        assert (await read_job(store, children[2].id)).reason == PARENT_CANCELLED
        assert await store.followers([still.id]) == [[children[1].id]]
        await told(store, still, Succeeded())
        assert await states(store, children[1]) == [State.READY]
        assert await store.resolve_edges(9) == 0


async def test_a_flow_in_one_list_some_of_it_known_already(url):
    async with both(url) as (store, caller):
        owner = job(unique_key="k", unique_scope="active")
        await store.enqueue([owner])
        first, again, kept, kept_again = [
            job(unique_key=key, unique_scope=scope)
            for key, scope in zip("kkww", ["active"] * 2 + ["any"] * 2, strict=True)
        ]
        last = after(first, again, kept, kept_again)
        placed = await insert(store, caller, first, again, kept, kept_again, last)
        await caller.commit()
        assert placed == [owner.id, owner.id, kept.id, kept.id, last.id]
        row = await read_job(store, last.id)
        assert (json.loads(row.after), row.waits) == ([owner.id, kept.id], 2)
        assert await insert(store, caller, last) == [last.id]  # said again, it is there
        await caller.commit()
        await store.apply([decide(record, Succeeded()) for record in await claim(store, 9)])
        await settle_all(store)
        assert [record.id for record in await claim(store, 9)] == [last.id]
        assert await store.followers([owner.id, kept.id]) == [[], []]


async def test_limited_jobs(url):
    async with both(url) as (store, caller):
        one, two, undone = job(limits=ONCE), job(limits=ONCE), job(limits=ONCE, priority=9)
        await insert(store, caller, undone)
        assert await claim(store, 9, limited=True) == []
        await caller.rollback()
        await insert(store, caller, one, two)
        assert await claim(store, 9, limited=True) == []
        await caller.commit()
        (held,) = await claim(store, 9, limited=True)
        assert held.id == one.id
        assert await claim(store, 9, limited=True) == []


async def test_jobs_of_a_fair_queue(url):
    clock = ManualClock()
    async with both(url, clock) as (store, caller):
        await store.configure(QueueSettings("q", fair=True))
        await store.enqueue([job(queue="q", tenant="big") for _ in range(10)])
        parent = await enqueue_and_claim(store, queue="other")
        now, later, undone = [job(queue="q", tenant="t/1", delay=delay) for delay in (0, 9 * SECOND, 0)]
        child, limited = after(parent, queue="q", tenant="t/2"), job(queue="q", limits=ONCE)
        await insert(store, caller, undone)
        await caller.rollback()
        await insert(store, caller, now, later, child, limited)
        assert await store.resolve_edges(99) == 0  # nobody waits for the caller, and nobody sees his jobs
        await caller.commit()
        assert set(await states(store, now, later, child, limited)) == {State.BLOCKED}
        await settle_all(store)
        wanted = [State.READY, State.SCHEDULED, State.BLOCKED, State.READY]
        assert await states(store, now, later, child, limited) == wanted
        rows = [await read_job(store, each.id) for each in (now, later, child)]
        assert [row.rank - rows[0].rank for row in rows] == [0, SHARE, 2 * SHARE]
        assert (await read_job(store, limited.id)).parked
        assert now.id in {record.id for record in await claim(store, 3, queues=("q",))}
        await told(store, parent, Succeeded())
        assert await states(store, child) == [State.READY]


async def test_nobody_waits_for_a_handlers_transaction(url):
    """Jobs that it enqueues for a fair queue get their shares, and their parents are looked at, after it."""
    async with opened(url) as store:
        await store.configure(QueueSettings("q", fair=True))
        dead, held = await enqueue_and_claim(store), await enqueue_and_claim(store)
        await told(store, dead, Died("no"))
        transaction = await store.begin_transaction(20 * SECOND)
        shared, child = job(queue="q", tenant="a"), after(dead, run_when="finished")
        await transaction.enqueue([shared, child])
        async with asyncio.timeout(15):
            await store.enqueue([job(queue="q", tenant="b")])
            await store.prune(9)
        following = job(chain_id=held.id)
        assert (await transaction.complete(decide(held, Continued((following,))))).accepted
        assert await states(store, shared, child, following) == [State.READY] * 3
        row = await read_job(store, shared.id)
        assert row.rank != row.run_at


async def test_kv_entries_under_two_writers(url):
    """In both orders of their names: nobody waits for ever, and each text is written by one."""
    async with opened(url) as one, opened(url) as other:
        names = [f"n{number}" for number in range(30)]
        for version in range(3):
            writes = [KvWrite("s", name, f"{version}", version=version) for name in names]
            done = await asyncio.gather(one.kv_write(writes), other.kv_write(writes[::-1]))
            assert sorted(map(sum, done)) == [0, 30]
        assert {row.version for row in await one.kv_read("s")} == {3}


# ---- tools -----------------------------------------------------------------------------------------
def run(url, statement):
    address = parse(url).server
    with psycopg.connect(address.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("SCHEMA", f'"{address.schema}"').encode())
        return cursor.fetchall() if cursor.description else []


def rows_of(url, *tables):
    return [run(url, f"select count(*) from SCHEMA.{table}")[0][0] for table in tables]
