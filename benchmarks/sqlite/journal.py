"""Which journal a database file really uses, read from its header."""

from pathlib import Path

WAL_FORMAT = 2
WRITE_FORMAT_BYTE = 18


def uses_wal(file: Path) -> bool:
    with file.open("rb") as content:
        header = content.read(WRITE_FORMAT_BYTE + 1)
    return len(header) > WRITE_FORMAT_BYTE and header[WRITE_FORMAT_BYTE] == WAL_FORMAT
