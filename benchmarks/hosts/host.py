"""A process with one worker, to be killed or to find what the killed ones held: URL, queue, lease in seconds, slots."""

import asyncio
import sys

from perdure import Perdure


async def main(url: str, queue: str, lease: str, slots: str) -> None:
    app = Perdure(url)

    @app.task(lease=float(lease), queue=queue, name="held")
    async def held() -> None:
        await asyncio.Event().wait()

    async with app, app.worker(queues=[queue], concurrency=int(slots)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
