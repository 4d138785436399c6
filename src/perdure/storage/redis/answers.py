"""Turns answers of scripts into the verdicts and errors of the contract."""

from __future__ import annotations

from typing import Any

from perdure.storage.contract import ACCEPTED, REFUSED, REPEATED, MissingParent, QueueAtCapacity, Refusal, Verdict

from .keys import id_text, unescape

_VERDICTS = {
    ord("0"): ACCEPTED,
    ord("1"): REPEATED,
    ord("2"): REFUSED[Refusal.TAKEN],
    ord("3"): REFUSED[Refusal.COMPLETED],
    ord("4"): REFUSED[Refusal.CANCELLED],
    ord("5"): REFUSED[Refusal.NOT_FOUND],
    ord("6"): REFUSED[Refusal.STALE],
    ord("7"): REFUSED[Refusal.KEY_TAKEN],
}  # by the digits that lua/indexes.lua names


def verdicts_of(digits: bytes) -> list[Verdict]:
    return [_VERDICTS[digit] for digit in digits]


def raise_refusal(answer: Any) -> Any:
    """Raise why a script stored no jobs. Any other answer is returned."""
    match answer[0]:
        case b"full":
            raise QueueAtCapacity(unescape(answer[1]), answer[2], waits=answer[3] == b"waits")
        case b"orphan":
            raise MissingParent(id_text(answer[1]), id_text(answer[2]))
    return answer
