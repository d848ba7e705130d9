"""POST /legacy/survey-send: the old hospital contract. Y means accepted, no longer registered (spec section 5)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from inbox.errors import InboxError, Malformed, NotRegistered, Refused, UnknownSource, Unreadable
from inbox.ingest.accept import Acceptor, Incoming
from inbox.ingest.content import content_hash, parse_json
from inbox.ingest.http import (
    Callers,
    as_problem,
    json_response,
    problem_kind,
    problem_response,
    read_body,
    require_media_type,
)
from inbox.ingest.view import accepted_view, success
from inbox.message import check_text
from inbox.metrics import Delivery, IntakeMetrics
from inbox.settings import Settings
from inbox.sources import LegacySettings
from inbox.store.statements import Accepted

JSON = "application/json"
TEXTS = {200: "accepted before", 201: "registered", 202: "accepted"}
REQUIRED = {"srvyDrawupNo": "id", "patno": "subject", "formCd": "type"}

NAMES = {ours: theirs for theirs, ours in REQUIRED.items() if ours != "type"}


def read_survey_send(content: Any, body: bytes, contract: LegacySettings) -> Incoming:
    """Read the old contract's object. Raises Unreadable or Malformed, naming the field as the sender calls it."""
    if not isinstance(content, dict):
        raise Unreadable("", "the body is a JSON object")
    for name, limit_of in REQUIRED.items():
        if name not in content:
            raise Malformed(name, "is required")
        check_text(limit_of, content[name], name=name)
    return Incoming(
        tenant="",
        source=contract.source,
        id=content["srvyDrawupNo"],
        type=contract.type,
        subject=content["patno"],
        sequence=None,
        content_type=JSON,
        body=body,
        sha256=content_hash(content, body),
    )


class LegacyDoor:
    """The endpoint: a fault of the message is 200 with N and the reason; any other is what it is."""

    def __init__(
        self,
        acceptor: Acceptor,
        callers: Callers,
        settings: Settings,
        contract: LegacySettings,
        metrics: IntakeMetrics,
    ) -> None:
        self._acceptor = acceptor
        self._callers = callers
        self._settings = settings
        self._contract = contract
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """Answer 200 with the result header; 401, 403, 413, 415 and 503 so that the sender sees a failure."""
        try:
            with self._metrics.delivery(problem_kind) as delivery:
                incoming, found = await self._take(request, delivery)
                delivery.created = found.created
        except UnknownSource:
            raise
        except Refused as error:
            error.field = NAMES.get(error.field, error.field)
            return self._refuse(error, str(error))
        except NotRegistered as error:
            if not error.final:
                raise
            return self._refuse(error, error.reason)
        view = accepted_view(incoming, found, self._settings.system_phrase(incoming.source))
        text = TEXTS[success(found)]
        return json_response(view, 200, self._headers("Y", text))

    async def _take(self, request: Request, delivery: Delivery) -> tuple[Incoming, Accepted]:
        if self._contract.source not in self._callers.senders(request):
            raise UnknownSource("", "this token is not the old system's")
        delivery.source = self._contract.source
        require_media_type(request, JSON)
        body = await read_body(request, self._settings.max_body)
        incoming = read_survey_send(parse_json(body), body, self._contract)
        return incoming, await self._acceptor.accept(incoming)

    def _refuse(self, error: InboxError, reason: str) -> Response:
        response = problem_response(as_problem(error))
        response.status_code = 200
        response.headers.update(self._headers("N", reason))
        return response

    def _headers(self, result: str, text: str) -> dict[str, str]:
        return {self._contract.result_header: result, self._contract.message_header: quote(text)}
