"""The SQL of direct mode: a message is stored and registered in one transaction (spec section 11)."""

from dataclasses import dataclass
from datetime import datetime

from inbox.store.engine import Statement
from inbox.store.statements import Accepted, Fenced, owe


@dataclass(frozen=True)
class Place:
    """What a new message finds: the time of its receipt, its ID's newest edition, and whether order lets it go.

    ``repeated``: its content is that of an edition that was delivered a short while ago. ``placed``: its subject is
    known. ``answer`` is FREE, OBSOLETE
    (a number that is not above the last one applied) or HELD (by another message, or a gap).
    """

    received_at: datetime
    newest: int | None
    edition: int
    status: str | None
    repeated: bool
    placed: bool
    answer: str


_KEY = "m.tenant = %(tenant)s AND m.source = %(source)s AND m.message_id = %(message_id)s"
_SUBJECT = "m.tenant = %(tenant)s AND m.source = %(source)s AND m.subject = %(subject)s"
_BELOW = f"{_SUBJECT} AND m.sequence > p.last AND m.sequence < %(sequence)s"
_POSITION = "p.tenant = %(tenant)s AND p.source = %(source)s AND p.subject = %(subject)s"

# Whether order lets a message go that is not stored yet: nobody of its subject is open or parked before it, which are
# all that are in order of arrival, and the lower numbers by sequence, which have to be there too.
_ANSWER = {
    "none": "'FREE'",
    "arrival": f"""
        CASE WHEN EXISTS (SELECT FROM inbox.message m WHERE {_SUBJECT} AND (m.closed_at IS NULL OR m.parked))
             THEN 'HELD' ELSE 'FREE' END""",
    "sequence": f"""
        coalesce((
            SELECT CASE WHEN %(sequence)s <= p.last THEN 'OBSOLETE'
                        WHEN EXISTS (SELECT FROM inbox.message x WHERE x.id = p.processing AND x.status = 'PROCESSING')
                        THEN 'HELD'
                        WHEN p.last IS NULL
                        THEN CASE WHEN EXISTS (SELECT FROM inbox.message m
                                                WHERE {_SUBJECT} AND (m.closed_at IS NULL OR m.parked))
                                  THEN 'HELD' ELSE 'FREE' END
                        WHEN EXISTS (SELECT FROM inbox.message m
                                      WHERE {_BELOW} AND (m.closed_at IS NULL OR m.parked))
                        THEN 'HELD'
                        WHEN (SELECT count(DISTINCT m.sequence) FROM inbox.message m WHERE {_BELOW})
                             = %(sequence)s - 1 - p.last
                        THEN 'FREE' ELSE 'HELD' END
              FROM inbox.subject_position p
             WHERE {_POSITION}), 'FREE')""",
}

# Looked at before anything is asked or made for a message; only PUT, behind the subject's lock, is final.
LOOK = {
    order: Statement(
        f"look, order {order}",
        Place,
        f"""
        SELECT now() AS received_at, n.id AS newest, coalesce(n.edition, 0) AS edition, n.status,
               %(resend)s AND EXISTS (
                   SELECT FROM inbox.message m
                    WHERE {_KEY} AND m.payload_sha256 = %(sha256)s
                      AND m.delivered_at > now() - make_interval(secs => %(resend_after)s)) AS repeated,
               EXISTS (SELECT FROM inbox.subject_position p WHERE {_POSITION}) AS placed, {answer} AS answer
          FROM (SELECT) here LEFT JOIN LATERAL (
               SELECT m.id, m.edition, m.status FROM inbox.message m WHERE {_KEY} ORDER BY m.edition DESC LIMIT 1
               ) n ON true""",
    )
    for order, answer in _ANSWER.items()
}

# A subject that is new comes into being by itself, before the transaction that locks it: an accept of the same ID,
# which has its row and makes the subject behind it, would wait for that transaction, and that for the row. It has no
# start yet, which the first number that is stored sets.
MAKE_PLACE = Statement(
    "make place",
    Fenced,
    """
    INSERT INTO inbox.subject_position (tenant, source, subject) VALUES (%(tenant)s, %(source)s, %(subject)s)
    ON CONFLICT DO NOTHING
    RETURNING 0::bigint AS id""",
)

# The subject of a message that is not stored yet, locked.
LOCK_PLACE = Statement(
    "lock place",
    Fenced,
    f"SELECT 0::bigint AS id FROM inbox.subject_position p WHERE {_POSITION} FOR NO KEY UPDATE",
)


@dataclass(frozen=True)
class Put:
    """A row that is stored as COMPLETED, in the transaction ``xact`` that has its bundle to write yet."""

    id: int
    edition: int
    workflow_id: str
    obsolete: bool
    xact: str


# The row, COMPLETED before its bundle is written: both are committed together or not at all, since the database refuses
# to commit an outcome of JSON's null, which FINISH replaces. No row returned: order forbids it by now, or another
# delivery has stored this edition.
PUT = {
    order: Statement(
        f"put, order {order}",
        Put,
        f"""
        WITH put AS (
            INSERT INTO inbox.message (status, tenant, source, message_id, edition, type, subject, sequence,
                                       payload_sha256, max_tries, workflow_id, traceparent, resend_of, outcome,
                                       received_at, updated_at, closed_at)
            SELECT 'COMPLETED', %(tenant)s, %(source)s, %(message_id)s, %(edition)s, %(type)s, %(subject)s,
                   %(sequence)s, %(sha256)s, %(max_tries)s, %(workflow_id)s, %(traceparent)s, %(resend_of)s,
                   CASE WHEN o.answer = 'OBSOLETE' THEN to_jsonb(%(obsolete)s::text) ELSE 'null' END,
                   %(received_at)s, clock_timestamp(), clock_timestamp()
              FROM (SELECT {answer} AS answer) o WHERE o.answer <> 'HELD'
            ON CONFLICT DO NOTHING
            RETURNING *
        ), body AS (
            INSERT INTO inbox.payload (message, received_at, content_type, body)
            SELECT id, received_at, %(content_type)s, %(body)s FROM put
        )
        SELECT id, edition, workflow_id, outcome <> 'null' AS obsolete,
               pg_current_xact_id()::text AS xact
          FROM put""",
    )
    for order, answer in _ANSWER.items()
}

# What the bundle left: its outcome, the notice that it owes, and the number applied. No row returned: this is no longer
# the transaction that stored the row.
FINISH = Statement(
    "finish",
    Accepted,
    f"""
    WITH finished AS (
        UPDATE inbox.message
           SET outcome = %(outcome)s,
               report_state = CASE WHEN %(reports)s AND %(notice)s::text IS NOT NULL THEN 'OWED' END
         WHERE id = %(id)s AND pg_current_xact_id_if_assigned()::text = %(xact)s
        RETURNING *
    ), noticed AS ({
        owe(
            "finished",
            "%(notice)s",
            "%(notice)s",
            "%(notice_reason)s",
            "%(reports)s AND %(notice)s::text IS NOT NULL",
        )
    }
    ), moved AS (
        UPDATE inbox.subject_position p
           SET last = greatest(p.last, f.sequence), gap_since = CASE WHEN f.sequence <= p.last THEN p.gap_since END
          FROM finished f
         WHERE %(sequenced)s AND p.tenant = f.tenant AND p.source = f.source AND p.subject = f.subject
    )
    SELECT true AS created, id, edition, status, workflow_id, received_at, last_code, last_reason, outcome
      FROM finished""",
)
