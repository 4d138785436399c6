"""Opening a store: is this a server we can work with, are the keys ours, and how safe are jobs there?"""

from __future__ import annotations

import json
import logging
import re
from typing import Literal

from perdure.errors import StoreError, StoreMisconfigured

from .durability import Settings, durability_of, read_settings, refuse_eviction
from .keys import TYPES
from .link import Link
from .schema import FORMAT

OLDEST = (6, 2)
LOADING_PATIENCE, PATIENCE = 30.0, 2.0
_log = logging.getLogger("perdure")
_told: set[str] = set()  # stores whose server does not show its settings


async def prepared(link: Link, demand: Literal["full", "normal", "relaxed"], migrate: bool) -> None:
    """Check the server and the keys. StoreError says what is wrong and what to do."""
    await _reached(link)
    settings = await read_settings(link)
    _check_server(settings, str(link.address))
    await _check_format(link, migrate)
    _check_durability(settings, str(link.address), demand)


async def _reached(link: Link) -> None:
    """A server that is not there is told soon; one that loads its data is waited for."""
    try:
        await link.command("PING", patience=PATIENCE)
    except StoreError as error:
        if "LOADING" not in str(error):
            raise
        await link.command("PING", patience=LOADING_PATIENCE)


def _check_server(settings: Settings, place: str) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", settings.version)[:2])
    if settings.product == "Redis" and version < OLDEST:
        raise StoreMisconfigured(f"{place}: this is Redis {settings.version}; Perdure needs 6.2 or newer, or Valkey")
    if settings.replica:
        raise StoreError(f"{place}: it is a read-only replica; name the primary in the URL")
    refuse_eviction(settings, place)


async def _check_format(link: Link, migrate: bool) -> None:
    """The keys under our prefix are ours, and of a format that we know. Looked at in one step: others may open it too."""
    question = [FORMAT, "migrate" if migrate else "check", json.dumps(list(TYPES.values()))]
    told = await link.run("format", question, repeat=True)
    if told[0] == b"damaged":  # one key of ours was overwritten
        await link.move_foreign()
        told = await link.run("format", question, repeat=True)
    match told:
        case [b"foreign" | b"damaged", key, found]:
            raise StoreError(
                f"{link.address}: the key {key.decode()} holds a {found.decode()} that is not Perdure's; choose another "
                "prefix with ?prefix="
            )
        case [b"foreign rows"]:
            raise StoreError(
                f"{link.address}: {link.keys['rows']} is not Perdure's; choose another prefix with ?prefix="
            )
        case [b"empty"]:
            raise StoreError(
                f"{link.address} has no jobs of Perdure: run `perdure migrate`, or correct database or prefix in the URL"
            )
        case [b"format", noted] if not noted.isdigit() or int(noted) > FORMAT:
            raise StoreError(
                f"{link.address} has format version {noted.decode('utf-8', 'replace')}, and this Perdure knows only up to "
                f"{FORMAT}: it was written by a newer Perdure; upgrade perdure here"
            )
        case [b"format", noted] if int(noted) < FORMAT:
            raise StoreError(
                f"{link.address} has format version {int(noted)}, and this Perdure needs {FORMAT}: run `perdure migrate`"
            )


def _check_durability(settings: Settings, place: str, demand: str) -> None:
    if settings.appendfsync is None and settings.save is None and place not in _told:
        _told.add(place)
        _log.info("%s: the server does not show its configuration (CONFIG is forbidden)", place)
    found = durability_of(settings)
    if found.grade in "AB" or demand == "relaxed":
        return
    told = f"{place}: durability {found.grade}: {found.detail}; {found.remedy}"
    if demand == "full":
        raise StoreMisconfigured(f'durability="full" refused: {told}')
    if found.grade == "D":
        raise StoreMisconfigured(f'{told}. Perdure(durability="relaxed") takes it as it is')
    _log.warning("%s", told)
