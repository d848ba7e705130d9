"""kill -9 between any two steps: nothing lost, nothing twice."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.enums.v1 import TimeoutType

from tests.support.processes import answering, died, environment, process
from tests.support.stack import TOKENS, Stack, survey
from tests.support.waiting import eventually
from worker import build_workers

# As the product's, only shorter: a lost worker is noticed after the heartbeat, a lost start after the lease.
ACTIVITY_STARTED = "activity_task_started_event_attributes"
TIMEOUTS = {"lock": 0.5, "heartbeat": 1.5, "rpc": 1, "lease": 2}


async def test_worker_killed_between_commit_and_completion_leaves_one_bundle_and_no_failure(
    stack: Stack, tmp_path: Path
) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker", "bundled") as worker:
        await stack.legacy(message)
        await died(worker)
        row = await stack.row(message["srvyDrawupNo"])
        assert row["status"] == "COMPLETED"
        async with stack.working():
            result = await stack.temporal.get_workflow_handle(row["workflow_id"]).result()
    assert result["status"] == "COMPLETED"
    assert (await stack.row(message["srvyDrawupNo"]))["tries"] == 1
    assert await stack.attempts(message["srvyDrawupNo"]) == []
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("point", ["claimed", "prepared"])
async def test_worker_killed_before_the_bundle_loses_a_try_and_the_next_does_it(
    stack: Stack, tmp_path: Path, point: str
) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker", point) as worker:
        await stack.legacy(message)
        await died(worker)
        lost = await stack.row(message["srvyDrawupNo"])
        assert (lost["status"], lost["tries"]) == ("PROCESSING", 1)
        async with stack.working():
            row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 2)
    (line,) = await stack.attempts(message["srvyDrawupNo"])
    assert (line["code"], line["number"], line["began_at"]) == ("TRY_LOST", 1, lost["updated_at"])
    assert line["worker"].startswith(f"{worker.pid}@")
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_worker_killed_before_its_failure_is_recorded_loses_that_try(stack: Stack, tmp_path: Path) -> None:
    stack.configure({"timeouts": TIMEOUTS}, tries=2)
    await stack.open()
    message = survey(formCd="P-UNKNOWN")
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker", "failing") as worker:
        await stack.legacy(message)
        await died(worker)
        async with stack.working():
            await stack.reported(message["srvyDrawupNo"])
    codes = [line["code"] for line in await stack.attempts(message["srvyDrawupNo"])]
    assert codes == ["TRY_LOST", "FORM_NOT_REGISTERED"]


async def test_a_message_that_kills_its_worker_every_time_ends_dead(stack: Stack, tmp_path: Path) -> None:
    stack.configure({"timeouts": TIMEOUTS}, tries=2)
    await stack.open()
    message = survey()
    settings = environment(stack, tmp_path)
    async with stack.dispatching():
        await stack.legacy(message)
        for _ in range(2):
            async with process(settings, "worker", "prepared") as worker:
                await died(worker)
        async with stack.working():
            row = await stack.reported(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "TRY_LOST", 2)
    assert [line["code"] for line in await stack.attempts(message["srvyDrawupNo"])] == ["TRY_LOST", "TRY_LOST"]
    assert await stack.bundles(message["srvyDrawupNo"]) == (0, 0, 0, 0)


@pytest.mark.parametrize("point", ["accepted", "leased", "started"])
async def test_ingest_killed_between_commit_and_mark_is_dispatched_by_another(
    stack: Stack, tmp_path: Path, point: str
) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    settings = environment(stack, tmp_path)
    async with process(settings, "serve", point) as ingest, httpx.AsyncClient(trust_env=False) as http:
        url = f"http://{settings['INBOX_LISTEN']}"
        await answering(http, url)
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        with suppress(httpx.HTTPError):  # killed before it could answer, or while it did
            await http.post(f"{url}/legacy/survey-send", json=message, headers=headers)
        await died(ingest)
    assert (await stack.row(message["srvyDrawupNo"]))["dispatched_at"] is None
    async with stack.dispatching(), stack.working():
        row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 1)
    if point != "started":  # there the workflow runs already, and may be done before anyone looks at the lease
        assert row["starts"] == {"accepted": 1, "leased": 2}[point]
    again = await stack.legacy(message)  # the sender heard nothing and sends again
    assert again.json()["duplicate"] is True
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("point", ["sending", "sent"])
async def test_worker_killed_around_the_call_upstream_sends_the_report_again_with_the_same_key(
    stack: Stack, tmp_path: Path, point: str
) -> None:
    stack.configure({"timeouts": TIMEOUTS}, tries=1)
    await stack.open()
    message = survey(formCd="P-UNKNOWN")
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker", point) as worker:
        await stack.legacy(message)
        await died(worker)
        assert (await stack.row(message["srvyDrawupNo"]))["report_state"] == "SENDING"
        async with stack.working():
            await stack.reported(message["srvyDrawupNo"])
    calls = (await stack.hospital.seen())["reports"]
    assert len(calls) == (1 if point == "sending" else 2)
    key = f"{stack.name}-report/hospital/{message['srvyDrawupNo']}/1"
    assert {call["key"] for call in calls} == {key}
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["state"], report["tries"]) == ("SENT", 2)
    history = await stack.temporal.get_workflow_handle(key).fetch_history()
    (started,) = [e.activity_task_started_event_attributes for e in history.events if e.HasField(ACTIVITY_STARTED)]
    lost = started.last_failure.timeout_failure_info.timeout_type
    assert (started.attempt, lost) == (2, TimeoutType.TIMEOUT_TYPE_HEARTBEAT)


async def test_what_a_killed_worker_held_in_temporal_is_given_to_another_after_a_heartbeat(stack: Stack) -> None:
    stack.configure({"timeouts": TIMEOUTS}, tries=1)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"])
    for workflow in (f"{stack.name}/hospital", f"{stack.name}-report/hospital"):
        query = f"WorkflowId STARTS_WITH '{workflow}'"
        (found,) = await eventually(lambda query=query: executions(stack, query))
        described = await stack.temporal.get_workflow_handle(found).describe()
        given = described.raw_description.execution_config.default_workflow_task_timeout
        assert given.ToTimedelta() == timedelta(seconds=TIMEOUTS["heartbeat"])


async def test_what_a_killed_worker_had_cached_goes_to_another_after_a_heartbeat(stack: Stack) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    given: Any = (stack.settings, stack.temporal, stack.database, {}, None, stack.dispatcher)
    for worker in build_workers(*given):
        assert worker.config()["sticky_queue_schedule_to_start_timeout"] == timedelta(seconds=TIMEOUTS["heartbeat"])


async def executions(stack: Stack, query: str) -> list[str]:
    return [found.id async for found in stack.temporal.list_workflows(query)]
