"""Arguments of a call as a payload, and a payload as arguments, both checked against the handler's annotations."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Any, Never, NoReturn

import msgspec

from ..core.encoding import codec
from ..errors import ArgumentsDoNotFit, InvalidCall, words_of
from .json_changes import change_of
from .options import OPTIONS_OF_CALLS
from .signature import NOT_GIVEN, Handler
from .suggestions import argument_instead

_values = msgspec.structs.astuple
_ABSENT: Any = object()  # in a decoded payload: the caller did not give it
_WHERE = re.compile(r" - at `\$(?:\.(\w+))?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MALFORMED = re.compile(r"JSON is malformed: |(?=Input data was truncated)")
_NO_OBJECT = re.compile(r"Expected `object`, got `([^`]*)`")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_encoded = codec.encoded  # saves a look-up in the other module for each of thousands of calls
_KINDS: tuple[type[Any], ...] = (str, bool, int, float)


class PlainArguments:
    """The parameters of a task that takes only texts, numbers and booleans. `names`: the parameter name of each field.

    If each argument has exactly the annotated type, its encoded payload is valid. It is not decoded again to be checked,
    which is most of a call's work.
    """

    def __init__(self, names: Mapping[str, str], kinds: Sequence[type[Any]]) -> None:
        self._kinds = list(kinds)
        self._texts = [position for position, kind in enumerate(kinds) if kind is str]
        self._numbers = not {str, bool}.issuperset(kinds)
        self._given = msgspec.defstruct("Given", list(names), rename=dict(names), gc=False)

    def text(self, args: tuple[Any, ...], limit: int) -> str | None:
        """The payload of a call with all arguments by position; None: they must be checked one by one."""
        if len(args) == 1:  # as most calls have: a third of the time, without a list
            of_kind = type(args[0]) is self._kinds[0]
        else:
            of_kind = [type(value) for value in args] == self._kinds
        if not of_kind or (self._numbers and not all(map(_fits, args))):
            return None
        for position in self._texts:
            if len(args[position]) > limit:
                return None
        try:
            data = _encoded(self._given(*args))
        except UnicodeEncodeError:  # a lone surrogate
            return None
        return data.decode() if len(data) <= limit else None


def plain_arguments(names: Mapping[str, str], kinds: Sequence[Any]) -> PlainArguments | None:
    """How such arguments are written; None: some may be of another kind."""
    return (
        PlainArguments(names, kinds)
        if names and all(any(kind is plain for plain in _KINDS) for kind in kinds)
        else None
    )


def _fits(value: str | bool | int | float) -> bool:
    """Whether JSON has a form for it that every reader takes."""
    if type(value) is int:
        return codec.SMALLEST <= value <= codec.GREATEST
    return type(value) is not float or isfinite(value)


class Arguments:
    """The parameters of one task, ready to bind, encode, check and decode."""

    def __init__(self, handler: Handler, left_out: Collection[str] = ()) -> None:
        self._handler = handler
        parameters = tuple(each for each in handler.parameters if each.name not in left_out)
        self._parameters = parameters
        self._names = tuple(each.name for each in parameters if each.kind in _POSITIONAL)
        self._by_keyword = frozenset(each.name for each in parameters if each.kind in _BY_KEYWORD)
        self._required = frozenset(
            each.name for each in parameters if each.kind in (*_POSITIONAL, *_BY_KEYWORD) and each.default is NOT_GIVEN
        )
        self._in_order = len(self._names) == len(parameters)
        self._by_place = self._required <= frozenset(self._names)
        self._all_required = len(self._required) == len(parameters)
        self._star = _name_of_kind(parameters, inspect.Parameter.VAR_POSITIONAL)
        self.others = _name_of_kind(parameters, inspect.Parameter.VAR_KEYWORD)
        self._defaults = {each.name: each.default for each in parameters if each.default is not NOT_GIVEN}
        self._struct_decoder: Callable[[str | bytes], Any] | None = None
        self._plain: PlainArguments | None = None
        self._result_decoder: Callable[[str | bytes], Any] | None = None

    @property
    def first(self) -> str | None:
        """The name of the first parameter, if it has one that a value can be handed to."""
        return self._names[0] if self._names else None

    # -- call to payload -----------------------------------------------------------------------------
    def payload(self, task: str, limit: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The payload of a call: a JSON object by parameter name with what the caller gave."""
        names = self._names
        if len(args) == len(names) and not kwargs and self._by_place:  # nearly every call
            if self._plain is not None and (text := self._plain.text(args, limit)) is not None:
                return text
            given = dict(zip(names, args, strict=True))
        else:
            given = self._bind(task, args, kwargs)
        data, changes = codec.encode_object(given, task, limit)
        self._read_checked(task, data)
        if changes:
            self._check_changes(task, given)
        return data.decode()

    def _check_changes(self, task: str, given: dict[str, Any]) -> None:
        """InvalidCall for a value that the handler would get as something else."""
        for parameter in self._parameters:
            if parameter.name in given and (
                change := change_of(self._kind_of(parameter), given[parameter.name], parameter.name)
            ):
                raise InvalidCall(f"{task}: argument {parameter.name!r}: {change.removeprefix(f'{parameter.name}: ')}")

    def _bind(self, task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self._names
        given: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            if self._star is None:
                self._refuse(task, args, kwargs)
            given[self._star] = list(args[len(names) :])
        if kwargs:
            extra = {}
            for name, value in kwargs.items():
                if name not in self._by_keyword:
                    extra[name] = value
                elif name in given:
                    self._refuse(task, args, kwargs)
                else:
                    given[name] = value
            if extra:
                if self.others is None:
                    self._refuse(task, args, kwargs)
                given[self.others] = extra
        if not self._required <= given.keys():
            self._refuse(task, args, kwargs)
        return given

    def partly(self, task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Some of a call's arguments by parameter name, their kinds unchecked."""
        signature = self._signature()
        try:
            return signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidCall(f"{task}: {error}; it takes {task}{signature}") from None

    def _refuse(self, task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        signature = self._signature()
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            taken = {each.name for each in self._parameters}
            advice = argument_instead([name for name in kwargs if name not in taken], task, OPTIONS_OF_CALLS)
            told = f"{task}: {error}; it takes {task}{signature}"
            raise InvalidCall(f"{told}; {advice}" if advice else told) from None
        raise InvalidCall(f"{task}: these arguments do not fit {task}{signature}")

    def _signature(self) -> inspect.Signature:
        return inspect.Signature([each.replace(annotation=self._annotation(each)) for each in self._parameters])

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        """The annotation for a message: resolved, so that no quotes are shown; of a batch task, that of one item."""
        if parameter.annotation is NOT_GIVEN:
            return NOT_GIVEN
        try:
            return self._handler.hint(parameter.name)
        except InvalidCall:
            return parameter.annotation

    # -- payload to arguments ------------------------------------------------------------------------
    def read(self, task: str, payload: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of a stored call, for `handler(*args, **kwargs)`."""
        try:
            values = _values(self._struct_decoder(payload))  # type: ignore[misc]
        except Exception:  # there is none yet, or the payload does not fit: the slow path finds out what is wrong
            values = _values(self._read_stored(task, payload))
        if self._in_order and (self._all_required or not any(value is _ABSENT for value in values)):
            return values, {}
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter, value in zip(self._parameters, values, strict=True):
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    positional += () if value is _ABSENT else value
                case inspect.Parameter.VAR_KEYWORD:
                    keywords.update({} if value is _ABSENT else value)
                case inspect.Parameter.KEYWORD_ONLY:
                    if value is not _ABSENT:
                        keywords[parameter.name] = value
                case _:
                    positional.append(parameter.default if value is _ABSENT else value)
        return positional, keywords

    def named(self, task: str, payload: str) -> dict[str, Any]:
        """The arguments of a stored call by parameter name, defaults filled in."""
        values = _values(self._read_stored(task, payload))
        named = dict(self._defaults)
        named.update(
            (parameter.name, value)
            for parameter, value in zip(self._parameters, values, strict=True)
            if value is not _ABSENT
        )
        return named

    def fill_defaults(self, task: str, payload: str) -> bytes:
        """One text for equal calls: the payload with defaults filled in and keys sorted."""
        values = _values(self._read_checked(task, payload))
        given = {}
        for parameter, value in zip(self._parameters, values, strict=True):
            if value is not _ABSENT:
                given[parameter.name] = value
            elif parameter.default is not NOT_GIVEN and _has_text(parameter.default):
                given[parameter.name] = parameter.default
        return codec.sorted_text(given)

    def defaults_text(self) -> str:
        """The defaults as JSON, those that have such a form."""
        return codec.sorted_text({name: value for name, value in self._defaults.items() if _has_text(value)}).decode()

    def needed_beside_first(self) -> list[str]:
        """The names of the required arguments besides the first."""
        return [each.name for each in self._parameters if each.name in self._required and each.name != self.first]

    def _read_stored(self, task: str, payload: str) -> Any:
        """A payload that a store has kept. ArgumentsDoNotFit for one that does not fit any more."""
        if self._struct_decoder is None:
            self._decoder()  # annotations that cannot be used are not the payload's fault
        try:
            return self._read_checked(task, payload)
        except InvalidCall as error:
            raise ArgumentsDoNotFit(*error.args) from None

    def _read_checked(self, task: str, payload: str | bytes) -> Any:
        read = self._struct_decoder or self._decoder()
        try:
            return read(payload)
        except RecursionError:
            raise InvalidCall(f"{task}: the payload is nested too deeply") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidCall(f"{task}: {self._explain_error(task, words_of(error))}") from None
        except StopIteration as error:  # of a validator: whoever drives the handler would take it for its end
            raise InvalidCall(f"{task}: reading the payload raised StopIteration: {words_of(error)}") from None

    def _explain_error(self, task: str, message: str) -> str:
        """The message of msgspec about a payload, in terms of the task's parameters."""
        if missing := _MISSING.fullmatch(message):
            return f"argument {missing[1]!r} is missing; it takes {task}{self._signature()}"
        if unknown := _UNKNOWN.fullmatch(message):
            return f"there is no parameter {unknown[1]!r}; it takes {task}{self._signature()}"
        if malformed := _MALFORMED.match(message):
            return f"the payload is no JSON: {_lower(message[malformed.end() :])}"
        if other := _NO_OBJECT.fullmatch(message):
            return f"the payload is not an object with the arguments by name, but of kind {other[1]}"
        return _explain(message)

    def _decoder(self) -> Callable[[str | bytes], Any]:
        # fields are numbered, so that no parameter's name can clash with one of a Struct's own
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        names = {}
        for number, parameter in enumerate(self._parameters):
            field = f"a{number}"
            names[field] = parameter.name
            kind = self._kind_of(parameter)
            fields.append((field, kind) if parameter.name in self._required else (field, kind, _ABSENT))
        struct = msgspec.defstruct("Payload", fields, rename=names, kw_only=True, forbid_unknown_fields=True)
        self._struct_decoder = codec.decoder(struct)
        if self._in_order:
            self._plain = plain_arguments(names, [kind for _, kind, *_ in fields])
        return self._struct_decoder

    def _kind_of(self, parameter: inspect.Parameter) -> Any:
        kind = _plain(self._handler.hint(parameter.name))
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                kind = _unpacked(kind) or list[kind]  # type: ignore[valid-type]
            case inspect.Parameter.VAR_KEYWORD:
                kind = _unpacked(kind) or dict[str, kind]  # type: ignore[valid-type]
        try:
            codec.decoder(kind)
        except (TypeError, NameError) as error:
            raise InvalidCall(
                f"task {self._handler.task}: parameter {parameter.name!r} is annotated {kind}, "
                f"which cannot be read from JSON: {error}"
            ) from None
        return kind

    # -- result --------------------------------------------------------------------------------------
    def result(self, task: str, text: str) -> Any:
        """A stored result as the handler's return annotation says."""
        if self._result_decoder is None:
            kind = _plain(self._handler.hint("return"))
            try:
                self._result_decoder = codec.decoder(kind)
            except (TypeError, NameError):
                self._result_decoder = codec.decode
        try:
            return self._result_decoder(text)
        except (msgspec.MsgspecError, ValueError) as error:
            kind = self._handler.hint("return")
            raise InvalidCall(f"{task}: the result does not fit its annotation {_name(kind)}: {error}") from None


def _name_of_kind(parameters: tuple[inspect.Parameter, ...], kind: Any) -> str | None:
    return next((each.name for each in parameters if each.kind is kind), None)


def _plain(kind: Any) -> Any:
    return Any if kind in (object, Never, NoReturn) else kind


def _unpacked(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Unpack else None


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _has_text(value: Any) -> bool:
    try:
        codec.sorted_text(value)
    except Exception:
        return False
    return True


def _explain(message: str) -> str:
    """The message of msgspec with the parameter's name in front."""
    where = _WHERE.search(message)
    if where is None or where[1] is None:
        return message
    inside = f" (at {where[1]}{where[2]})" if where[2] else ""
    return f"argument {where[1]!r}: {_lower(message[: where.start()])}{inside}"


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]
