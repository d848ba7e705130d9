"""What a process needs of its two servers: looked at when it starts, and by ``/readyz``.

A server that is away is waited for, since a supervisor would only start the process again. One that answers and
cannot be worked with as it is raises Unfit: the process ends with its one line, and a supervisor shows it.
What is wrong with the settings alone, ``load_settings`` says before.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping
from temporalio.client import Client

from inbox.errors import RightsMissing, SchemaUnfit, SettingsError, StoreRefuses, StoreUnavailable, TemporalUnfit
from inbox.logs import LimitedLog
from inbox.process import raise_lost_cancel
from inbox.settings import Settings
from inbox.store.engine import Params, Statement, is_away, one
from inbox.store.migrate import known_revisions, newest_revision
from inbox.store.reads import READ_REVISION, READ_RIGHTS, Ready
from inbox.temporal import TemporalAway, check_search_attributes

limited = LimitedLog(logging.getLogger(__name__), interval=30)
Look = Callable[[Statement[Ready], Params], Awaitable[Ready | None]]
AGAIN = 1.0  # seconds between two looks at a server that is away

# libpq keeps the SQLSTATE of a refused connection to itself, so the text has to do, and it may be in the server's own
# language. Where it is, we say less; a server that has no connection left looks like one that refuses.
CAUSES = (
    (re.compile(r'database ".*" does not exist'), "there is no such database"),
    (re.compile("authentication failed|no password supplied"), "wrong user or password"),
    (re.compile("pg_hba.conf"), "its pg_hba.conf has no entry for this user, database and host"),
)
FULL = re.compile("too many|remaining connection slots|not accepting connections|starting up|shutting down")


async def check_store(settings: Settings) -> None:
    """Connect once and look at the schema.

    Raises StoreUnavailable where Postgres is away; StoreRefuses, SchemaUnfit, RightsMissing, SettingsError.
    """
    limit = 2 * settings.declared.timeouts.connect
    try:
        # A server that is stopped answers the kernel's handshake, and nothing else.
        async with asyncio.timeout(limit), await _connect(settings) as connection:
            await check_schema(partial(one, connection), newest_revision())
            await _check_rights(settings, connection)
    except TimeoutError:
        raise StoreUnavailable("TimeoutError") from None


async def _check_rights(settings: Settings, connection: psycopg.AsyncConnection[Any]) -> None:
    """Raise RightsMissing where a source asks for more of ingest than to add messages."""
    setting = settings.declared.moves_states()
    if setting is None:
        return
    rights = await one(connection, READ_RIGHTS, {})
    if rights is None or not rights.moves:
        what = "the database user needs the rights of a worker for it: GRANT inbox_worker TO its login"
        raise RightsMissing(str(settings.declared.refusal(setting, what)))


async def check_schema(look: Look, needed: str) -> None:
    """Compare the schema's revision, asked through ``look``, with the one that is needed.

    Raises StoreUnavailable, SchemaUnfit.
    """
    try:
        found = await look(READ_REVISION, {})
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaUnfit("the database has no schema of the inbox: run inbox migrate") from None
    except psycopg.errors.InsufficientPrivilege:
        raise SchemaUnfit("this database user may not read the schema: make it a member of its group role") from None
    except psycopg.Error as error:
        if is_away(error):
            raise StoreUnavailable(type(error).__name__) from None
        raise
    revision = found.revision if found else "none"
    if revision == needed:
        return
    if found and revision not in known_revisions():
        raise SchemaUnfit(f"the schema is at revision {revision}, which is newer than this code: deploy newer code")
    raise SchemaUnfit(f"the schema is at revision {revision} and must be at {needed}: run inbox migrate")


async def wait_for_store(settings: Settings) -> None:
    """Return once Postgres answers with the right schema. Raises as check_store, but waits while it is away."""
    while True:
        raise_lost_cancel()
        try:
            return await check_store(settings)
        except StoreUnavailable:
            limited.warning("store", "waiting: Postgres gives no answer")
            await asyncio.sleep(AGAIN)


async def wait_for_search_attributes(client: Client, rpc: float) -> None:
    """Return once Temporal answers and has our search attributes; ``rpc`` seconds a call. Raises TemporalUnfit."""
    while True:
        raise_lost_cancel()
        try:
            return await check_search_attributes(client, rpc)
        except TemporalAway:
            limited.warning("temporal", "waiting: Temporal gives no answer")
            await asyncio.sleep(AGAIN)


class IngestChecks:
    """Ingest's view of its servers. It listens while they are away, and takes messages in without Temporal.

    ``temporal`` is what is wrong with Temporal, as far as it is known. It ends ingest at the start alone: later on
    intake goes on, and ``/readyz`` and the log say it until it is mended.
    """

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._rpc = settings.declared.timeouts.rpc
        self.temporal: TemporalUnfit | None = None

    async def begin(self) -> None:
        """Look at both once; whoever is away is looked at again by ``run``. Raises Unfit, SettingsError."""
        with suppress(StoreUnavailable):
            await check_store(self._settings)
        with suppress(TemporalAway, TimeoutError):
            # The client's first call connects, for which there is no time-out of its own.
            async with asyncio.timeout(self._rpc):
                await check_search_attributes(self._client, self._rpc)

    async def run(self) -> None:
        """Go on looking until both are fit, then rest until cancelled. Raises StoreRefuses, SchemaUnfit."""
        await wait_for_store(self._settings)
        while True:
            raise_lost_cancel()
            try:
                await wait_for_search_attributes(self._client, self._rpc)
            except TemporalUnfit as error:
                self.temporal = error
                limited.error("unfit", "no message can be processed: %s", error)
                await asyncio.sleep(AGAIN)
            else:
                self.temporal = None
                await asyncio.Event().wait()


async def _connect(settings: Settings) -> psycopg.AsyncConnection[Any]:
    url = settings.database_url.get_secret_value()
    limit = max(2, int(settings.declared.timeouts.connect))  # libpq's smallest is 2
    refused = False
    while True:
        try:
            return await psycopg.AsyncConnection.connect(
                url, autocommit=True, connect_timeout=limit, application_name=f"{settings.name}-check"
            )
        except psycopg.ProgrammingError:  # its text may repeat the password
            raise SettingsError("DATABASE_URL: not a libpq URL") from None
        except psycopg.OperationalError as error:
            if FULL.search(str(error)) or not await asyncio.to_thread(_answers, url, limit):
                raise StoreUnavailable(type(error).__name__) from None
            if refused:
                raise StoreRefuses(f"Postgres refuses DATABASE_URL: {_cause(error)}") from None
            refused = True  # heard twice, since a server may have come up between connecting and asking


def _answers(url: str, limit: int) -> bool:
    """Tell whether the server accepts connections, if not this one."""
    return PGconn.ping(make_conninfo(url, connect_timeout=limit).encode()) == Ping.OK


def _cause(error: psycopg.Error) -> str:
    known = (cause for pattern, cause in CAUSES if pattern.search(str(error)))
    return next(known, "check its user, password and database")
