"""Operations on the database, described by generators and run by one of two drivers.

A verb of the store is a generator: it yields an operation (find, insert, update …) and receives the result. It knows no
driver. So the same enqueue runs in our own transaction, in a caller's asynchronous or blocking session, and again from the
start when a transaction has to be repeated.

    rows = yield from find("jobs", {"_id": {"$in": ids}})
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ..reading.document_shapes import SHAPED, well_formed
from ..reading.records import Document

T = TypeVar("T")
PREFIX = "perdure_"
STARTED_AT = "started_at"
LARGEST_COMMAND = 8 << 20  # bytes: a command is one document, of which the server takes 16 MiB
LONG = ("jobs", "logs")  # whose documents may be too long for one command; the driver cuts them
MANY = 100_000  # documents in one answer of a cursor; it ends a batch at 16 MiB by itself


class Find(NamedTuple):
    collection: str
    filter: Document
    projection: Document | None = None
    sort: Document | None = None
    limit: int = 0
    hint: str | None = None


class Aggregate(NamedTuple):
    collection: str
    pipeline: list[Document]


class Insert(NamedTuple):
    collection: str
    documents: Sequence[Document]


class Update(NamedTuple):
    """Update statements (q, u, multi, upsert) in order."""

    collection: str
    statements: Sequence[Document]


class Delete(NamedTuple):
    collection: str
    filter: Document


Step = Find | Aggregate | Insert | Update | Delete
Steps = Generator[Step, Any, T]


# ---- for those who write steps ---------------------------------------------------------------------
def find(
    collection: str,
    filter: Document,
    projection: Document | None = None,
    *,
    sort: Document | None = None,
    limit: int = 0,
    hint: str | None = None,
) -> Steps[list[Document]]:
    """Find documents; a limit of 0 means all. `hint` names the index to use. Documents that do not have the shape of their
    collection are left out."""
    found: list[Document] = yield Find(collection, filter, projection, sort, limit, hint)
    return well_formed(collection, found, projection) if collection in SHAPED else found


def aggregate(collection: str, pipeline: list[Document]) -> Steps[list[Document]]:
    """Run a pipeline."""
    found: list[Document] = yield Aggregate(collection, pipeline)
    return found


def insert(collection: str, documents: Sequence[Document]) -> Steps[None]:
    if documents:
        yield Insert(collection, documents)


def update(collection: str, statements: Sequence[Document]) -> Steps[int]:
    """Run update statements; returns how many documents they matched."""
    met: int = (yield Update(collection, statements)) if statements else 0
    return met


def delete(collection: str, filter: Document) -> Steps[None]:
    yield Delete(collection, filter)


def group_by_update(updates: Mapping[str, Document]) -> list[Document]:
    """Statements for updates by id. Equal updates share one statement, even if their start times differ."""
    groups: dict[tuple[object, ...], tuple[Document, dict[str, int | None]]] = {}
    for id, change in updates.items():
        started_at = change.get("$set", {}).get(STARTED_AT)
        groups.setdefault((started_at is None, *_likeness(change)), (change, {}))[1][id] = started_at
    return [statement(change, starts) for change, starts in groups.values()]


def _likeness(change: Document) -> Iterator[object]:
    """What makes two updates equal but for their start times."""
    for operator, part in change.items():
        yield operator
        for name, value in part.items():
            yield name
            if name != STARTED_AT:
                yield tuple(value) if isinstance(value, list) else value


def statement(change: Document, starts: dict[str, int | None]) -> Document:
    """The statement for the same update of several documents, each with its own start time if it has one."""
    ids = list(starts)
    if len(ids) == 1:
        return {"q": {"_id": ids[0]}, "u": change}
    if len(set(starts.values())) > 1:
        return {"q": {"_id": {"$in": ids}}, "u": _each_with_its_start(change, starts), "multi": True}
    return {"q": {"_id": {"$in": ids}}, "u": change, "multi": True}


def _each_with_its_start(change: Document, starts: Mapping[str, int | None]) -> list[Document]:
    """A pipeline: the server finds each document's start by its id. Literals, because a text may begin with $."""
    written: Document = {name: {"$literal": value} for name, value in change["$set"].items()}
    which = {"$indexOfArray": [{"$literal": list(starts)}, "$_id"]}
    written[STARTED_AT] = {"$arrayElemAt": [{"$literal": list(starts.values())}, which]}
    removed = dict.fromkeys(change.get("$unset", ()), "$$REMOVE")
    return [{"$set": written | removed}]


class WouldWrite(Exception):
    """The next operation writes."""


def read_only(steps: Steps[T]) -> Steps[T]:
    """The same operations as long as they read: most verbs of upkeep find nothing to do and need no transaction."""
    try:
        step = next(steps)
        while not isinstance(step, Insert | Update | Delete):
            step = steps.send((yield step))
    except StopIteration as end:
        value: T = end.value
        return value
    steps.close()
    raise WouldWrite


def hold_back_inserts(steps: Steps[T], keeps: Callable[[Insert], bool]) -> Steps[T]:
    """The same operations without those inserts that `keeps` accepts."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Insert) and keeps(step):
                step = steps.send(None)
            else:
                step = steps.send((yield step))
    except StopIteration as end:
        value: T = end.value
        return value


def insert_last(collection: str, steps: Steps[T]) -> Steps[T]:
    """The same operations, but all inserts into one collection, which must not be read, become one command in the end."""
    documents: list[Document] = []

    def keeps(step: Insert) -> bool:
        if step.collection != collection:
            return False
        documents.extend(step.documents)
        return True

    value = yield from hold_back_inserts(steps, keeps)
    yield from insert(collection, documents)
    return value


# ---- for those who take them -----------------------------------------------------------------------
async def run_async(steps: Steps[T], database: Any, session: Any) -> T:
    """Run the operations with the asynchronous driver."""
    try:
        step = next(steps)
        while True:
            try:
                came = await _take(step, database, session)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as end:
        value: T = end.value
        return value


async def _take(step: Step, database: Any, session: Any) -> Any:
    calls = _calls(step, database, session)
    try:
        call = next(calls)
        while True:
            call = calls.send(await call)
    except StopIteration as end:
        return end.value


def run_blocking(steps: Steps[T], database: Any, session: Any) -> T:
    """Run the operations with the blocking driver."""
    try:
        step = next(steps)
        while True:
            try:
                came = _take_now(step, database, session)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as end:
        value: T = end.value
        return value


def _take_now(step: Step, database: Any, session: Any) -> Any:
    calls = _calls(step, database, session)
    try:
        result = next(calls)
        while True:
            result = calls.send(result)
    except StopIteration as end:
        return end.value


def _calls(step: Step, database: Any, session: Any) -> Generator[Any, Any, Any]:
    """Call the driver for one operation. Yields what it returns, a result or an awaitable, and receives the result."""
    match step:
        case Find() | Aggregate():
            codec = database.codec_options
            command = _read_command(step, database, session)
            answer = yield database.command(command, codec_options=codec, session=session)
            found: list[Document] = answer["cursor"]["firstBatch"]
            while answer["cursor"]["id"]:
                answer = yield database.command(_get_more_command(step, answer), codec_options=codec, session=session)
                found += answer["cursor"]["nextBatch"]
            return found
        case Insert() if step.collection in LONG:
            yield database[PREFIX + step.collection].insert_many(step.documents, session=session)
            return None
        case _:
            matched = 0
            for command in _write_commands(step):
                matched += _count_matches((yield database.command(command, session=session)))
            return matched


# ---- steps as commands: the driver's own find, insert and delete cost up to twice as much of the client's time ----
def _read_command(step: Find | Aggregate, database: Any, session: Any) -> Document:
    """The command of a read. Inside a transaction the read concern is set already."""
    question: Document
    if isinstance(step, Find):
        question = {"find": PREFIX + step.collection, "filter": step.filter, "batchSize": step.limit or MANY}
        for name in ("projection", "sort", "limit", "hint"):
            if value := getattr(step, name):
                question[name] = value
    else:
        question = {"aggregate": PREFIX + step.collection, "pipeline": step.pipeline, "cursor": {"batchSize": MANY}}
    if not session.in_transaction and database.read_concern.level:
        question["readConcern"] = database.read_concern.document
    return question


def _get_more_command(step: Find | Aggregate, answer: Document) -> Document:
    return {"getMore": answer["cursor"]["id"], "collection": PREFIX + step.collection, "batchSize": MANY}


def _write_commands(step: Insert | Update | Delete) -> list[Document]:
    match step:
        case Insert():
            return [{"insert": PREFIX + step.collection, "documents": list(step.documents)}]
        case Delete():
            return [{"delete": PREFIX + step.collection, "deletes": [{"q": step.filter, "limit": 0}]}]
        case Update():
            return _update_commands(step)


def _update_commands(step: Update) -> list[Document]:
    """One command where it fits: the driver's own bulk write costs several times as much per statement."""
    commands: list[Document] = []
    size = LARGEST_COMMAND
    for statement in step.statements:
        weight = _weight(statement)
        if size + weight > LARGEST_COMMAND:
            commands.append({"update": PREFIX + step.collection, "updates": []})
            size = 0
        commands[-1]["updates"].append(statement)
        size += weight
    return commands


def _weight(value: object) -> int:
    """About how many bytes a value takes; never too few."""
    if isinstance(value, str):
        return 16 + (len(value) if value.isascii() else 4 * len(value))
    if isinstance(value, dict):
        return 16 + sum(len(name) + 2 + _weight(part) for name, part in value.items())
    if isinstance(value, list | tuple):
        if {*map(type, value)} == {str}:  # ids, mostly: hundreds
            return 16 + 24 * len(value) + 4 * len("".join(value))
        return 16 + sum(8 + _weight(part) for part in value)
    return 16


def _count_matches(answer: Document) -> int:
    if errors := answer.get("writeErrors"):
        from pymongo.errors import BulkWriteError

        raise BulkWriteError({"writeErrors": errors, "errorLabels": answer.get("errorLabels", [])})
    met: int = answer["n"]
    return met
