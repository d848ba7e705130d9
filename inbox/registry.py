"""Finds the handlers of this process (spec section 10).

By the entry points of the group ``temporal_inbox.handlers``, and by the settings, where a table ``[handlers.NAME]``
names a class itself. Whatever cannot work is one line that says where: a worker must not start half.
"""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from inbox.cache import HandlerLookups
from inbox.configfile import first_fault
from inbox.errors import SettingsError, fault_of
from inbox.handler import Handler, codes_of, non_retryable_of
from inbox.message import RESEND
from inbox.settings import Settings
from inbox.shared_cache import SharedCache
from inbox.timeouts import LONGEST

log = logging.getLogger(__name__)
GROUP = "temporal_inbox.handlers"
HANDLER = "handler"  # the key of a table that names the class; the others are the handler's own
REFERENCE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
MOST = 255  # bytes of a type
# What is called with how many arguments; the last two need not be there.
ASYNC = {"prepare": 1, "register": 3, "audit": 2, "aclose": 0}
OPTIONAL = ("audit", "aclose")
Refuse = Callable[..., SettingsError]


def load_handlers(settings: Settings, shared: SharedCache | None = None) -> dict[str, Handler[Any, Any]]:
    """Build every handler that is installed or listed, and return them by message type.

    A handler with a ``settings`` model gets the table ``[handlers.NAME]``, NAME being its entry point's unless the
    table names the class itself; an installed one without that table is left out, since it cannot work. A factory with
    a parameter ``lookups`` gets the handler's look-up caches there, on the shared cache where there is one. One that
    ``resends`` serves the later editions of its messages too. Raises SettingsError, naming the table and its line, for
    whatever cannot be imported, built or called, and for two handlers of one type.
    """
    tables = settings.declared.handlers
    points = entry_points(group=GROUP)
    installed = {name: list(points.select(name=name)) for name in points.names}
    handlers: dict[str, Handler[Any, Any]] = {}
    named: dict[str, str] = {}
    for name in sorted(tables.keys() | installed.keys()):

        def refuse(what: str, *place: str | int, name: str = name) -> SettingsError:
            if name not in tables:  # installed, and no line of the file is about it
                return SettingsError(f"entry point {name} of {GROUP}: {what}")
            return settings.declared.refusal(["handlers", name, *place], what)

        factory = _load(_point(name, tables.get(name, {}), installed.get(name, []), refuse), refuse)
        if name not in tables and getattr(factory, "settings", None) is not None:
            continue
        handler = _build(factory, tables.get(name, {}), HandlerLookups(settings.name, name, shared), refuse)
        for fault in _faults(handler):
            raise refuse(f"not a handler: {fault}")
        if handler.type in handlers:
            raise refuse(f"a second handler for type {handler.type}, which handlers.{named[handler.type]} serves")
        handlers[handler.type], named[handler.type] = handler, name
        if getattr(handler, "resends", False):
            handlers[handler.type + RESEND], named[handler.type + RESEND] = handler, name
    return handlers


async def close_handlers(handlers: Mapping[str, Handler[Any, Any]]) -> None:
    """Close each handler once, whatever a fault in one of them."""
    for handler in {id(handler): handler for handler in handlers.values()}.values():
        if hasattr(handler, "aclose"):
            try:
                await handler.aclose()
            except Exception as error:  # noqa: BLE001  it is another's, and the process ends
                log.warning("a handler was not closed: %s", fault_of(error))


def _point(name: str, table: Mapping[str, Any], installed: list[EntryPoint], refuse: Refuse) -> EntryPoint:
    """Return what names the class: the table's own key, or the one installed handler of that name."""
    reference = table.get(HANDLER)
    if reference is not None:
        if not isinstance(reference, str) or not REFERENCE.fullmatch(reference):
            raise refuse('must be "package.module:Class"', HANDLER)
        return EntryPoint(name, reference, GROUP)
    if not installed:
        raise refuse("no handler of that name is installed, and the table names no class (handler = …)")
    if len({point.value for point in installed}) > 1:
        packages = sorted(point.dist.name for point in installed if point.dist)
        raise refuse(f"several packages have a handler of that name: {', '.join(packages)}")
    return installed[0]


def _load(point: EntryPoint, refuse: Refuse) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:  # they name modules and what is missing in them
        raise refuse(f"{point.value} cannot be imported: {_one_line(error)}") from None
    except Exception as error:  # noqa: BLE001  whatever a module of others does when it is imported
        raise refuse(f"{point.value} cannot be imported: {_whence(error)}") from None


def _build(factory: Any, table: Mapping[str, Any], lookups: HandlerLookups, refuse: Refuse) -> Handler[Any, Any]:
    own = {key: value for key, value in table.items() if key != HANDLER}
    model = getattr(factory, "settings", None)
    if not callable(factory):
        raise refuse("not a handler: it is no class")
    if model is None:
        for key in own:
            raise refuse("unknown setting: the handler takes none", key)
        arguments = []
    else:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise refuse("not a handler: its settings are no pydantic model")
        arguments = [_settings(model, own, refuse)]
    try:
        parts = {"lookups": lookups} if "lookups" in inspect.signature(factory).parameters else {}
        built: Handler[Any, Any] = factory(*arguments, **parts)
    except Exception as error:  # noqa: BLE001  whatever a class of others does when it is built
        raise refuse(f"cannot be built: {_whence(error)}") from None
    return built


def _settings(model: type[BaseModel], own: Mapping[str, Any], refuse: Refuse) -> BaseModel:
    try:
        return model.model_validate(own)
    except ValidationError as error:
        place, what = first_fault(error)
        raise refuse(what, *place) from None


def _faults(handler: Any) -> Iterator[str]:
    """Yield what keeps an object from being a handler (inbox.handler.Handler)."""
    kind, payload = getattr(handler, "type", None), getattr(handler, "payload", None)
    if not isinstance(kind, str) or not kind.strip() or len(kind.encode("utf-8", "replace")) > MOST:
        yield f"its type must be a string of 1 to {MOST} bytes"
    if not (isinstance(payload, type) and issubclass(payload, BaseModel)):
        yield "its payload must be a pydantic model"
    for name, count in ASYNC.items():
        method = getattr(handler, name, None)
        if method is None and name in OPTIONAL:
            continue
        if not inspect.iscoroutinefunction(method):
            yield f"its {name} must be an async method"
        elif not _takes(method, count):
            yield f"its {name} must take {count} arguments beside self"
    yield from _faults_of_attributes(handler)


def _faults_of_attributes(handler: Any) -> Iterator[str]:
    codes, final, timeout = codes_of(handler), non_retryable_of(handler), getattr(handler, "timeout", None)
    if not isinstance(codes, Mapping) or not all(isinstance(text, str) for pair in codes.items() for text in pair):
        yield "its codes must map each code to a hint"
    if isinstance(final, str) or not all(isinstance(code, str) for code in final):
        yield "its non_retryable must be a collection of codes"
    seconds = isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout <= LONGEST
    if timeout is not None and not seconds:
        yield "its timeout must be a number of seconds"
    reporter = getattr(handler, "reporter", None)
    if reporter is not None and not callable(getattr(reporter, "body", None)):
        yield "its reporter must have a method body"


def _takes(method: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _whence(error: Exception) -> str:
    """Return an error's class and where it was raised; its text may hold a setting, and so a secret."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename}, line {frame.lineno}"
