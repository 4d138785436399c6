"""What the benchmark on Redis has beside the others: handlers in forked processes, and the best of many peers."""

import os

from benchmarks.payload import payload
from benchmarks.probe import Probe
from benchmarks.redis.forked import told_by_children
from benchmarks.redis.goals import PYTHON_PEERS, goals
from benchmarks.registry import suite_named
from benchmarks.results import Results

JOBS = 40


def test_what_handlers_in_forked_processes_tell_arrives_once_and_whole():
    probe = Probe(JOBS)
    with told_by_children(probe) as tell:
        children = [_forked(tell, range(own, JOBS, 4)) for own in range(4)]
        for child in children:
            os.waitpid(child, 0)
        assert probe.finished.wait(10)
    probe.stored()
    account = probe.account()
    assert (account["calls"], account["distinct"]) == (JOBS, JOBS)


def _forked(tell, numbers) -> int:
    child = os.fork()
    if child == 0:
        for number in numbers:
            tell(payload(number))
        os._exit(0)
    return child


def test_what_was_told_last_is_heard_although_nobody_waited_for_it():
    probe = Probe(JOBS)
    with told_by_children(probe) as tell:
        for number in range(JOBS):
            tell(payload(number))
    assert probe.finished.is_set()


def test_the_drain_is_judged_by_the_best_python_peer_of_the_run():
    results = Results("redis", versions={"perdure": "1"})
    results.add("perdure", {"drain": 30_000.0, "enqueue_bulk": 60_000.0})
    results.add("huey", {"drain": 2_000.0})
    results.add("dramatiq", {"drain": 4_000.0})
    results.add("bullmq-node", {"drain": 10_000.0, "enqueue_bulk": 15_000.0})
    against_python, against_node, bulk, *_ = goals(results)
    assert "dramatiq" in against_python.text
    assert (against_python.value, against_python.met) == (7.5, False)
    assert (against_node.value, against_node.met) == (3.0, True)
    assert (bulk.value, bulk.met) == (4.0, True)


def test_every_peer_in_python_is_judged():
    peers = {contender.key for contender in suite_named("redis").contenders if not contender.ours}
    assert peers - {"bullmq-node"} == set(PYTHON_PEERS)
