"""What a doctor should know about the server: its version, its memory, and how far away it is."""

from __future__ import annotations

import time

from perdure.storage.contract import Finding

from .durability import Settings, read_settings
from .link import Link

NEARLY_FULL = 0.8  # of maxmemory
FAR_AWAY = 0.020  # seconds of a round trip
ROUNDS = 5
_MIB = 1 << 20


async def findings(link: Link) -> list[Finding]:
    settings = await read_settings(link)
    return [_server(settings), _memory(settings), await _latency(link)]


def _server(settings: Settings) -> Finding:
    return Finding("server", "ok", f"{settings.product} {settings.version}{', a cluster' if settings.cluster else ''}")


def _memory(settings: Settings) -> Finding:
    used = f"{settings.used / _MIB:.0f} MiB used"
    if not settings.maxmemory:
        return Finding("memory", "ok", f"{used}, no limit set (maxmemory 0), policy {settings.policy}")
    told = f"{used} of {settings.maxmemory / _MIB:.0f} MiB, policy {settings.policy}"
    full = settings.used > NEARLY_FULL * settings.maxmemory
    remedy = "raise maxmemory, or keep ended jobs for a shorter time: a full server takes no new jobs"
    return Finding("memory", "warn" if full else "ok", told, remedy)


async def _latency(link: Link) -> Finding:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await link.command("PING")
        rounds.append(time.perf_counter() - began)
    median = sorted(rounds)[ROUNDS // 2]
    remedy = "let workers and server live close together: every claim is a round trip"
    return Finding("latency", "warn" if median > FAR_AWAY else "ok", f"{1000 * median:.1f} ms a round trip", remedy)
