"""What a handler takes: its parameters, and their annotations as the definer's own names resolve them.

Annotations may be texts (`from __future__ import annotations`) and may name what lives only inside the function around
the handler. They are resolved when the task is declared, with that function's locals. What does not resolve yet is
tried again when the task is first used; until then, and no longer, the definer's frame is kept.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType, MethodType
from typing import Any

from ..errors import InvalidCall

NOT_GIVEN: Any = inspect.Parameter.empty
_FIRST = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Handler:
    """What is read of a handler once: its kind, parameters and annotations."""

    def __init__(self, handler: Callable[..., Any], task: str, frame: FrameType | None) -> None:
        _check_kind(handler, task)
        if _yields(handler):
            raise InvalidCall(
                f"task {task}: its handler yields, and a job has one result; return it, a list for example"
            )
        self.task = task
        self.is_async = _is_async(handler)
        self._function = _function_of(handler)
        self._frame = _definer(self._function, frame)
        self._hints: dict[str, Any] = {}
        self._hinted = -1
        try:
            self.signature = _signature(handler)
        except (TypeError, ValueError) as error:
            raise InvalidCall(f"task {task}: the parameters of {handler!r} cannot be read: {error}") from None
        parameters = list(self.signature.parameters.values())
        self.takes_context = bool(parameters) and self._is_context(parameters[0])
        self.parameters = tuple(parameters[1:] if self.takes_context else parameters)
        self._resolve_all()

    def hint(self, name: str) -> Any:
        """The annotation of a parameter ("return" for the result), resolved; Any if there is none."""
        raw = self._raw(name)
        if raw is NOT_GIVEN:
            return Any
        if name not in self._hints:
            try:
                self._hints[name] = self._resolve(raw)
            except NameError as error:
                raise InvalidCall(
                    f"task {self.task}: the annotation {_spelled(raw)!r} of {_place(name)} does not resolve: {error}; "
                    "the name must exist at run time, where the handler is defined"
                ) from None
            except Exception as error:
                raise InvalidCall(
                    f"task {self.task}: the annotation {_spelled(raw)!r} of {_place(name)} is no type: {error}"
                ) from error
            if len(self._hints) == self._hinted:
                self._frame = None
        return self._hints[name]

    def _resolve_all(self) -> None:
        names = [*(parameter.name for parameter in self.parameters), "return"]
        hinted = [name for name in names if self._raw(name) is not NOT_GIVEN]
        self._hinted = len(hinted)
        if not hinted:
            self._frame = None
        for name in hinted:
            with suppress(InvalidCall):  # tried again at first use; the frame stays until then
                self.hint(name)
        for parameter in self.parameters:
            if _is_context(self._hints.get(parameter.name)):
                raise InvalidCall(
                    f"task {self.task}: its {_place(parameter.name)} is a Context, which comes first: "
                    f"({parameter.name}: Context, …)"
                )

    def _raw(self, name: str) -> Any:
        if name == "return":
            return self.signature.return_annotation
        return self.signature.parameters[name].annotation

    def _resolve(self, raw: Any) -> Any:
        return _resolve(raw, self._function, self._frame)

    def _is_context(self, first: inspect.Parameter) -> bool:
        if first.kind not in _FIRST:
            return False
        if first.annotation is NOT_GIVEN:
            return first.name == "ctx"
        try:
            kind = self._resolve(first.annotation)
        except Exception:
            # imported for the type checker alone: only its spelling is known
            spelled = _spelled(first.annotation)
            return first.name == "ctx" or spelled.rpartition(".")[2] == "Context"
        return _is_context(kind)


class BatchHandler(Handler):
    """A handler of batches, seen as one of single calls: `items: list[Item[A]]` is a parameter of kind A, and the result
    `list[R]` is R."""

    items = ""  # the name of the parameter; not known while the base class reads the handler

    def __init__(self, handler: Callable[..., Any], task: str, frame: FrameType | None) -> None:
        super().__init__(handler, task, frame)
        first = self.parameters[0] if self.parameters else None
        if self.takes_context or first is None or first.kind not in _FIRST:
            raise InvalidCall(f"batch task {task}: its handler takes one list of items: items: list[Item[Arguments]]")
        self.items = first.name

    def hint(self, name: str) -> Any:
        hint = super().hint(name)
        if name == "return":
            return _inside(hint) if typing.get_origin(hint) is not None else Any
        return hint if name != self.items else self._kind_of_item(hint)

    def _kind_of_item(self, hint: Any) -> Any:
        from ..handler.item import Item

        item = hint if hint is Any else _inside(hint)
        if _holds_items(hint) and (item is Any or item is Item):
            return Any
        if not _holds_items(hint) or typing.get_origin(item) is not Item:
            raise InvalidCall(
                f"batch task {self.task}: {_place(self.items)} is annotated {hint}; it must be list[Item[Arguments]]"
            )
        return _inside(item)


def result_kind(function: Callable[..., Any], frame: FrameType | None) -> Any:
    """What a function returns by its annotation, Any if it has none. The annotation is resolved with the names inside the
    function that defines it, if that is among the callers of `frame`. NameError and others when it does not resolve."""
    if isinstance(function, type):
        return function
    plain = _function_of(function)
    raw = _signature(plain).return_annotation
    return Any if raw is NOT_GIVEN else _resolve(raw, plain, _find_definer(plain, frame))


def _resolve(raw: Any, function: Any, frame: FrameType | None) -> Any:
    """An annotation of a function, resolved with its globals, its closure and the locals of the frame."""
    if raw is None or isinstance(raw, type):
        return raw
    names = _closure(function)
    if frame is not None:
        names.update(frame.f_locals)

    def carrier() -> None: ...

    carrier.__annotations__ = {"hint": raw}
    space = getattr(function, "__globals__", {})
    return typing.get_type_hints(carrier, space, names, include_extras=True)["hint"]


def _closure(function: Any) -> dict[str, Any]:
    code: CodeType | None = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    free = code.co_freevars if code is not None else ()
    known = {}
    for name, cell in zip(free, cells, strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # assigned later
            continue
    return known


def _check_kind(handler: object, task: str) -> None:
    if isinstance(handler, type):
        raise InvalidCall(
            f"a task is made of a function, and {handler.__qualname__.rpartition('.')[2]} is a class; decorate a function, "
            f'or register a method of an object: app.task(name="{task.lower()}")({handler.__name__}(…).method)'
        )
    if not callable(handler):
        raise InvalidCall(f"a task is made of a function, not of {type(handler).__name__}")


def _is_context(kind: object) -> bool:
    from ..handler.context import Context

    return isinstance(kind, type) and issubclass(kind, Context)


def _holds_items(hint: Any) -> bool:
    """Whether a list is allowed by this annotation."""
    kind = typing.get_origin(hint) or hint
    return kind is Any or (isinstance(kind, type) and issubclass(list, kind))


def _inside(hint: Any) -> Any:
    inner = typing.get_args(hint)
    return inner[0] if inner else Any


def _spelled(raw: Any) -> str:
    text = getattr(raw, "__forward_arg__", raw)
    return text if isinstance(text, str) else repr(raw)


def _place(name: str) -> str:
    return "the result" if name == "return" else f"parameter {name!r}"


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(handler, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(handler)


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _yields(handler: Callable[..., Any]) -> bool:
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (handler, getattr(handler, "__call__", None))  # noqa: B004
    )


def _function_of(handler: Any) -> Any:
    """The plain function below partials, methods, decorators and callable objects."""
    while True:
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif isinstance(handler, MethodType):
            handler = handler.__func__
        elif hasattr(handler, "__wrapped__"):
            handler = handler.__wrapped__
        elif not hasattr(handler, "__code__") and hasattr(type(handler), "__call__"):  # noqa: B004
            inner = type(handler).__call__
            if not hasattr(inner, "__code__"):
                return handler
            return inner
        else:
            return handler


def _definer(function: Any, frame: FrameType | None) -> FrameType | None:
    """The frame in which the handler was defined, if it is a function's and still there."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return None
    return _find_definer(function, frame) or frame


def _find_definer(function: Any, frame: FrameType | None) -> FrameType | None:
    """The frame among these whose code defines the function."""
    code = getattr(function, "__code__", None)
    around = frame
    while around is not None:
        if code in around.f_code.co_consts:
            return around
        around = around.f_back
    return None
