"""A relay in a process of its own that is killed, as kill -9 does it, at a point of its first round."""

import asyncio
import os
import signal
import sys

from perdure import Perdure
from perdure.outbox import relay as relay_module
from perdure.outbox.delivery import Delivery

POINTS = ("before the enqueue", "between enqueue and delete", "after the delete")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(Delivery):
    async def deliver(self, parcels):
        if POINTS[0] == POINT:
            die()
        await super().deliver(parcels)
        if POINTS[1] == POINT:
            die()


class Relay(relay_module.Relay):
    async def _deliver(self, batch):
        delivery = await super()._deliver(batch)
        if POINTS[2] == POINT:
            die()
        return delivery


if __name__ == "__main__":
    OUTBOX, TARGET, POINT = sys.argv[1:]
    relay_module.Delivery = Dying
    app = Perdure(TARGET, outbox=OUTBOX)
    asyncio.run(Relay(app._runtime.loops.outboxes.get, app._runtime.storage).once())
