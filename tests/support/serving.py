"""The doors on real HTTP: uvicorn as ``inbox serve`` runs it, in a thread of its own, on a real Postgres.

No dispatcher and no worker: rows stay as they were accepted, and a test may use it from plain functions.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import uvicorn
import uvloop
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from psycopg.rows import dict_row

from inbox.ingest.accept import Acceptor
from inbox.ingest.app import build_app
from inbox.ingest.serve import http_config
from inbox.settings import Settings
from inbox.sources import Sources, token_hash
from inbox.store.engine import Database
from inbox.store.migrate import newest_revision
from tests.support.stack import TOKENS, declared

NOWHERE = "http://127.0.0.1:9"


@dataclass
class Served:
    """One running ingest: where it listens, its database, what it counted."""

    address: tuple[str, int]
    http: httpx.Client
    settings: Settings
    reader: InMemoryMetricReader
    database: psycopg.Connection[dict[str, Any]]
    server: uvicorn.Server

    def holds(self, client: tuple[str, int]) -> bool:
        """Tell whether the server still has the connection of this client."""
        return any(connection.client == client for connection in list(self.server.server_state.connections))

    def tell(self, client: tuple[str, int], event: str) -> None:
        """Call a method of the connection's protocol, as its transport would."""
        (protocol,) = [one for one in list(self.server.server_state.connections) if one.client == client]
        protocol.loop.call_soon_threadsafe(getattr(protocol, event))

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run a statement of the test's own."""
        return self.database.execute(statement, parameters).fetchall()

    def everything(self) -> list[dict[str, Any]]:
        """Return every row with its payload, whole; a half without its other is a row with nulls."""
        return self.sql(
            "SELECT to_jsonb(m) AS message, p.message AS payload, p.content_type, sha256(p.body) AS body"
            " FROM inbox.message m FULL JOIN inbox.payload p ON p.message = m.id ORDER BY m.id, p.message"
        )

    def halves(self) -> int:
        """Count rows without a payload, and payloads without a row."""
        statement = """SELECT count(*) AS n FROM inbox.message m FULL JOIN inbox.payload p ON p.message = m.id
                        WHERE m.id IS NULL OR p.message IS NULL"""
        found: int = self.sql(statement)[0]["n"]
        return found

    def counted(self) -> dict[tuple[str, str | None, str | None], int]:
        """Return what was counted so far, by (instrument, source, reason); histograms by their count."""
        data = self.reader.get_metrics_data()
        return {
            (metric.name, point.attributes.get("source"), point.attributes.get("reason")): getattr(
                point, "count", getattr(point, "value", 0)
            )
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


def settings_for(url: str, name: str, **sections: Any) -> Settings:
    """Return the settings of the local stack's sources."""
    operators = [token_hash(TOKENS["operator"])]
    parts = declared(NOWHERE) | sections
    return Settings(DATABASE_URL=url, name=name, operator_tokens=operators).model_copy(
        update={"declared": Sources.model_validate(parts)}
    )


async def _serve(server: uvicorn.Server, database: Database, listening: socket.socket) -> None:
    await database.open()
    await server.serve(sockets=[listening])
    await database.close()


def _run(serve: Coroutine[Any, Any, None]) -> None:
    """Run on the loop that ``inbox serve`` runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve)


@contextmanager
def serving(url: str, name: str, **sections: Any) -> Iterator[Served]:
    """Run ingest on a free port of loopback; ``sections`` are laid over the sources' file."""
    settings = settings_for(url, name, **sections)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("test")
    database = Database(url, size=8, name=name)
    app = build_app(settings, database, Acceptor(database, settings, lambda: None), newest_revision(), meter=meter)
    server = uvicorn.Server(http_config(app, settings))
    # With its protocol named: asyncio switches Nagle's algorithm off for such a one alone.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(100)
    thread = threading.Thread(target=_run, args=(_serve(server, database, listening),), daemon=True)
    thread.start()
    address = listening.getsockname()
    try:
        with (
            httpx.Client(base_url=f"http://{address[0]}:{address[1]}", trust_env=False, timeout=30) as http,
            psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection,
        ):
            yield Served(address, http, settings, reader, connection, server)
    finally:
        server.should_exit = True
        thread.join(30)
        provider.shutdown()
