"""Cases about upkeep: promote, reap, expire, prune, unreadable rows."""
