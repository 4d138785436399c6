"""How `perdure worker` writes its log lines to stderr: as text, or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

LogFormat = Literal["text", "json"]

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def log_to_stderr(level: str, style: LogFormat = "text") -> None:
    """Write warnings of all libraries to stderr, and the lines of Perdure from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("perdure").setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING …`. Tracebacks are indented: a line that begins with a time is a line of the log."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join("    " + printable(line) for line in lines)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, the fields of the line (`job`, `task`, `attempt`, `worker` and
    what others give as `extra`), and the traceback as `exception`."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def printable(text: str) -> str:
    """A text in which everything that is not printable is escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def safe(text: str) -> str:
    """A text of a user for a log line: printable, and not too long."""
    return printable(text if len(text) <= 500 else text[:500] + "…")
