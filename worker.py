"""Composition root of the worker: settings → telemetry → database → client → Worker; SIGTERM drains it.

No SQL and no workflow is defined here: run as ``__main__``, this file would be executed again in the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from activities.bury import BuryActivity
from activities.register import RegisterActivity
from activities.report import ReportActivities
from inbox.checks import wait_for_search_attributes, wait_for_store
from inbox.dispatch import Dispatcher
from inbox.handler import Handler, timeout_of
from inbox.order import adopt, keep_order
from inbox.process import run_until_signal, unless_signalled
from inbox.registry import close_handlers, load_handlers
from inbox.settings import Settings
from inbox.shared_cache import open_shared_cache
from inbox.store.engine import Database
from inbox.store.partitions import keep_partitions
from inbox.telemetry import configure_tracing
from inbox.temporal import connect
from inbox.terminated import Terminations
from workflows.process_message import ProcessMessage
from workflows.send_report import SendReport

log = logging.getLogger(__name__)


def build_workers(
    settings: Settings,
    client: Client,
    database: Database,
    handlers: dict[str, Handler[Any, Any]],
    http: httpx.AsyncClient,
    dispatcher: Dispatcher,
) -> list[Worker]:
    """Return the workers of messages, one a task queue, and of reports, with everything that they need injected."""
    timeouts = settings.declared.timeouts.stretched(longest(handlers))
    identity = f"{os.getpid()}@{socket.gethostname()}"
    register = RegisterActivity(database, handlers, settings, identity, dispatcher.nudge)
    burial = BuryActivity(database, handlers.values(), settings, dispatcher.nudge)
    reports = ReportActivities(database, handlers, settings, http, dispatcher.nudge)

    def worker(task_queue: str, workflow: type, activities: list[Callable[..., Any]], slots: int) -> Worker:
        return Worker(
            client,
            task_queue=task_queue,
            identity=identity,
            workflows=[workflow],
            activities=activities,
            max_concurrent_activities=slots,
            # As soon as a lost worker's activities, what it had cached goes to another.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=timeouts.heartbeat),
            # 0, the default, would fail running tries at every deploy.
            graceful_shutdown_timeout=timedelta(seconds=timeouts.graceful_shutdown),
            # Otherwise a bug in a workflow leaves it Running for ever.
            workflow_failure_exception_types=[Exception],
            workflow_runner=SandboxedWorkflowRunner(
                restrictions=SandboxRestrictions.default.with_import_notification_policy(
                    SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
                )
            ),
        )

    messages = [
        worker(queue, ProcessMessage, [register.register, burial.bury], slots)
        for queue, slots in settings.queues.items()
    ]
    reporting = [reports.send, reports.give_up]
    return [*messages, worker(settings.report_queue, SendReport, reporting, settings.report_activities)]


def longest(handlers: dict[str, Handler[Any, Any]]) -> float:
    """Return the seconds of the longest try that a handler asks for; 0 where none asks."""
    return max(map(timeout_of, handlers.values()), default=0.0)


def warn_of_unserved(settings: Settings, handlers: Collection[str]) -> None:
    """Say which types of the queues served here have no handler here: a fault, unless another worker serves them."""
    for name, source in settings.declared.sources.items():
        for kind in source.kinds if settings.task_queue(name) in settings.queues else ():
            if kind not in handlers:
                log.warning(
                    "sources.%s.types: %s has no handler here: its messages wait for another worker", name, kind
                )


async def run_workers(workers: list[Worker]) -> None:
    """Run all of them until they are shut down; one that fails ends the others. Raises what it failed of."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())


async def shut_down(workers: list[Worker]) -> None:
    """Drain all of them at once."""
    await asyncio.gather(*(worker.shutdown() for worker in workers))


async def _reach_servers(settings: Settings) -> Client:
    """Return a client of Temporal once both servers are there and fit to work with."""
    await wait_for_store(settings)
    client = await connect(settings.metrics_listen)
    await wait_for_search_attributes(client, settings.declared.timeouts.rpc)
    return client


async def run_worker(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then drain: no running try is cut off.

    Waits for a server that is away. Raises SettingsError, Unfit and RuntimeError.
    """
    shared = open_shared_cache(settings)
    handlers = load_handlers(settings, shared)
    warn_of_unserved(settings, handlers)
    client = await unless_signalled(_reach_servers(settings))
    if client is None:
        return
    tracing = configure_tracing("temporal-inbox-worker")
    database = Database(
        settings.database_url.get_secret_value(),
        size=settings.pool,
        name=f"{settings.name}-worker",
        timeouts=settings.declared.timeouts.stretched(longest(handlers)),
    )
    await database.open()
    dispatcher = Dispatcher(database, client, settings)
    try:
        async with httpx.AsyncClient() as http:
            if await unless_signalled(adopt(database, settings)) is None:
                return
            workers = build_workers(settings, client, database, handlers, http, dispatcher)
            log.info("worker started: types %s", ", ".join(sorted(handlers)) or "none")
            await run_until_signal(
                run_workers(workers),
                lambda: shut_down(workers),
                dispatcher.run(),
                Terminations(database, client, settings, dispatcher.nudge).run(),
                keep_order(database, settings, dispatcher.nudge),
                keep_partitions(database),
            )
    finally:
        await close_handlers(handlers)
        if shared:
            await shared.aclose()
        await database.close()
        if tracing:
            tracing.shutdown()


if __name__ == "__main__":
    from inbox.cli import main

    main(["worker"])
