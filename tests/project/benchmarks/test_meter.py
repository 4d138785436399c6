"""The meter of the benchmarks counts this process, and the server with the processes that it started."""

import subprocess
import sys
import time

import pytest

from benchmarks.meter import SERVER, Meter

# A server with a child for each line that it reads: the child computes, ends, and is waited for.
PROGRAM = """
import subprocess, sys
for line in sys.stdin:
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.4: pass"], check=True)
    print("done", flush=True)
"""


def test_it_counts_the_time_of_this_process(tmp_path):
    meter = Meter(tmp_path)
    meter.start()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    meter.stop()
    assert meter.cpu is not None
    assert 0.05 <= meter.cpu <= meter.seconds * 8
    assert meter.account() == {"cpu": meter.cpu, "server_cpu": None}


@pytest.mark.skipif(sys.platform != "linux", reason="the time of other processes is read from /proc")
def test_it_counts_processes_of_the_server_that_have_ended(tmp_path):
    server = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        (tmp_path / SERVER).write_text(str(server.pid))
        meter = Meter(tmp_path)
        meter.start()
        server.stdin.write("work\n")
        server.stdin.flush()
        assert server.stdout.readline() == "done\n"
        meter.stop()
    finally:
        server.stdin.close()
        server.wait(30)
        server.stdout.close()
    assert meter.server_cpu is not None
    assert 0.3 <= meter.server_cpu <= 5
