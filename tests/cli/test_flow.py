"""`perdure chain`, `perdure graph`, `jobs complete`, `jobs answer`."""

import asyncio

from perdure import Continue, graph, group


def filled(shop):
    """A diamond whose first job is done, and a group beside it."""
    add = shop.app.definitions()["add"]
    task = shop.names["add"]
    assert add is not None

    async def fill():
        async with shop.app:
            g = graph()
            top = g.add(task.call(1, 2))
            left, right = g.add(task.call(2, 2), after=[top]), g.add(task.call(3, 2), after=[top])
            g.add(task.call(4, 2), after=[left, right])
            diamond = await shop.app.enqueue(g)
            await shop.app.enqueue(group(task.call(1, 1), task.call(2, 2)))
            await shop.app.jobs.complete(diamond[0], 3)
            return [str(job.id) for job in diamond]

    return asyncio.run(fill())


def test_chain(shop):
    ids = filled(shop)
    document = shop.json("chain", ids[3])
    assert document["chain"] == ids[0]
    assert [job["id"] for job in document["jobs"]] == ids
    assert document["states"] == {"succeeded": 1, "ready": 2, "blocked": 1}
    text = shop.perdure("chain", ids[1])
    assert text.output.count("\n") == 6
    assert "1 blocked, 2 ready, 1 succeeded" in text.output
    assert shop.json("jobs", "count", "--chain-id", ids[0]) == {"count": 4}
    assert shop.perdure("chain", "01900000-0000-7000-8000-000000000001").exit_code == 1


def test_graph(shop):
    ids = filled(shop)
    lines = shop.perdure("graph", ids[0]).output.splitlines()
    assert lines == [
        f"✓ add succeeded {ids[0]}",
        f"├─ ○ add ready {ids[1]}",
        f"│  └─ … add blocked {ids[3]}",
        f"└─ ○ add ready {ids[2]}",
        f"   └─ … add blocked {ids[3]}",
    ]
    drawing = shop.perdure("graph", ids[0], "--mermaid").output.splitlines()
    assert drawing[0] == "flowchart TD"
    assert drawing[-4:] == ["    j0 --> j1", "    j0 --> j2", "    j1 --> j3", "    j2 --> j3"]
    pairs = shop.json("graph", ids[0])["edges"]
    assert {(pair["from"], pair["to"]) for pair in pairs} == {
        (ids[0], ids[1]),
        (ids[0], ids[2]),
        (ids[1], ids[3]),
        (ids[2], ids[3]),
    }


def test_a_graph_shows_parents_of_other_chains(shop):
    task = shop.names["add"]

    async def fill():
        async with shop.app:
            first = await task.enqueue(1, 2)
            second = await task.using(after=[first]).enqueue(2, 3)
            third = await task.using(after=[second, first]).enqueue(3, 4)
            return [str(job.id) for job in (first, second, third)]

    first, second, third = asyncio.run(fill())
    assert shop.perdure("graph", third).output.splitlines() == [
        f"○ add ready {first}",
        f"├─ … add blocked {second}",
        f"│  └─ … add blocked {third}",
        f"└─ … add blocked {third}",
    ]


def test_wait_for_the_end_of_a_chain(shop):
    task = shop.names["add"]

    @shop.app.task
    async def begin() -> int:
        return Continue(task.call(1, 2))

    async def fill():
        async with shop.app, shop.app.worker():
            job = await begin.enqueue()
            await job.result(timeout=20)
            return str(job.id)

    id = asyncio.run(fill())
    assert shop.perdure("jobs", "wait", id).output == "succeeded: 3\n"
    assert shop.json("jobs", "wait", id)["result"] == 3


def test_complete_and_answer(shop):
    ids = shop.fill()
    done = shop.perdure("jobs", "complete", ids["later"], "--result", '{"by": "hand"}')
    assert (done.exit_code, done.output) == (0, "completed\n")
    assert shop.json("jobs", "get", ids["later"])["result"] == {"by": "hand"}
    assert "succeeded and cannot be completed" in shop.perdure("jobs", "complete", ids["later"]).output
    assert shop.perdure("jobs", "complete", ids["add"], "--result", "hand").exit_code == 2
    assert shop.perdure("jobs", "answer", ids["add"], "approved", '"yes"').output == "answered\n"
    again = shop.perdure("jobs", "answer", ids["add"], "approved")
    assert again.exit_code == 1
    assert "has its answer" in again.output
    assert shop.json("jobs", "answer", ids["add"], "seen") == {"id": ids["add"], "answered": "seen"}
    assert shop.json("jobs", "complete", ids["add"]) == {"id": ids["add"], "completed": True}
