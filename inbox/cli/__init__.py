"""The command ``inbox`` (spec section 14): exit 0 done, 1 refused or failed, 2 usage, 3 a service is away."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NoReturn

import psycopg
import sqlalchemy.exc
import typer
from rich.console import Console
from temporalio.service import RPCError

from inbox.errors import InboxError, MigrationRefused, SettingsError, StoreUnavailable, fault_of
from inbox.logs import configure_logging
from inbox.message import Key
from inbox.settings import Settings, load_settings
from inbox.store.engine import Database

app = typer.Typer(
    name="inbox",
    help="A transactional inbox whose retries, recovery and dead letters are Temporal's.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
errors = Console(stderr=True)
FAILED, AWAY = 1, 3


def _say(text: str) -> None:
    errors.print(f"inbox: {text}", markup=False, highlight=False, soft_wrap=True)


def _fail(text: str, code: int) -> typer.Exit:
    _say(text)
    return typer.Exit(code)


def _settings() -> Settings:
    try:
        return load_settings()
    except SettingsError as error:
        raise _fail(str(error), FAILED) from None


def _run(process: Coroutine[Any, Any, None]) -> None:
    """Run a process to its end, on uvloop where there is one."""
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        try:
            runner.run(process)
        except StoreUnavailable:
            raise _fail("Postgres gives no answer", AWAY) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise _fail(f"this database user may not do that: {fault_of(error)}", FAILED) from None
        except InboxError as error:
            raise _fail(str(error), FAILED) from None


@app.command()
def serve() -> None:
    """Run ingest: the HTTP doors, and a dispatcher beside them."""
    from inbox.ingest.serve import run_ingest

    configure_logging()
    _run(run_ingest(_settings()))


@app.command("worker")
def worker_command() -> None:
    """Run the worker: workflows, activities, and a dispatcher beside them."""
    configure_logging()
    # By name: inbox never imports what stands above it.
    _run(importlib.import_module("worker").run_worker(_settings()))


@app.command()
def migrate(
    *, database_only: Annotated[bool, typer.Option(help="Leave Temporal's search attributes alone.")] = False
) -> None:
    """Bring the database to the newest revision, and register Temporal's search attributes."""
    from inbox.store.migrate import migrate as run_migrations
    from inbox.temporal import TemporalAway, register_search_attributes

    configure_logging("WARNING")
    url = _settings().database_url.get_secret_value()
    try:
        typer.echo(f"database at revision {run_migrations(url)}")
    except MigrationRefused as error:
        raise _fail(str(error), FAILED) from None
    except sqlalchemy.exc.OperationalError as error:
        raise _fail(f"Postgres gives no answer: {fault_of(error)}", AWAY) from None
    except sqlalchemy.exc.DBAPIError as error:
        raise _fail(f"the migration failed: {fault_of(error)}", FAILED) from None
    if database_only:
        return
    try:
        added = asyncio.run(register_search_attributes())
    except TemporalAway as error:
        raise _fail(str(error), AWAY) from None
    except InboxError as error:
        raise _fail(str(error), FAILED) from None
    except RPCError as error:
        raise _fail(f"search attributes: {error}", FAILED) from None
    typer.echo(f"search attributes registered: {', '.join(added) or 'all were there'}")


def _operate(work: Callable[[Database], Coroutine[Any, Any, None]], settings: Settings) -> None:
    """Run one piece of an operator's work on a connection of its own."""

    async def run() -> None:
        database = Database(settings.database_url.get_secret_value(), size=2, name=f"{settings.name}-operator")
        await database.open()
        try:
            await work(database)
        finally:
            await database.close()

    _run(run())


KeyArgument = Annotated[str, typer.Argument(help="source/id or tenant/source/id, parts percent-encoded")]


@app.command()
def redrive(keys: Annotated[list[str], typer.Argument(help="source/id …, parts percent-encoded")]) -> None:
    """Send DEAD messages through again, each as a new generation with all its tries.

    Where a message's number was passed, so that it will be obsolete, that is said first.
    """
    from inbox.burial import passed
    from inbox.burial import redrive as send_through

    configure_logging("ERROR")
    settings = _settings()

    async def work(database: Database) -> None:
        for key in keys:
            last = await passed(database, settings, Key.parse(key))
            if last is not None:
                _say(f"{key}: number {last} of its subject was applied already, so this will be obsolete, unapplied")
            sent = await send_through(database, Key.parse(key))
            typer.echo(f"{sent}: due again{'' if last is None else ', to be obsolete'}")

    _operate(work, settings)


@app.command()
def discard(key: KeyArgument, reason: Annotated[str, typer.Option(help="kept in the row, for operators")]) -> None:
    """Close an open message as DEAD, code DISCARDED."""
    from inbox.burial import discard as close

    configure_logging("ERROR")
    settings = _settings()

    async def work(database: Database) -> None:
        await close(database, settings, Key.parse(key), reason)
        typer.echo(f"{key}: DEAD")

    _operate(work, settings)


@app.command()
def release(key: KeyArgument) -> None:
    """Let go what a message holds: unpark it, or accept the gap before it."""
    from inbox.burial import release as let_go

    configure_logging("ERROR")
    settings = _settings()

    async def work(database: Database) -> None:
        typer.echo(f"{key}: {await let_go(database, settings, Key.parse(key))}")

    _operate(work, settings)


@app.command()
def report(key: KeyArgument) -> None:
    """Send a report again that was given up, under the idempotency key that it had."""
    from inbox.burial import send_again

    configure_logging("ERROR")
    settings = _settings()

    async def work(database: Database) -> None:
        await send_again(database, Key.parse(key))
        typer.echo(f"{key}: its report is due again")

    _operate(work, settings)


@app.command()
def drained(*, as_json: Annotated[bool, typer.Option("--json", help="for a program that reads it")] = False) -> None:
    """Tell whether an image without Temporal may take over: exit 0, or 1 and what is still open."""
    from inbox.ingest.view import open_view
    from inbox.store.reads import READ_BACKLOG

    configure_logging("ERROR")
    settings = _settings()
    still: list[dict[str, Any]] = []

    async def work(database: Database) -> None:
        still.extend(open_view(await database.run(READ_BACKLOG, {})))

    _operate(work, settings)
    if as_json:
        typer.echo(json.dumps({"drained": not still, "open": still}))
    for line in [] if as_json else still:
        typer.echo("{source}: {count} of {type} {what} ({state}), the oldest for {oldestSeconds:.0f} s".format(**line))
    accepting = sorted(name for name, source in settings.declared.sources.items() if source.mode == "accept")
    if accepting and not as_json:
        _say(f"still in mode accept, and so may fill again: {', '.join(accepting)}")
    if still:
        raise typer.Exit(FAILED)
    if not as_json:
        typer.echo("drained: nothing is open, held, parked or owed")


@app.command("list")
def list_command(
    *,
    source: Annotated[str, typer.Option(help="of which source")],
    opened: Annotated[bool, typer.Option("--open", help="those that have not ended, held ones too")] = False,
    parked: Annotated[bool, typer.Option("--parked", help="the DEAD ones that hold others")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one object a line")] = False,
) -> None:
    """List a source's messages, a line each: by type, in order of arrival. Never what they hold."""
    from inbox.ingest.view import listed_view
    from inbox.store.reads import LIST

    if opened == parked:
        raise typer.BadParameter("give one of --open and --parked")
    configure_logging("ERROR")
    settings = _settings()
    if settings.source(source) is None:
        _say(f"{source} is no source of these settings")

    async def work(database: Database) -> None:
        after: dict[str, Any] = {"source": source, "after_type": "", "after": 0}
        while page := await database.run(LIST["open" if opened else "parked"], after):
            for row in page:
                shown = listed_view(row)
                line = "{key}  {status}  tries {tries}  code {code}  received {receivedAt}  behind {heldBehind}"
                typer.echo(
                    json.dumps(shown)
                    if as_json
                    else line.format(**{k: "-" if v is None else v for k, v in shown.items()})
                )
            after |= {"after_type": page[-1].type, "after": page[-1].id}

    _operate(work, settings)


@app.command()
def dev() -> None:
    """Start the local stack: Postgres, Temporal with its UI, ingest, worker, the stand-in hospital."""
    os.execv(  # noqa: S606  our own interpreter
        sys.executable, [sys.executable, "-m", "deploy.dev", "up"]
    )


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point of the console script; ``arguments`` in place of the process's own."""
    code = 0
    try:
        app(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    # Not by the interpreter's own way out: a thread of Temporal's client that outlives the loop aborts the process
    # there (temporalio/sdk-python issue 300). All that has to be closed was closed.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
