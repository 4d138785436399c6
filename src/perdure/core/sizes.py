"""Limits on sizes that hold everywhere: payloads, names, keys, tags, parents."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 1 << 20  # payload and result, each


LARGEST_MAX_BYTES: Final = 4 << 20


MAX_DEPTH: Final = 64


NAME_BYTES: Final = 200


KEY_BYTES: Final = 512


META_BYTES: Final = 65_536


TAGS: Final = 100


PARENTS: Final = 200_000  # jobs that one job may wait for


ENQUEUE_CHUNK: Final = 500  # jobs of one list that are stored all or none
