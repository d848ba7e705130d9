"""The SQL of dispatch: what is due, leased, marked and put back (spec section 6).

Messages and reports have the same columns for it, and so the same statements; ``QUEUES`` holds one set for each.
"""

from dataclasses import dataclass
from datetime import datetime

from inbox.store.engine import Statement


@dataclass(frozen=True)
class DueSource:
    """A source with something due, and how many of its started rows no try has claimed yet."""

    source: str
    unclaimed: int


@dataclass(frozen=True)
class Leased:
    """A row taken for one round. ``lease`` is its ``due_at`` while this round holds it.

    ``put_off`` rows are not started: their workflow has shown signs of life lately. ``starts`` counts this one. Order
    has to be asked for ``contested`` ones; ``placed`` ones have a subject.
    """

    id: int
    lease: datetime
    put_off: bool
    starts: int
    generation: int
    source: str
    type: str
    message_id: str
    workflow_id: str
    traceparent: str | None
    placed: bool
    contested: bool


@dataclass(frozen=True)
class Id:
    """A row that matched."""

    id: int


@dataclass(frozen=True)
class Queue:
    """The statements over one table."""

    due_sources: Statement[DueSource]
    lease: Statement[Leased]
    mark: Statement[Id]
    put_back: Statement[Id]
    still_due: Statement[Id]


def _queue(table: str, fresh: str, shown: str) -> Queue:
    """Build the statements for ``table``; ``fresh`` says that nothing worked on the row since it was started."""
    name = table.removeprefix("inbox.")
    # Of columns that a lease leaves as they are.
    alive = "greatest(updated_at, next_try_at)"
    put_off = f"(dispatched_at IS NOT NULL AND {alive} > now() - make_interval(secs => %(again)s))"
    return Queue(
        # A loose scan of the due index, one probe a source. The rows started last have the latest due_at and are
        # the ones that still wait in the task queue, so a window of them is counted, however many are open.
        due_sources=Statement(
            f"find due sources of {name}",
            DueSource,
            f"""
            WITH RECURSIVE sources AS (
                (SELECT source FROM {table} WHERE due_at IS NOT NULL ORDER BY source LIMIT 1)
                UNION ALL
                SELECT (SELECT q.source FROM {table} q
                         WHERE q.due_at IS NOT NULL AND q.source > s.source ORDER BY q.source LIMIT 1)
                  FROM sources s WHERE s.source IS NOT NULL
            )
            SELECT s.source, w.unclaimed
              FROM sources s, LATERAL (
                   SELECT count(*) FILTER (WHERE q.fresh) AS unclaimed
                     FROM (SELECT {fresh} AND starts > 0 AS fresh FROM {table}
                            WHERE source = s.source AND due_at > now()
                              AND due_at <= now() + make_interval(secs => %(again)s)
                            ORDER BY due_at DESC LIMIT %(window)s) q) w
             WHERE EXISTS (SELECT FROM {table} d WHERE d.source = s.source AND d.due_at <= now())""",
        ),
        # Takes a share of one source in order of arrival, each row for one round of one process. An array, and no
        # join: a plan for any share takes that for a tenth of all that is due, and would read the table to join it.
        lease=Statement(
            f"lease {name}",
            Leased,
            f"""
            WITH taken AS (
                UPDATE {table} q
                   SET due_at = CASE WHEN {put_off}
                                     THEN {alive} + make_interval(secs => %(again)s)
                                     ELSE now() + make_interval(secs => %(lease)s) END,
                       starts = CASE WHEN {put_off} THEN starts ELSE starts + 1 END
                 WHERE id = ANY (ARRAY(SELECT id FROM {table}
                                        WHERE source = %(source)s AND due_at <= now()
                                        ORDER BY due_at LIMIT %(share)s
                                          FOR UPDATE SKIP LOCKED))
                RETURNING q.*, {put_off} AS put_off
            )
            {shown}""",
        ),
        # The start is done: due again only if nothing is heard of the row for long. No row: closed meanwhile.
        mark=Statement(
            f"mark {name}",
            Id,
            f"""
            UPDATE {table}
               SET dispatched_at = now(), run_id = coalesce(run_id, %(run_id)s),
                   due_at = now() + make_interval(secs => %(again)s)
             WHERE id = %(id)s AND due_at = %(lease)s
            RETURNING id""",
        ),
        # The start failed: due again after its own delay instead of the whole lease.
        put_back=Statement(
            f"put back {name}",
            Id,
            f"""
            UPDATE {table} SET due_at = now() + make_interval(secs => %(delay)s)
             WHERE id = %(id)s AND due_at = %(lease)s
            RETURNING id""",
        ),
        still_due=Statement(f"read due {name}", Id, f"SELECT id FROM {table} WHERE id = %(id)s AND due_at = %(lease)s"),
    )


MESSAGES = _queue(
    "inbox.message",
    "status = 'RECEIVED'",
    # Looked at without a lock: a claim asks again. Most rows have nobody before them, and cost one probe.
    """SELECT t.id, t.due_at AS lease, t.put_off, t.starts, t.generation, t.source, t.type, t.message_id,
                   t.workflow_id, t.traceparent, t.subject IS NOT NULL AS placed,
                   CASE WHEN t.subject IS NULL OR %(order)s = 'none' THEN false
                        WHEN %(order)s = 'sequence' THEN true
                        ELSE EXISTS (SELECT FROM inbox.message b
                                      WHERE b.tenant = t.tenant AND b.source = t.source AND b.subject = t.subject
                                        AND b.id < t.id AND (b.closed_at IS NULL OR b.parked))
                             OR EXISTS (SELECT FROM inbox.subject_position p
                                         WHERE p.tenant = t.tenant AND p.source = t.source
                                           AND p.subject = t.subject AND p.processing <> t.id) END AS contested
              FROM taken t ORDER BY t.id""",
)
REPORTS = _queue(
    "inbox.report",
    "state = 'OWED'",
    """SELECT t.id, t.due_at AS lease, t.put_off, t.starts, m.generation, t.source, m.type, m.message_id,
                   t.workflow_id, t.traceparent, false AS placed, false AS contested
              FROM taken t JOIN inbox.message m ON m.id = t.message ORDER BY t.id""",
)
