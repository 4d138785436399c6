"""The names of the store's keys. One hash tag for all: on a cluster they live on one node, and a script may use them all."""

from __future__ import annotations

# In the order of KEYS in lua/basics.lua, each with the type that the server must hold there.
TYPES = {
    "jobs": "hash",
    "rows": "hash",
    "lanes": "zset",
    "schedule": "zset",
    "aside": "zset",
    "leases": "zset",
    "expiring": "zset",
    "ended": "zset",
    "prunable": "zset",
    "created": "zset",
    "dead": "zset",
    "named": "zset",
    "outcomes": "hash",
    "errors": "hash",
    "progress": "hash",
    "logs": "hash",
    "held_keys": "hash",
    "kept_keys": "hash",
    "windows": "zset",
    "counts": "hash",
    "depths": "hash",
    "bounds": "hash",
    "paused": "set",
    "meta": "hash",
    "queues": "hash",
    "workers": "hash",
    "limits": "zset",
    "gates": "hash",
    "edges": "zset",
    "unsettled": "zset",
    "shelf": "hash",
    "shelved": "zset",
    "accounts": "hash",
    "heads": "zset",
    "unread": "zset",
    "unreadable": "hash",
}


class Keys:
    """The keys under one prefix, and the channels of its signals."""

    def __init__(self, prefix: str) -> None:
        self.by_name = {name: f"{{{prefix}}}:{name}" for name in TYPES}
        self.all = tuple(self.by_name.values())
        self.ready = f"{self['meta']}:ready"
        self.changed = f"{self['meta']}:changed"

    def __getitem__(self, name: str) -> str:
        return self.by_name[name]
