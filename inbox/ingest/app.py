"""The HTTP application of ``inbox serve``: the doors, the record, the backlog, health."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import Meter
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inbox.checks import check_schema
from inbox.errors import Malformed, SchemaUnfit, StoreUnavailable, TemporalUnfit
from inbox.ingest.accept import Acceptor
from inbox.ingest.cloudevents import MessagesDoor
from inbox.ingest.http import UNAVAILABLE, Callers, HttpProblem, json_response, problem_response, traced
from inbox.ingest.legacy import LegacyDoor
from inbox.ingest.openapi import openapi
from inbox.ingest.view import backlog_view, record_view
from inbox.message import Key
from inbox.metrics import IntakeMetrics
from inbox.settings import Settings
from inbox.store.engine import Database
from inbox.store.order import READ_MISSING
from inbox.store.reads import READ_BACKLOG, READ_RECORD


class _AnyConvertor(Convertor[str]):
    """A rest of a path with anything in it: ``path`` stops at a line feed, and an ID may hold one."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return it as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Return it as it is."""
        return value


register_url_convertor("any", _AnyConvertor())
NOT_FOUND = HttpProblem(404, "not-found", "there is no such message")


class Reader:
    """Reads the record. A source reads its own messages; the operator's token all of them, and the backlog."""

    def __init__(self, database: Database, callers: Callers, settings: Settings) -> None:
        self._database = database
        self._callers = callers
        self._settings = settings

    async def record(self, request: Request) -> Response:
        """GET /messages/{key}: the record, never the payload."""
        # From the raw path: an encoded slash belongs to a part, and a CloudEvents source is full of them.
        raw = request.scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        own = None if self._callers.is_operator(request) else self._callers.sources(request)
        try:
            key = Key.parse(raw.removeprefix("/messages/"))
        except Malformed:
            raise NOT_FOUND from None
        if own is not None and key.source not in own:
            raise HttpProblem(403, "unknown-source", "this source is not this token's")
        record = await self._database.one(
            READ_RECORD,
            {"tenant": key.tenant, "source": key.source, "message_id": key.id, "edition": key.edition},
        )
        if record is None:
            raise NOT_FOUND
        phrase = None if own is None else self._settings.system_phrase(key.source)
        gap = None
        if record.held_since and record.held_behind is None:
            gap = await self._database.one(READ_MISSING, {"id": record.id, "most": 1})
        return json_response(record_view(record, phrase, missing=gap.missing if gap else None))

    async def backlog(self, request: Request) -> Response:
        """GET /backlog: how many are waiting now."""
        if not self._callers.is_operator(request):
            raise HttpProblem(
                401, "unauthorized", "the operator's bearer token is needed", {"WWW-Authenticate": "Bearer"}
            )
        return json_response(backlog_view(await self._database.run(READ_BACKLOG, {})))


class Health:
    """Liveness says that the process runs; readiness that it can store a message. Temporal may be away."""

    def __init__(self, database: Database, revision: str, temporal: Callable[[], TemporalUnfit | None]) -> None:
        self._database = database
        self._revision = revision
        self._temporal = temporal

    async def live(self, _: Request) -> Response:
        """GET /healthz."""
        return json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """GET /readyz: 200, or 503 with what is missing."""
        try:
            await check_schema(self._database.one, self._revision)
        except StoreUnavailable:
            return problem_response(UNAVAILABLE)
        except SchemaUnfit as unfit:
            return problem_response(HttpProblem(503, "schema", str(unfit)))
        if missing := self._temporal():
            return problem_response(HttpProblem(503, "search-attributes", str(missing)))
        return json_response({"status": "ready"})


async def _http_error(_: Request, error: Exception) -> Response:
    """Answer what the router refuses (404, 405) as a problem document too."""
    if not isinstance(error, HTTPException):
        raise error
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "http")
    return problem_response(HttpProblem(error.status_code, kind, error.detail, error.headers))


def build_app(
    settings: Settings,
    database: Database,
    acceptor: Acceptor,
    revision: str,
    temporal: Callable[[], TemporalUnfit | None] = lambda: None,
    meter: Meter | None = None,
) -> Starlette:
    """Return the ASGI application; opens and closes nothing itself.

    ``revision`` is the schema it needs, ``temporal`` tells what is known to be wrong with Temporal, ``meter`` makes
    the instruments, in place of the process's own.
    """
    callers = Callers(settings)
    metrics = IntakeMetrics(meter)
    reader = Reader(database, callers, settings)
    health = Health(database, revision, temporal)
    messages = MessagesDoor(acceptor, callers, settings, metrics)
    document = json_response(openapi(settings))
    routes = [
        Route("/messages", traced("/messages", messages), methods=["POST"]),
        Route("/messages/{key:any}", traced("/messages/{key}", reader.record), methods=["GET"]),
        Route("/backlog", traced("/backlog", reader.backlog), methods=["GET"]),
        Route("/openapi.json", lambda _: document, methods=["GET"]),
        Route("/healthz", health.live, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
    ]
    legacy = settings.declared.legacy
    if legacy:
        door = LegacyDoor(acceptor, callers, settings, legacy, metrics)
        routes.append(Route(legacy.path, traced(legacy.path, door), methods=["POST"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False  # to an address made from the Host header, that is
    return app
