"""A handler's audit compares its bundles with the record, with the rights of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.dev.logins import logins
from handlers.survey_send import SurveySendHandler
from handlers.survey_send.clients import SurveySendSettings
from inbox.cache import HandlerLookups
from inbox.handler import AuditCounts
from inbox.store.engine import Database
from tests.support.stack import Stack, survey

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def handler(stack: Stack) -> AsyncIterator[SurveySendHandler]:
    """The handler, built as the registry does."""
    lookups = HandlerLookups(stack.name, "survey_send")
    made = SurveySendHandler(SurveySendSettings(url=stack.hospital.url), lookups)  # type: ignore[arg-type]
    yield made
    await made.aclose()


@pytest.fixture
async def worker(stack: Stack, tmp_path: Path) -> AsyncIterator[Database]:
    """The database, as a worker may use it."""
    database = Database(logins(stack.url, tmp_path)["worker"], size=2, name="audit")
    await database.open()
    yield database
    await database.close()


async def counts(handler: SurveySendHandler, database: Database, since: datetime = LONG_AGO) -> tuple[int, int, int]:
    """Return bundles, missing and orphaned."""
    async with database.transaction() as tx:
        found = await handler.audit(tx, since)
    assert isinstance(found, AuditCounts)
    return found.bundles, found.missing, found.orphaned


async def test_the_audit_counts_what_does_not_fit_together(
    stack: Stack, handler: SurveySendHandler, worker: Database
) -> None:
    stack.configure(tries=1)
    await stack.start()
    messages = [survey() for _ in range(4)]
    dead = survey(formCd="P-UNKNOWN")
    for message in [*messages, dead]:
        await stack.legacy(message)
    for message in [*messages, dead]:
        await stack.closed(message["srvyDrawupNo"])
    whole, halved, gone, obsolete = [message["srvyDrawupNo"] for message in messages]
    assert await counts(handler, worker) == (4, 0, 0)

    await stack.sql("DELETE FROM survey.task WHERE message_id = %s", halved)
    assert await counts(handler, worker) == (4, 1, 0)
    await stack.sql("DELETE FROM inbox.message WHERE message_id = %s", gone)
    assert await counts(handler, worker) == (4, 1, 1)
    for table in ("task", "assignment", "schedule", "recipient"):
        await stack.sql(f"DELETE FROM survey.{table} WHERE message_id = %s", obsolete)
    assert await counts(handler, worker) == (3, 2, 1)
    await stack.sql("UPDATE inbox.message SET outcome = '\"obsolete\"' WHERE message_id = %s", obsolete)
    assert await counts(handler, worker) == (3, 1, 1)

    row = await stack.row(whole)
    since = row["closed_at"] + timedelta(days=1)
    assert await counts(handler, worker, since) == (0, 0, 0)
    await stack.sql("UPDATE survey.recipient SET created_at = %s WHERE message_id = %s", since, gone)
    assert await counts(handler, worker, since) == (1, 0, 1)
