"""The SQL that only reads the record, and what a process asks at its start."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inbox.store.engine import Statement


@dataclass(frozen=True)
class Record:
    """The record as its producer and operators read it (never the payload).

    ``behind_id`` and ``behind_edition`` name the message that holds it, one of the same source. ``last`` is the number
    applied last of its subject, where order is by sequence.
    """

    id: int
    generation: int
    tenant: str
    source: str
    message_id: str
    edition: int
    type: str
    status: str
    tries: int
    tries_before: int
    max_tries: int
    last_code: str | None
    last_reason: str | None
    next_try_at: datetime | None
    held_behind: int | None
    held_since: datetime | None
    parked: bool
    duplicates: int
    workflow_id: str
    traceparent: str | None
    outcome: Any
    report_state: str | None
    received_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    sequence: int | None
    last: int | None
    behind_id: str | None
    behind_edition: int | None


# The newest edition unless one is named.
READ_RECORD = Statement(
    "read record",
    Record,
    """
    SELECT m.id, m.generation, m.tenant, m.source, m.message_id, m.edition, m.type, m.status, m.tries, m.tries_before,
           m.max_tries, m.last_code, m.last_reason, m.next_try_at, m.held_behind, m.held_since, m.parked, m.duplicates,
           m.workflow_id, m.traceparent, m.outcome, m.report_state, m.received_at, m.updated_at, m.closed_at,
           m.sequence, p.last, b.message_id AS behind_id, b.edition AS behind_edition
      FROM inbox.message m
      LEFT JOIN inbox.subject_position p USING (tenant, source, subject)
      LEFT JOIN inbox.message b ON b.id = m.held_behind
     WHERE m.tenant = %(tenant)s AND m.source = %(source)s AND m.message_id = %(message_id)s
       AND (%(edition)s::int IS NULL OR m.edition = %(edition)s)
     ORDER BY m.edition DESC LIMIT 1""",
)


@dataclass(frozen=True)
class Chain:
    """The chain of runs that works on an open row: ``run_id`` is its first run's; None before it is known."""

    id: int
    source: str
    generation: int
    workflow_id: str
    run_id: str | None


# Of an open row alone: what ended a closed one is of no interest.
READ_CHAIN = Statement(
    "read chain",
    Chain,
    """
    SELECT id, source, generation, workflow_id, run_id FROM inbox.message WHERE id = %(id)s AND closed_at IS NULL""",
)


@dataclass(frozen=True)
class Clock:
    """What time it is, by the database."""

    now: datetime


# For what is compared with another server's times: a process's own clock may be hours off.
READ_CLOCK = Statement("read clock", Clock, "SELECT now() AS now")


@dataclass(frozen=True)
class Waiting:
    """One line of the backlog. ``state`` is a message's status, or a report's state."""

    what: str
    source: str
    type: str
    state: str
    waiting: int
    oldest: datetime
    oldest_seconds: float


@dataclass(frozen=True)
class Count:
    """How many, up to a limit."""

    rows: int


# How many open messages of a subject come after one, up to a limit: for operators.
COUNT_BEHIND = {
    order: Statement(
        f"count behind by {order}",
        Count,
        f"""
        SELECT count(*) AS rows
          FROM (SELECT FROM inbox.message m JOIN inbox.message b
                    ON b.tenant = m.tenant AND b.source = m.source AND b.subject = m.subject
                 WHERE m.id = %(id)s AND b.closed_at IS NULL AND b.{turn} > m.{turn}
                 LIMIT %(most)s) found""",
    )
    for order, turn in (("arrival", "id"), ("sequence", "sequence"))
}

# What is open, held, parked or owed now; reads the partial indexes of open rows alone, never a closed one.
READ_BACKLOG = Statement(
    "read backlog",
    Waiting,
    """
    WITH lines AS (
        SELECT CASE WHEN held_since IS NULL THEN 'open' ELSE 'held' END AS what, source, type, status AS state,
               count(*) AS waiting, min(received_at) AS oldest
          FROM inbox.message WHERE closed_at IS NULL GROUP BY 1, 2, 3, 4
        UNION ALL
        SELECT 'parked', source, type, status, count(*), min(received_at)
          FROM inbox.message WHERE parked GROUP BY 2, 3, 4
        UNION ALL
        SELECT 'owed', source, kind, state, count(*), min(owed_at)
          FROM inbox.report WHERE closed_at IS NULL GROUP BY 2, 3, 4
        UNION ALL
        SELECT 'given up', source, kind, state, count(*), min(owed_at)
          FROM inbox.report WHERE state = 'GIVEN_UP' GROUP BY 2, 3, 4
    )
    SELECT *, extract(epoch FROM now() - oldest)::float AS oldest_seconds
      FROM lines ORDER BY what, source, type, state""",
)


@dataclass(frozen=True)
class Listed:
    """One message of a list; ``tries`` are its generation's. ``behind_id`` as of a record."""

    id: int
    tenant: str
    source: str
    message_id: str
    edition: int
    type: str
    status: str
    tries: int
    last_code: str | None
    received_at: datetime
    held_since: datetime | None
    behind_id: str | None
    behind_edition: int | None


PAGE = 500  # messages that a list reads at once
_LISTED = {"open": "m.closed_at IS NULL", "parked": "m.parked"}
# The next page of a source's messages that are open, or parked, by type and in order of arrival; reads the partial
# index of those alone, and of it what it returns.
LIST = {
    what: Statement(
        f"list {what}",
        Listed,
        f"""
        SELECT m.id, m.tenant, m.source, m.message_id, m.edition, m.type, m.status, m.tries - m.tries_before AS tries,
               m.last_code, m.received_at, m.held_since, b.message_id AS behind_id, b.edition AS behind_edition
          FROM inbox.message m LEFT JOIN inbox.message b ON b.id = m.held_behind
         WHERE m.source = %(source)s AND {condition} AND (m.type, m.id) > (%(after_type)s, %(after)s)
         ORDER BY m.type, m.id LIMIT {PAGE}""",
    )
    for what, condition in _LISTED.items()
}


@dataclass(frozen=True)
class Ready:
    """What a process asks before it calls itself ready."""

    revision: str


READ_REVISION = Statement("read revision", Ready, "SELECT version_num AS revision FROM inbox.alembic_version")


@dataclass(frozen=True)
class Rights:
    """What this login may do."""

    moves: bool


# Whether this login may move a message's state, as the workers' role may.
READ_RIGHTS = Statement(
    "read rights", Rights, "SELECT has_column_privilege('inbox.message', 'status', 'UPDATE') AS moves"
)


@dataclass(frozen=True)
class Partitions:
    """How many partitions were made."""

    made: int


# Payload partitions exist for today and the days ahead, whoever runs.
MAKE_PARTITIONS = Statement("make partitions", Partitions, "SELECT inbox.make_payload_partitions(%(days)s) AS made")
