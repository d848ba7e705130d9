"""The one call of http_bundle, and how its answer is read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, StringConstraints, field_validator

from inbox.handler import BusinessError

tracer = trace.get_tracer("handlers.http_bundle")
LARGEST = 64 * 1024  # bytes of an answer that are read
LONGEST_REASON = 1000  # characters
LONGEST_RESULT = 1000  # characters of JSON
LONGEST_LOCATION = 1000  # characters
PROBLEM = "application/problem+json"
# 4xx that say “not now”: a further try is no refusal's repetition.
NOT_NOW = (408, 425, 429)
CODE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
OWN_HEADERS = {
    "idempotency-key",
    "content-type",
    "content-length",
    "host",
    "authorization",
    "traceparent",
    "tracestate",
}
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]


class HttpBundleSettings(BaseModel):
    """Table ``[handlers.NAME]``: messages of ``type`` are POSTed to ``url``.

    ``token`` is sent as bearer token, ``headers`` as they are; ``timeout`` is for the whole call, in seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = Field(min_length=1)
    url: HttpUrl
    token: SecretStr | None = None
    headers: Mapping[HeaderName, SecretStr] = Field(default_factory=dict)
    timeout: float = Field(default=10, gt=0, le=24 * 3600)

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, value in headers.items():
            if name.lower() in OWN_HEADERS:
                raise ValueError(f"{name} is set by the handler itself")
            if not re.fullmatch(r"[\x20-\x7e]*", value.get_secret_value()):
                raise ValueError(f"{name} must hold printable ASCII alone")
        return headers


class BadAnswer(Exception):
    """The service answered with more than is read."""


class Service:
    """One endpoint. Nothing here retries: Temporal does."""

    def __init__(self, settings: HttpBundleSettings) -> None:
        self._settings = settings
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token.get_secret_value()}"
        self._client = httpx.AsyncClient(headers=headers, timeout=settings.timeout)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def apply(self, key: str, payload: Any) -> dict[str, Any]:
        """POST ``payload`` under ``key``; return status, and location and result where the answer has them.

        Raises BusinessError for a refusal with a problem document; httpx.HTTPError, TimeoutError or BadAnswer.
        """
        headers = {
            # A string as the IETF's draft (draft-ietf-httpapi-idempotency-key-header) writes it; a percent-encoded key
            # holds neither quotes nor backslashes.
            "Idempotency-Key": f'"{key}"',
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # what is read is bounded, and so nothing in it may unfold
        }
        with _span() as span:
            propagate.inject(headers)
            async with asyncio.timeout(self._settings.timeout):  # of the whole call: httpx's own is for each read
                response = await self._post(json.dumps(payload).encode(), headers)
            span.set_attribute("http.response.status_code", response.status_code)
            _refuse(response)
        return _kept(response)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Return the answer, read to its end."""
        async with self._client.stream("POST", str(self._settings.url), content=body, headers=headers) as response:
            read = bytearray()
            async for piece in response.aiter_bytes():
                read += piece
                if len(read) > LARGEST:
                    raise BadAnswer
        headers = {name: value for name, value in response.headers.items() if name in ("content-type", "location")}
        return httpx.Response(response.status_code, headers=headers, content=bytes(read), request=response.request)


@contextmanager
def _span() -> Iterator[Span]:
    """Make the call's span current: it holds no URL and no text, and of an error its class alone."""
    with tracer.start_as_current_span(
        "POST bundle", kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise


def _refuse(response: httpx.Response) -> None:
    """Raise BusinessError for a refusal that says why, httpx.HTTPStatusError for whatever else is no success."""
    if response.is_client_error and response.status_code not in NOT_NOW:
        problem = _problem(response)
        if problem is not None:
            raise BusinessError(_code(problem, response.status_code), _reason(problem, response.status_code))
    response.raise_for_status()


def _problem(response: httpx.Response) -> dict[str, Any] | None:
    """Return the problem document (RFC 9457) of an answer; None where it has none."""
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != PROBLEM:
        return None
    found = _json(response)
    return found if isinstance(found, dict) else None


def _code(problem: Mapping[str, Any], status: int) -> str:
    """Return the problem's own code, or the last part of its type as a constant, or the status.

    It goes to Temporal and to operators' filters, so that nothing but a constant will do.
    """
    code, kind = problem.get("code"), problem.get("type")
    if isinstance(code, str) and CODE.fullmatch(code):
        return code
    last = re.split(r"[/:#]", kind.rstrip("/:#"))[-1] if isinstance(kind, str) and kind != "about:blank" else ""
    derived = re.sub(r"[^A-Z0-9]+", "_", last.upper()).strip("_")
    return derived if CODE.fullmatch(derived) else f"HTTP_{status}"


def _reason(problem: Mapping[str, Any], status: int) -> str:
    for name in ("detail", "title"):
        text = problem.get(name)
        if isinstance(text, str) and text.strip():
            return text[:LONGEST_REASON]
    return f"HTTP status {status}"


def _kept(response: httpx.Response) -> dict[str, Any]:
    """Return what the outcome keeps: the status, the Location, and the member ``result`` where it is small."""
    kept: dict[str, Any] = {"status": response.status_code}
    location = response.headers.get("location")
    if location and len(location) <= LONGEST_LOCATION:
        kept["location"] = location
    found = _json(response)
    if isinstance(found, dict) and "result" in found and _is_storable(found["result"]):
        kept["result"] = found["result"]
    return kept


def _is_storable(value: Any) -> bool:
    """Tell whether a value is small, and nothing that Postgres refuses in JSON: NUL, lone surrogates, NaN."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return len(text) <= LONGEST_RESULT and "\\u0000" not in text


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None
