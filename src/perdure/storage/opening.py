"""Checks that all stores share: how durable a store must be to open, and that it was opened in this process."""

from __future__ import annotations

import os
from logging import getLogger
from typing import Literal

from ..errors import StoreError, StoreMisconfigured
from .types import Durability

Demand = Literal["full", "normal", "relaxed"]

_log = getLogger("perdure")


def check_durability(found: Durability, demand: Demand, where: object) -> None:
    """Refuse a store that is less durable than demanded. With "normal", grade C is only logged."""
    if found.grade in "AB" or demand == "relaxed":
        return
    message = f"{where}: durability {found.grade}: {found.detail}; {found.remedy}"
    if demand == "full":
        raise StoreMisconfigured(f'durability="full" refused: {message}')
    if found.grade == "D":
        raise StoreMisconfigured(f'{message}. Perdure(durability="relaxed") takes it as it is')
    _log.warning("%s", message)


def refuse_after_fork(process: int, where: object) -> None:
    """Refuse to use a store that another process opened: this one is its fork, and shares its connections."""
    if process != os.getpid():
        raise StoreError(f"the store {where} was opened before this process was forked: open it again here")
