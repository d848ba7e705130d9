"""The SQL that accepts a message and carries its tries, each statement named for its verb, with its guarantee.

Its neighbours hold the rest: due.py what dispatch asks, reports.py the life of a report, reads.py what is only read.
Isolation is READ COMMITTED; the lock order everywhere is subject, message row, handler's rows, report. Time is
the database's. ``FENCE`` is what everything a try writes is guarded by: a try that was overtaken matches nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inbox.store.engine import Statement

FENCE = "id = %(id)s AND status = 'PROCESSING' AND generation = %(generation)s AND tries = %(tries)s"

# A report's workflow is found from its message's: another prefix, and the report's number behind it.
REPORT_WORKFLOW_ID = r"regexp_replace(m.workflow_id, '^([^/]+)/', '\1-report/') || '/' || n.number"


def owe(origin: str, kind: str, code: str, reason: str, condition: str, ahead: str = "0") -> str:
    """Insert a report for the row of the CTE ``origin``, due unless an earlier one of the message is still open.

    ``ahead`` counts the reports that the same statement owes before this one: its snapshot does not see them.
    """
    return f"""
        INSERT INTO inbox.report (message, number, source, kind, code, reason, workflow_id, traceparent, due_at)
        SELECT m.id, n.number, m.source, {kind}, {code}, {reason}, {REPORT_WORKFLOW_ID}, m.traceparent,
               CASE WHEN n.free THEN now() END
          FROM {origin} m, LATERAL (
               SELECT coalesce(max(number), 0) + 1 + {ahead} AS number,
                      coalesce(bool_and(closed_at IS NOT NULL), true) AND {ahead} = 0 AS free
                 FROM inbox.report WHERE message = m.id) n
         WHERE {condition}"""


@dataclass(frozen=True)
class Fenced:
    """The row is still this try's."""

    id: int


@dataclass(frozen=True)
class Accepted:
    """The row that a delivery met: its own (``created``), or the one stored before.

    A row that a redelivery redrove counts as its own: the delivery set it going.
    """

    created: bool
    id: int
    edition: int
    status: str
    workflow_id: str
    received_at: datetime
    last_code: str | None
    last_reason: str | None
    outcome: Any


# One row however many deliveries race; no row returned means the ID was used for other content, row untouched; or, of
# a source whose redeliveries can be wishes (``resend``), that it was used at all: REDELIVER decides. The first row of a
# subject makes its place; where order is by sequence, its number is where the subject starts, unless others wait from
# a time of no order: then the first decision finds the start.
ACCEPT = Statement(
    "accept",
    Accepted,
    """
    WITH put AS (
        INSERT INTO inbox.message AS m (tenant, source, message_id, type, subject, sequence, payload_sha256,
                                        max_tries, workflow_id, traceparent, due_at)
        VALUES (%(tenant)s, %(source)s, %(message_id)s, %(type)s, %(subject)s, %(sequence)s, %(sha256)s,
                %(max_tries)s, %(workflow_id)s, %(traceparent)s, now())
        ON CONFLICT ON CONSTRAINT message_key DO UPDATE
           SET duplicates = m.duplicates + 1, delivered_at = now()
         WHERE m.payload_sha256 = excluded.payload_sha256 AND NOT %(resend)s
        RETURNING (xmax = 0) AS created, id, edition, status, workflow_id, received_at, last_code, last_reason, outcome
    ), body AS (
        INSERT INTO inbox.payload (message, received_at, content_type, body)
        SELECT id, received_at, %(content_type)s, %(body)s FROM put WHERE created
    ), place AS (
        INSERT INTO inbox.subject_position (tenant, source, subject, last)
        SELECT %(tenant)s, %(source)s, %(subject)s,
               CASE WHEN %(position)s::bigint IS NOT NULL AND NOT EXISTS (
                    SELECT FROM inbox.message o
                     WHERE o.tenant = %(tenant)s AND o.source = %(source)s AND o.subject = %(subject)s
                       AND o.sequence IS NOT NULL AND (o.closed_at IS NULL OR o.parked)) THEN %(position)s::bigint END
          FROM put
         WHERE created AND %(ordered)s AND %(subject)s::text IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    SELECT * FROM put""",
)


@dataclass(frozen=True)
class Claimed:
    """What a claim was answered, and with ``CLAIMED`` the try: what fences it, and the message it works on.

    ``status`` is the row's before the claim; ``body`` is None once the payload is gone; an ``obsolete`` row's number is
    not above the last one applied, where order is by sequence: elsewhere a number says nothing.
    """

    answer: str
    id: int
    status: str
    generation: int
    tries: int
    tries_before: int
    max_tries: int
    last_code: str | None
    last_reason: str | None
    tenant: str
    source: str
    message_id: str
    edition: int
    type: str
    subject: str | None
    received_at: datetime
    began_at: datetime
    content_type: str | None
    body: bytes | None
    obsolete: bool


# Claim and load: an open row becomes PROCESSING and one try is spent, in one conditional UPDATE. No row returned: it
# is closed. Every other answer changes nothing: EXHAUSTED, its tries are used; HELD, order forbids it; OVERTAKEN, it
# was redriven, and this try belongs to the generation before; SUPERSEDED, a later attempt of Temporal's holds it, so
# this one is a zombie, or the row's last try began while its source had no order, and another of the subject is at
# work. A row found PROCESSING by a later attempt lost its last try: that try's line is written in the same statement.
# The attempt that holds the row is known by run, activity and attempt, and by when it began: an operator can reset the
# attempts, and clocks can be set back, but hardly both at once. Of two runs the numbers say nothing: one that began
# earlier waits until the holder's try must have ended (``longest``, in seconds).
CLAIM = Statement(
    "claim",
    Claimed,
    """
    WITH before AS (
        SELECT *, CASE WHEN generation <> %(asked)s THEN 'OVERTAKEN'
                       WHEN claim_began_at > %(began_at)s
                            AND CASE WHEN claimed_run_id = %(run_id)s AND claimed_activity = %(activity)s
                                     THEN claimed_attempt >= %(attempt)s
                                     ELSE status = 'PROCESSING'
                                          AND updated_at > now() - make_interval(secs => %(longest)s) END
                       THEN 'SUPERSEDED'
                       WHEN tries - tries_before >= %(max_tries)s THEN 'EXHAUSTED'
                       WHEN %(ordered)s AND held_since IS NOT NULL AND status <> 'PROCESSING' THEN 'HELD'
                       WHEN %(ordered)s AND status = 'PROCESSING' AND EXISTS (
                            SELECT FROM inbox.subject_position p JOIN inbox.message x ON x.id = p.processing
                             WHERE p.tenant = m.tenant AND p.source = m.source AND p.subject = m.subject
                               AND x.id <> m.id AND x.status = 'PROCESSING') THEN 'SUPERSEDED'
                       ELSE 'CLAIMED' END AS answer
          FROM inbox.message m WHERE id = %(id)s AND closed_at IS NULL FOR UPDATE
    ), lost AS (
        INSERT INTO inbox.attempt (message, number, generation, began_at, ended_at, code, reason, worker, run_id,
                                   trace_id)
        SELECT id, tries, generation, updated_at, now(), 'TRY_LOST', 'no answer from its worker', claimed_by,
               claimed_run_id, split_part(traceparent, '-', 2)
          FROM before WHERE status = 'PROCESSING' AND answer IN ('CLAIMED', 'EXHAUSTED')
        ON CONFLICT DO NOTHING
    ), claimed AS (
        UPDATE inbox.message m
           SET status = 'PROCESSING', tries = m.tries + 1, max_tries = %(max_tries)s, updated_at = now(),
               next_try_at = NULL, held_behind = NULL, held_since = NULL,
               claimed_by = %(worker)s, claimed_run_id = %(run_id)s,
               claimed_activity = %(activity)s, claimed_attempt = %(attempt)s, claim_began_at = %(began_at)s,
               run_id = %(first_run_id)s
          FROM before b
         WHERE m.id = b.id AND b.answer = 'CLAIMED'
        RETURNING m.*
    ), occupied AS (
        UPDATE inbox.subject_position p SET processing = c.id FROM claimed c
         WHERE %(ordered)s AND p.tenant = c.tenant AND p.source = c.source AND p.subject = c.subject
        RETURNING p.last
    )
    SELECT b.answer, b.id, b.status, b.generation, coalesce(c.tries, b.tries) AS tries, b.tries_before,
           coalesce(c.max_tries, b.max_tries) AS max_tries, b.last_code, b.last_reason, b.tenant, b.source,
           b.message_id, b.edition, b.type, b.subject, b.received_at, coalesce(c.updated_at, b.updated_at) AS began_at,
           coalesce(p.content_type, k.content_type) AS content_type, coalesce(p.body, k.body) AS body,
           coalesce(%(sequenced)s AND c.sequence <= o.last, false) AS obsolete
      FROM before b
      LEFT JOIN claimed c ON true
      LEFT JOIN occupied o ON true
      LEFT JOIN inbox.payload p ON c.id IS NOT NULL AND p.message = b.id AND p.received_at = b.received_at
      LEFT JOIN inbox.payload_kept k ON c.id IS NOT NULL AND k.message = b.id""",
)


# No worker here serves the row: it is set aside past the time for which dispatch counts it as waiting for one, so that
# its like do not use up their source's share.
SET_ASIDE = Statement(
    "set aside",
    Fenced,
    """
    UPDATE inbox.message SET due_at = now() + 2 * make_interval(secs => %(again)s)
     WHERE id = %(id)s AND dispatched_at IS NOT NULL AND due_at <= now() + make_interval(secs => %(again)s)
    RETURNING id""",
)


@dataclass(frozen=True)
class Standing:
    """Where a row stands now."""

    status: str
    last_code: str | None
    parked: bool


READ_STANDING = Statement(
    "read standing", Standing, "SELECT status, last_code, parked FROM inbox.message WHERE id = %(id)s"
)


@dataclass(frozen=True)
class Held:
    """The row is locked for this try, in the transaction ``xact``."""

    id: int
    xact: str


# Locks the row before the handler writes; no row returned means the try was overtaken.
TAKE_FENCE = Statement(
    "take fence", Held, f"SELECT id, pg_current_xact_id()::text AS xact FROM inbox.message WHERE {FENCE} FOR UPDATE"
)

# Upstream may have heard that the message is dead.
CORRECT = "(SELECT told > 0 FROM wrong)"

# The row's COMPLETED with the bundle's transaction, and the reports that it owes: a CORRECTION of an earlier
# DEAD, and the handler's own notice behind it. No row returned: this is no longer the transaction that took the fence.
COMPLETE = Statement(
    "complete",
    Fenced,
    f"""
    WITH wrong AS (
        SELECT count(*) AS told FROM inbox.report
         WHERE message = %(id)s AND kind = 'DEAD' AND state IN ('SENDING', 'SENT', 'GIVEN_UP')
    ), completed AS (
        UPDATE inbox.message
           SET status = 'COMPLETED', outcome = %(outcome)s, closed_at = clock_timestamp(),
               updated_at = clock_timestamp(), due_at = NULL, next_try_at = NULL,
               report_state = CASE WHEN %(reports)s AND (%(notice)s::text IS NOT NULL OR {CORRECT})
                                   THEN 'OWED' ELSE report_state END
         WHERE {FENCE} AND pg_current_xact_id_if_assigned()::text = %(xact)s
        RETURNING *
    ), corrected AS ({
        owe("completed", "'CORRECTION'", "'CORRECTION'", "'registered after all'", f"%(reports)s AND {CORRECT}")
    }
    ), noticed AS ({
        owe(
            "completed",
            "%(notice)s",
            "%(notice)s",
            "%(notice_reason)s",
            "%(reports)s AND %(notice)s::text IS NOT NULL",
            f"(CASE WHEN {CORRECT} THEN 1 ELSE 0 END)",
        )
    }
    )
    SELECT id FROM completed""",
)


@dataclass(frozen=True)
class Ended:
    """How a failure record left the row."""

    status: str
    tries: int
    tries_before: int
    max_tries: int


# Taken before every statement that looks at a message's reports: they change under this lock alone.
LOCK_MESSAGE = Statement("lock message", Fenced, "SELECT id FROM inbox.message WHERE id = %(id)s FOR NO KEY UPDATE")

# A failed try's record: its line, and the row FAILED, or DEAD with its report when it was the last one.
FAIL = Statement(
    "fail",
    Ended,
    f"""
    WITH failed AS (
        UPDATE inbox.message m
           SET status = CASE WHEN f.final THEN 'DEAD' ELSE 'FAILED' END,
               last_code = %(code)s, last_reason = %(reason)s, updated_at = now(),
               next_try_at = CASE WHEN NOT f.final THEN now() + make_interval(secs => %(delay)s) END,
               closed_at = CASE WHEN f.final THEN now() END,
               dead_at = CASE WHEN f.final THEN now() END,
               due_at = CASE WHEN NOT f.final THEN due_at END, parked = f.final AND %(park)s AND subject IS NOT NULL,
               report_state = CASE WHEN f.final AND %(reports)s THEN 'OWED' ELSE report_state END
          FROM (SELECT id AS fid, %(non_retryable)s OR tries - tries_before >= max_tries AS final
                  FROM inbox.message WHERE id = %(id)s) f
         WHERE m.id = f.fid AND {FENCE}
        RETURNING m.*
    ), line AS (
        INSERT INTO inbox.attempt (message, number, generation, began_at, ended_at, code, reason, error_class,
                                   worker, run_id, trace_id)
        SELECT id, tries, generation, %(began_at)s, now(), %(code)s, %(reason)s, %(error_class)s, claimed_by,
               claimed_run_id, split_part(traceparent, '-', 2)
          FROM failed
        ON CONFLICT DO NOTHING
    ), owed AS ({owe("failed", "'DEAD'", "%(code)s", "%(told)s", "m.status = 'DEAD' AND %(reports)s")}
    )
    SELECT status, tries, tries_before, max_tries FROM failed""",
)

# How a DEAD row m begins a generation: due at once, its tries counted from here, the last words about it kept.
REDRIVEN = """status = 'RECEIVED', generation = m.generation + 1, tries_before = m.tries, closed_at = NULL,
               dead_at = NULL, parked = false, due_at = now(), dispatched_at = NULL, run_id = NULL, updated_at = now(),
               report_state = CASE WHEN m.report_state = 'OWED' THEN 'WITHDRAWN' ELSE m.report_state END"""

# A report that nobody heard is withdrawn by the redrive of its message.
WITHDRAWN = """UPDATE inbox.report r SET state = 'WITHDRAWN', closed_at = now(), due_at = NULL, updated_at = now()
          FROM redriven d WHERE r.message = d.id AND r.state = 'OWED'"""

# A DEAD row begins a generation. No row returned: it is not DEAD.
REDRIVE = Statement(
    "redrive",
    Fenced,
    f"""
    WITH redriven AS (
        UPDATE inbox.message m
           SET {REDRIVEN}
         WHERE id = %(id)s AND status = 'DEAD'
        RETURNING id
    ), withdrawn AS (
        {WITHDRAWN}
    )
    SELECT id FROM redriven""",
)

# DEAD from any open state of one generation (and, where ``tries`` is given, only if no try followed), with the report
# owed and a line for the try that it cut off; a closed row is left as it is.
BURY = Statement(
    "bury",
    Ended,
    f"""
    WITH before AS (
        SELECT id, status, updated_at FROM inbox.message
         WHERE id = %(id)s AND generation = %(generation)s AND closed_at IS NULL
           AND (%(tries)s::int IS NULL OR tries = %(tries)s)
           FOR UPDATE
    ), buried AS (
        UPDATE inbox.message m
           SET status = 'DEAD', last_code = %(code)s, last_reason = %(reason)s, updated_at = now(),
               closed_at = now(), dead_at = now(), due_at = NULL, next_try_at = NULL, held_behind = NULL,
               held_since = NULL, parked = %(park)s AND subject IS NOT NULL,
               report_state = CASE WHEN %(reports)s THEN 'OWED' ELSE report_state END
          FROM before b WHERE m.id = b.id
        RETURNING m.*
    ), line AS (
        INSERT INTO inbox.attempt (message, number, generation, began_at, ended_at, code, reason, worker, run_id,
                                   trace_id)
        SELECT u.id, u.tries, u.generation, b.updated_at, now(), %(code)s, %(reason)s, u.claimed_by,
               u.claimed_run_id, split_part(u.traceparent, '-', 2)
          FROM buried u JOIN before b ON b.id = u.id WHERE b.status = 'PROCESSING'
        ON CONFLICT DO NOTHING
    ), owed AS ({owe("buried", "'DEAD'", "%(code)s", "%(told)s", "%(reports)s")}
    )
    SELECT status, tries, tries_before, max_tries FROM buried""",
)
