"""Executions that began under earlier code go on under this one."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.replay.record import HISTORIES, record
from tests.support.stack import Stack
from workflows.process_message import ProcessMessage
from workflows.send_report import SendReport

RECORDED = sorted(HISTORIES.glob("*.json"))
ADVICE = (
    "The workflow's code no longer makes the commands of a recorded execution: executions under way would get stuck. "
    "Guard the change with workflow.patched(), keep the history, and add one of the new way."
)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_recorded_executions_replay(path: Path) -> None:
    replayer = Replayer(workflows=[ProcessMessage, SendReport], workflow_failure_exception_types=[Exception])
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    assert result.replay_failure is None, ADVICE


async def test_todays_executions_replay_too(stack: Stack, pytestconfig: pytest.Config) -> None:
    histories = await record(stack)
    replayer = Replayer(workflows=[ProcessMessage, SendReport], workflow_failure_exception_types=[Exception])
    for name, text in histories.items():
        await replayer.replay_workflow(WorkflowHistory.from_json(name, text))
        if pytestconfig.getoption("--record"):
            (HISTORIES / f"{name}.json").write_text(json.dumps(json.loads(text), indent=1) + "\n")
    assert {path.stem for path in HISTORIES.glob("*.json")} >= histories.keys()
