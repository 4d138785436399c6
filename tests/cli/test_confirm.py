"""Questions before bulk changes, on a real terminal."""

import os
import pty
import subprocess
import sys

import pytest

from .conftest import environment


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 2), (b"n\n", 1, 4), (b"\n", 1, 4)])
def test_the_answer_counts(shop, answer, code, left):
    shop.fill()
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "jobs", "delete", "--task", "send", "--json"],
        env=environment(PERDURE_URL=shop.url),
        stdin=inside,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(outside, answer)
    out, err = process.communicate(timeout=30)
    os.close(outside)
    os.close(inside)
    assert process.returncode == code
    assert "Delete 2 jobs? [y/N]" in err
    assert ("deleted" in out) == (code == 0)
    assert shop.json("jobs", "count") == {"count": left}
