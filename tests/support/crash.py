"""One crash: a real process that dies at its point, what is left of the inbox, and what has to be true in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.forked import died, forked
from tests.support.processes import answering, environment
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually

# As the product's, only shorter: a lost worker is noticed after the heartbeat, a lost start after the lease.
TIMEOUTS = {
    "lock": 0.5,
    "heartbeat": 1.5,
    "statement": 4,
    "transaction": 6,
    "start_to_close": 8,
    "rpc": 1,
    "lease": 2,
}
LATE = "20200101000000"  # a survey that came too late to be sent: it completes, and owes a notice
UNKNOWN = "P-UNKNOWN"  # a form that nobody has registered


@dataclass
class Crash:
    """What a scenario works with. ``real``: who goes on is a worker process, since its own rounds are needed too."""

    stack: Stack
    folder: Path
    point: str
    real: bool = False

    @property
    def _log(self) -> Path:
        return self.folder / "processes.log"

    async def configure(self, sections: dict[str, Any] | None = None, **hospital: Any) -> None:
        """Set the settings, for this process and those that follow."""
        self.stack.configure({"timeouts": TIMEOUTS} | (sections or {}), **hospital)
        await self.stack.open()

    def made(self, sequence: int | None = None, **changes: Any) -> dict[str, Any]:
        """Return a survey as a CloudEvent of its own subject, unless ``patno`` says another."""
        message = survey(**changes)
        more = {} if sequence is None else {"sequence": str(sequence)}
        return event(message, id=message["srvyDrawupNo"], partitionkey=message["patno"]) | more

    async def send(self, *messages: dict[str, Any]) -> None:
        """Deliver to the door that goes on."""
        for message in messages:
            (await self.stack.post(message)).raise_for_status()

    @asynccontextmanager
    async def victim(self, command: str, point: str | None = None, **more: str) -> AsyncIterator[httpx.AsyncClient]:
        """Run a command that has to die at the point; what is asked of it meanwhile may stay without an answer."""
        settings = environment(self.stack, self.folder, **more)
        url = f"http://{settings['INBOX_LISTEN']}"
        async with (
            forked(settings, command, point or self.point, log=self._log) as running,
            httpx.AsyncClient(trust_env=False, base_url=url) as http,
        ):
            yield http
            await died(running)

    async def killed(self, command: str, point: str | None = None, **more: str) -> None:
        """Run a command that dies of what it finds."""
        async with self.victim(command, point, **more):
            pass

    async def killed_ingest(self, message: dict[str, Any], *, legacy: bool = False) -> None:
        """Deliver to an ingest that dies of it; its sender then delivers again, elsewhere."""
        async with self.victim("serve") as http:
            await answering(http)
            headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
            if not legacy:
                headers["Content-Type"] = "application/cloudevents+json"
            path, sent = ("/legacy/survey-send", message["data"]) if legacy else ("/messages", message)
            with suppress(
                httpx.HTTPError
            ):  # 503, say of a slow machine: it has not come to its point, and is asked again
                await eventually(
                    lambda: http.post(path, json=sent, headers=headers), lambda answer: answer.status_code != 503
                )
        if legacy:
            (await self.stack.legacy(message["data"])).raise_for_status()
        else:
            await self.send(message)

    @asynccontextmanager
    async def healthy(self) -> AsyncIterator[None]:
        """Let somebody else go on."""
        async with AsyncExitStack() as running:
            if self.real:
                await running.enter_async_context(forked(environment(self.stack, self.folder), "worker", log=self._log))
            else:
                await running.enter_async_context(self.stack.dispatching())
                await running.enter_async_context(self.stack.working())
            yield

    async def until(self, condition: str) -> None:
        """Let somebody work until each message is so."""
        async with self.healthy():
            await self._all(condition)

    async def _all(self, condition: str) -> None:
        await eventually(
            lambda: self.stack.sql(
                f"SELECT message_id, status, due_at FROM inbox.message WHERE ({condition}) IS NOT TRUE"
            ),
            lambda found: not found,
            limit=90,
        )

    async def mend(self) -> None:
        """Register the unknown form."""
        forms = self.stack.hospital.forms
        await self.stack.hospital.control(forms=forms | {UNKNOWN: forms["P-EQ5D"]})

    async def recovered(self) -> None:
        """Let somebody finish everything, and judge."""
        async with self.healthy():
            await self.settled()

    async def settled(self) -> None:
        """Wait until all is closed and nothing runs, and judge."""
        await self._all(
            "closed_at IS NOT NULL AND NOT EXISTS"
            " (SELECT FROM inbox.report r WHERE r.message = message.id AND r.closed_at IS NULL)"
        )
        await eventually(self._running, lambda found: not found, limit=60)
        await self.judge()

    async def _running(self) -> list[str]:
        query = f"TaskQueue IN ('{self.stack.name}', '{self.stack.name}-report') AND ExecutionStatus = 'Running'"
        return [found.id async for found in self.stack.temporal.list_workflows(query)]

    async def judge(self) -> None:
        """Assert what has to be true of every message, whatever died on its way."""
        rows = await self.stack.sql("SELECT * FROM inbox.message ORDER BY id")
        assert rows
        heard = defaultdict(list)
        for call in (await self.stack.hospital.seen())["reports"]:
            heard[call["key"]].append(call["body"])
        for row in rows:
            assert (row["due_at"], row["held_since"], row["parked"]) == (None, None, False), row
            assert row["tries"] - row["tries_before"] <= row["max_tries"], row
            await self._judge_bundle(row)
            await self._judge_reports(row, heard)
        assert not heard, "reports that nobody owes"
        busy = await self.stack.sql("SELECT * FROM inbox.subject_position WHERE processing IS NOT NULL")
        assert busy == []
        source = self.stack.settings.source("hospital")
        if source and source.ordered:
            self._judge_order(rows)

    async def _judge_bundle(self, row: dict[str, Any]) -> None:
        applied = row["status"] == "COMPLETED" and row["outcome"] != "obsolete"
        for table in ("recipient", "schedule", "assignment", "task"):
            found = await self.stack.sql(
                f"SELECT 1 FROM survey.{table} WHERE message_id = %s AND edition = %s",
                row["message_id"],
                row["edition"],
            )
            assert len(found) == applied, (table, row)
        # Every try that was spent and did not complete the message left its line.
        lines = await self.stack.sql("SELECT code FROM inbox.attempt WHERE message = %s", row["id"])
        assert len(lines) == row["tries"] - (row["status"] == "COMPLETED" and row["tries"] > 0), (row, lines)

    async def _judge_reports(self, row: dict[str, Any], heard: dict[str, list[Any]]) -> None:
        found = await self.stack.sql("SELECT * FROM inbox.report WHERE message = %s ORDER BY number", row["id"])
        kinds = [report["kind"] for report in found if report["state"] != "WITHDRAWN"]
        deaths = row["generation"] - (row["status"] != "DEAD")
        assert len([report for report in found if report["kind"] == "DEAD"]) == deaths, (row, found)
        assert kinds.count("CORRECTION") == ("DEAD" in kinds and row["status"] == "COMPLETED"), (row, kinds)
        for report in found:
            told = heard.pop(report["workflow_id"], [])
            assert all(body == told[0] for body in told), told
            assert len(told) <= report["tries"], (report, told)
            assert told or report["state"] != "SENT", report

    @staticmethod
    def _judge_order(rows: list[dict[str, Any]]) -> None:
        """Messages of a subject were closed in turn; one that was redriven had its turn before."""
        subjects: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["generation"] == 1 and row["status"] == "COMPLETED":
                subjects[row["subject"]].append(row)
        for of_one in subjects.values():
            in_turn = sorted(of_one, key=lambda row: row["sequence"] or row["id"])
            ended = [row["closed_at"] for row in in_turn]
            assert ended == sorted(ended), in_turn


Run = Callable[[Crash], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A way to a point: ``run`` brings a process there, which dies; ``real`` as in Crash."""

    name: str
    points: tuple[str, ...]
    run: Run
    real: bool = False

    async def play(self, stack: Stack, folder: Path, point: str) -> None:
        """Let a process die at the point, let the others finish, and judge what is left."""
        crash = Crash(stack, folder, point, real=self.real)
        await self.run(crash)
        await crash.recovered()
