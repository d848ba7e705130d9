"""What is known when all is quiet: the database, the upstream, and what the senders were told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row
from temporalio.client import Client

from deploy.chaos.outside import Command
from deploy.chaos.senders import Heard
from deploy.chaos.traffic import Key, Message

BUNDLE = ("recipient", "schedule", "assignment", "task")


@dataclass(frozen=True)
class Line:
    """A failed or lost try."""

    number: int
    code: str
    ended_at: datetime


@dataclass(frozen=True)
class Report:
    """A notice as the inbox keeps it."""

    kind: str
    state: str
    code: str
    workflow_id: str
    tries: int


@dataclass(frozen=True)
class Row:
    """A message as the inbox keeps it. ``places`` are its bundle's rows: how many in each table, and the first's ID."""

    row: int
    source: str
    id: str
    status: str
    subject: str | None
    number: int | None
    generation: int
    tries: int
    tries_before: int
    max_tries: int
    code: str | None
    outcome: Any
    parked: bool
    held: bool
    received_at: datetime
    closed_at: datetime | None
    data: Any
    lines: tuple[Line, ...] = ()
    reports: tuple[Report, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.source, self.id

    @property
    def obsolete(self) -> bool:
        """Whether its number was passed before it came."""
        return self.status == "COMPLETED" and self.outcome == "obsolete"

    @property
    def applied(self) -> bool:
        """Whether it has to have a bundle, and a single one."""
        return self.status == "COMPLETED" and not self.obsolete


@dataclass(frozen=True)
class Seen:
    """A report as upstream was sent it, and what it answered."""

    key: str
    body: Any
    status: int


@dataclass(frozen=True)
class Evidence:
    """All of it."""

    sent: Mapping[Key, Message]
    heard: Mapping[Key, Heard]
    rows: Mapping[Key, Row]
    strays: Sequence[str]  # bundles of no message
    counters: Mapping[str, int]
    seen: Sequence[Seen]
    commands: Sequence[Command]
    running: Sequence[str] = ()  # workflow IDs of executions that did not end with their rows
    crashed: Sequence[str] = ()  # processes of the inbox that ended though nobody killed them, a line each


_ROWS = """
    SELECT m.id AS row, m.source, m.message_id AS id, m.status, m.subject, m.sequence AS number, m.generation,
           m.tries, m.tries_before, m.max_tries, m.last_code AS code, m.outcome, m.parked,
           m.held_since IS NOT NULL AS held, m.received_at, m.closed_at,
           convert_from(p.body, 'UTF8') AS body
      FROM inbox.message m LEFT JOIN inbox.payload p ON p.message = m.id
     ORDER BY m.id"""
_LINES = "SELECT message, number, code, ended_at FROM inbox.attempt ORDER BY message, number"
_REPORTS = "SELECT message, kind, state, code, workflow_id, tries FROM inbox.report ORDER BY message, number"
_COUNTERS = "SELECT name, value FROM reporting.counter"
_OPEN = """
    SELECT (SELECT count(*) FROM inbox.message WHERE closed_at IS NULL) AS open,
           (SELECT count(*) FROM inbox.message WHERE parked) AS parked,
           (SELECT count(*) FROM inbox.report WHERE closed_at IS NULL) AS owed,
           (SELECT coalesce(sum(tries), 0) FROM inbox.message) AS tries,
           (SELECT coalesce(sum(tries), 0) FROM inbox.report) AS calls"""

_UNDER_WAY = """
    SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL AND held_since IS NULL AND next_try_at IS NULL"""


@dataclass(frozen=True)
class Waiting:
    """What has not ended yet; two that are equal saw nothing move in between."""

    open: int
    parked: int
    owed: int
    tries: int
    calls: int

    @property
    def anything(self) -> bool:
        """Whether there is anything."""
        return bool(self.open or self.parked or self.owed)


def waiting(database: str) -> Waiting:
    """Count what has not ended yet. Raises psycopg.Error."""
    with _connect(database) as connection:
        return Waiting(**(connection.execute(_OPEN).fetchone() or {}))


def under_way(database: str) -> int:
    """Count the messages that neither have ended nor wait for something. Raises psycopg.Error."""
    with _connect(database) as connection:
        return int((connection.execute(_UNDER_WAY).fetchone() or {"n": 0})["n"])


def read_rows(database: str) -> tuple[dict[Key, Row], list[str], dict[str, int]]:
    """Read every message with its bundle, what belongs to none, and the counters. Raises psycopg.Error."""
    with _connect(database) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # all as of one moment
        lines, reports = _by_message(connection, _LINES, Line), _by_message(connection, _REPORTS, Report)
        places, strays = _places(connection)
        rows: dict[Key, Row] = {}
        for found in connection.execute(_ROWS):
            body = found.pop("body")
            data = None if body is None else json.loads(body)
            content = data.get("data") if isinstance(data, dict) and "specversion" in data else data
            own = (tuple(lines.get(found["row"], [])), tuple(reports.get(found["row"], [])))
            key = found["source"], found["id"]
            rows[key] = Row(**found, data=content, lines=own[0], reports=own[1], places=places.pop(key, {}))
        strays += [f"{source}/{name}" for source, name in places]
        counters = {found["name"]: found["value"] for found in connection.execute(_COUNTERS)}
    return rows, strays, counters


def read_seen(content: Mapping[str, Any]) -> list[Seen]:
    """Return the reports among what the hospital says that it has seen."""
    return [Seen(str(r["key"]), r["body"], r["status"]) for r in content["reports"]]


async def running(temporal: str) -> list[str]:
    """List the executions that have not ended. Raises RPCError, and RuntimeError where nobody answers."""
    client = await Client.connect(temporal)
    return [found.id async for found in client.list_workflows("ExecutionStatus = 'Running'")]


def _connect(database: str) -> psycopg.Connection[dict[str, Any]]:
    return psycopg.connect(database, row_factory=dict_row, connect_timeout=5)


def _by_message(connection: psycopg.Connection[dict[str, Any]], query: str, make: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for line in connection.execute(query):
        found.setdefault(line.pop("message"), []).append(make(**line))
    return found


def _places(connection: psycopg.Connection[dict[str, Any]]) -> tuple[dict[Key, dict[str, tuple[int, int]]], list[str]]:
    """Return each message's bundle, and what in it hangs together wrongly."""
    places: dict[Key, dict[str, tuple[int, int]]] = {}
    for table in BUNDLE:
        query = f"SELECT source, message_id, count(*) AS n, min(id) AS first FROM survey.{table} GROUP BY 1, 2"  # noqa: S608
        for line in connection.execute(query):
            places.setdefault((line["source"], line["message_id"]), {})[table] = line["n"], line["first"]
    crossed = connection.execute(
        "SELECT t.message_id FROM survey.task t JOIN survey.assignment a ON a.id = t.assignment"
        " JOIN survey.schedule s ON s.id = t.schedule JOIN survey.recipient r ON r.id = a.recipient"
        " WHERE NOT (a.message_id = t.message_id AND s.message_id = t.message_id AND r.message_id = t.message_id"
        " AND s.recipient = r.id)"
    )
    return places, [f"bundle of {line['message_id']} is tied to another's" for line in crossed]
