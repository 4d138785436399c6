"""One measurement in a process of its own: `python -m benchmarks.child SPEC`, where SPEC is JSON.

The result goes to a file, because some queues print on standard output.
"""

import asyncio
import json
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from .contender import Contender, gaps
from .payload import payloads
from .probe import DelayProbe, IdleProbe, LongProbe, Probe, SharedProbe
from .registry import suite_named

Spec = dict[str, Any]
WARM_UP = 10
SETTLED_AFTER = 1.0


def main(argument: str) -> None:
    spec: Spec = json.loads(argument)
    logging.disable(logging.ERROR)
    suite = suite_named(spec["suite"])
    if spec["verb"] == "raw":
        result = suite.raw_rate(Path(spec["place"]), spec["raw"], spec["jobs"])
    else:
        contender = suite.contender(spec["contender"])(Path(spec["place"]))
        contender.limit = spec.get("limit")
        result = VERBS[spec["verb"]](contender, spec)
    Path(spec["result"]).write_text(json.dumps(result))


def prepare(contender: Contender, spec: Spec) -> dict[str, float]:
    contender.prepare()
    return {}


def enqueue(contender: Contender, spec: Spec) -> dict[str, float | None]:
    texts = payloads(spec["jobs"])
    seconds = contender.enqueue(spec["way"], texts)
    return {"seconds": seconds, "stored": contender.waiting() - 1, **contender.meter.account()}


def fill(contender: Contender, spec: Spec) -> dict[str, float]:
    contender.fill(payloads(spec["jobs"]))
    return {"stored": contender.waiting()}


def drain(contender: Contender, spec: Spec) -> dict[str, float | None]:
    probe = Probe(spec["jobs"], meter=contender.meter)
    contender.work(probe, spec["mode"])
    return {
        **probe.account(),
        "memory": peak_memory(),
        "completed": contender.completed(),
        "waiting": contender.waiting(),
    }


def drain_long(contender: Contender, spec: Spec) -> dict[str, Any]:
    """Some or all of the jobs on record, with the time that each window of them took."""
    probe = LongProbe(spec["jobs"], window=spec["window"], on_record=spec["on_record"], patience=spec["patience"])
    contender.work(probe, "loop")
    return {**probe.account(), "windows": probe.seconds_per_window()}


def drain_shared(contender: Contender, spec: Spec) -> dict[str, float]:
    """One of the processes that drain together. All begin when the gate opens."""
    folder = Path(spec["folder"])
    probe = SharedProbe(spec["jobs"], folder=folder, own=spec["own"], processes=spec["processes"])
    contender.warm_up()
    (folder / f"ready-{spec['own']}").touch()
    while not (folder / "gate").exists():
        time.sleep(0.001)
    contender.work(probe, "loop")
    return probe.account()


def receive(contender: Contender, spec: Spec) -> dict[str, Any]:
    probe = DelayProbe(spec["samples"] + WARM_UP, ready_file=Path(spec["ready"]), meter=contender.meter)
    contender.work(probe, "loop")
    return {"delays": probe.delays[WARM_UP:], "jobs": probe.expected, **contender.meter.account()}


def send(contender: Contender, spec: Spec) -> dict[str, float | None]:
    time.sleep(SETTLED_AFTER)
    contender.send(gaps(spec["samples"] + WARM_UP, spec["seed"]))
    return contender.meter.account()


def flow(contender: Contender, spec: Spec) -> dict[str, float | None]:
    """A measure of `benchmarks.flow`, which knows only Perdure."""
    from .flow.measures import MEASURES
    from .perdure import PerdureContender

    assert isinstance(contender, PerdureContender)
    contender.warm_up()
    contender.meter.start()
    figures = asyncio.run(MEASURES[spec["measure"]].run(contender.url(), spec["size"]))
    contender.meter.stop()
    return {**figures, **contender.meter.account(), "jobs": contender.completed()}


def idle(contender: Contender, spec: Spec) -> dict[str, float]:
    """One job is there to prove that the worker is up, then nothing for a while."""
    probe = IdleProbe()
    outcome: dict[str, float] = {}
    Thread(target=_watch, args=(probe, spec["seconds"], outcome), daemon=True).start()
    contender.work(probe, "loop")
    return {**outcome, "memory": peak_memory()}


def _watch(probe: IdleProbe, seconds: float, outcome: dict[str, float]) -> None:
    while not probe.first_call:
        time.sleep(0.01)
    time.sleep(SETTLED_AFTER)
    cpu, clock = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    outcome["cpu"] = (time.process_time() - cpu) / (time.perf_counter() - clock)
    probe.finished.set()


def peak_memory() -> float:
    """Peak resident size in MB. The kernel's own mark of this program, because getrusage remembers the parent's too."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / (1024 * 1024 if sys.platform == "darwin" else 1024)


VERBS: dict[str, Callable[[Contender, Spec], Any]] = {
    "prepare": prepare,
    "enqueue": enqueue,
    "fill": fill,
    "drain": drain,
    "drain_long": drain_long,
    "drain_shared": drain_shared,
    "receive": receive,
    "send": send,
    "idle": idle,
    "flow": flow,
}

if __name__ == "__main__":
    main(sys.argv[1])
