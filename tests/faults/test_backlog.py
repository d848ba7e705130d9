"""Temporal away for long: on its return a few messages of one source do not wait behind the many of another."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from deploy.dev.temporal import Temporal
from inbox.temporal import DATA_CONVERTER
from tests.support.hospital import HospitalServer
from tests.support.processes import environment, process
from tests.support.stack import Stack
from tests.support.waiting import eventually

MANY = int(os.environ.get("BACKLOG", "400"))
FEW = 10
ROWS = """
    WITH m AS (
        INSERT INTO inbox.message (source, message_id, type, payload_sha256, max_tries, workflow_id, due_at)
        SELECT %s, %s || n, 'report.count', sha256(n::text::bytea), 5, %s || '/' || %s || n, now()
          FROM generate_series(1, %s) n RETURNING id, received_at)
    INSERT INTO inbox.payload (message, received_at, content_type, body)
    SELECT id, received_at, 'application/json', convert_to('{"counter": "c' || id || '"}', 'UTF8') FROM m"""


@pytest.fixture
async def stack(name: str, database_url: str, own_temporal: Temporal, hospital: HospitalServer) -> AsyncIterator[Stack]:
    client = await Client.connect(own_temporal.address, data_converter=DATA_CONVERTER)
    async with Stack(name, database_url, client, hospital) as made:
        others = {"types": ["report.count"], "tokens": made.tokens("report-producer"), "order": "none"}
        made.configure({"sources": {"many": others, "few": others}, "legacy": None})
        yield made


def resident(pid: int) -> float:
    """Return a process's memory, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def test_a_backlog_drains_fairly_and_nothing_is_started_twice(
    stack: Stack, own_temporal: Temporal, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with process(environment(stack, tmp_path), "worker", log=tmp_path / "log") as worker:
        await stack.sql(ROWS, "few", "first", stack.name, "first", 1)
        await stack.closed("first1")  # it works
        own_temporal.kill()
        await stack.sql(ROWS, "few", "look", stack.name, "look", 1)

        async def looked(above: int = 0) -> int:
            """How often Temporal was looked for with one row."""
            rows = await stack.sql(
                "SELECT coalesce(sum(starts), 0) AS n FROM inbox.message WHERE dispatched_at IS NULL"
            )
            return int(rows[0]["n"]) - above

        far = await eventually(looked, lambda found: found >= 4)  # for some 14 s
        await stack.sql(ROWS, "many", "a", stack.name, "a", MANY)
        await stack.sql(ROWS, "few", "b", stack.name, "b", FEW)
        await eventually(lambda: looked(far), lambda found: found >= 2)
        before = resident(worker.pid)
        own_temporal.start()
        back: datetime = (await stack.sql("SELECT clock_timestamp() AS at"))[0]["at"]
        memory = []

        async def open_ones() -> int:
            memory.append(resident(worker.pid))
            return int((await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL"))[0]["n"])

        await eventually(open_ones, lambda found: found == 0, 90 + MANY / 5)
        (few,) = await stack.sql(
            "SELECT max(dispatched_at) AS started, min(closed_at) AS first, max(closed_at) AS ended,"
            " extract(epoch FROM max(closed_at - dispatched_at))::float8 AS queued"
            " FROM inbox.message WHERE message_id LIKE 'b%%'"
        )
        (ahead,) = await stack.sql(
            "SELECT count(*) FILTER (WHERE dispatched_at < %s) AS started,"
            " count(*) FILTER (WHERE closed_at < %s) AS ended FROM inbox.message WHERE source = 'many'",
            few["started"],
            few["ended"],
        )
        (end,) = await stack.sql("SELECT max(closed_at) AS at FROM inbox.message")
        # Two shares and what was being looked with: not behind all that were there before.
        assert ahead["started"] <= 3 * stack.settings.declared.dispatch.share
        assert await stack.sql("SELECT DISTINCT status, tries FROM inbox.message") == [
            {"status": "COMPLETED", "tries": 1}
        ]
        assert (await stack.sql("SELECT DISTINCT value FROM reporting.counter")) == [{"value": 1}]

        async def executions() -> int:
            return (await stack.temporal.count_workflows(f"TaskQueue = '{stack.name}'")).count

        await eventually(executions, lambda found: found == MANY + FEW + 2)  # one each
        (again,) = await stack.sql("SELECT count(*) AS n, max(starts) AS most FROM inbox.message WHERE starts > 1")
        record_property(
            "measured",
            f"{MANY} of one source and {FEW} of another due while Temporal was away: the {FEW} were started"
            f" {(few['started'] - back).total_seconds():.1f} s after its return, {ahead['started']} of the others before"
            f" them, and complete after {(few['first'] - back).total_seconds():.1f} to"
            f" {(few['ended'] - back).total_seconds():.1f} s, {ahead['ended']} of the others before them (from start to"
            f" end {few['queued']:.1f} s at the most); all complete after {(end['at'] - back).total_seconds():.1f} s;"
            f" {again['n']} rows were used to look for Temporal, one of them {again['most']} times; memory of the worker"
            f" {before:.0f} MiB while away, {max(memory):.0f} MiB at the most after",
        )
