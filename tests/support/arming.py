"""Makes this process kill itself (-9) at one of the points of points.py: patched around the product, not in it."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import psycopg
from temporalio.bridge.worker import Worker as BridgeWorker
from temporalio.client import Client
from temporalio.worker import Worker

import worker
from activities.report import ReportActivities
from inbox.ingest import serve
from inbox.store.engine import Database
from tests.support.points import writing

_inside: ContextVar[bool] = ContextVar("inside", default=False)


def die(*_: Any, **__: Any) -> None:
    """End this process at once, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, matches: Callable[..., bool], *, after: bool) -> None:
    """Die at a call of an async method that matches: before it begins, or once it has returned."""
    original = getattr(owner, name)

    @functools.wraps(original)
    async def patched(*args: Any, **kwargs: Any) -> Any:
        hit = matches(*args, **kwargs)
        if hit and not after:
            die()
        result = await original(*args, **kwargs)
        if hit:
            die()
        return result

    setattr(owner, name, patched)


def at_statement(name: str, *, after: bool) -> None:
    """Die before a statement is sent; or once it has run and, as its rows tell, done something."""
    (text,) = {statement.sql for statement in writing() if statement.name == name}
    original = psycopg.AsyncCursor.execute

    async def execute(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        if query != text:
            return await original(self, query, params, **options)
        if not after:
            die()
        await original(self, query, params, **options)
        if await self.fetchall():  # in a pipeline it is not sent before
            die()
        return self

    psycopg.AsyncCursor.execute = execute


def _is_within(owner: str) -> bool:
    """Tell whether a function of the product is at work here, by its full name."""
    frame: FrameType | None = sys._getframe(2)
    while frame:
        if f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}" == owner:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _marked(mark: bool) -> Iterator[None]:
    token = _inside.set(mark)
    try:
        yield
    finally:
        _inside.reset(token)


def at_commit(owner: str, *, after: bool) -> None:
    """Die when all that is left of a transaction is its commit, or right behind that."""
    locked, transaction, leave = Database.locked, Database.transaction, psycopg.AsyncTransaction.__aexit__

    async def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        hit = _is_within(owner)
        with _marked(hit):
            result = await locked(self, *args, **kwargs)
        if hit:
            die()
        return result

    async def left(self: Any, kind: Any, *rest: Any) -> Any:
        if _inside.get() and not after and kind is None:
            await (await self.connection.execute("SELECT 1")).fetchone()  # whatever is in the pipeline has run
            die()
        return await leave(self, kind, *rest)

    def opened(self: Any, limit: float | None = None) -> Any:
        return whole(self, limit, _is_within(owner))

    @asynccontextmanager
    async def whole(self: Any, limit: float | None, hit: bool) -> AsyncIterator[Any]:
        async with transaction(self, limit) as connection:
            yield connection
            if hit and not after:
                die()
        if hit:
            die()

    Database.locked, Database.transaction, psycopg.AsyncTransaction.__aexit__ = patched, opened, left


def _name_of(activity: Any) -> str:
    return str(activity.__temporal_activity_definition.name)


def at_completion(name: str, *, after: bool) -> None:
    """Die before what an activity returned is told to Temporal, or once it was."""
    returned: ContextVar[bool] = ContextVar("returned", default=False)

    def wrapped(activity: Any) -> Any:
        @functools.wraps(activity)
        async def patched(*args: Any) -> Any:
            try:
                return await activity(*args)
            finally:
                returned.set(True)

        return patched

    class Marking(Worker):
        def __init__(self, *args: Any, activities: list[Any], **kwargs: Any) -> None:
            marked = [wrapped(a) if _name_of(a) == name else a for a in activities]
            super().__init__(*args, activities=marked, **kwargs)

    worker.Worker = Marking
    around(BridgeWorker, "complete_activity_task", lambda *_: returned.get(), after=after)


def at_answer(path: str, *, after: bool) -> None:
    """Die before a delivery's answer leaves, or once it has."""
    original = serve.http_config

    def http_config(app: Any, settings: Any) -> Any:
        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                hit = scope.get("path") == path and scope.get("method") == "POST"
                if hit and not after:
                    die()
                await send(message)
                if hit and message["type"] == "http.response.body":
                    die()

            await app(scope, receive, sending)

        return original(watched, settings)

    serve.http_config = http_config


def at_start(workflow: str, *, after: bool) -> None:
    """Die before a workflow is started, or once Temporal has answered."""
    around(Client, "start_workflow", lambda _, name, *args, **kwargs: name == workflow, after=after)


def arm(point: str) -> None:
    """Patch this process so that it dies at ``point``."""
    when, _, name = point.partition(":")
    what, _, rest = name.partition(" ")
    after = when in ("after", "committed")
    if when.startswith("commit"):
        at_commit(name, after=after)
    elif name in {statement.name for statement in writing()}:
        at_statement(name, after=after)
    elif what == "report":
        around(ReportActivities, "_call", lambda *_: True, after=after)
    else:
        {"start": at_start, "answer": at_answer, "activity": at_completion}[what](rest, after=after)
