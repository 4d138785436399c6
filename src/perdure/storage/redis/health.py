"""Check a server when a store is opened, tell how durable it is, and report on it for `perdure doctor`.

The check covers the version, the eviction policy, the format of the keys and the durability.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.contract import Durability, Finding
from perdure.storage.opening import Demand, check_durability

from .connection.client import RedisClient
from .connection.errors import is_no_database
from .keys import TYPES
from .schema import FORMAT

OLDEST = (6, 2)
LOADING_WITHIN, RETRY_FOR = 30.0, 2.0
_log = logging.getLogger("perdure")
_logged: set[str] = set()  # stores whose server does not show its settings
_AOF = "CONFIG SET appendonly yes, then CONFIG REWRITE (and appendonly yes in the configuration file)"
NEARLY_FULL = 0.8  # of maxmemory
FAR_AWAY = 0.020  # seconds of a round trip
ROUNDS = 5
_MIB = 1 << 20


async def check_store(client: RedisClient, demand: Demand, migrate: bool) -> None:
    """Check the server and the keys. StoreError says what is wrong and what to do."""
    await _wait_for_server(client)
    settings = await read_settings(client)
    _check_server(settings, str(client.address))
    await _check_format(client, migrate)
    _check_durability(settings, str(client.address), demand)


async def _wait_for_server(client: RedisClient) -> None:
    """Wait for a server that loads its data. A server that is not there raises StoreError soon."""
    if client.address.ca is not None:
        _check_certificates(client.address.ca, str(client.address))
    try:
        await client.command("PING", retry_for=RETRY_FOR)
    except StoreError as error:
        if error.__cause__ is not None and is_no_database(error.__cause__):
            raise StoreMisconfigured(str(error)) from error
        if "LOADING" not in str(error):
            raise
        await client.command("PING", retry_for=LOADING_WITHIN)


def _check_certificates(path: str, place: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # also of a file that holds no certificate
        raise StoreMisconfigured(f"{place}: ca={path} cannot be used: {error}") from error


def _check_server(settings: Settings, place: str) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", settings.version)[:2])
    if settings.product == "Redis" and version < OLDEST:
        raise StoreMisconfigured(f"{place}: this is Redis {settings.version}; Perdure needs 6.2 or newer, or Valkey")
    if settings.replica:
        raise StoreError(f"{place}: it is a read-only replica; name the primary in the URL")
    refuse_eviction(settings, place)


async def _check_format(client: RedisClient, migrate: bool) -> None:
    """Check that the keys are ours and of a known format. One script does it, because others may open the store too."""
    question = [FORMAT, "migrate" if migrate else "check", json.dumps(list(TYPES.values()))]
    told = await client.run("schema_version", question, repeat=True)
    if told[0] == b"damaged":  # one key of ours was overwritten
        await client.move_foreign()
        told = await client.run("schema_version", question, repeat=True)
    match told:
        case [b"foreign" | b"damaged", key, found]:
            raise StoreError(
                f"{client.address}: the key {key.decode()} holds a {found.decode()} that is not Perdure's; choose another "
                "prefix with ?prefix="
            )
        case [b"foreign rows"]:
            raise StoreError(
                f"{client.address}: {client.keys['rows']} is not Perdure's; choose another prefix with ?prefix="
            )
        case [b"empty"]:
            raise StoreError(
                f"{client.address} has no jobs of Perdure: run `perdure migrate`, or correct database or prefix in the URL"
            )
        case [b"format", noted] if not noted.isdigit() or int(noted) > FORMAT:
            raise StoreError(
                f"{client.address} has format version {noted.decode('utf-8', 'replace')}, and this Perdure knows only up to "
                f"{FORMAT}: it was written by a newer Perdure; upgrade perdure here"
            )
        case [b"format", noted] if int(noted) < FORMAT:
            raise StoreError(
                f"{client.address} has format version {int(noted)}, and this Perdure needs {FORMAT}: run `perdure migrate`"
            )


def _check_durability(settings: Settings, place: str, demand: Demand) -> None:
    if settings.appendfsync is None and settings.save is None and place not in _logged:
        _logged.add(place)
        _log.info("%s: the server does not show its configuration (CONFIG is forbidden)", place)
    check_durability(durability_of(settings), demand, place)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the server. None: unknown, because managed servers often forbid CONFIG."""

    appendonly: bool
    appendfsync: str | None
    save: str | None
    policy: str
    maxmemory: int
    used: int
    product: str
    version: str
    cluster: bool
    replica: bool


async def read_settings(client: RedisClient) -> Settings:
    info = _parse_info(await client.command("INFO"))
    return Settings(
        appendonly=info.get("aof_enabled") == "1",
        appendfsync=await _read_setting(client, "appendfsync"),
        save=await _read_setting(client, "save"),
        policy=info.get("maxmemory_policy", "noeviction"),
        maxmemory=int(info.get("maxmemory", "0")),
        used=int(info.get("used_memory", "0")),
        product="Valkey" if info.get("server_name") == "valkey" or "valkey_version" in info else "Redis",
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        cluster=info.get("cluster_enabled") == "1",
        replica=info.get("role") == "slave",
    )


def durability_of(settings: Settings) -> Durability:
    if settings.appendonly:
        match settings.appendfsync:
            case "always":
                return Durability(
                    "B",
                    "appendfsync is always: a job survives power loss once it is acknowledged, a failover perhaps not",
                )
            case "everysec":
                detail = "appendfsync is everysec: the last two seconds can be lost when the server dies"
                return Durability("C", detail, "CONFIG SET appendfsync always, then CONFIG REWRITE")
            case "no":
                detail = "appendfsync is no: half a minute can be lost with the power"
                return Durability("D", detail, "CONFIG SET appendfsync always (or everysec), then CONFIG REWRITE")
            case _:
                detail = "it writes an append-only file; how often it syncs it, it does not say (CONFIG is forbidden)"
                return Durability("C", detail, "ask whoever runs it for appendfsync always")
    if settings.save or settings.save is None:
        return Durability("D", "it writes snapshots only: the jobs of many minutes can be lost", _AOF)
    return Durability("D", "it keeps nothing on disk: all jobs are lost when the server ends", _AOF)


def refuse_eviction(settings: Settings, place: str) -> None:
    """Refuse a server that deletes keys when its memory is full: it would delete jobs."""
    if settings.policy != "noeviction" and not settings.policy.startswith("volatile"):
        raise StoreMisconfigured(
            f"{place}: its maxmemory-policy is {settings.policy}, so a full memory deletes jobs: run "
            "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE"
        )


async def _read_setting(client: RedisClient, name: str) -> str | None:
    try:
        found = await client.command("CONFIG", "GET", name)
    except StoreError:  # forbidden, or not there
        return None
    return found[1].decode() if len(found) == 2 else None


def _parse_info(info: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


async def diagnose(client: RedisClient) -> list[Finding]:
    settings = await read_settings(client)
    return [_server(settings), _memory(settings), await _latency(client)]


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


async def _latency(client: RedisClient) -> Finding:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await client.command("PING")
        rounds.append(time.perf_counter() - began)
    median = sorted(rounds)[ROUNDS // 2]
    remedy = "let workers and server live close together: every claim is a round trip"
    return Finding("latency", "warn" if median > FAR_AWAY else "ok", f"{1000 * median:.1f} ms a round trip", remedy)
