"""The shelf in memory: named texts under their guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.storage.contract import KvEntry, KvWrite


class Shelf:
    """Texts by kind and name."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], KvEntry] = {}

    def copy(self) -> Shelf:
        other = Shelf()
        other._texts = dict(self._texts)
        return other

    def look(
        self, kind: str, names: Sequence[str] | None, job: str | None, due_by: int | None, limit: int
    ) -> list[KvEntry]:
        found = [row for row in self._texts.values() if row.kind == kind and job in (None, row.job)]
        if names is not None:
            wanted = set(names)
            return sorted((row for row in found if row.name in wanted), key=lambda row: row.name)
        if due_by is None:
            return sorted(found, key=lambda row: row.name)[:limit]
        due = [(row.due_at, row.name, row) for row in found if row.due_at is not None and row.due_at <= due_by]
        return [row for _, _, row in sorted(due, key=lambda entry: entry[:2])[:limit]]

    def fits(self, write: KvWrite) -> bool:
        """Whether the version is the one that the writer knows."""
        row = self._texts.get((write.kind, write.name))
        return write.version is None or write.version == (0 if row is None else row.version)

    def write(self, write: KvWrite) -> None:
        place = (write.kind, write.name)
        if write.text is None:
            self._texts.pop(place, None)
            return
        before = self._texts.get(place)
        version = 1 if before is None else before.version + 1
        self._texts[place] = KvEntry(write.kind, write.name, write.text, version, write.due_at, write.job)

    def forget(self, jobs: Iterable[str]) -> None:
        """What belongs to these jobs goes with them."""
        gone = set(jobs)
        self._texts = {place: row for place, row in self._texts.items() if row.job not in gone}

    def after(self, place: tuple[str, str] | None, limit: int) -> list[KvEntry]:
        return [row for at, row in sorted(self._texts.items()) if place is None or at > place][:limit]

    def put(self, rows: Iterable[KvEntry]) -> None:
        self._texts.update({(row.kind, row.name): row for row in rows})
