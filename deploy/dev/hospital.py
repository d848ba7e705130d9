"""A stand-in for the hospital's old system and the account service, honest about what it saw.

All in memory; nothing is stored. Delays are those of the case (spec section 15).
Run as `python -m deploy.dev.hospital --port N --data FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deploy.dev.ports import LOOPBACK

# Seconds, least and most; each answer's delay is drawn evenly from between.
_FORM_DELAY = (0.050, 0.150)
_CONSENTS_DELAY = (0.760, 0.984)
_OTHER_DELAY = (0.020, 0.060)

JsonObject = dict[str, Any]


class Form(BaseModel):
    """What the old system knows of a form."""

    model_config = ConfigDict(extra="forbid")

    survey_no: str = Field(alias="surveyNo")
    group: str | None
    distributed: bool


class Control(BaseModel):
    """The body of `POST /_control`: what is given replaces that part whole."""

    model_config = ConfigDict(extra="forbid")

    down: bool = False
    delays: bool = True
    forms: dict[str, Form] = {}
    consents: dict[str, list[JsonObject]] = {}
    reports: list[int] = []


class Guest(BaseModel):
    """The body of `PUT /guests/{patno}`."""

    name: str | None = None
    mobile: str | None = None


def problem(status: int, title: str) -> JSONResponse:
    """Build an RFC 9457 problem document; 429 and 503 say when to come again."""
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    body = {"type": "about:blank", "title": title, "status": status}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def scripted(status: int) -> Response:
    """Build the answer to a report with this status."""
    if status == HTTPStatus.NO_CONTENT:  # has no body
        return Response(status_code=204)
    return JSONResponse({}, status) if status < HTTPStatus.MULTIPLE_CHOICES else problem(status, "as scripted")


class Hospital:
    """Its knowledge, its moods, and a tally of every request, also of those answered by an error."""

    def __init__(self, data: JsonObject) -> None:
        """Know `data`: `{"forms": …, "consents": …}`."""
        self._is = Control.model_validate(data)
        self._lookups: dict[str, Counter[str]] = {"form": Counter(), "consents": Counter()}
        self._guests: Counter[str] = Counter()
        self._reports: list[JsonObject] = []

    async def form(self, request: Request) -> Response:
        """GET /forms/{formCd}: 404 when the form is not registered."""
        code = request.path_params["code"]
        self._lookups["form"][code] += 1
        if (refusal := await self._mood(_FORM_DELAY)) is not None:
            return refusal
        known = self._is.forms.get(code)
        return JSONResponse(known.model_dump(by_alias=True)) if known else problem(404, "form not registered")

    async def consents(self, request: Request) -> Response:
        """GET /consents/{surveyNo}: a list, empty for an unknown survey."""
        survey = request.path_params["survey"]
        self._lookups["consents"][survey] += 1
        if (refusal := await self._mood(_CONSENTS_DELAY)) is not None:
            return refusal
        return JSONResponse(self._is.consents.get(survey, []))

    async def guest(self, request: Request) -> Response:
        """PUT /guests/{patno}: idempotent, the same patient has the same account."""
        patno = request.path_params["patno"]
        self._guests[patno] += 1
        if (refusal := await self._mood(_OTHER_DELAY)) is not None:
            return refusal
        try:
            Guest.model_validate_json(await request.body())
        except ValidationError:
            return problem(422, "name and mobile are required")
        account = uuid.uuid5(uuid.NAMESPACE_OID, f"guest {patno}")
        return JSONResponse({"guestId": f"G-{account.hex[:12]}"})

    async def report(self, request: Request) -> Response:
        """POST /reports: 200, or what the script says next."""
        try:
            body = json.loads(await request.body())
        except ValueError:
            body = None
        seen = {"key": request.headers.get("idempotency-key"), "body": body, "status": 0}
        self._reports.append(seen)
        answer = await self._mood(_OTHER_DELAY)
        if answer is None and body is None:
            answer = problem(400, "not JSON")
        elif answer is None:
            status = self._is.reports.pop(0) if self._is.reports else 200
            answer = scripted(status)
        seen["status"] = answer.status_code
        return answer

    async def seen(self, _: Request) -> Response:
        """GET /_seen: the tally since the process began."""
        reports = self._reports
        return JSONResponse({"lookups": self._lookups, "guests": self._guests, "reports": reports})

    async def control(self, request: Request) -> Response:
        """POST /_control: change knowledge and moods; answers the switches as they are now."""
        try:
            wish = Control.model_validate_json(await request.body())
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, e["loc"])) or e["type"] for e in error.errors())
            return problem(422, f"wrong: {wrong}")
        for part in wish.model_fields_set:
            setattr(self._is, part, getattr(wish, part))
        return JSONResponse(self._is.model_dump(include={"down", "delays", "reports"}))

    async def _mood(self, delay: tuple[float, float]) -> Response | None:
        """Take the time of the real thing; a refusal when it is down."""
        if self._is.down:
            return problem(503, "down")
        if self._is.delays:
            await asyncio.sleep(random.uniform(*delay))
        return None


def app(data: JsonObject) -> Starlette:
    """Build the application, knowing `data`: `{"forms": …, "consents": …}`."""
    hospital = Hospital(data)

    def route(path: str, method: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, handler, methods=[method])

    return Starlette(
        routes=[
            route("/forms/{code:path}", "GET", hospital.form),
            route("/consents/{survey:path}", "GET", hospital.consents),
            route("/guests/{patno:path}", "PUT", hospital.guest),
            route("/reports", "POST", hospital.report),
            route("/_seen", "GET", hospital.seen),
            route("/_control", "POST", hospital.control),
        ]
    )


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = argparse.ArgumentParser(prog="deploy.dev.hospital", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True, help="forms and consents, JSON")
    chosen = parser.parse_args()
    data = json.loads(chosen.data.read_text(encoding="utf-8"))
    # No access log: its lines would hold patient numbers.
    uvicorn.run(app(data), host=LOOPBACK, port=chosen.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
