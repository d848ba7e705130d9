"""Finds the handlers of this process: entry points of the group ``temporal_inbox.handlers`` (spec section 10)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from inbox.cache import HandlerLookups
from inbox.errors import SettingsError, fault_of
from inbox.handler import Handler
from inbox.message import RESEND
from inbox.settings import Settings
from inbox.shared_cache import SharedCache

log = logging.getLogger(__name__)
GROUP = "temporal_inbox.handlers"


def load_handlers(settings: Settings, shared: SharedCache | None = None) -> dict[str, Handler[Any, Any]]:
    """Build every installed handler, and return them by message type.

    A handler with a ``settings`` model gets the table ``[handlers.NAME]``, NAME being its entry point's; without
    that table it is left out, since it cannot work. A factory with a parameter ``lookups`` gets the handler's look-up
    caches there, on the shared cache where there is one. One that ``resends`` serves the later editions of its
    messages too. Raises SettingsError, naming the table, for a table that does not fit, belongs to no handler, or for
    two handlers of one type.
    """
    tables = settings.declared.handlers
    installed = {point.name: point for point in entry_points(group=GROUP)}
    unknown = sorted(tables.keys() - installed.keys())
    if unknown:
        raise SettingsError(f"handlers.{unknown[0]}: no handler of that name is installed")
    handlers: dict[str, Handler[Any, Any]] = {}
    for name, point in sorted(installed.items()):
        handler = _build(name, point.load(), tables, HandlerLookups(settings.name, name, shared))
        if handler is None:
            continue
        if handler.type in handlers:
            raise SettingsError(f"handlers.{name}: a second handler for type {handler.type}")
        handlers[handler.type] = handler
        if getattr(handler, "resends", False):
            handlers[handler.type + RESEND] = handler
    return handlers


def _build(
    name: str, factory: Any, tables: Mapping[str, dict[str, Any]], lookups: HandlerLookups
) -> Handler[Any, Any] | None:
    parts = {"lookups": lookups} if "lookups" in inspect.signature(factory).parameters else {}
    model = getattr(factory, "settings", None)
    if model is None:
        built: Handler[Any, Any] = factory(**parts)
        return built
    if name not in tables:
        return None
    try:
        built = factory(model.model_validate(tables[name]), **parts)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise SettingsError(f"handlers.{name}.{place}: {fault['msg']}") from None
    return built


async def close_handlers(handlers: Mapping[str, Handler[Any, Any]]) -> None:
    """Close each handler once, whatever a fault in one of them."""
    for handler in {id(handler): handler for handler in handlers.values()}.values():
        if hasattr(handler, "aclose"):
            try:
                await handler.aclose()
            except Exception as error:  # noqa: BLE001  it is another's, and the process ends
                log.warning("a handler was not closed: %s", fault_of(error))
