"""The process of ``inbox serve``: the HTTP application, and a dispatcher beside it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from inbox.dispatch import Dispatcher
from inbox.ingest.accept import Acceptor
from inbox.ingest.app import build_app
from inbox.ingest.protocol import limited
from inbox.process import run_until_signal
from inbox.settings import Settings
from inbox.store.engine import Database
from inbox.store.migrate import newest_revision
from inbox.store.partitions import keep_partitions
from inbox.telemetry import configure_metrics, configure_tracing
from inbox.temporal import lazy_client

log = logging.getLogger(__name__)
SERVICE = "temporal-inbox-ingest"


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to run_until_signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return how ``app`` is served: limits on what a client may send and how slowly, no log of requests."""
    host, _, port = settings.listen.rpartition(":")
    return uvicorn.Config(
        app,
        http=limited(settings.declared.timeouts.request),
        ws="none",
        host=host.strip("[]"),
        port=int(port),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=10,
    )


async def run_ingest(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first."""
    tracing = configure_tracing(SERVICE)
    end_metrics = configure_metrics(SERVICE, settings.metrics_listen)
    database = Database(
        settings.database_url.get_secret_value(),
        size=settings.pool,
        name=f"{settings.name}-ingest",
        timeouts=settings.declared.timeouts,
    )
    await database.open()
    dispatcher = Dispatcher(database, await lazy_client(), settings)
    acceptor = Acceptor(database, settings, dispatcher.nudge)
    server = _Server(http_config(build_app(settings, database, acceptor, newest_revision()), settings))

    async def stop() -> None:
        server.should_exit = True

    try:
        log.info("ingest listens on %s", settings.listen)
        await run_until_signal(server.serve(), stop, dispatcher.run(), keep_partitions(database))
    finally:
        await database.close()
        if tracing:
            tracing.shutdown()
        if end_metrics:
            end_metrics()
