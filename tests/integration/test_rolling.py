"""A deployment under load: one worker after the other is told to go, a new one comes, and no try is spent on it."""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.processes import environment, process
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

LEAST = 100  # messages
UNDER_WAY = 30  # at once


async def test_workers_that_are_replaced_in_turn_cost_no_try(stack: Stack, tmp_path: Path) -> None:
    await stack.hospital.control(delays=True)  # so that tries are under way whenever a worker is told to go
    await stack.open()
    settings = environment(stack, tmp_path)
    replaced = asyncio.Event()

    async def count(condition: str) -> int:
        return int((await stack.sql(f"SELECT count(*) AS n FROM inbox.message WHERE {condition}"))[0]["n"])

    async def trying(worker: asyncio.subprocess.Process) -> bool:
        return await count(f"status = 'PROCESSING' AND claimed_by LIKE '{worker.pid}@%%'") > 0

    async def load() -> int:
        for n in itertools.count():
            if replaced.is_set() and n >= LEAST:
                return n
            await eventually(lambda: count("closed_at IS NULL"), lambda found: found < UNDER_WAY)
            (await stack.legacy(survey(patno=f"9{n % 40:08}"))).raise_for_status()
        raise AssertionError

    async with AsyncExitStack() as running, asyncio.TaskGroup() as group:
        workers = [await running.enter_async_context(process(settings, "worker")) for _ in range(2)]
        sending = group.create_task(load())
        for worker in tuple(workers):
            await eventually(lambda old=worker: trying(old))
            worker.send_signal(signal.SIGTERM)
            workers.append(await running.enter_async_context(process(settings, "worker")))
            assert await worker.wait() == 0
            await eventually(lambda: trying(workers[-1]))
        replaced.set()
        sent = await sending
        await eventually(lambda: count("status = 'COMPLETED'"), lambda found: found == sent)
        for worker in workers[2:]:
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 0
    assert await stack.sql("SELECT DISTINCT tries, generation FROM inbox.message") == [{"tries": 1, "generation": 1}]
    assert await stack.sql("SELECT * FROM inbox.attempt") == []
    assert await stack.sql("SELECT * FROM inbox.report") == []
    assert len(await stack.sql("SELECT DISTINCT claimed_by FROM inbox.message")) == 4
    for table in ("recipient", "schedule", "assignment", "task"):
        rows = await stack.sql(f"SELECT count(*) AS n, count(DISTINCT message_id) AS of FROM survey.{table}")
        assert rows == [{"n": sent, "of": sent}], table
