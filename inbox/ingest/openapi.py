"""The OpenAPI 3.1 document of the doors, made from the limits, names and settings that the code goes by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inbox.ingest.legacy import JSON, REQUIRED
from inbox.message import LIMITS, MAX_SEQUENCE
from inbox.payload import STRUCTURED
from inbox.settings import Settings
from inbox.sources import LegacySettings
from inbox.states import Status

PROBLEM = "application/problem+json"
URN = "urn:temporal-inbox:problem:"

# Status → kinds of problem, and what they mean in a few words; docs/producers.md says more (a test compares them).
PROBLEMS: Mapping[int, tuple[tuple[str, ...], str]] = {
    400: (("unreadable", "disconnected"), "not HTTP, not JSON in UTF-8, not an object, or it ended early"),
    401: (("unauthorized",), "no bearer token that is known here"),
    403: (("unknown-source",), "the source is not the token's, or not configured"),
    404: (("not-found",), "no such message, or no such path"),
    405: (("method-not-allowed",), "the path does not serve that method"),
    408: (("too-slow",), "the request did not arrive in time"),
    409: (("id-reused",), "the ID was used before, for other content; the first content stands"),
    413: (("too-large",), "the body is longer than the limit"),
    415: (("media-type",), "another media type, or a charset other than UTF-8"),
    422: (
        ("malformed", "unknown-type", "not-registered"),
        "a field is wrong: detail says which one and why; or the handler refuses the message, in direct mode",
    ),
    431: (("head-too-large",), "request line and headers are longer than the limit"),
    500: (("internal",), "a fault of the inbox; send again"),
    503: (
        ("store-unavailable", "handler-unavailable", "schema", "search-attributes"),
        "a service gives no answer; send again after Retry-After",
    ),
}
OF_THE_PROTOCOL = (400, 408, 431, 500)
Json = dict[str, Any]


def _text(limit_of: str, **more: Any) -> Json:
    """Return a text of the record. Limits count UTF-8 bytes, so that a text of as many characters may be too long."""
    return {"type": "string", "minLength": 1, "maxLength": LIMITS[limit_of], **more}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}, {"const": ""}]}


def _object(required: Iterable[str], **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: Json, media_type: str = JSON, headers: Json | None = None) -> Json:
    found: Json = {"description": description, "content": {media_type: {"schema": schema}}}
    return found | ({"headers": headers} if headers else {})


def _header(description: str, *, required: bool = True, **schema: Any) -> Json:
    return {"description": description, "required": required, "schema": {"type": "string", **schema}}


def _problems(*statuses: int) -> Json:
    found = {str(status): {"$ref": f"#/components/responses/{status}"} for status in (*statuses, *OF_THE_PROTOCOL)}
    return dict(sorted(found.items()))


def _problem_answers() -> Json:
    headers = {
        401: {"WWW-Authenticate": _header("Bearer")},
        405: {"Allow": _header("the methods served")},
        503: {"Retry-After": _header("seconds", required=False)},
    }
    return {
        str(status): _answer(
            meaning,
            {"allOf": [_ref("Problem"), {"properties": {"type": {"enum": [URN + kind for kind in kinds]}}}]},
            PROBLEM,
            headers.get(status),
        )
        for status, (kinds, meaning) in PROBLEMS.items()
    }


def _schemas() -> Json:
    event = _object(
        ("specversion", "source", "id", "type"),
        specversion={"const": "1.0"},
        source=_text("source"),
        id=_text("id"),
        type=_text("type"),
        subject=_nullable(_text("subject")),
        partitionkey=_nullable(_text("subject", description="the subject, where it is set")),
        tenant=_nullable(_text("tenant")),
        sequence={
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
                {"type": "string", "pattern": "^[0-9]{1,19}$"},
            ],
            "description": "required, with a subject, where the source's order is by sequence",
        },
        traceparent={"type": "string"},
        data={},
        data_base64={"type": "string", "contentEncoding": "base64"},
    )
    send = _object(REQUIRED, **{name: _text(limit_of) for name, limit_of in REQUIRED.items()}, sendDt={})
    state: Json = {"enum": [status.value for status in Status]}
    accepted = _object(
        ("source", "id", "status", "duplicate", "workflowId", "receivedAt"),
        source=_text("source"),
        id=_text("id"),
        status=state,
        duplicate={"type": "boolean"},
        workflowId={"type": "string"},
        receivedAt={"type": "string", "format": "date-time"},
        outcome={"description": "once it is COMPLETED"},
        code={"type": ["string", "null"], "description": "once it is DEAD"},
        reason={"type": ["string", "null"], "description": "once it is DEAD"},
    )
    record = _object(
        (
            *("tenant", "source", "id", "edition", "type", "status", "generation", "tries", "maxTries"),
            *("duplicates", "workflowId"),
        ),
        status=state,
        generation={"type": "integer", "minimum": 1, "description": "one more with every redrive; tries are its own"},
        heldSince={"type": ["string", "null"], "format": "date-time"},
        heldBehind={"type": ["string", "null"], "description": "the key of the message that it waits for"},
        missingNumber={"type": ["integer", "null"], "description": "the sequence number that it waits for"},
    )
    problem = _object(
        ("type", "title", "status", "detail"),
        type={"type": "string"},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string", "description": "names the field, and never repeats what was sent"},
    )
    backlog = _object(("open", "held", "parked", "owed", "givenUp", "lines"), lines={"type": "array"})
    return {
        "Event": event | {"not": {"required": ["data", "data_base64"]}},
        "SurveySend": send,
        "Accepted": accepted,
        "Record": record,
        "Backlog": backlog,
        "Problem": problem,
    }


def _traceparent() -> Json:
    return {"name": "traceparent", "in": "header", "required": False, "schema": {"type": "string"}}


def _operation(summary: str, responses: Json, *, caller: str | None = "source", **more: Any) -> Json:
    return {"summary": summary, "responses": responses, "security": [{caller: []}] if caller else [], **more}


def _post(media_type: str, schema: str, limit: int) -> Json:
    body = {
        "required": True,
        "description": f"at most {limit} bytes",
        "content": {media_type: {"schema": _ref(schema)}},
    }
    return {"requestBody": body, "parameters": [_traceparent()]}


def _messages(limit: int) -> Json:
    responses = {
        "200": _answer("a duplicate: stored before, and it starts nothing", _ref("Accepted"), headers=_located()),
        "201": _answer("new, of a source in direct mode: registered", _ref("Accepted"), headers=_located()),
        "202": _answer("new: stored", _ref("Accepted"), headers=_located()),
        **_problems(401, 403, 409, 413, 415, 422, 503),
    }
    return {"post": _operation("Deliver a CloudEvent", responses, **_post(STRUCTURED, "Event", limit))}


def _located() -> Json:
    return {"Location": _header("the path of the record")}


def _legacy(contract: LegacySettings, limit: int) -> Json:
    headers = {
        contract.result_header: _header("Y: accepted, no longer registered; N: refused", enum=["Y", "N"]),
        contract.message_header: _header("why, percent-encoded UTF-8"),
    }
    ok: Json = {
        "description": "accepted, or (N) a fault of the message: unreadable, a field wrong, an ID reused",
        "headers": headers,
        "content": {JSON: {"schema": _ref("Accepted")}, PROBLEM: {"schema": _ref("Problem")}},
    }
    responses = {"200": ok, **_problems(401, 403, 413, 415, 503)}
    return {"post": _operation("Deliver by the old contract", responses, **_post(JSON, "SurveySend", limit))}


def _record(*parts: str) -> Json:
    parameters = [{"name": part, "in": "path", "required": True, "schema": _text(part)} for part in parts]
    responses = {"200": _answer("the record, never the payload", _ref("Record")), **_problems(401, 403, 404, 503)}
    return {"get": _operation("Read what became of a message", responses, parameters=parameters)}


def _health(summary: str, *problems: int) -> Json:
    status = _object(("status",), status={"type": "string"})
    return {"get": _operation(summary, {"200": _answer("yes", status), **_problems(*problems)}, caller=None)}


def openapi(settings: Settings) -> Json:
    """Return the document of the routes that ``settings`` make. It holds no secret and names no source."""
    paths: Json = {
        "/messages": _messages(settings.max_body),
        "/messages/{source}/{id}": _record("source", "id"),
        "/messages/{tenant}/{source}/{id}": _record("tenant", "source", "id"),
        "/backlog": {
            "get": _operation(
                "How many are waiting now",
                {
                    "200": _answer("totals, and a line per source, type and state", _ref("Backlog")),
                    **_problems(401, 503),
                },
                caller="operator",
            )
        },
        "/healthz": _health("Does the process run"),
        "/readyz": _health("Can it store a message", 503),
        "/openapi.json": {
            "get": _operation(
                "This document", {"200": _answer("OpenAPI 3.1", {"type": "object"}), **_problems()}, caller=None
            )
        },
    }
    legacy = settings.declared.legacy
    if legacy:
        paths[legacy.path] = _legacy(legacy, settings.max_body)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "temporal-inbox", "version": "1", "description": "docs/producers.md says the rest."},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": _problem_answers(),
            "securitySchemes": {"source": bearer, "operator": bearer},
        },
    }
