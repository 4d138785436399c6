"""How safe an acknowledged job is, by the server's own settings."""

from __future__ import annotations

from perdure.storage.contract import Durability

from .queries import load
from .server import Connection


async def read_durability(connection: Connection, schema: str) -> Durability:
    """What the server says that a commit means."""
    row = await (await connection.execute(load("durability", schema)["settings"])).fetchone()
    assert row is not None
    commit, fsync, full_pages, standbys, unlogged = row
    if unlogged:
        detail, mend = f"unlogged tables are emptied by a crash: {', '.join(unlogged)}", "ALTER TABLE … SET LOGGED"
        return Durability("D", detail, mend)
    if fsync != "on" or full_pages != "on":
        found = "fsync" if fsync != "on" else "full_page_writes"
        return Durability("C", f"{found} is off: a power failure can destroy the database", f"set {found} = on")
    if commit == "off":
        detail = "synchronous_commit is off: the last half second can be lost when the server is killed"
        return Durability("C", detail, "set synchronous_commit = on, at least for this role (ALTER ROLE … SET)")
    if standbys and commit in ("on", "remote_apply", "remote_write"):
        return Durability("A", f"synchronous_commit is {commit}, with synchronous standbys ({standbys})")
    return Durability("B", f"synchronous_commit is {commit}: a job survives power loss once it is acknowledged")
