"""An inbox in the test's process: its doors over HTTP, its dispatcher and its worker, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import httpx
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from temporalio.client import Client, WorkflowExecutionStatus

from inbox.dispatch import Dispatcher
from inbox.handler import Handler
from inbox.ingest.accept import Acceptor
from inbox.ingest.app import build_app
from inbox.registry import close_handlers, load_handlers
from inbox.settings import Settings
from inbox.sources import Sources, token_hash
from inbox.store.engine import Database
from inbox.store.migrate import newest_revision
from tests.support.hospital import HospitalServer
from tests.support.waiting import eventually
from worker import build_workers

TOKENS = {name: f"token-of-{name}" for name in ("hospital", "report-producer", "seq-producer", "operator")}
_ids = itertools.count(1)


def declared(hospital_url: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of the local stack's sources; ``changes`` are laid over the hospital's."""

    def tokens(source: str) -> list[str]:
        return [token_hash(TOKENS[source])]

    return {
        "sources": {
            "hospital": {
                "types": ["survey.send"],
                "tokens": tokens("hospital"),
                "retry_interval": 0.2,
                "zone": "Asia/Seoul",
                "report": {"url": f"{hospital_url}/reports"},
            }
            | changes,
            "report-producer": {
                "types": ["report.count"],
                "tokens": tokens("report-producer"),
                "order": "none",
                "retry_interval": 0.2,
            },
            "seq-producer": {
                "types": ["report.count"],
                "tokens": tokens("seq-producer"),
                "order": "sequence",
                "retry_interval": 0.2,
            },
        },
        "legacy": {"source": "hospital"},
        "handlers": {"survey_send": {"url": hospital_url}},
    }


def survey(**changes: Any) -> dict[str, Any]:
    """Return a survey-send message with an ID and a patient of its own."""
    number = next(_ids)
    return {
        "srvyDrawupNo": f"P{number:06}",
        "patno": f"9{number:08}",
        "formCd": "P-EQ5D",
        "sendDt": "20991201093000",
        "recipientNm": "홍길동",
        "mobile": "010-0000-0001",
        "deptCd": "OS",
    } | changes


def event(data: Any, **changes: Any) -> dict[str, Any]:
    """Return a structured-mode CloudEvent of the hospital's."""
    return {"specversion": "1.0", "source": "hospital", "type": "survey.send", "id": "1", "data": data} | changes


class Stack:
    """One inbox."""

    def __init__(self, name: str, url: str, temporal: Client, hospital: HospitalServer) -> None:
        self.name = name
        self.url = url
        self.temporal = temporal
        self.hospital = hospital
        self._exit = AsyncExitStack()
        # A connection costs more than a look, and a test that waits looks often. Checked, since a server may be
        # restarted in between; nothing is prepared, since a table may be changed.
        self._looks = AsyncConnectionPool(
            url,
            min_size=0,
            max_size=4,
            open=False,
            check=AsyncConnectionPool.check_connection,
            kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": None},
        )
        self._exit.push_async_callback(self._looks.close)
        self.configure()

    def configure(self, sections: Mapping[str, Any] | None = None, **hospital_changes: Any) -> None:
        """Set the sources' settings, before anything is started; ``sections`` are laid over the whole file."""
        parts = declared(self.hospital.url, **hospital_changes) | dict(sections or {})
        self.settings = Settings(
            DATABASE_URL=self.url, name=self.name, operator_tokens=[token_hash(TOKENS["operator"])]
        ).model_copy(update={"declared": Sources.model_validate(parts)})
        self.database = Database(self.url, size=16, name=self.name, timeouts=self.settings.declared.timeouts)
        self.dispatcher = Dispatcher(self.database, self.temporal, self.settings)
        handlers = load_handlers(self.settings) if self.settings.declared.direct else {}
        self._exit.push_async_callback(close_handlers, handlers)
        acceptor = Acceptor(self.database, self.settings, self.dispatcher.nudge, handlers)
        app = build_app(self.settings, self.database, acceptor, newest_revision())
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://inbox"
        )

    async def __aenter__(self) -> Self:
        return self

    async def open(self) -> None:
        """Open the database's pool; the doors answer then."""
        await self.database.open()
        self._exit.push_async_callback(self.database.close)

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()
        await self.http.aclose()
        query = f"TaskQueue IN ('{self.name}', '{self.name}-report') AND ExecutionStatus = 'Running'"
        async for execution in self.temporal.list_workflows(query):
            with contextlib.suppress(Exception):
                await self.temporal.get_workflow_handle(execution.id).terminate()

    async def start(self, handlers: dict[str, Handler[Any, Any]] | None = None) -> None:
        """Open the doors, and run a dispatcher and a worker until the test ends."""
        await self.open()
        await self._exit.enter_async_context(self.dispatching())
        await self._exit.enter_async_context(self.working(handlers))

    @asynccontextmanager
    async def dispatching(self) -> AsyncIterator[None]:
        """Run the dispatcher."""
        task = asyncio.create_task(self.dispatcher.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def working(self, handlers: dict[str, Handler[Any, Any]] | None = None) -> AsyncIterator[None]:
        """Run a worker."""
        found = load_handlers(self.settings) if handlers is None else handlers
        async with AsyncExitStack() as running:
            http = await running.enter_async_context(httpx.AsyncClient(trust_env=False))
            for worker in build_workers(self.settings, self.temporal, self.database, found, http, self.dispatcher):
                await running.enter_async_context(worker)
            yield
        await close_handlers(found)

    @staticmethod
    def tokens(source: str) -> list[str]:
        """Return the hashes of a source's tokens, as settings hold them."""
        return [token_hash(TOKENS[source])]

    # The doors

    async def legacy(self, message: dict[str, Any], token: str = TOKENS["hospital"]) -> httpx.Response:
        """Deliver over the old contract's door."""
        headers = {"Authorization": f"Bearer {token}"}
        return await self.http.post("/legacy/survey-send", json=message, headers=headers)

    async def post(self, cloudevent: Any, token: str = TOKENS["hospital"]) -> httpx.Response:
        """Deliver over /messages."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/cloudevents+json"}
        return await self.http.post("/messages", json=cloudevent, headers=headers)

    async def get(self, path: str, token: str = TOKENS["operator"]) -> httpx.Response:
        """Read."""
        return await self.http.get(path, headers={"Authorization": f"Bearer {token}"})

    # The record

    async def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run a statement of the test's own; rows as dicts, none where it returns none."""
        await self._looks.open()
        async with self._looks.connection() as connection:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def eventually_row(self, statement: str, *parameters: Any, limit: float = 30) -> dict[str, Any]:
        """Wait until a query finds something; return its first row."""
        return (await eventually(lambda: self.sql(statement, *parameters), bool, limit))[0]

    async def row(self, message_id: str) -> dict[str, Any]:
        """Return a message's row."""
        found = await self.sql("SELECT * FROM inbox.message WHERE message_id = %s", message_id)
        assert len(found) == 1, found
        return found[0]

    async def attempts(self, message_id: str) -> list[dict[str, Any]]:
        """Return the lines of a message's failed and lost tries, in order."""
        return await self.sql(
            "SELECT a.* FROM inbox.attempt a JOIN inbox.message m ON m.id = a.message"
            " WHERE message_id = %s ORDER BY number",
            message_id,
        )

    async def reports(self, message_id: str) -> list[dict[str, Any]]:
        """Return a message's reports, in order."""
        return await self.sql(
            "SELECT r.* FROM inbox.report r JOIN inbox.message m ON m.id = r.message"
            " WHERE message_id = %s ORDER BY number",
            message_id,
        )

    async def closed(self, message_id: str, limit: float = 60) -> dict[str, Any]:
        """Wait until a message is closed; return its row."""
        return await eventually(lambda: self.row(message_id), lambda row: row["closed_at"] is not None, limit)

    async def reported(self, message_id: str, state: str = "SENT", limit: float = 60) -> dict[str, Any]:
        """Wait until a message's latest report has this state; return the row."""
        return await eventually(lambda: self.row(message_id), lambda row: row["report_state"] == state, limit)

    async def bundles(self, message_id: str) -> tuple[int, int, int, int]:
        """Count the rows of a message's bundle, table by table."""
        counts = [
            (await self.sql(f"SELECT count(*) AS n FROM survey.{table} WHERE message_id = %s", message_id))[0]["n"]
            for table in ("recipient", "schedule", "assignment", "task")
        ]
        return tuple(counts)  # type: ignore[return-value]

    async def execution_status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Return the status of the newest run."""
        return (await self.temporal.get_workflow_handle(workflow_id).describe()).status
