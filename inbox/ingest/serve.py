"""The process of ``inbox serve``: the HTTP application, and a dispatcher beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from inbox.checks import IngestChecks
from inbox.dispatch import Dispatcher
from inbox.errors import SettingsError
from inbox.ingest.accept import Acceptor
from inbox.ingest.app import build_app
from inbox.ingest.protocol import limited
from inbox.order import keep_order
from inbox.process import run_until_signal
from inbox.registry import close_handlers, load_handlers
from inbox.settings import Settings
from inbox.shared_cache import open_shared_cache
from inbox.store.engine import Database
from inbox.store.migrate import newest_revision
from inbox.store.partitions import keep_partitions
from inbox.telemetry import configure_metrics, configure_tracing
from inbox.temporal import lazy_client

log = logging.getLogger(__name__)
BACKLOG = 2048  # connections that wait to be accepted, as uvicorn's own
SERVICE = "temporal-inbox-ingest"


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to run_until_signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return how ``app`` is served: limits on what a client may send and how slowly, no log of requests."""
    return uvicorn.Config(
        app,
        http=limited(settings.declared.timeouts.request),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=10,
    )


def listen(address: str) -> list[socket.socket]:
    """Listen on host:port, on each address that the host's name has. Raises SettingsError."""
    host, _, port = address.rpartition(":")
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            found.append(socket.create_server(place[:2], family=family, backlog=BACKLOG))
    except OSError as error:
        for made in found:
            made.close()
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such host"
        raise SettingsError(f"INBOX_LISTEN: cannot listen on {address}: {cause}") from None
    return found


async def run_ingest(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    Listens while Postgres or Temporal is away. Raises SettingsError, and Unfit where one of them answers and cannot be
    worked with.
    """
    shared = open_shared_cache(settings) if settings.declared.direct else None
    handlers = load_handlers(settings, shared) if settings.declared.direct else {}
    client = await lazy_client()
    checks = IngestChecks(settings, client)
    await checks.begin()
    sockets = listen(settings.listen)
    tracing = configure_tracing(SERVICE)
    end_metrics = configure_metrics(SERVICE, settings.metrics_listen)
    database = Database(
        settings.database_url.get_secret_value(),
        size=settings.pool,
        name=f"{settings.name}-ingest",
        timeouts=settings.declared.timeouts,
    )
    await database.open()
    dispatcher = Dispatcher(database, client, settings)
    acceptor = Acceptor(database, settings, dispatcher.nudge, handlers)
    app = build_app(settings, database, acceptor, newest_revision(), lambda: checks.temporal)
    server = _Server(http_config(app, settings))

    async def stop() -> None:
        server.should_exit = True

    try:
        log.info("ingest listens on %s", settings.listen)
        await run_until_signal(
            server.serve(sockets),
            stop,
            dispatcher.run(),
            keep_order(database, settings, dispatcher.nudge),
            keep_partitions(database),
            checks.run(),
        )
    finally:
        await close_handlers(handlers)
        if shared:
            await shared.aclose()
        await database.close()
        if tracing:
            tracing.shutdown()
        if end_metrics:
            end_metrics()
