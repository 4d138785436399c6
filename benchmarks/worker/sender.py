"""A program that enqueues jobs at a steady pace: JOBS-A-SECOND SECONDS. It says when it begins, and how fast it was."""

import asyncio
import json
import sys
import time

from .tasks import app, arrive


async def send(pace: float, seconds: float) -> dict[str, float]:
    async with app:
        await app.queues.list()  # connected
        print("begins", flush=True)
        began, sent, sending = time.monotonic(), 0, set()
        while (now := time.monotonic() - began) < seconds:
            for _ in range(int(now * pace) - sent):
                sent += 1
                task = asyncio.ensure_future(arrive.enqueue(time.time()))
                sending.add(task)
                task.add_done_callback(sending.discard)
            await asyncio.sleep(0.001)
        await asyncio.gather(*sending)
        return {"jobs": sent, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(float(sys.argv[1]), float(sys.argv[2])))))
