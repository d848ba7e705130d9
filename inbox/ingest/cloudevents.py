"""POST /messages: CloudEvents 1.0 over HTTP, structured mode (CloudEvents HTTP protocol binding, section 3.2)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.requests import Request
from starlette.responses import Response

from inbox.errors import Malformed, UnknownSource, Unreadable
from inbox.ingest.accept import Acceptor, Incoming
from inbox.ingest.content import content_hash, parse_json
from inbox.ingest.http import Callers, json_response, problem_kind, read_body, require_media_type
from inbox.ingest.view import accepted_view, location, success
from inbox.message import MAX_SEQUENCE, check_text
from inbox.metrics import Delivery, IntakeMetrics
from inbox.payload import STRUCTURED
from inbox.settings import Settings
from inbox.spans import span
from inbox.store.statements import Accepted

DIGITS = re.compile("0*([0-9]{1,19})")


def _text(event: Mapping[str, Any], name: str) -> str | None:
    """Return an optional attribute; absent, null and empty are the same."""
    value = event.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Malformed(name, "must be a string")
    return value


def _required(event: Mapping[str, Any], name: str) -> str:
    if name not in event:
        raise Malformed(name, "is required")
    value = event[name]
    if not isinstance(value, str):
        raise Malformed(name, "must be a string")
    return value


def _sequence(event: Mapping[str, Any]) -> int | None:
    """Return the ``sequence`` extension, a string or an integer; None where it is no number this column holds."""
    value = event.get("sequence")
    if isinstance(value, str):
        digits = DIGITS.fullmatch(value)
        value = int(digits[1]) if digits else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MAX_SEQUENCE else None


def _hash(event: Mapping[str, Any], body: bytes) -> bytes:
    if "data_base64" not in event:
        return content_hash(event.get("data"), body)
    if "data" in event or not isinstance(event["data_base64"], str):
        raise Malformed("data_base64", "must be a string, and the only data")
    try:
        return hashlib.sha256(base64.b64decode(event["data_base64"], validate=True)).digest()
    except (binascii.Error, ValueError):
        raise Malformed("data_base64", "must be Base64") from None


def read_event(event: Any, body: bytes) -> Incoming:
    """Read one structured-mode event. Raises Unreadable or Malformed; limits are accept's matter."""
    if not isinstance(event, dict):
        raise Unreadable("", "a CloudEvent is a JSON object")
    if _required(event, "specversion") != "1.0":
        raise Malformed("specversion", "must be 1.0")
    return Incoming(
        tenant=_text(event, "tenant") or "",
        source=check_text("source", _required(event, "source")),
        id=_required(event, "id"),
        type=_required(event, "type"),
        subject=_text(event, "partitionkey") or _text(event, "subject"),
        sequence=_sequence(event),
        content_type=STRUCTURED,
        body=body,
        sha256=_hash(event, body),
    )


def _producers_context(event: Mapping[str, Any]) -> Context | None:
    """Return the trace that the producer put into the event (Distributed Tracing extension), if any."""
    traceparent = event.get("traceparent")
    if not isinstance(traceparent, str):
        return None
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


class MessagesDoor:
    """The endpoint."""

    def __init__(self, acceptor: Acceptor, callers: Callers, settings: Settings, metrics: IntakeMetrics) -> None:
        self._acceptor = acceptor
        self._callers = callers
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """Answer 202 for a new message, 201 for one that is registered, 200 for a duplicate; errors as problems."""
        with self._metrics.delivery(problem_kind) as delivery:
            incoming, found = await self._take(request, delivery)
            delivery.created = found.created
        view = accepted_view(incoming, found, self._settings.system_phrase(incoming.source))
        return json_response(view, success(found), {"Location": location(incoming, found)})

    async def _take(self, request: Request, delivery: Delivery) -> tuple[Incoming, Accepted]:
        sources = self._callers.senders(request)
        if len(sources) == 1:
            (delivery.source,) = sources
        require_media_type(request, STRUCTURED)
        body = await read_body(request, self._settings.max_body)
        event = parse_json(body)
        incoming = read_event(event, body)
        if incoming.source not in sources:
            raise UnknownSource("source", "is not this token's")
        delivery.source = incoming.source
        context = _producers_context(event)
        if context is None:
            return incoming, await self._acceptor.accept(incoming)
        here = trace.Link(trace.get_current_span().get_span_context())
        with span("accept", context=context, links=[here]):
            return incoming, await self._acceptor.accept(incoming)
