"""survey_send: registers one survey for one patient as a bundle of four rows (spec section 10).

Sent again, as a later edition of its message, it plans the send anew unless the patient has answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.survey_send import audit, tables
from handlers.survey_send.clients import Form, Hospital, SurveySendSettings
from handlers.survey_send.payload import SurveySend, send_time
from inbox.handler import AuditCounts, Lookups, Message, Notice, Outcome, Report, ReportKind


@dataclass(frozen=True)
class Prepared:
    """What was looked up for one message."""

    form: Form
    consents: list[str]
    guest_id: str


class HospitalReporter:
    """Puts a report into the old system's words."""

    def body(self, report: Report) -> Mapping[str, Any]:
        """Return the old system's object."""
        return {
            "srvyDrawupNo": report.id,
            "result": report.result,
            "code": report.code,
            "reason": report.reason,
        }


class SurveySendHandler:
    """Looks up the form and its consents, makes the guest account, writes the bundle."""

    type = "survey.send"
    payload = SurveySend
    resends = True
    settings = SurveySendSettings
    reporter = HospitalReporter()
    codes: Mapping[str, str] = {
        "FORM_NOT_REGISTERED": "register the form, then redrive",
        "GROUP_NOT_FOUND": "give the form's survey its group, then redrive",
        "FORM_NOT_DISTRIBUTED": "distribute the form, then redrive",
    }

    def __init__(self, settings: SurveySendSettings, lookups: Lookups) -> None:
        self._hospital = Hospital(settings)
        self._forms = lookups.cache("form", Form, self._hospital.form, ttl=settings.lookup_ttl)
        self._consents = lookups.cache("consents", list[str], self._hospital.consents, ttl=settings.lookup_ttl)

    async def aclose(self) -> None:
        """Close the connections to the services."""
        await self._hospital.aclose()

    async def prepare(self, message: Message[SurveySend]) -> Prepared:
        """Look up form and consents, and make the guest account by an idempotent PUT.

        Raises BusinessError (FORM_NOT_REGISTERED, GROUP_NOT_FOUND, FORM_NOT_DISTRIBUTED).
        """
        form = await self._forms.get(message.payload.formCd)
        consents = await self._consents.get(form.survey_no)
        guest = await self._hospital.guest(message.payload.patno, message.payload.recipientNm, message.payload.mobile)
        return Prepared(form, consents, guest)

    async def register(self, tx: AsyncConnection, message: Message[SurveySend], prepared: Prepared) -> Outcome:
        """Write recipient, schedule, assignment and task; too late to be sent, they are written all the same.

        A later edition takes the place of those before it; once one of them is answered it writes nothing.
        """
        if await _answered(tx, message):
            return Outcome(audit.NOTHING_WRITTEN, Notice(ReportKind.CANNOT_RESEND, "the survey was answered already"))
        send_at = send_time(message.payload, message.received_at, message.zone)
        late = send_at < message.received_at
        state = await _take_over(tx, message, "NOT_SENT" if late else "PLANNED")
        recipient = await _insert(
            tx,
            tables.recipient,
            message,
            patno=message.payload.patno,
            name=message.payload.recipientNm,
            mobile=message.payload.mobile,
            dept=message.payload.deptCd,
            guest_id=prepared.guest_id,
        )
        schedule = await _insert(tx, tables.schedule, message, recipient=recipient, send_at=send_at, state=state)
        assignment = await _insert(
            tx,
            tables.assignment,
            message,
            recipient=recipient,
            form=prepared.form.code,
            survey_no=prepared.form.survey_no,
            group_id=prepared.form.group,
            consents=prepared.consents,
        )
        await _insert(tx, tables.task, message, assignment=assignment, schedule=schedule)
        notice = Notice(ReportKind.NOT_SENT, "the time to send was past at receipt") if late else None
        return Outcome({"sent": state == "PLANNED", "surveyNo": prepared.form.survey_no}, notice)

    async def audit(self, tx: AsyncConnection, since: datetime) -> AuditCounts:
        """Compare the bundles with the messages that are COMPLETED."""
        return await audit.count(tx, self.type, since)


def _of(table: Table, message: Message[SurveySend]) -> ColumnElement[bool]:
    """Select what the message's editions wrote."""
    columns = table.c
    return and_(columns.tenant == message.tenant, columns.source == message.source, columns.message_id == message.id)


async def _answered(tx: AsyncConnection, message: Message[SurveySend]) -> bool:
    """Tell whether the patient has answered an edition before this one."""
    if message.edition == 1:
        return False
    task = tables.task
    answers = select(task.c.id).where(_of(task, message), task.c.answered_at.is_not(None))
    found: bool = (await tx.execute(select(exists(answers)))).scalar_one()
    return found


async def _take_over(tx: AsyncConnection, message: Message[SurveySend], state: str) -> str:
    """End the sends of the editions before; return the state of this one's own.

    Without an order a later edition can be there already: then this one's send is the one that is not wanted.
    """
    schedule = tables.schedule
    if message.edition > 1:
        before = and_(_of(schedule, message), schedule.c.edition < message.edition)
        await tx.execute(update(schedule).where(before).values(state="SUPERSEDED"))
    after = select(schedule.c.id).where(_of(schedule, message), schedule.c.edition > message.edition)
    later: bool = (await tx.execute(select(exists(after)))).scalar_one()
    return "SUPERSEDED" if later else state


async def _insert(tx: AsyncConnection, table: Table, message: Message[SurveySend], **values: object) -> int:
    """Insert one row of the bundle, keyed by the message, and return its ID."""
    key = {
        "tenant": message.tenant,
        "source": message.source,
        "message_id": message.id,
        "edition": message.edition,
    }
    result = await tx.execute(insert(table).values(**key, **values).returning(table.c.id))
    new: int = result.scalar_one()
    return new
