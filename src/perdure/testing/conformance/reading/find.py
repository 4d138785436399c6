"""get, find and count: reading jobs."""

from __future__ import annotations

from typing import Any

from perdure.core.clock import SECOND
from perdure.core.ids import new_id
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, Died, Failed, Succeeded
from perdure.errors import InvalidCall
from perdure.storage.contract import Filter, Storage

from ..tools import FORGET, MovableClock, assert_equal, assert_true, claim, enqueue_and_claim, fault, ids, job, report


async def case_get_in_the_order_asked(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(3)]
    await store.enqueue(jobs)
    asked = [jobs[2].id, job().id, jobs[0].id, jobs[2].id]
    found = [None if record is None else record.id for record in await store.get(asked)]
    assert_equal(found, [jobs[2].id, None, jobs[0].id, jobs[2].id], "get answers in the order of the questions")
    assert_equal(await store.get([]), [], "an empty list is answered by an empty list")


async def case_get_many(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(store.chunk)]
    await store.enqueue(jobs)
    found = [record.id for record in await store.get(ids(jobs)) if record is not None]
    assert_equal(found, ids(jobs), "get takes `chunk` ids")


async def case_hidden_ones(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=FORGET)
    await report(store, record.id, Succeeded("1"))
    found = (await store.get([record.id]))[0]
    assert_true(found is not None and found.hidden and found.result == "1", "get shows hidden rows, and that they are")
    assert_equal(await store.find(Filter(), 9, None), ([], None), "find does not show them")
    assert_equal(await store.count(Filter()), 0, "count does not count them")


async def case_newest_first(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(6)]
    for position in (0, 2, 4):
        await store.enqueue(jobs[position : position + 2])
        clock.advance(1)
    wanted = ids(reversed(jobs))
    found, cursor = await store.find(Filter(), 99, None)
    assert_equal((ids(found), cursor), (wanted, None), "newest first: created_at, then id, descending")


async def case_newest_by_created_at(store: Storage, clock: MovableClock) -> None:
    older_id, newer_id = job(), job()
    await store.enqueue([newer_id])
    clock.advance(1)
    await store.enqueue([older_id])
    found, _ = await store.find(Filter(), 9, None)
    assert_equal(ids(found), [older_id.id, newer_id.id], "created_at comes before the id")


async def case_pages(store: Storage, clock: MovableClock) -> None:
    jobs = []
    for n in range(10):
        jobs.append(job())
        await store.enqueue([jobs[-1]])
        clock.advance(n % 2)
    wanted = ids(reversed(jobs))
    pages, cursor = [], None
    for _ in range(4):
        found, cursor = await store.find(Filter(), 3, cursor)
        pages.append(ids(found))
    assert_equal(pages, [wanted[0:3], wanted[3:6], wanted[6:9], wanted[9:]], "pages follow each other")
    assert_equal(cursor, None, "the cursor is None at the end")


async def case_a_last_page_that_is_full(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job() for _ in range(4)])
    _, cursor = await store.find(Filter(), 2, None)
    found, cursor = await store.find(Filter(), 2, cursor)
    assert_equal((len(found), cursor), (2, None), "the last page ends the listing, also when it is full")


async def case_cursor_while_jobs_come_and_go(store: Storage, clock: MovableClock) -> None:
    jobs = []
    for _ in range(6):
        jobs.append(job())
        await store.enqueue([jobs[-1]])
        clock.advance(1)
    first, cursor = await store.find(Filter(), 2, None)
    assert_equal(ids(first), [jobs[5].id, jobs[4].id], "the first page")
    await report(store, jobs[4].id, Deleted())
    await report(store, jobs[2].id, Deleted())
    await store.enqueue([job(), job()])
    clock.advance(3600)
    await store.prune(99)
    second, cursor = await store.find(Filter(), 2, cursor)
    assert_equal(
        ids(second), [jobs[3].id, jobs[1].id], "nothing is shown twice, nothing is left out, though the last one went"
    )
    third, cursor = await store.find(Filter(), 2, cursor)
    assert_equal((ids(third), cursor), ([jobs[0].id], None), "the rest")


async def case_cursor_with_a_filter(store: Storage, clock: MovableClock) -> None:
    jobs = [job(task="ab"[n % 2]) for n in range(8)]
    await store.enqueue(jobs)
    found, cursor = await store.find(Filter(task="a"), 3, None)
    rest, end = await store.find(Filter(task="a"), 3, cursor)
    assert_equal(ids([*found, *rest]), ids(jobs[6::-2]), "pages of a filtered listing")
    assert_equal(end, None, "its end")


async def case_malformed_cursors(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(), job()])
    forged = ('[1,"x"]', '["1","!x"]', '[1,"x!"]', '[1,"\\u0000"]', f'["1","{new_id()}"]', f'[{2**63},"{new_id()}"]')
    for cursor in ("", "x", "null", "[]", "1", '["a","b"]', "{}", "\udc00", "9" * 400, "' or 1=1 --", *forged):
        try:
            await store.find(Filter(), 1, cursor)
        except InvalidCall:
            continue
        raise AssertionError(f"a malformed cursor must raise InvalidCall: {cursor!r}")


async def case_filter_by_state(store: Storage, clock: MovableClock) -> None:
    ready, scheduled, blocked, cancelled = job(), job(delay=SECOND), job(waits=1), job()
    done, dead = await enqueue_and_claim(store), await enqueue_and_claim(store)
    await report(store, done.id, Succeeded())
    await report(store, dead.id, Died("x"))
    held = await enqueue_and_claim(store)
    await store.enqueue([ready, scheduled, blocked, cancelled])
    await report(store, cancelled.id, Cancelled())
    one_each = {
        State.READY: ready,
        State.SCHEDULED: scheduled,
        State.BLOCKED: blocked,
        State.CANCELLED: cancelled,
        State.SUCCEEDED: done,
        State.DEAD: dead,
        State.RUNNING: held,
    }
    for state, wanted in one_each.items():
        await _finds(store, Filter(states=(state,)), [wanted], f"state {state}")
    await _finds(store, Filter(states=(State.DEAD, State.READY)), [dead, ready], "one of two states")
    await _finds(store, Filter(states=(State.SKIPPED,)), [], "a state that none is in")
    await _finds(store, Filter(states=()), [], "no state at all")


async def case_filter_by_names(store: Storage, clock: MovableClock) -> None:
    fields: list[dict[str, Any]] = [
        {"task": "send"},
        {"task": "sen"},
        {"queue": "mail"},
        {"key": "k%"},
        {"key": "kk"},
        {"routing_key": "x"},
        {"tags": '["red", "green"]'},
        {"tags": '["redder"]'},
        {"tags": '["gr\\u00fcn", "a\\"b"]'},
    ]
    jobs = [job(**values) for values in fields]
    await store.enqueue(jobs)
    await _finds(store, Filter(task="send"), [jobs[0]], "task, exactly")
    await _finds(store, Filter(queue="mail"), [jobs[2]], "queue")
    await _finds(store, Filter(key="k%"), [jobs[3]], "key, exactly")
    await _finds(store, Filter(key="K%"), [], "key, case and all")
    await _finds(store, Filter(tag="red"), [jobs[6]], "a whole tag")
    await _finds(store, Filter(tag="grün"), [jobs[8]], "a tag as a value, not as JSON text")
    await _finds(store, Filter(tag='a"b'), [jobs[8]], "a tag with a quote")
    await _finds(store, Filter(routing="x"), [jobs[5]], "routing key")
    await _finds(store, Filter(routing=None), [new for n, new in enumerate(jobs) if n != 5], "unrouted ones only")
    await _finds(store, Filter(), jobs, "routing ANY is the default and fits all")
    await _finds(store, Filter(task="send", queue="mail"), [], "all filters must match")


async def case_filter_by_tenant(store: Storage, clock: MovableClock) -> None:
    tenants = ["acme", "acme/main", "acme/main/x", "acme2", "acm", None, "ACME", "ac%"]
    jobs = [job(tenant=tenant) for tenant in tenants]
    await store.enqueue(jobs)
    await _finds(store, Filter(tenant="acme"), jobs[0:3], 'a tenant fits exactly or up to "/"')
    await _finds(store, Filter(tenant="acme/main"), jobs[1:3], "a workspace")
    await _finds(store, Filter(tenant="acme/mai"), [], "not in the middle of a name")
    await _finds(store, Filter(tenant="ac%"), jobs[7:8], "wildcards are letters")


async def case_filter_by_chain(store: Storage, clock: MovableClock) -> None:
    first = job()
    second, other = job(chain_id=first.id), job()
    await store.enqueue([first, second, other])
    await _finds(store, Filter(chain_id=first.id), [first, second], "a chain: its first job and those that name it")
    await _finds(store, Filter(chain_id=other.id), [other], "a job without chain_id is a chain of its own")


async def case_how_many_of_a_chain_are_done(store: Storage, clock: MovableClock) -> None:
    first = job(key="k")
    rest = [job(chain_id=first.id, key="k") for _ in range(5)]
    id = new_id()
    itself = job(id=id, chain_id=id, key="k")
    await store.enqueue([first, *rest, itself])
    await claim(store, 9)
    for done in (first, rest[0], itself):
        await report(store, done.id, Succeeded())
    await report(store, rest[1].id, Died("no"))
    await report(store, rest[2].id, Deleted())
    table: list[tuple[int, tuple[State, ...], str]] = [
        (2, (State.SUCCEEDED,), "done: the first job and one that names it"),
        (3, (State.SUCCEEDED, State.DEAD), "ended, without what is deleted"),
        (3, (State.DEAD, State.RUNNING), "ended or not"),
        (0, (State.READY,), "nobody waits"),
        (0, (), "of no state"),
    ]
    for wanted, states, what in table:
        assert_equal(await store.count(Filter(states=states, chain_id=first.id)), wanted, what)
    assert_equal(
        await store.count(Filter(states=(State.SUCCEEDED,), chain_id=itself.id)), 1, "one that names itself, once"
    )
    assert_equal(await store.count(Filter(states=(State.SUCCEEDED,), key="k")), 3, "the same by key")


async def case_filter_by_time(store: Storage, clock: MovableClock) -> None:
    jobs = []
    start = await store.now()
    for _ in range(4):
        jobs.append(job())
        await store.enqueue([jobs[-1]])
        clock.advance(1)
    await _finds(store, Filter(since=start + SECOND), jobs[1:], "since ≤ created_at")
    await _finds(store, Filter(before=start + SECOND), jobs[:1], "created_at < before")
    await _finds(store, Filter(since=start + SECOND, before=start + 3 * SECOND), jobs[1:3], "since and before")


async def case_filter_by_text(store: Storage, clock: MovableClock) -> None:
    payload, key = job(payload='{"to":"Ada_Lovelace 50% ÄÖ"}'), job(key="Needle-7")
    await store.enqueue([payload, key])
    reason = await enqueue_and_claim(store, queue="other")
    await report(store, reason.id, Died("the Mailbox is full"))
    errors = await enqueue_and_claim(store, queue="other")
    await report(store, errors.id, Failed(fault("Connection refused"), delay=SECOND))
    await _finds(store, Filter(text="lovelace"), [payload], "text in the payload, ignoring ASCII case")
    await _finds(store, Filter(text="NEEDLE"), [key], "text in the key")
    await _finds(store, Filter(text="mailbox"), [reason], "text in the reason")
    await _finds(store, Filter(text="connection REFUSED"), [errors], "text in the errors")
    await _finds(store, Filter(text="50%"), [payload], "a percent sign is a letter")
    await _finds(store, Filter(text="a%e"), [], "a percent sign is no wildcard")
    await _finds(store, Filter(text="Ada_L"), [payload], "an underscore is a letter")
    await _finds(store, Filter(text="Ad__L"), [], "an underscore is no wildcard")
    await _finds(store, Filter(text="ÄÖ"), [payload], "letters beyond ASCII are found as they are")
    await _finds(store, Filter(text="äö"), [], "and only ASCII case is ignored")
    await _finds(store, Filter(text="needle-8"), [], "text that is nowhere")
    await _finds(store, Filter(text="\n"), [], "nor is a line break between payload, key, reason and errors")


async def case_filter_by_text_that_json_writes_otherwise(store: Storage, clock: MovableClock) -> None:
    payload, key = job(payload=r'{"path":"C:\\temp\\Ada","said":"a \"word\"\u0000"}'), job(key='the "key"')
    await store.enqueue([payload, key])
    errors = await enqueue_and_claim(store, queue="other")
    await report(store, errors.id, Failed(fault('no "such"\nfile'), delay=SECOND))
    for text, found in {
        r"C:\temp\ada": payload,
        '"word"': payload,
        "\x00": payload,
        '"Key"': key,
        'no "such"\nFILE': errors,
    }.items():
        await _finds(store, Filter(text=text), [found], f"{text!r} as it was before it was JSON")
    await _finds(store, Filter(text=r"\"word\""), [payload], "and as JSON writes it")
    await _finds(store, Filter(text='"path":"'), [payload], "with the marks around it")


async def case_limit(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job() for _ in range(3)])
    found, cursor = await store.find(Filter(), 1, None)
    assert_equal(len(found), 1, "at most `limit`")
    assert_true(cursor is not None, "and a cursor for what follows")


async def _finds(store: Storage, filter: Filter, wanted: list[Any], what: str) -> None:
    found, _ = await store.find(filter, 99, None)
    assert_equal(sorted(ids(found)), sorted(ids(wanted)), f"find by {what}")
    assert_equal(await store.count(filter), len(wanted), f"count by {what}")
