"""The SQL that only reads the record, and what a process asks at its start."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inbox.store.engine import Statement


@dataclass(frozen=True)
class Record:
    """The record as its producer and operators read it (never the payload)."""

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


# The newest edition unless one is named.
READ_RECORD = Statement(
    "read record",
    Record,
    """
    SELECT id, generation, tenant, source, message_id, edition, type, status, tries, tries_before, max_tries, last_code,
           last_reason, next_try_at, held_behind, held_since, parked, duplicates, workflow_id, traceparent, outcome,
           report_state, received_at, updated_at, closed_at
      FROM inbox.message
     WHERE tenant = %(tenant)s AND source = %(source)s AND message_id = %(message_id)s
       AND (%(edition)s::int IS NULL OR edition = %(edition)s)
     ORDER BY edition DESC LIMIT 1""",
)


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
