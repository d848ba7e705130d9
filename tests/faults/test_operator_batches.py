"""Batch operations over dozens of executions, some between tries, some at one, some closed, with others held."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inbox.terminated import Terminations
from tests.support.operating import Operator
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

EACH = 8
TRYING = 4  # the worker has more slots


class Ward:
    """``EACH`` messages between tries with one held behind each, as many completed, half as many dead, and some at a try."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    async def fill(self, **options: Any) -> None:
        operator = self.operator
        await operator.start(**options)
        self.completed = await asyncio.gather(*(operator.completed() for _ in range(EACH)))
        self.dead = await asyncio.gather(*(operator.dead() for _ in range(EACH // 2)))
        self.waiting = await asyncio.gather(*(operator.between_tries() for _ in range(EACH)))
        self.held = [survey(patno=row["subject"]) for row in self.waiting]
        for message in self.held:
            await operator.stack.legacy(message)
            await operator.stack.eventually_row(
                "SELECT 1 FROM inbox.message WHERE message_id = %s AND held_since IS NOT NULL", message["srvyDrawupNo"]
            )
        self.trying = await asyncio.gather(*(operator.in_a_try() for _ in range(TRYING)))
        await self.shown("Running", EACH + TRYING)
        await self.shown("Failed", EACH // 2)
        await self.shown("Completed", EACH)

    def query(self, more: str = "") -> str:
        return f"TaskQueue = '{self.operator.stack.name}'{more}"

    async def shown(self, status: str, count: int) -> None:
        """Wait until visibility has so many."""

        async def look() -> int:
            found = await self.operator.stack.temporal.count_workflows(self.query(f" AND ExecutionStatus = '{status}'"))
            return found.count

        await eventually(look, lambda found: found == count)

    async def batch(self, *command: str, more: str = " AND ExecutionStatus = 'Running'") -> None:
        """Give a command about all of them; a server may do one such job at a time."""
        options = ["--query", self.query(more), "--yes", "--reason", "all of them"]
        done, said = await eventually(
            lambda: self.operator.cli(*command, *options), lambda answer: "Max concurrent" not in answer[1]
        )
        assert done, said

    async def ends(self) -> Counter[Any]:
        rows = await self.operator.stack.sql("SELECT status, tries, last_code FROM inbox.message")
        return Counter(
            (row["status"], row["tries"], row["last_code"] if row["status"] == "DEAD" else None) for row in rows
        )

    def closed_before(self) -> Counter[Any]:
        return Counter({("COMPLETED", 1, None): EACH, ("DEAD", 1, "GROUP_NOT_FOUND"): EACH // 2})


@pytest.fixture
async def ward(stack: Stack, tmp_path: Path) -> Ward:
    return Ward(Operator(stack, tmp_path))


async def test_terminate(ward: Ward) -> None:
    # In life too the look for terminated ones comes long before dispatch looks again.
    await ward.fill(again=600)
    stack = ward.operator.stack
    await ward.batch("workflow", "terminate")
    looking = Terminations(stack.database, stack.temporal, stack.settings, stack.dispatcher.nudge)
    await ward.shown("Terminated", EACH + TRYING)
    assert await looking.look() == EACH + TRYING
    await ward.operator.settled()
    held = Counter({("COMPLETED", 1, None): EACH})
    assert await ward.ends() == ward.closed_before() + held + Counter({("DEAD", 1, "TERMINATED"): EACH + TRYING})
    reasons = await stack.sql("SELECT DISTINCT last_reason FROM inbox.message WHERE last_code = 'TERMINATED'")
    assert reasons == [{"last_reason": "all of them"}]


async def test_cancel(ward: Ward) -> None:
    await ward.fill()
    await ward.batch("workflow", "cancel")
    await ward.operator.stack.eventually_row(
        "SELECT 1 FROM inbox.message WHERE last_code = 'CANCELLED' HAVING count(*) = %s", EACH + TRYING
    )
    await ward.operator.settled()
    held = Counter({("COMPLETED", 1, None): EACH})
    assert await ward.ends() == ward.closed_before() + held + Counter({("DEAD", 1, "CANCELLED"): EACH + TRYING})


@pytest.mark.parametrize(
    "command",
    [
        ["workflow", "signal", "--name", "wake", "--input", "99"],
        ["workflow", "reset", "--type", "FirstWorkflowTask"],
        ["workflow", "delete"],
        ["activity", "reset"],
        ["activity", "update-options", "--retry-maximum-attempts", "1", "--start-to-close-timeout", "5s"],
    ],
    ids=" ".join,
)
async def test_whatever_else_each_ends_once(ward: Ward, command: list[str]) -> None:
    operator = ward.operator
    await ward.fill()
    await operator.crash.mend()
    everything = command[:2] in (["workflow", "reset"], ["workflow", "delete"])
    await ward.batch(*command, more="" if everything else " AND ExecutionStatus = 'Running'")
    if command[1] == "signal":
        await operator.signalled(row["workflow_id"] for row in ward.waiting)
    elif command[1] == "delete":
        await asyncio.gather(*(operator.vanished(row["workflow_id"]) for row in ward.waiting))
    operator.gate.open.set()
    await operator.make_due()
    if command[1] in ("signal", "update-options"):  # these bring no try: the time for it comes
        await ward.batch("activity", "reset")
    await operator.settled()
    assert {end[0] for end in await ward.ends() - ward.closed_before()} == {"COMPLETED"}
    for before in (*ward.completed, *ward.dead):
        after = await operator.row(before)
        assert (after["closed_at"], after["tries"]) == (before["closed_at"], 1)
    for before in ward.waiting:
        assert (await operator.row(before))["tries"] == 2
