"""How safe an acknowledged job is, by the server's own settings; and whether it may forget jobs on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.contract import Durability

from .link import Link

_AOF = "CONFIG SET appendonly yes, then CONFIG REWRITE (and appendonly yes in the configuration file)"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server says about itself. None: it does not say (managed servers often forbid CONFIG)."""

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


async def read_settings(link: Link) -> Settings:
    info = _parsed(await link.command("INFO"))
    return Settings(
        appendonly=info.get("aof_enabled") == "1",
        appendfsync=await _configured(link, "appendfsync"),
        save=await _configured(link, "save"),
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
    """A server that makes room by deleting keys would delete jobs."""
    if settings.policy != "noeviction" and not settings.policy.startswith("volatile"):
        raise StoreMisconfigured(
            f"{place}: its maxmemory-policy is {settings.policy}, so a full memory deletes jobs: run "
            "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE"
        )


async def _configured(link: Link, name: str) -> str | None:
    try:
        found = await link.command("CONFIG", "GET", name)
    except StoreError:  # forbidden, or not there
        return None
    return found[1].decode() if len(found) == 2 else None


def _parsed(info: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}
