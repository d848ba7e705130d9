"""The one connection pool of a process, with two ways to use it.

``run`` sends one of our statements, autocommitted, in one round trip; ``transaction`` opens a SQLAlchemy
connection on the same pool, for handlers. Session limits are set on every connection, so that a stopped
process holds nothing for longer than they say (spec section 7, time-outs).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
from opentelemetry import trace
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests
from sqlalchemy import Connection, NullPool, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from inbox.errors import StoreUnavailable, TransactionEnded, fault_of
from inbox.spans import span
from inbox.timeouts import Timeouts

log = logging.getLogger(__name__)
T = TypeVar("T")
Params = Mapping[str, Any]

OURS = "inbox.transaction"
GRACE = 1.0  # seconds in which a statement past its limit may end by itself

# SQLSTATE classes that say “Postgres is not there, or not now”: connection, a transaction that it rolled back for
# another's sake, resources, shutting down, time-outs.
AWAY = ("08", "40", "53", "57", "58")
LOCK_TIMEOUT = "55P03"
CHECK_VIOLATION = "23514"
TRANSACTION_TIMEOUT_SINCE = 170000


def sqlalchemy_url(url: str) -> str:
    """Return a libpq URL as SQLAlchemy wants it, with the psycopg dialect."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(scheme="postgresql+psycopg"))


@dataclass(frozen=True)
class Statement(Generic[T]):
    """One SQL statement: ``name`` is its verb (and its span's name), ``row`` the type of a row it returns."""

    name: str
    row: type[T]
    sql: str


async def rows(connection: psycopg.AsyncConnection[Any], statement: Statement[T], params: Params) -> list[T]:
    """Run ``statement`` on ``connection`` and return its rows. Raises psycopg.Error."""
    with _span(statement):
        async with connection.cursor(row_factory=class_row(statement.row)) as cursor:
            await cursor.execute(statement.sql, params, prepare=True)
            return await cursor.fetchall()


def _span(statement: Statement[Any]) -> AbstractContextManager[object]:
    """Return the statement's span within a message's trace; what belongs to no message (a round's look) has none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return nullcontext()
    attributes = {"db.system.name": "postgresql", "db.operation.name": statement.name}
    return span(f"sql {statement.name}", kind=trace.SpanKind.CLIENT, attributes=attributes)


async def one(connection: psycopg.AsyncConnection[Any], statement: Statement[T], params: Params) -> T | None:
    """Run ``statement`` and return its only row, or None."""
    found = await rows(connection, statement, params)
    return found[0] if found else None


def is_away(error: BaseException) -> bool:
    """Tell whether ``error`` says that Postgres is away, rather than that a statement was wrong."""
    if isinstance(error, DBAPIError):
        error = error.orig or error
    if isinstance(error, StoreUnavailable | PoolTimeout | TooManyRequests | TimeoutError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    # A row that no partition takes breaks a check without a name; they are being made, or soon will be.
    if error.sqlstate == CHECK_VIOLATION:
        return error.diag.constraint_name is None and error.diag.table_name == "payload"
    return error.sqlstate.startswith(AWAY) or error.sqlstate == LOCK_TIMEOUT


async def driver(tx: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Return the psycopg connection under a SQLAlchemy one, so that our statements join its transaction."""
    raw = await tx.get_raw_connection()
    connection = raw.driver_connection
    if not isinstance(connection, psycopg.AsyncConnection):
        raise TypeError(type(connection).__name__)
    return connection


class Database:
    """A process's access to Postgres.

    ``size`` is the largest number of connections. Every method raises StoreUnavailable when Postgres is away;
    the pool finds it again by itself.
    """

    def __init__(self, url: str, *, size: int, name: str, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
            url,
            min_size=min(2, size),
            max_size=size,
            open=False,
            timeout=self._timeouts.connect,
            max_waiting=1000,
            reconnect_timeout=0,  # every waiting request asks for its own attempt; none waits for a long back-off
            close_returns=True,  # SQLAlchemy's close() gives the connection back
            configure=self._configure,
            reset=_reset,
            kwargs={
                "autocommit": True,
                "application_name": name,
                "connect_timeout": max(2, int(self._timeouts.connect)),
                "tcp_user_timeout": int(self._timeouts.statement * 1000),
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "options": "-c timezone=UTC -c default_transaction_isolation=read\\ committed",
            },
        )
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._pool.getconn,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
        )
        event.listen(self._engine.sync_engine, "commit", _refuse_commit)
        self._checking: asyncio.Task[None] | None = None

    async def _configure(self, connection: psycopg.AsyncConnection[Any]) -> None:
        limits = {
            "lock_timeout": self._timeouts.lock,
            "statement_timeout": self._timeouts.statement,
            "idle_in_transaction_session_timeout": self._timeouts.statement,
        }
        if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
            limits["transaction_timeout"] = self._timeouts.transaction
        for setting, seconds in limits.items():
            await connection.execute("SELECT set_config(%s, %s, false)", (setting, f"{int(seconds * 1000)}ms"))

    async def open(self) -> None:
        """Start connecting in the background; Postgres may still be away."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close every connection."""
        if self._checking:
            self._checking.cancel()
        await self._engine.dispose()
        await self._pool.close()

    @property
    def size(self) -> int:
        """The largest number of connections."""
        return self._pool.max_size

    async def run(self, statement: Statement[T], params: Params) -> list[T]:
        """Run one statement in a transaction of its own, one round trip; return its rows."""
        try:
            async with self._limit(GRACE), self._limit(), self._pool.connection() as connection:
                return await rows(connection, statement, params)
        except (psycopg.Error, PoolTimeout, TooManyRequests, TimeoutError) as error:
            self._translate(error)
            raise

    async def one(self, statement: Statement[T], params: Params) -> T | None:
        """Run one statement in a transaction of its own; return its only row, or None."""
        found = await self.run(statement, params)
        return found[0] if found else None

    async def locked(
        self,
        wanted: Statement[T],
        params: Params,
        *,
        before: Sequence[Statement[Any]],
        after: Sequence[Statement[Any]] = (),
    ) -> T | None:
        """Take locks, then run a statement that sees all that was committed before, and what follows from it.

        One pipelined transaction, with the same ``params`` for each statement. A lock taken within the statement
        would be too late: it waits with the snapshot from before (READ COMMITTED). Returns the only row of
        ``wanted``, or None.
        """
        try:
            async with (
                self._limit(GRACE),
                self._limit(),
                self._pool.connection() as connection,
                connection.pipeline(),
                connection.transaction(),
            ):
                for lock in before:
                    await connection.execute(lock.sql, params, prepare=True)
                found = await rows(connection, wanted, params)
                for consequence in after:
                    await connection.execute(consequence.sql, params, prepare=True)
            return found[0] if found else None
        except (psycopg.Error, PoolTimeout, TooManyRequests, TimeoutError) as error:
            self._translate(error)
            raise

    def _limit(self, grace: float = 0) -> asyncio.Timeout:
        """Limit what a server that hangs, or is gone without a word, can hold up.

        Two are laid around a statement: at the first psycopg asks the server to cancel, for ten seconds if need be;
        at the second it closes the connection.
        """
        return asyncio.timeout(self._timeouts.statement + 1 + grace)

    @asynccontextmanager
    async def transaction(self, limit: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, commit it at the end, roll it back on any error.

        It may last ``limit`` seconds, ``timeouts.transaction`` unless given. Raises TimeoutError when it lasts longer
        (from 17 on Postgres ends it by ``timeouts.transaction``, too), and TransactionEnded where its user tries to
        end it.
        """
        ending = asyncio.timeout(self._timeouts.transaction if limit is None else limit)
        try:
            async with ending, self._engine.connect() as connection, connection.begin() as begun:
                info = (await connection.get_raw_connection()).info
                info[OURS] = True
                yield connection
                if not begun.is_active:  # rolled back, or its commit was refused and nobody listened
                    raise TransactionEnded
                info[OURS] = False
        except (psycopg.Error, DBAPIError, PoolTimeout, TooManyRequests) as error:
            self._translate(error)
            raise

    def _translate(self, error: Exception) -> None:
        """Raise StoreUnavailable for what means that; let the pool look after its other connections."""
        if not is_away(error):
            return
        if self._checking is None or self._checking.done():
            # A server that restarted left every idle connection broken: one request finds out, not each of them.
            self._checking = asyncio.create_task(self._check())
        fault = fault_of(error)
        raise StoreUnavailable(fault.error_class, fault.status) from None

    async def _check(self) -> None:
        try:
            await self._pool.check()
        except (psycopg.Error, PoolTimeout, OSError) as error:
            log.debug("pool check: %s", type(error).__name__)


async def _reset(connection: psycopg.AsyncConnection[Any]) -> None:
    """SQLAlchemy turns autocommit off for its transactions; the next user expects it on."""
    await connection.set_autocommit(True)


def _refuse_commit(connection: Connection) -> None:
    """Keep a bundle's writes and the row's COMPLETED together: a handler that commits would part them."""
    if connection.info.get(OURS):
        raise TransactionEnded
