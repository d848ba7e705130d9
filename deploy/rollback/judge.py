"""The proof: what the senders were answered against what the database holds, message by message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from deploy.dev.settings import write
from deploy.rollback.traffic import SURVEYS, Sent, counter_of

_TABLES = ("recipient", "schedule", "assignment", "task")
_MOST_NAMED = 5  # messages that one fault names
Row = dict[str, Any]


@dataclass(frozen=True)
class Totals:
    """How much there is in the whole database, whoever sent it."""

    messages: int
    registered: int  # bundles, and what the counters have counted
    open: int
    owed: int


@dataclass(frozen=True)
class Journal:
    """What a run sent and heard, and what was there before it; kept in the data folder."""

    run: str
    before: Totals
    sent: list[Sent]

    def keep(self, path: Path) -> None:
        """Write it down."""
        write(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read what was written down."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["run"], Totals(**content["before"]), [Sent(**one) for one in content["sent"]])


def _rows(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def totals(connection: psycopg.Connection[Any]) -> Totals:
    """Count all that is there."""
    (found,) = _rows(
        connection,
        """SELECT (SELECT count(*) FROM inbox.message) AS messages,
                  (SELECT count(*) FROM survey.task)
                  + (SELECT coalesce(sum(value), 0)::bigint FROM reporting.counter) AS registered,
                  (SELECT count(*) FROM inbox.message WHERE closed_at IS NULL) AS open,
                  (SELECT count(*) FROM inbox.report WHERE closed_at IS NULL) AS owed""",
    )
    return Totals(**found)


def standing(connection: psycopg.Connection[Any], run: str) -> tuple[int, int]:
    """Return how many of the run's messages are registered, and how many are open."""
    (found,) = _rows(
        connection,
        """SELECT count(*) FILTER (WHERE status = 'COMPLETED') AS registered,
                  count(*) FILTER (WHERE closed_at IS NULL) AS open
             FROM inbox.message WHERE starts_with(message_id, %s)""",
        f"{run}-",
    )
    return found["registered"], found["open"]


def faults(connection: psycopg.Connection[Any], journal: Journal) -> list[str]:
    """Return what speaks against "each message once, and in order", a line each; nothing where nothing does."""
    rows = _rows(
        connection, "SELECT * FROM inbox.message WHERE starts_with(message_id, %s) ORDER BY id", f"{journal.run}-"
    )
    return [
        *_totals(journal, totals(connection)),
        *_answers(journal.sent),
        *_stored(journal.sent, rows),
        *_bundles(connection, journal),
        *_counted(connection, journal.sent, rows),
        *_order(connection, journal, rows),
        *_reports(connection, journal),
    ]


def _totals(journal: Journal, after: Totals) -> Iterator[str]:
    new = len(journal.sent)
    for name in ("messages", "registered"):
        was, now = getattr(journal.before, name), getattr(after, name)
        if now - was != new:
            yield f"{name}: {was} before, {now} after, and {new} were sent"
    if after.open or after.owed:
        yield f"{after.open} messages are open, and {after.owed} reports are owed"


def _answers(sent: Sequence[Sent]) -> Iterator[str]:
    yield from _named("was never taken", [one.id for one in sent if not one.taken])
    new = (HTTPStatus.CREATED, HTTPStatus.ACCEPTED)
    yield from _named("was taken as new twice", [one.id for one in sent if sum(a in new for a in one.answers) > 1])


def _stored(sent: Sequence[Sent], rows: Sequence[Row]) -> Iterator[str]:
    times = Counter(row["message_id"] for row in rows)
    expected = {one.id for one in sent}
    yield from _named("was taken and is not stored", sorted(expected - set(times)))
    yield from _named("is stored and was not sent", sorted(set(times) - expected))
    yield from _named("is stored more than once", [name for name, number in times.items() if number > 1])
    for status in sorted({row["status"] for row in rows} - {"COMPLETED"}):
        yield from _named(f"is {status}", [row["message_id"] for row in rows if row["status"] == status])


def _bundles(connection: psycopg.Connection[Any], journal: Journal) -> Iterator[str]:
    expected = {one.id for one in journal.sent if one.source == SURVEYS}
    for table in _TABLES:
        query = f"SELECT message_id FROM survey.{table} WHERE starts_with(message_id, %s)"  # noqa: S608 - ours
        times = Counter(row["message_id"] for row in _rows(connection, query, f"{journal.run}-"))
        yield from _named(f"has no {table}", sorted(expected - set(times)))
        yield from _named(f"has a {table} and was not sent", sorted(set(times) - expected))
        yield from _named(f"has more than one {table}", [name for name, number in times.items() if number > 1])


def _counted(connection: psycopg.Connection[Any], sent: Sequence[Sent], rows: Sequence[Row]) -> Iterator[str]:
    """Each message moved its counter by one: the counter's value, and the values that the messages were told."""
    expected = Counter(counter_of(one) for one in sent if one.source != SURVEYS)
    told: dict[str, list[int]] = {}
    counters = {one.id: counter_of(one) for one in sent if one.source != SURVEYS}
    for row in rows:
        if row["message_id"] in counters:
            told.setdefault(counters[row["message_id"]], []).append(_value(row))
    query = "SELECT name, value FROM reporting.counter WHERE name = ANY(%s)"
    found = {row["name"]: row["value"] for row in _rows(connection, query, list(expected))}
    for name, number in expected.items():
        if found.get(name, 0) != number:
            yield f"counter {name}: {number} were sent, {found.get(name, 0)} were counted"
        if sorted(told.get(name, [])) != list(range(1, number + 1)):
            yield f"counter {name}: a value was given twice, or never"


def _order(connection: psycopg.Connection[Any], journal: Journal, rows: Sequence[Row]) -> Iterator[str]:
    """Tell where a subject's messages were not registered as they were sent: by their ends, and by what they wrote."""
    query = "SELECT message_id FROM survey.task WHERE starts_with(message_id, %s) ORDER BY id"
    written = [row["message_id"] for row in _rows(connection, query, f"{journal.run}-")]
    by_end = sorted((row for row in rows if row["closed_at"]), key=lambda row: (row["closed_at"], row["id"]))
    by_value = sorted((row for row in rows if _value(row)), key=_value)
    tracks = {"ended": [row["message_id"] for row in by_end]}
    sent: dict[tuple[str, str], list[str]] = {}
    for one in journal.sent:
        if one.subject is not None:
            sent.setdefault((one.source, one.subject), []).append(one.id)
    for (source, subject), names in sent.items():
        wrote = written if source == SURVEYS else [row["message_id"] for row in by_value]
        own = set(names)
        for what, track in (tracks | {"registered": wrote}).items():
            if [name for name in track if name in own] != names:
                yield f"subject {subject}: its messages were not {what} in the order in which they were sent"


def _reports(connection: psycopg.Connection[Any], journal: Journal) -> Iterator[str]:
    query = """SELECT m.message_id, r.state FROM inbox.report r JOIN inbox.message m ON m.id = r.message
                WHERE starts_with(m.message_id, %s)"""
    found = _rows(connection, query, f"{journal.run}-")
    told = Counter(row["message_id"] for row in found if row["state"] == "SENT")
    expected = Counter(one.id for one in journal.sent if one.notice)
    yield from _named("owed a report that was not sent", sorted(expected - told))
    yield from _named("was reported too often", sorted(told - expected))


def _value(row: Row) -> int:
    """Return the counter's value that a message was told; 0 where it counted nothing."""
    outcome = row["outcome"]
    return int(outcome.get("value", 0)) if isinstance(outcome, dict) else 0


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"{what}: {', '.join(names[:_MOST_NAMED])}{more}"
