"""Every stored text comes back unchanged."""

from __future__ import annotations

import json

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Died, Failed, Succeeded
from perdure.core.record import Fault, faults_of
from perdure.storage.contract import Filter, Note, QueueSettings, Storage

from ..tools import MovableClock, assert_equal, claim, enqueue_and_claim, ids, job, read_job, report

MIB = 1 << 20
JSON_TEXTS = (
    "null",
    '""',
    '{"nul":"a\\u0000b","escaped":"\\ud83e\\udd80","quote":"\\""}',
    '{"astral":"🦀𝄞","combining":"e\u0301","direction":"\u202e","separator":"\u2028"}',
    '{ "spaces" :  1 ,\n"order":2, "a":1.0, "big":9007199254740993, "exponent":1E2, "a":"again" }',
    '"it\'s; drop table jobs -- %s ? :x $1 {0}"',
    '"\\\\ \\/ \\b\\f\\n\\r\\t"',
    '"\x7f\x80\xa0\ufeff\ufffd"',
    '"' + "é" * (MIB // 2 - 1) + '"',
)
NAMES = ("plain", "with space", "it's", 'a"b', "ünï", "🦀", "a%b_c", "back\\slash", "q?x:y", "{x}", "a" * 200)


async def case_payload(store: Storage, clock: MovableClock) -> None:
    for text in JSON_TEXTS:
        record = await enqueue_and_claim(store, payload=text)
        assert_equal(record.payload, text, "a payload as a claim hands it out")
        assert_equal((await read_job(store, record.id)).payload, text, "a payload as get shows it")


async def case_result(store: Storage, clock: MovableClock) -> None:
    for text in JSON_TEXTS:
        record = await enqueue_and_claim(store)
        assert_equal((await report(store, record.id, Succeeded(text))).result, text, "a result")


async def case_progress(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    for text in JSON_TEXTS:
        await store.note([Note(record.hold, text)])
        assert_equal((await read_job(store, record.id)).progress, text, "progress")


async def case_tags_meta_and_limits(store: Storage, clock: MovableClock) -> None:
    for text in JSON_TEXTS[:-1]:
        parent = job()
        limits = f'[ ["k", 1, null, null], [{json.dumps(text)}, 2]]'
        new = job(tags=f"[ {text}]", meta=f'{{"m" : {text}}}', after=f'[ "{parent.id}" ]', waits=1, limits=limits)
        await store.enqueue([parent, new])
        row = await read_job(store, new.id)
        assert_equal(
            (row.tags, row.meta, row.after, row.limits), (new.tags, new.meta, new.after, new.limits), "JSON columns"
        )


async def case_errors(store: Storage, clock: MovableClock) -> None:
    hard = Fault(1, "w\x00🦀", -5, 2**60, "Ünï", "a\x00b 🦀 \u202e \x1b[31m", 'Traceback\n\t"x"')
    record = await enqueue_and_claim(store)
    row = await report(store, record.id, Failed(hard, delay=SECOND))
    assert_equal(faults_of(row.errors), [hard], "errors")


async def case_a_batch_of_different_texts(store: Storage, clock: MovableClock) -> None:
    jobs = [job(payload=text, key=f"k{n}") for n, text in enumerate(JSON_TEXTS)]
    await store.enqueue(jobs)
    claimed = await claim(store, 99)
    assert_equal([record.payload for record in claimed], list(JSON_TEXTS), "payloads of one batch")


async def case_names(store: Storage, clock: MovableClock) -> None:
    for name in NAMES:
        fields = {"task": name, "queue": name, "key": name, "tenant": name, "routing_key": name}
        new = job(unique_key=name, unique_scope="active", **fields)
        await store.enqueue([new])
        want = {"queues": (name,), "tasks": (name,), "routing": name}
        (record,) = await claim(store, 9, name, **want)
        found = [getattr(record, field) for field in (*fields, "unique_key", "leased_by")]
        assert_equal(found, [name] * 7, "names come back unchanged")
        filter = Filter(task=name, queue=name, key=name, tenant=name, routing=name)
        assert_equal(ids((await store.find(filter, 9, None))[0]), [new.id], f"find by the name {name!r}")
        await store.configure(QueueSettings(name, max_depth=1))
        await store.pause(name, True)
    assert_equal([row.settings.name for row in await store.queues()], sorted(NAMES), "queues under their names")


async def case_nul_in_keys_reasons_and_lines(store: Storage, clock: MovableClock) -> None:
    hard = "a\x00b"
    record = await enqueue_and_claim(store, key=hard, tenant="t", unique_key=hard, unique_scope="active")
    assert_equal((record.key, record.unique_key), (hard, hard), "a key with a NUL")
    other = job(unique_key="a", unique_scope="active")
    assert_equal((await store.enqueue([other]))[0].duplicate, False, "a key is not cut at a NUL")
    await store.note([Note(record.hold, None, (hard, "🦀", "", "it's"))])
    assert_equal(await store.log(record.id), [hard, "🦀", "", "it's"], "log lines")
    assert_equal((await report(store, record.id, Died(hard))).reason, hard, "a reason with a NUL")
    assert_equal(ids((await store.find(Filter(key=hard), 9, None))[0]), [record.id], "find by a key with a NUL")
    assert_equal(ids((await store.find(Filter(text="0B"), 9, None))[0]), [], "and text stays text")


async def case_numbers(store: Storage, clock: MovableClock) -> None:
    largest = 2**62
    new = job(priority=-(2**31), lease=largest, timeout=largest, max_attempts=2**31, delay=largest // 2)
    await store.enqueue([new])
    row = await read_job(store, new.id)
    found = (row.priority, row.lease, row.timeout, row.max_attempts)
    assert_equal(found, (-(2**31), largest, largest, 2**31), "64-bit integers")
