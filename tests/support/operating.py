"""What an operator does to executions over the `temporal` command (the UI calls the same API), and what it meets."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from inbox.handler import Message
from inbox.references import TRIED
from inbox.registry import load_handlers
from tests.support.crash import TIMEOUTS, UNKNOWN, Crash
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

# Far apart, so that a message stays between its tries until a test is done with it.
FAR = 600.0
GROUPLESS = "P-GROUPLESS"  # no try mends it
AGAIN = 2.0  # seconds; in life 15 minutes


class Gate:
    """Holds tries before their look-ups, as long as it is shut."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    def handlers(self, stack: Stack) -> dict[str, Any]:
        """Return the stack's handlers, behind this gate."""
        found = load_handlers(stack.settings)
        handler = found["survey.send"]
        prepare = handler.prepare

        async def held(message: Message[Any]) -> Any:
            await self.open.wait()
            return await prepare(message)

        handler.prepare = held  # type: ignore[method-assign]
        return found


class Operator:
    """One inbox with a message in any state, and the command to meddle with it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.gate = Gate()
        self.crash = Crash(stack, folder, "none")

    async def start(self, again: float = AGAIN, **hospital: Any) -> None:
        """Run doors, dispatcher and worker, with tries far apart."""
        dispatch = {"dispatch": {"again": again}, "timeouts": TIMEOUTS | {"start_to_close": 30}}
        codes = {"GROUP_NOT_FOUND": {"retry": False}}
        self.stack.configure(dispatch, **({"retry_interval": FAR, "codes": codes} | hospital))
        groupless = {"surveyNo": "PS001", "group": None, "distributed": True}
        self.stack.hospital.forms = self.stack.hospital.forms | {GROUPLESS: groupless}
        await self.stack.hospital.control(forms=self.stack.hospital.forms)
        await self.stack.start(self.gate.handlers(self.stack))

    async def cli(self, *arguments: str, namespace: str | None = None) -> tuple[bool, str]:
        """Give a command; return whether it was obeyed, and what it said."""
        command = [str(Path(sys.prefix, "bin", "temporal")), *arguments]
        command += ["--address", self.stack.temporal.service_client.config.target_host]
        command += ["--namespace", namespace or self.stack.temporal.namespace]
        run = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        said, _ = await run.communicate(b"y\n")  # to whatever it asks
        return run.returncode == 0, said.decode()

    async def obeyed(self, *arguments: str) -> str:
        """Give a command that has to be obeyed."""
        done, said = await self.cli(*arguments)
        assert done, said
        return said

    async def on_activity(
        self, verb: str, row: dict[str, Any], *options: str, kind: str = "register", may_be_over: bool = False
    ) -> None:
        """Give a command about the execution's pending activity, which has to be obeyed unless the activity is over."""
        workflow_id = row["workflow_id"]
        name = (await self.kinds(workflow_id)).get(kind) if may_be_over else await self.pending(workflow_id, kind)
        if name is None:
            return
        target = ["--workflow-id", workflow_id, "--activity-id", name]
        done, said = await self.cli("activity", verb, *target, *options)
        assert done or (may_be_over and kind not in await self.kinds(workflow_id)), said

    async def fail_when_it_runs(self, row: dict[str, Any], kind: str) -> None:
        """Fail an activity by hand; between two of its attempts there is nothing to fail."""
        name = await self.pending(row["workflow_id"], kind)
        target = ["--workflow-id", row["workflow_id"], "--activity-id", name]

        async def fail() -> bool:
            return (await self.cli("activity", "fail", *target))[0]

        await eventually(fail)

    async def kinds(self, workflow_id: str) -> dict[str, str]:
        """Return the IDs of an execution's pending activities, by type."""
        found = await self.stack.temporal.get_workflow_handle(workflow_id).describe()
        return {one.activity_type.name: one.activity_id for one in found.raw_description.pending_activities}

    async def pending(self, workflow_id: str, kind: str) -> str:
        """Wait until an activity is pending; return its ID."""
        return (await eventually(lambda: self.kinds(workflow_id), lambda kinds: kind in kinds))[kind]

    async def reset(self, workflow_id: str, point: str, *options: str) -> None:
        """Reset an execution, its newest run unless the options say otherwise."""
        await self.obeyed(
            "workflow", "reset", "--workflow-id", workflow_id, "--type", point, "--reason", "by hand", *options
        )

    # Messages in a state

    async def between_tries(self) -> dict[str, Any]:
        """Return a message whose first try failed, and whose next is far away."""
        message = survey(formCd=UNKNOWN)
        await self.stack.legacy(message)
        return await self.when(message, "status", "FAILED")

    async def in_a_try(self, **changes: Any) -> dict[str, Any]:
        """Return a message whose try is under way, until the gate is opened."""
        self.gate.open.clear()
        message = survey(**changes)
        await self.stack.legacy(message)
        return await self.when(message, "status", "PROCESSING")

    async def completed(self) -> dict[str, Any]:
        """Return a message that is COMPLETED, its execution too."""
        message = survey()
        await self.stack.legacy(message)
        row = await self.stack.closed(message["srvyDrawupNo"])
        await self.gone(row["workflow_id"])
        return row

    async def dead(self, report: str = "SENT") -> dict[str, Any]:
        """Return a message that is DEAD of a code that no try mends, its execution Failed, its report so far."""
        message = survey(formCd=GROUPLESS)
        await self.stack.legacy(message)
        row = await self.stack.reported(message["srvyDrawupNo"], report)
        await self.gone(row["workflow_id"])
        return row

    async def when(self, message: dict[str, Any], column: str, value: Any) -> dict[str, Any]:
        """Wait until a column says this."""
        return await self.when_row({"message_id": message["srvyDrawupNo"]}, column, value)

    async def when_row(self, row: dict[str, Any], column: str, value: Any) -> dict[str, Any]:
        """Wait until a column of a row says this."""
        return await eventually(lambda: self.row(row), lambda found: found[column] == value)

    async def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row as it is now."""
        return await self.stack.row(row["message_id"])

    async def ended(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Wait until the newest run has ended; return how."""
        return await eventually(
            lambda: self.stack.execution_status(workflow_id), lambda status: status != WorkflowExecutionStatus.RUNNING
        )

    async def gone(self, workflow_id: str) -> None:
        """Wait until no run of an execution is running, or there is none at all."""

        async def look() -> bool:
            try:
                return await self.stack.execution_status(workflow_id) != WorkflowExecutionStatus.RUNNING
            except RPCError as error:
                return error.status is RPCStatusCode.NOT_FOUND

        await eventually(look)

    async def vanished(self, workflow_id: str) -> None:
        """Wait until Temporal knows nothing of an execution."""

        async def look() -> bool:
            try:
                await self.stack.execution_status(workflow_id)
            except RPCError as error:
                return error.status is RPCStatusCode.NOT_FOUND
            return False

        await eventually(look)

    async def signalled(self, workflow_ids: Iterable[str]) -> None:
        """Wait until each execution has a signal in its history, beside those of its tries."""
        for workflow_id in workflow_ids:
            handle = self.stack.temporal.get_workflow_handle(workflow_id)

            async def look(handle: WorkflowHandle[Any, Any] = handle) -> list[str]:
                events = [event async for event in handle.fetch_history_events()]
                names = [event.workflow_execution_signaled_event_attributes.signal_name for event in events]
                return [name for name in names if name and name != TRIED]

            await eventually(look)

    # What follows

    async def mended(self) -> None:
        """Register the form, and let the time until every message's next try pass."""
        await self.crash.mend()
        await self.make_due()

    async def regroup(self) -> None:
        """Give the form of `dead` its group."""
        forms = self.stack.hospital.forms
        self.stack.hospital.forms = forms | {GROUPLESS: forms[GROUPLESS] | {"group": "G-PS001"}}
        await self.stack.hospital.control(forms=self.stack.hospital.forms)

    async def make_due(self) -> None:
        """Let the time pass until dispatch looks at every message that waits for its next try."""
        await self.stack.sql(
            "UPDATE inbox.message SET next_try_at = now(), due_at = now() WHERE closed_at IS NULL AND status = 'FAILED'"
        )

    async def settled(self) -> None:
        """Wait until all is closed and nothing runs; judge bundles, tries, lines and reports."""
        self.gate.open.set()
        await self.crash.settled()
