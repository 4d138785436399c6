"""The kv table of the memory store: named texts that are written under guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.storage.contract import KvEntry, KvWrite


class KvTable:
    """Entries by kind and name."""

    def __init__(self, entries: Iterable[KvEntry] = ()) -> None:
        self._entries = {(entry.kind, entry.name): entry for entry in entries}

    def copy(self) -> KvTable:
        return KvTable(self._entries.values())

    def read(
        self, kind: str, names: Sequence[str] | None, job: str | None, due_by: int | None, limit: int
    ) -> list[KvEntry]:
        entries = [entry for entry in self._entries.values() if entry.kind == kind and job in (None, entry.job)]
        if names is not None:
            wanted = set(names)
            return sorted((entry for entry in entries if entry.name in wanted), key=lambda entry: entry.name)
        if due_by is None:
            return sorted(entries, key=lambda entry: entry.name)[:limit]
        due = [
            (entry.due_at, entry.name, entry)
            for entry in entries
            if entry.due_at is not None and entry.due_at <= due_by
        ]
        return [entry for _, _, entry in sorted(due, key=lambda each: each[:2])[:limit]]

    def fits(self, write: KvWrite) -> bool:
        """Whether the stored version is the one that the write expects."""
        entry = self._entries.get((write.kind, write.name))
        return write.version is None or write.version == (0 if entry is None else entry.version)

    def write(self, write: KvWrite) -> None:
        key = (write.kind, write.name)
        if write.text is None:
            self._entries.pop(key, None)
            return
        before = self._entries.get(key)
        version = 1 if before is None else before.version + 1
        self._entries[key] = KvEntry(write.kind, write.name, write.text, version, write.due_at, write.job)

    def remove_entries_of(self, jobs: Iterable[str]) -> None:
        removed = set(jobs)
        self._entries = {key: entry for key, entry in self._entries.items() if entry.job not in removed}

    def export(self, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return [entry for key, entry in sorted(self._entries.items()) if after is None or key > after][:limit]

    def restore(self, entries: Iterable[KvEntry]) -> None:
        self._entries.update({(entry.kind, entry.name): entry for entry in entries})
