"""The services that survey_send asks: the old system's look-ups, and the account service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import httpx
from opentelemetry import propagate
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, TypeAdapter, ValidationError

from inbox.handler import BusinessError

T = TypeVar("T")
# A try's start-to-close holds two look-ups, each with the shared cache's wait before it, and the guest; nothing retries
# here, Temporal does.
TIMEOUT = 7.0  # seconds a call


class SurveySendSettings(BaseModel):
    """Table ``[handlers.survey_send]``: ``url`` is the base of the old system's and the account service's API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: HttpUrl
    lookup_ttl: float = Field(default=300, gt=0, description="seconds")


class _Form(BaseModel):
    surveyNo: str | None = None
    group: str | None = None
    distributed: bool = False


class _Consent(BaseModel):
    consentNo: str


class _Guest(BaseModel):
    guestId: str


CONSENTS = TypeAdapter(list[_Consent])


class BadAnswer(Exception):
    """A service answered with something else than its contract says."""


@dataclass(frozen=True)
class Form:
    """A form that is registered, has a group, and is distributed."""

    code: str
    survey_no: str
    group: str


class Hospital:
    """Calls the services. Raises httpx.HTTPError, TimeoutError or BadAnswer for system errors."""

    def __init__(self, settings: SurveySendSettings) -> None:
        self._client = httpx.AsyncClient(base_url=str(settings.url), timeout=TIMEOUT)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def form(self, code: str) -> Form:
        """Return the form. Raises BusinessError where its configuration is missing: staff may mend that any time."""
        response = await self._call("GET", f"/forms/{quote(code, safe='')}")
        if response.status_code == httpx.codes.NOT_FOUND:
            raise BusinessError("FORM_NOT_REGISTERED", f"form {code} is not registered")
        form = _read(_Form.model_validate_json, response)
        if not form.surveyNo:
            raise BusinessError("FORM_NOT_REGISTERED", f"form {code} has no survey")
        if not form.group:
            raise BusinessError("GROUP_NOT_FOUND", f"form {code}: survey {form.surveyNo} has no group")
        if not form.distributed:
            raise BusinessError("FORM_NOT_DISTRIBUTED", f"form {code} is not distributed")
        return Form(code, form.surveyNo, form.group)

    async def consents(self, survey_no: str) -> list[str]:
        """Return the numbers of the consents that a survey needs; most need none."""
        response = await self._call("GET", f"/consents/{quote(survey_no, safe='')}")
        return [consent.consentNo for consent in _read(CONSENTS.validate_json, response)]

    async def guest(self, patno: str, name: str | None, mobile: str | None) -> str:
        """Make sure that the patient has a guest account and return its ID; the same call again changes nothing."""
        content = {"name": name, "mobile": mobile}
        response = await self._call("PUT", f"/guests/{quote(patno, safe='')}", json=content)
        return _read(_Guest.model_validate_json, response).guestId

    async def _call(self, method: str, path: str, json: object = None) -> httpx.Response:
        async with asyncio.timeout(TIMEOUT):  # of the whole call: httpx's own is for each read
            return await self._client.request(method, path, json=json, headers=_trace())


def _trace() -> dict[str, str]:
    """Return the headers of the current trace. The client is not instrumented: its spans would hold patient numbers."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def _read(validate: Callable[[bytes], T], response: httpx.Response) -> T:
    response.raise_for_status()
    try:
        return validate(response.content)
    except ValidationError:
        raise BadAnswer from None
