"""The shared look-up cache between real processes: one call for a burst, a holder that is killed, two whole workers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from tests.support.processes import ROOT, environment, process
from tests.support.stack import Stack, survey
from tests.support.upstream import Upstream, answer, hang
from tests.support.valkey import Valkey
from tests.support.waiting import eventually

LOCK = "inbox-lookup-lock:inbox:handler:thing:1:k"
PASSWORD = "PLANTED-secret"
GOOD = ("P-EQ5D", "P-PHQ9", "P-PAIN", "P-GAD7", "P-SF36")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server that this test may stop."""
    async with Valkey(tmp_path, password=PASSWORD) as running:
        yield running


class Asking:
    """A process that looks up when it is told."""

    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self.running = running

    async def line(self) -> bytes:
        assert self.running.stdout
        return await asyncio.wait_for(self.running.stdout.readline(), 60)

    def ask(self, key: str) -> None:
        assert self.running.stdin
        self.running.stdin.write(f"{key}\n".encode())

    async def values(self) -> list[Any]:
        found: list[Any] = json.loads(await self.line())
        return found


@asynccontextmanager
async def asking(
    server: Valkey, service: Upstream, count: int, *, lock: float, times: int
) -> AsyncIterator[list[Asking]]:
    """Run so many processes, ready to ask ``times`` times at once each."""
    command = [sys.executable, "-m", "tests.support.asking", server.url, service.url, str(lock), str(times)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    async with AsyncExitStack() as ending:
        processes = []
        for _ in range(count):
            running = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes
            )
            ending.push_async_callback(_end, running)
            processes.append(Asking(running))
        for one in processes:
            assert await one.line() == b"ready\n"
        yield processes


async def _end(running: asyncio.subprocess.Process) -> None:
    if running.returncode is None:
        running.kill()
    await running.communicate()


async def test_a_burst_of_equal_look_ups_in_four_processes_is_one_call(server: Valkey) -> None:
    may_answer = asyncio.Event()
    async with (
        Upstream(lambda _: answer(body='{"number": 1}', after=may_answer)) as service,
        asking(server, service, 4, lock=60, times=50) as processes,
    ):
        for one in processes:
            one.ask("k")
        await eventually(server.asking, lambda connections: connections == 4)
        may_answer.set()
        values = [value for one in processes for value in await one.values()]
        assert values == [{"number": 1}] * 200
        assert service.calls == ["/k"]


async def test_a_holder_that_is_killed_delays_the_others_by_its_lock_and_lets_one_of_them_call(server: Valkey) -> None:
    behaviours = iter([hang, answer(body='{"number": 2}')])
    async with (
        Upstream(lambda _: next(behaviours)) as service,
        asking(server, service, 1, lock=2, times=1) as (holder,),
        asking(server, service, 3, lock=60, times=50) as others,
    ):
        holder.ask("k")
        await eventually(_calls(service), lambda calls: calls == 1)
        assert 0 < await server.client.pttl(LOCK) <= 2000
        holder.running.kill()
        await holder.running.wait()
        for one in others:
            one.ask("k")
        values = [value for one in others for value in await one.values()]
        assert values == [{"number": 2}] * 150
        assert service.calls == ["/k", "/k"]


def _calls(service: Upstream) -> Any:
    async def count() -> int:
        return len(service.calls)

    return count


# Two whole workers


async def pollers(stack: Stack) -> set[str]:
    """Return the identities of the workers that poll for tries."""
    request = DescribeTaskQueueRequest(
        namespace="default",
        task_queue=TaskQueue(name=stack.name),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    found = await stack.temporal.workflow_service.describe_task_queue(request)
    return {poller.identity for poller in found.pollers}


async def workers_of(stack: Stack) -> set[str]:
    """Return the identities of the workers that tries ran in."""
    found = set()
    async for execution in stack.temporal.list_workflows(f"TaskQueue = '{stack.name}'"):
        history = await stack.temporal.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
        found |= {
            event.activity_task_started_event_attributes.identity
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
        }
    return found


async def send(stack: Stack, forms: list[str]) -> list[str]:
    """Send a message of each form, each for a patient of its own; return their IDs."""
    messages = [survey(formCd=form) for form in forms]
    for message in messages:
        assert (await stack.legacy(message)).headers["X-Result"] == "Y"
    return [message["srvyDrawupNo"] for message in messages]


async def end(stack: Stack, names: list[str]) -> set[tuple[str, int]]:
    """Wait until they are closed; return how, and after how many tries."""
    rows = [await stack.closed(name, 60) for name in names]
    return {(row["status"], row["tries"]) for row in rows}


@asynccontextmanager
async def two_workers(
    stack: Stack, server: Valkey, folder: Path, point: str
) -> AsyncIterator[tuple[set[int], list[Path]]]:
    """Run two that share the cache, and open the doors; yield their process IDs and logs once both poll."""
    await stack.hospital.control(delays=True)
    logs = [folder / f"worker{number}.log" for number in (1, 2)]
    settings = environment(stack, folder, INBOX_REDIS_URL=server.url)
    await stack.open()
    async with (
        process(settings, "worker", point, log=logs[0]) as first,
        process(settings, "worker", point, log=logs[1]) as second,
    ):
        await eventually(lambda: pollers(stack), lambda found: len(found) == 2)
        yield {first.pid, second.pid}, logs


async def test_two_workers_look_each_key_up_once(stack: Stack, server: Valkey, tmp_path: Path) -> None:
    async with two_workers(stack, server, tmp_path, "patient") as (numbers, logs):
        assert await end(stack, await send(stack, [*GOOD] * 8)) == {("COMPLETED", 1)}
        assert {int(identity.partition("@")[0]) for identity in await workers_of(stack)} == numbers
    surveys = [f"PS00{number}" for number in range(1, 6)]
    assert (await stack.hospital.seen())["lookups"] == {
        "form": dict.fromkeys(GOOD, 1),
        "consents": dict.fromkeys(surveys, 1),
    }
    place = f"inbox-lookup:{stack.name}:survey_send"
    assert set(await server.kept()) == {
        *(f"{place}:form:1:{form}" for form in GOOD),
        *(f"{place}:consents:1:{survey}" for survey in surveys),
    }
    assert not [log.read_text() for log in logs if "look-up cache" in log.read_text()]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_no_try_fails_of_a_server_that_goes_half_way(
    stack: Stack, server: Valkey, tmp_path: Path, how: str
) -> None:
    async with two_workers(stack, server, tmp_path, "none") as (_, logs):
        before = await send(stack, [*GOOD[:3]] * 5)
        await stack.closed(before[0])
        getattr(server, how)()
        after = await send(stack, [*GOOD] * 8)
        assert await end(stack, before + after) == {("COMPLETED", 1)}
    said = "".join(log.read_text() for log in logs)
    assert "the shared look-up cache is not used: " in said
    assert PASSWORD not in said
    assert "redis://" not in said
    assert f":{server.port}" not in said
