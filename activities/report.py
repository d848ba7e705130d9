"""Send a report upstream, once a call: SENDING is committed first, then the call, then SENT (spec section 7)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import httpx
from opentelemetry import propagate, trace
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.failures import codes_only
from activities.heartbeats import heartbeats
from inbox.errors import NotServed, fault_of
from inbox.handler import Handler, Report, reporter_of
from inbox.logs import LimitedLog
from inbox.references import ReportInput
from inbox.settings import Settings
from inbox.sources import ReportSettings
from inbox.spans import span
from inbox.states import REPORT_RESULT, ReportKind, ReportState
from inbox.store.engine import Database
from inbox.store.reports import BEGIN_REPORT, CLOSE_REPORT, DELAY_REPORT, LOCK_MESSAGE_OF, READ_REPORT, Sending

limited = LimitedLog(logging.getLogger(__name__))
LONGEST_WAIT = 3600.0  # seconds between two calls; Retry-After may ask for more,
LONGEST_ASKED = 24 * 3600.0  # but for no longer than this
CALL = 10.0  # seconds for one call
_NO_DATE = (ValueError, TypeError, OverflowError)  # the last for a year or a zone past all bounds


class ReportActivities:
    """Hold what a report needs. ``due`` is called once another report of the message was made due."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler[Any, Any]],
        settings: Settings,
        client: httpx.AsyncClient,
        due: Callable[[], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._settings = settings
        self._client = client
        self._due = due

    @activity.defn(name="send_report")
    async def send(self, work: ReportInput) -> str | None:
        """Call upstream once, and close the report as SENT if it was taken.

        Returns the state of one that was closed before, None of others. Raises ApplicationError, retryable, with the
        next call's delay: growing with the report's tries, or what Retry-After asks for.
        """
        with codes_only():
            async with heartbeats():
                return await self._send(work)

    @activity.defn(name="give_up_report")
    async def give_up(self, work: ReportInput) -> None:
        """Close the report as GIVEN_UP. Raises ApplicationError, retryable, while Postgres is away."""
        text, extra = "a report was given up: upstream did not take it in time", {"source": work.source}
        limited.error(f"given up {work.source}", text, extra=extra)
        with codes_only():
            async with heartbeats():
                await self._close(work, ReportState.GIVEN_UP)

    async def _send(self, work: ReportInput) -> str | None:
        settings = self._reporting(work)
        sending = await self._database.locked(BEGIN_REPORT, {"id": work.report}, before=[LOCK_MESSAGE_OF])
        if sending is None:  # closed before: by a run whose answer was lost, say, or withdrawn
            found = await self._database.one(READ_REPORT, {"id": work.report})
            return found.state if found else None
        response = await self._call(sending, settings)
        if response is None or not _is_success(response, settings):
            await self._delay(sending, response)
        await self._close(work, ReportState.SENT)
        return None

    def _reporting(self, work: ReportInput) -> ReportSettings:
        source = self._settings.source(work.source)
        if source is None or source.report is None:
            text, extra = "a report waits: this worker has no report settings for its source", {"source": work.source}
            limited.error(f"waits {work.source}", text, extra=extra)
            raise NotServed
        return source.report

    async def _call(self, sending: Sending, settings: ReportSettings) -> httpx.Response | None:
        """Return upstream's answer, or None where there was none."""
        kind = ReportKind(sending.kind)
        report = Report(
            source=sending.source,
            id=sending.message_id,
            type=sending.type,
            kind=kind,
            result=REPORT_RESULT[kind],
            code=sending.code,
            reason=sending.reason,
        )
        headers = {"Idempotency-Key": sending.workflow_id}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token.get_secret_value()}"
        with span("POST report", kind=trace.SpanKind.CLIENT) as current:
            propagate.inject(headers)
            body = reporter_of(self._handlers.get(sending.type)).body(report)
            limit = _longest_call()
            try:
                async with asyncio.timeout(limit):  # of the whole call: httpx's own is for each read
                    response = await self._client.post(str(settings.url), json=body, headers=headers, timeout=limit)
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                current.set_attribute("error.type", fault_of(error).error_class)
                text, extra = "a report was not taken: %s", {"source": sending.source}
                limited.warning(f"not taken {sending.source}", text, fault_of(error), extra=extra)
                return None
            current.set_attribute("http.response.status_code", response.status_code)
            return response

    async def _delay(self, sending: Sending, response: httpx.Response | None) -> NoReturn:
        wait = min(2.0 ** min(sending.tries - 1, 20), LONGEST_WAIT) * random.uniform(1.0, 1.1)
        asked = None if response is None else _retry_after(response)
        delay = wait if asked is None else min(max(asked, 1.0), LONGEST_ASKED, _time_left() / 2)
        fault = "no answer" if response is None else f"HTTP {response.status_code}"
        parameters = {"id": sending.id, "tries": sending.tries, "fault": fault, "delay": delay}
        await self._database.one(DELAY_REPORT, parameters)
        raise ApplicationError(
            f"{fault}, call {sending.tries}",
            type="NOT_TAKEN",
            next_retry_delay=timedelta(seconds=delay),
            category=ApplicationErrorCategory.BENIGN,
        )

    async def _close(self, work: ReportInput, state: ReportState) -> None:
        await self._database.locked(CLOSE_REPORT, {"id": work.report, "state": state.value}, before=[LOCK_MESSAGE_OF])
        self._due()


def _is_success(response: httpx.Response, settings: ReportSettings) -> bool:
    return response.status_code in settings.success if settings.success else response.is_success


def _longest_call() -> float:
    """Return the seconds for one call: one that Temporal cut off would leave no fault, and no growing wait."""
    given = activity.info().start_to_close_timeout
    return min(CALL, given.total_seconds() / 2) if given else CALL


def _time_left() -> float:
    """Return the seconds that Temporal gives the report yet; a wait beyond them would end it at once."""
    info = activity.info()
    limit = info.schedule_to_close_timeout or timedelta(0)
    return max(1.0, (limit - (info.started_time - info.scheduled_time)).total_seconds())


def _retry_after(response: httpx.Response) -> float | None:
    """Return Retry-After in seconds (RFC 9110, section 10.2.3: delay or date); None where absent or unreadable."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - _now_of(response)).total_seconds())
    except _NO_DATE:
        return None


def _now_of(response: httpx.Response) -> datetime:
    """Return the time by the clock of who answered, since ours may be wrong; ours where they do not say."""
    try:
        said = parsedate_to_datetime(response.headers["date"])
    except (KeyError, *_NO_DATE):
        return datetime.now(UTC)
    return said if said.tzinfo else said.replace(tzinfo=UTC)
