"""Dispatch with 100,000 due rows: short rounds, by index, and many processes that start nothing twice."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.service import RPCError, RPCStatusCode

from inbox.store.due import MESSAGES, REPORTS
from inbox.store.engine import Database
from tests.support.plans import Question, explain
from tests.support.stack import Stack
from tests.support.trying import Noting

DUE = 100_000
PROCESSES = 6
PASSES = 8
# Of two sources, one row in a hundred of the other; all were due a while ago.
FILL = """
    INSERT INTO inbox.message (source, message_id, type, payload_sha256, max_tries, workflow_id, due_at)
    SELECT CASE WHEN n %% 100 = 0 THEN 'seq-producer' ELSE 'report-producer' END, 'm' || n, 'report.count',
           sha256(n::text::bytea), 5, 'inbox/m' || n, now() - interval '1 hour' + interval '1 ms' * n
      FROM generate_series(1, %(due)s) n"""
OWED = """
    INSERT INTO inbox.report (message, number, source, kind, code, reason, workflow_id, due_at)
    SELECT id, 1, source, 'DEAD', 'SYSTEM_ERROR', '', 'inbox-report/' || id, due_at FROM inbox.message"""
CLAIMED = "UPDATE inbox.message SET status = 'PROCESSING', tries = 1 WHERE dispatched_at IS NOT NULL AND tries = 0"


def resident() -> float:
    """Return this process's memory, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


class Refusing(Noting):
    """Dispatch, to which Temporal refuses one row for its own sake."""

    refused: int

    async def _start_workflow(self, route: Any, row: Any, reuse: Any) -> str:
        run = await super()._start_workflow(route, row, reuse)
        if row.id == self.refused:
            raise RPCError("refused", RPCStatusCode.INVALID_ARGUMENT, b"")
        return run


@pytest.fixture
async def full(stack: Stack) -> Stack:
    """An inbox in which all is due."""
    with psycopg.connect(stack.url, autocommit=True) as connection:
        connection.execute(FILL, {"due": DUE})
        connection.execute("VACUUM (ANALYZE) inbox.message")
    return stack


async def test_many_processes_start_no_row_twice_in_short_rounds(
    full: Stack, record_property: Callable[[str, object], None]
) -> None:
    databases = [Database(full.url, size=8, name=f"{full.name}-{n}") for n in range(PROCESSES)]
    for database in databases:
        await database.open()
    dispatchers = [Noting(database, full.settings) for database in databases]
    took: list[float] = []

    async def rounds(dispatcher: Noting) -> None:
        busy = True
        while busy:
            began = time.monotonic()
            busy = await dispatcher.round()
            took.append((time.monotonic() - began) * 1000)

    memory = []
    for _ in range(PASSES):  # each until as many wait in the task queue as may; then all of them are claimed
        await asyncio.gather(*map(rounds, dispatchers))
        await full.sql(CLAIMED)
        memory.append(resident())
    started = Counter(row for dispatcher in dispatchers for row in dispatcher.started)
    for database in databases:
        await database.close()
    assert set(started.values()) == {1}
    marked = await full.sql(
        "SELECT count(*) AS n, min(starts) AS least, max(starts) AS most FROM inbox.message"
        " WHERE dispatched_at IS NOT NULL"
    )
    assert marked == [{"n": len(started), "least": 1, "most": 1}]
    # Side by side they may pass the cap by a share each.
    assert len(started) >= PASSES * full.settings.declared.dispatch.cap
    other = await full.sql("SELECT count(*) AS n FROM inbox.message WHERE source = 'seq-producer' AND starts > 0")
    assert other[0]["n"] == min(DUE // 100, PASSES * full.settings.declared.dispatch.cap)
    record_property(
        "measured",
        f"{DUE} due, {PROCESSES} dispatchers side by side: {len(took)} rounds started {len(started)} rows, each once;"
        f" a round took {statistics.median(took):.0f} ms (median), {max(took):.0f} ms (worst), of the last tenth"
        f" {statistics.median(took[-len(took) // 10 :]):.0f} ms; memory {memory[0]:.0f} MiB after the first pass,"
        f" {memory[-1]:.0f} MiB after the last",
    )


async def test_a_row_that_cannot_be_started_is_tried_by_one_at_a_time_and_later_each_time(full: Stack) -> None:
    await full.open()
    Refusing.refused = (await full.sql("SELECT min(id) AS id FROM inbox.message"))[0]["id"]
    dispatchers = [Refusing(full.database, full.settings) for _ in range(PROCESSES)]
    # As after three refusals: the next comes 13 s after the fourth at the earliest.
    due = "UPDATE inbox.message SET due_at = now() - interval '2 hours', starts = greatest(starts, 3) WHERE id = %s"
    delays = []
    for tries in range(1, 4):
        await full.sql(due, Refusing.refused)
        await asyncio.gather(*(dispatcher.round() for dispatcher in dispatchers))
        assert sum(dispatcher.started.count(Refusing.refused) for dispatcher in dispatchers) == tries
        (row,) = await full.sql(
            "SELECT starts, dispatched_at, extract(epoch FROM due_at - now())::float8 AS delay FROM inbox.message"
            " WHERE id = %s",
            Refusing.refused,
        )
        assert (row["starts"], row["dispatched_at"]) == (3 + tries, None)
        delays.append(row["delay"])
        await full.sql(CLAIMED)  # or the others would be as many as may wait
    assert delays == sorted(delays)
    assert delays[-1] <= 60 * 1.2


def asked() -> Iterator[tuple[Question, int, int]]:
    """Yield what a round asks, with the most rows that one step may read, and the most buffers in all."""
    for queue, sources in ((MESSAGES, ("report-producer", "seq-producer")), (REPORTS, ("report-producer",))):
        yield Question(queue.due_sources.name, queue.due_sources, {"again": 900.0, "window": 1000}), 10, 100
        for source in sources:
            for share in (1, 50):
                lease = {"source": source, "share": share, "again": 900.0, "lease": 10.0, "order": "arrival"}
                question = Question(f"{queue.lease.name}: {share} of {source}", queue.lease, lease)
                yield question, 2 * share, 100 + 45 * share


@pytest.mark.parametrize("generic", [False, True])
async def test_a_round_reads_by_the_index_what_it_takes(full: Stack, *, generic: bool) -> None:
    """By both plans: the generic one takes the share for a tenth of all that is due, and may still read no more."""
    with psycopg.connect(full.url, autocommit=True) as connection:
        connection.execute(OWED)
        connection.execute("VACUUM (ANALYZE) inbox.report")
        connection.prepare_threshold = None
        for question, rows, buffers in asked():
            plan = explain(connection, question, generic=generic)
            assert {"message_due", "report_due"} & set(plan.indexes), question.name
            assert not plan.sequential, question.name
            assert plan.most <= rows, question.name
            assert 0 < plan.buffers <= buffers, question.name
