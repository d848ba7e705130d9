"""What every door shares: bodies within limits, who is asking, problem documents (RFC 9457), one span a request."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from opentelemetry import propagate
from opentelemetry.trace import SpanKind
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from inbox.errors import (
    ContentConflict,
    InboxError,
    Malformed,
    NotRegistered,
    Refused,
    StoreUnavailable,
    UnknownSource,
    UnknownType,
    Unreadable,
)
from inbox.logs import LimitedLog
from inbox.settings import Settings
from inbox.sources import token_hash
from inbox.spans import span

limited = LimitedLog(logging.getLogger(__name__))
Endpoint = Callable[[Request], Awaitable[Response]]

# An early answer resets the connection of a sender that is still sending, so the rest is read away, up to here.
READ_AWAY = 32 * 1024 * 1024
RETRY_AFTER = "5"  # seconds


class HttpProblem(InboxError):
    """An answer that is no success: ``status``, a ``kind`` for the type URI, a sentence, further ``members``."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(kind)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}
        self.members = members or {}


REFUSALS: Mapping[type[Refused], tuple[int, str]] = {
    Unreadable: (400, "unreadable"),
    Malformed: (422, "malformed"),
    UnknownSource: (403, "unknown-source"),
    UnknownType: (422, "unknown-type"),
    ContentConflict: (409, "id-reused"),
}
UNAVAILABLE = HttpProblem(
    503, "store-unavailable", "the store gives no answer; send again", {"Retry-After": RETRY_AFTER}
)
INTERNAL = HttpProblem(500, "internal", "this is a fault of the inbox")


def as_problem(error: InboxError) -> HttpProblem:
    """Return the answer for an error of intake; whatever is not one is raised again."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, Refused):
        status, kind = REFUSALS[type(error)]
        return HttpProblem(status, kind, str(error))
    if isinstance(error, NotRegistered):
        if error.final:
            return HttpProblem(422, "not-registered", error.reason, members={"code": error.code})
        return HttpProblem(503, "handler-unavailable", error.reason, {"Retry-After": RETRY_AFTER})
    if isinstance(error, StoreUnavailable):
        return UNAVAILABLE
    raise error


def problem_kind(error: Exception) -> str:
    """Return the kind of problem that ``error`` is answered with."""
    return as_problem(error).kind if isinstance(error, InboxError) else INTERNAL.kind


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``content`` as JSON."""
    return Response(_dump(content), status, headers, "application/json")


def _dump(content: Any) -> bytes:
    # Not orjson: a handler's outcome may hold an integer beyond 64 bits.
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_time).encode()


def _time(value: Any) -> str:
    if not isinstance(value, datetime):
        raise TypeError(type(value).__name__)
    return value.isoformat()


def problem_response(problem: HttpProblem) -> Response:
    """Return a problem document (RFC 9457); its type is a URN, its detail never repeats what was sent."""
    document = {
        "type": f"urn:temporal-inbox:problem:{problem.kind}",
        "title": problem.kind.replace("-", " "),
        "status": problem.status,
        "detail": problem.detail,
        **problem.members,
    }
    return Response(_dump(document), problem.status, problem.headers, "application/problem+json")


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body, ``limit`` bytes at most. Raises HttpProblem 413, after the rest was read away."""
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size > READ_AWAY:
                break
    except ClientDisconnect:
        raise HttpProblem(400, "disconnected", "the body ended early") from None
    if size > limit:
        # What still comes after that much is not read: the connection ends with the answer.
        headers = {"Connection": "close"} if size > READ_AWAY else None
        raise HttpProblem(413, "too-large", f"a message may have {limit} bytes", headers)
    return b"".join(chunks)


def require_media_type(request: Request, *allowed: str) -> str:
    """Return the media type, lower case, without parameters. Raises HttpProblem 415; UTF-8 is the only charset."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if media_type not in allowed:
        raise HttpProblem(415, "media-type", f"the media type must be {' or '.join(allowed)}")
    for parameter in parameters.lower().split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise HttpProblem(415, "media-type", "the charset must be UTF-8")
    return media_type


class Callers:
    """Who is asking, by bearer token: the sources it may write and read, or the operator."""

    def __init__(self, settings: Settings) -> None:
        self._sources: dict[str, frozenset[str]] = {}
        for name, source in settings.declared.sources.items():
            for token in source.tokens:
                self._sources[token] = self._sources.get(token, frozenset()) | {name}
        self._open = frozenset(name for name, its in settings.declared.sources.items() if its.auth == "none")
        self._operators = frozenset(settings.operator_tokens)

    def senders(self, request: Request) -> frozenset[str]:
        """Return the sources that the caller may write as: its token's, or without one those that need none.

        Raises HttpProblem 401; a token that is not known is refused whatever the sources need.
        """
        if self._open and "authorization" not in request.headers:
            return self._open
        return self.sources(request) | self._open

    def sources(self, request: Request) -> frozenset[str]:
        """Return the caller's sources. Raises HttpProblem 401."""
        # Looked up by hash: what a comparison's timing could tell is about the hash, not about the token.
        found = self._sources.get(_bearer_hash(request))
        if found is None:
            raise HttpProblem(401, "unauthorized", "a source's bearer token is needed", {"WWW-Authenticate": "Bearer"})
        return found

    def is_operator(self, request: Request) -> bool:
        """Tell whether the caller holds an operator's token."""
        return _bearer_hash(request) in self._operators


def _bearer_hash(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token_hash(token) if scheme.lower() == "bearer" and token else ""


def traced(route: str, endpoint: Endpoint) -> Endpoint:
    """Wrap ``endpoint`` in a server span, child of the caller's, and turn errors of intake into problems."""

    async def serve(request: Request) -> Response:
        name = f"{request.method} {route}"
        context = propagate.extract(dict(request.headers))
        attributes = {"http.request.method": request.method, "http.route": route}
        with span(name, kind=SpanKind.SERVER, context=context, attributes=attributes) as current:
            try:
                response = await endpoint(request)
            except InboxError as error:
                response = problem_response(as_problem(error))
            except Exception as error:  # noqa: BLE001  the last line: an answer, and a line in the log
                limited.error(type(error).__name__, "request failed: %s", type(error).__name__)
                response = problem_response(INTERNAL)
            current.set_attribute("http.response.status_code", response.status_code)
            return response

    return serve
