"""`perdure worker`: a real process."""

import contextlib
import signal
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.support.waiting import wait_until


@contextlib.contextmanager
def running(shop, *arguments):
    process = shop.process("worker", *arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_it_runs_jobs_and_stops_cleanly(shop):
    ids = shop.fill()
    with running(shop, "shop:app", "--poll", "0.1", "--name", "anna") as process:
        assert shop.run("jobs", "wait", ids["add"], "--timeout", "20")[:2] == (0, "succeeded: 3\n")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "tasks: add, broken, forever, send, slow" in err
    assert "supervisor anna" in err
    assert "worker anna.1." in err
    assert shop.json("workers") == {"workers": []}


def test_told_to_stop_while_it_starts_it_stops_cleanly(shop):
    begun = shop.folder / "begun"
    slow = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(30)\n"
    (shop.folder / "shop.py").write_text(slow + shop.source)
    with running(shop, "shop:app") as process:
        wait_until(begun.exists)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_stop_waits_for_what_runs(shop):
    shop.fill()
    path = shop.folder / "slow"
    shop.enqueue("slow", str(path), 1.0)
    with running(shop, "shop:app", "--poll", "0.1") as process:
        wait_until(path.exists)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert path.read_text() == "ended"


def test_a_second_signal_hurries(shop):
    path = shop.folder / "forever"
    id = shop.enqueue("forever", str(path))
    with running(shop, "shop:app", "--poll", "0.1", "--grace", "600") as process:
        wait_until(path.exists)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert shop.json("jobs", "get", id)["state"] == "ready"


def test_only_the_queues_that_were_asked_for(shop):
    ids = shop.fill()
    with running(
        shop, "shop:app", "--queues", "mail", "--unrouted", "--poll", "0.1", "--log-level", "error"
    ) as process:
        assert shop.run("jobs", "wait", ids["send"], "--timeout", "20")[0] == 0
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err == ""
    assert shop.json("jobs", "get", ids["add"])["state"] == "ready"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("", [], "has no tasks"),
        ("@app.task\ndef f(): ...\n", ["--tasks", "f,g"], "no task g"),
        ("@app.task\ndef f(): ...\n", ["--queues", ""], "names nothing"),
        ("@app.task\ndef f(): ...\n", ["--concurrency", "0"], "concurrency"),
        ("@app.task\ndef f(): ...\n", ["--unrouted", "--routing-key", "x"], "exclude"),
        ("@app.task\ndef f(): ...\n", ["--max-memory", "lots"], "'lots' is no size such as 512M"),
        ("@app.task\ndef f(): ...\n", ["--batch-size", "f"], "'f' is not of the form task=32"),
        ("@app.task\ndef f(): ...\n", ["--batch-size", "f=0"], "'f=0' is not of the form task=32"),
        ("@app.task\ndef f(): ...\n", ["--batch-size", "f=2"], "'f', which is no batch task"),
        ("@app.task\ndef f(): ...\n", ["--max-memory", "0"], "'0' is no size such as 512M"),
        ("app = Perdure('memory://', imports=['shop_nowhere'])", [], "shop_nowhere"),
    ],
)
def test_wrong_use(shop, source, options, message):
    (shop.folder / "shop_new.py").write_text(f"from perdure import Perdure\napp = Perdure('memory://')\n{source}")
    code, _, err = shop.run("worker", "shop_new:app", *options)
    assert code == 2
    assert message in err


def test_the_imports_of_an_app_are_imported(shop):
    (shop.folder / "shop_door.py").write_text(
        f"from perdure import Perdure\napp = Perdure({shop.url!r}, imports=['shop_tasks'])\n"
    )
    (shop.folder / "shop_tasks.py").write_text("from shop_door import app\n@app.task\ndef polish(): ...\n")
    with running(shop, "shop_door:app") as process:
        lines = iter(process.stderr.readline, "")
        assert any("tasks: polish" in line for line in lines)


@pytest.mark.parametrize("way", ["--no-supervisor", "--spares=0"])
def test_batch_size(shop, way):
    (shop.folder / "shop.py").write_text(
        f"{shop.source}\nfrom perdure import Item\n@app.batch_task(size=2, wait=5)\n"
        "async def gather(items: list[Item[int]]) -> list[int]:\n    return [len(items)] * len(items)\n"
    )
    exec((shop.folder / "shop.py").read_text(), shop.names)
    shop.app = shop.names["app"]
    ids = [shop.enqueue("gather", number) for number in range(3)]
    with running(shop, "shop:app", "--poll", "0.1", "--batch-size", "gather=3", way) as process:
        assert shop.run("jobs", "wait", ids[-1], "--timeout", "20")[1] == "succeeded: 3\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.mark.parametrize("way", ["--no-supervisor", "--spares=0"])
def test_the_interpreter_switches_threads_as_python_does(shop, way):
    """A shorter interval makes a `def` handler that computes take longer."""
    (shop.folder / "shop.py").write_text(
        f"{shop.source}\n@app.task\ndef interval() -> float:\n    import sys\n    return sys.getswitchinterval()\n"
    )
    exec((shop.folder / "shop.py").read_text(), shop.names)
    shop.app = shop.names["app"]
    id = shop.enqueue("interval")
    with running(shop, "shop:app", "--poll", "0.1", way) as process:
        assert shop.run("jobs", "wait", id, "--timeout", "20")[1] == f"succeeded: {sys.getswitchinterval()}\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def test_probes(shop):
    """A port and a file of its own; who checks the file needs no app."""
    file = shop.folder / "alive"
    with running(shop, "shop:app", "--poll", "0.1", "--probe-port", "0", "--probe-file", str(file)) as process:
        line = next(line for line in process.stderr if "probe: http://" in line)
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        wait_until(lambda: _status(port, "/ready") == 200)
        assert (_status(port, "/live"), _status(port, "/scale"), _status(port, "/")) == (200, 200, 404)
        assert shop.perdure("worker", "--check-file", str(file)).exit_code == 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert not file.exists()
    checked = shop.perdure("worker", "--check-file", str(file))
    assert (checked.exit_code, "nobody has touched" in checked.output) == (1, True)


def _status(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
