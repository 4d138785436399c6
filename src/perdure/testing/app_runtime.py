"""The part of an app that test tools need and its public API does not offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.client.app_runtime import AppRuntime


def runtime_of(app: Perdure) -> AppRuntime:
    """The store, outbox and relay of an app."""
    return app._runtime
