"""Imported by the demo's workers: a worker ends when the demo is gone, even if that was killed."""

from __future__ import annotations

import os
import threading
import time

WORKER = "PERDURE_DEMO_WORKER"  # set for the workers and not for the demo itself


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if WORKER in os.environ:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
