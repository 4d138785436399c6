"""`./dev kills STORE`: the long form of the kill campaign, with a table and a JSON file of what came of it."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import shlex
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from .campaign import FILES, Campaign, Plan
from .report import row_of, text_of, write_json
from .verdict import Verdict

STORES = (*FILES, "postgres", "valkey", "redis", "mongo")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev kills", description="Kill workers and servers at work, and judge.")
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--kills", type=int, default=300, help="kills of runners, supervisors and workers [300]")
    parser.add_argument(
        "--server-kills", type=int, default=50, help="kills of the server; of all workers for a file [50]"
    )
    parser.add_argument("--zombies", type=int, default=40, help="workers frozen for longer than their leases [40]")
    parser.add_argument(
        "--no-watch", action="store_true", help="without triggers that write every move down (SQL only)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result [kills-STORE.json]")
    parser.add_argument("--folder", type=Path, help="keep history, logs and data there [a temporary folder]")
    chosen = parser.parse_args()
    seed = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
    say = partial(print, flush=True)
    say(f"PERDURE_SEED={seed}")
    with tempfile.TemporaryDirectory(prefix="perdure-kills-") as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(chosen.store, folder, random.Random(seed), say)
        plan = Plan(chosen.kills, chosen.server_kills, chosen.zombies)
        verdict = asyncio.run(_run(campaign, plan, watch=not chosen.no_watch))
    row = row_of(chosen.store, campaign.done, verdict)
    say(text_of(row, campaign.done, verdict))
    command = shlex.join(["./dev", "kills", *sys.argv[1:]])
    write_json(chosen.json or Path(f"kills-{chosen.store}.json"), row, campaign.done, verdict, command, seed)
    return 0 if verdict.good else 1


async def _run(campaign: Campaign, plan: Plan, *, watch: bool) -> Verdict:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _print_stacks)
    task = asyncio.ensure_future(campaign.run(plan, watch=watch))
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _print_stacks() -> None:
    """For a campaign that stands still: where its tasks and threads are."""
    for task in asyncio.all_tasks():
        print(task.get_name(), file=sys.stderr)
        waiting: Any = task.get_coro()
        while frame := getattr(waiting, "cr_frame", None):
            print(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}", file=sys.stderr)
            waiting = waiting.cr_await
    faulthandler.dump_traceback(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
