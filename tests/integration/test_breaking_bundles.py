"""Handlers that end the transaction that is not theirs to end: nothing of a bundle is doubled or lost silently."""

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.report_counter import Count
from inbox.errors import InboxError, TransactionEnded
from inbox.handler import Outcome
from inbox.store.engine import driver
from tests.support.stack import Stack, event

COUNT = text("""
    INSERT INTO reporting.counter AS c (name, value) VALUES ('c', 1)
    ON CONFLICT (name) DO UPDATE SET value = c.value + 1""")


async def commits(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await tx.commit()


async def commits_and_does_not_listen(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    with suppress(InboxError):
        await tx.commit()


async def rolls_back(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await tx.rollback()


async def rolls_back_and_would_go_on(tx: AsyncConnection) -> None:
    await rolls_back(tx)
    with suppress(SQLAlchemyError):  # it lets nobody go on
        await tx.execute(COUNT)


async def rolls_back_by_text(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await tx.execute(text("ROLLBACK"))


async def rolls_back_by_text_and_goes_on(tx: AsyncConnection) -> None:
    await rolls_back_by_text(tx)
    await tx.execute(COUNT)


async def rolls_back_the_driver(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await (await driver(tx)).rollback()


async def closes(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await tx.close()


async def ends_it_through_its_transaction(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    transaction = tx.get_transaction()
    assert transaction is not None
    await transaction.rollback()


async def commits_by_text(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await tx.execute(text("COMMIT"))


async def commits_by_text_and_goes_on(tx: AsyncConnection) -> None:
    await commits_by_text(tx)
    await tx.execute(COUNT)


async def commits_the_driver(tx: AsyncConnection) -> None:
    await tx.execute(COUNT)
    await (await driver(tx)).commit()


class Handler:
    """Does as it is told with its transaction."""

    type = "survey.send"
    payload = Count

    def __init__(self, does: Any) -> None:
        self._does = does

    async def prepare(self, _: Any) -> None:
        return

    async def register(self, tx: AsyncConnection, *_: Any) -> Outcome:
        await self._does(tx)
        return Outcome({})


async def failed(stack: Stack, does: Any) -> list[dict[str, Any]]:
    """Let a handler do so in each of its two tries; return their lines."""
    stack.configure(tries=2)
    await stack.start(handlers={"survey.send": Handler(does)})
    await stack.post(event({"counter": "c"}, id="C1"))
    row = await stack.reported("C1", limit=20)
    assert (row["status"], row["tries"], row["last_code"]) == ("DEAD", 2, "SYSTEM_ERROR")
    return await stack.attempts("C1")


@pytest.mark.parametrize(
    "does",
    [
        commits,
        commits_and_does_not_listen,
        rolls_back,
        rolls_back_and_would_go_on,
        rolls_back_by_text,
        rolls_back_by_text_and_goes_on,
        rolls_back_the_driver,
        closes,
        ends_it_through_its_transaction,
    ],
)
async def test_a_handler_that_ends_its_transaction_fails_its_try_and_keeps_nothing(stack: Stack, does: Any) -> None:
    lines = await failed(stack, does)
    assert [line["reason"] for line in lines] == ["TransactionEnded"] * 2
    assert await stack.sql("SELECT * FROM reporting.counter") == []


@pytest.mark.parametrize("does", [commits_by_text, commits_by_text_and_goes_on, commits_the_driver])
async def test_a_handler_that_commits_behind_sqlalchemys_back_fails_its_try(stack: Stack, does: Any) -> None:
    """What cannot be prevented: what it wrote before its COMMIT stays, once for every try.

    Postgres has no right that could be withheld for it. But the row is not COMPLETED on the strength of it, what
    comes after the COMMIT is rolled back, and the try's line says why: so it is noticed with the first message.
    """
    lines = await failed(stack, does)
    assert [line["reason"] for line in lines] == ["TransactionEnded"] * 2
    assert [line["value"] for line in await stack.sql("SELECT value FROM reporting.counter")] == [2]


async def test_a_handlers_savepoints_are_its_own(stack: Stack) -> None:
    async def uses_savepoints(tx: AsyncConnection) -> None:
        async with tx.begin_nested():
            await tx.execute(COUNT)
        async with tx.begin_nested() as nested:
            await tx.execute(COUNT)
            await nested.rollback()

    await stack.start(handlers={"survey.send": Handler(uses_savepoints)})
    await stack.post(event({"counter": "c"}, id="C1"))
    assert (await stack.closed("C1"))["status"] == "COMPLETED"
    assert [line["value"] for line in await stack.sql("SELECT value FROM reporting.counter")] == [1]


async def test_whoever_opens_a_transaction_hears_that_it_was_ended(stack: Stack) -> None:
    await stack.open()
    for does in (commits_and_does_not_listen, rolls_back):
        with pytest.raises(TransactionEnded):
            async with stack.database.transaction() as tx:
                await does(tx)
    assert await stack.sql("SELECT * FROM reporting.counter") == []
