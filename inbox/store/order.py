"""The SQL of order: one message of a subject at a time, in turn (spec section 9).

A subject's row in ``subject_position`` is its lock: every transaction here takes it first, in a statement of its own,
since a lock taken within a statement waits with the snapshot from before. Its ``processing`` names the row that a try
holds, its ``last`` the number applied last, where order is by sequence.
"""

from dataclasses import dataclass

from inbox.store.engine import Statement
from inbox.store.statements import Fenced

# The subject of a message, locked; it comes into being where accept did not make it (its source had no order then). An
# update that its condition refuses has locked the row and written no version of it. The row returned is a new one's.
LOCK_SUBJECT = Statement(
    "lock subject",
    Fenced,
    """
    INSERT INTO inbox.subject_position AS p (tenant, source, subject)
    SELECT tenant, source, subject FROM inbox.message WHERE id = %(id)s AND subject IS NOT NULL
    ON CONFLICT (tenant, source, subject) DO UPDATE SET last = p.last WHERE false
    RETURNING 0::bigint AS id""",
)


@dataclass(frozen=True)
class Decision:
    """Whether a message may go: HELD behind another or by a gap, GAP where that gap's time is over, or FREE.

    ``missing`` is the number that makes the gap.
    """

    answer: str
    missing: int | None


# Holds a waiting row that order forbids, and frees one that it no longer does; decided under the subject's lock. No row
# returned: it is processing, or closed. A held row is not due, and what stands before it makes it due when it ends;
# behind a gap it is due when the gap's time is over.
_DECIDE = """
    WITH me AS (
        SELECT m.id, m.tenant, m.source, m.subject, m.sequence, m.held_since, p.processing, p.last
          FROM inbox.message m JOIN inbox.subject_position p USING (tenant, source, subject)
         WHERE m.id = %(id)s AND m.status IN ('RECEIVED', 'FAILED')
    ), ahead AS ({ahead}
    ), decided AS (
        SELECT id, coalesce(behind, nullif(processing, id)) AS behind, missing, held_since,
               coalesce(missing IS NOT NULL AND held_since + make_interval(secs => %(gap)s) <= now(), false) AS over
          FROM ahead
    ), held AS (
        UPDATE inbox.message m
           SET held_behind = d.behind,
               held_since = CASE WHEN d.behind IS NULL AND d.missing IS NULL THEN NULL
                                 ELSE coalesce(m.held_since, now()) END,
               due_at = CASE WHEN d.behind IS NOT NULL THEN NULL
                             WHEN d.missing IS NOT NULL
                             THEN coalesce(m.held_since, now()) + make_interval(secs => %(gap)s)
                             ELSE coalesce(m.due_at, now()) END,
               dispatched_at = CASE WHEN d.behind IS NULL AND d.missing IS NULL THEN m.dispatched_at END
          FROM decided d
         WHERE m.id = d.id AND (d.behind IS NOT NULL OR d.missing IS NOT NULL AND NOT d.over
                                OR m.held_since IS NOT NULL AND d.missing IS NULL)
    )
    SELECT CASE WHEN behind IS NOT NULL THEN 'HELD' WHEN missing IS NULL THEN 'FREE'
                WHEN over THEN 'GAP' ELSE 'HELD' END AS answer, missing
      FROM decided"""

# In order of arrival: behind the row just before that is open or parked.
DECIDE_ARRIVAL = Statement(
    "decide by arrival",
    Decision,
    _DECIDE.format(
        ahead="""
        SELECT me.*, NULL::bigint AS missing, (
               SELECT b.id FROM inbox.message b
                WHERE b.tenant = me.tenant AND b.source = me.source AND b.subject = me.subject AND b.id < me.id
                  AND (b.closed_at IS NULL OR b.parked)
                ORDER BY b.id DESC LIMIT 1) AS behind
          FROM me"""
    ),
)

# By sequence: behind the next lower number that is open or parked; only without one, the first number above the last
# applied that no row has is looked for, and missing. A row that is DEAD and not parked fills its number.
DECIDE_SEQUENCE = Statement(
    "decide by sequence",
    Decision,
    _DECIDE.format(
        ahead="""
        SELECT me.*, g.missing, b.id AS behind
          FROM me
          LEFT JOIN LATERAL (
               SELECT b.id FROM inbox.message b
                WHERE b.tenant = me.tenant AND b.source = me.source AND b.subject = me.subject
                  AND b.sequence > me.last AND b.sequence < me.sequence AND (b.closed_at IS NULL OR b.parked)
                ORDER BY b.sequence DESC LIMIT 1) b ON true
          LEFT JOIN LATERAL (
               SELECT n.before + 1 AS missing
                 FROM (SELECT s.sequence, lag(s.sequence, 1, me.last) OVER (ORDER BY s.sequence) AS before
                         FROM inbox.message s
                        WHERE b.id IS NULL AND s.tenant = me.tenant AND s.source = me.source AND s.subject = me.subject
                          AND s.sequence > me.last AND s.sequence <= me.sequence) n
                WHERE n.sequence > n.before + 1
                ORDER BY n.sequence LIMIT 1) g ON true"""
    ),
)
DECIDE = {"arrival": DECIDE_ARRIVAL, "sequence": DECIDE_SEQUENCE}

# After whatever ended a row's try, closed or unparked it: the subject is free of it, its position moves with an applied
# number, and its first open row becomes due, unless that is the row itself. A row that is processing (the statement
# before was a zombie's) changes nothing.
_RELEASE = """
    WITH me AS (
        SELECT id, tenant, source, subject, CASE WHEN status = 'COMPLETED' THEN sequence END AS applied
          FROM inbox.message WHERE id = %(id)s AND status <> 'PROCESSING'
    ), free AS (
        UPDATE inbox.subject_position p
           SET processing = NULL{moves}
          FROM me
         WHERE p.tenant = me.tenant AND p.source = me.source AND p.subject = me.subject AND p.processing = me.id
    ), first AS (
        SELECT f.id FROM me, LATERAL (
{first}) f
         WHERE f.id <> me.id AND f.status <> 'PROCESSING'
    )
    UPDATE inbox.message m SET due_at = now(), held_behind = NULL, held_since = NULL, dispatched_at = NULL
      FROM first f WHERE m.id = f.id
    RETURNING m.id"""
_OPEN = """
               SELECT f.id, f.status FROM inbox.message f
                WHERE f.tenant = me.tenant AND f.source = me.source AND f.subject = me.subject
                  AND f.closed_at IS NULL"""
RELEASE_ARRIVAL = Statement(
    "release by arrival", Fenced, _RELEASE.format(moves="", first=f"{_OPEN}\n                ORDER BY f.id LIMIT 1")
)

# Rows without a number (their source's order was another once) after all that have one; each half has its index.
RELEASE_SEQUENCE = Statement(
    "release by sequence",
    Fenced,
    _RELEASE.format(
        moves=", last = greatest(p.last, me.applied)",
        first=f"""
               ({_OPEN} AND f.sequence IS NOT NULL
                ORDER BY f.sequence LIMIT 1)
               UNION ALL
               ({_OPEN} AND f.sequence IS NULL
                ORDER BY f.id LIMIT 1)
                LIMIT 1""",
    ),
)
RELEASE = {"arrival": RELEASE_ARRIVAL, "sequence": RELEASE_SEQUENCE}

# A row that is released by hand goes at once.
MAKE_DUE = Statement(
    "make due",
    Fenced,
    """
    UPDATE inbox.message SET due_at = now(), held_behind = NULL, held_since = NULL, dispatched_at = NULL
     WHERE id = %(id)s AND status IN ('RECEIVED', 'FAILED')
    RETURNING id""",
)

# A parked row holds nobody any more; where a generation is given, of that one alone.
UNPARK = Statement(
    "unpark",
    Fenced,
    """
    UPDATE inbox.message SET parked = false, last_code = coalesce(%(code)s, last_code), updated_at = now(),
           last_reason = coalesce(%(reason)s, last_reason)
     WHERE id = %(id)s AND parked AND (%(generation)s::int IS NULL OR generation = %(generation)s)
    RETURNING id""",
)

# A gap is accepted: what is missing before this row is not waited for. No row returned: nothing is missing, or a lower
# number is still open or parked, and would become obsolete by it.
ACCEPT_GAP = Statement(
    "accept gap",
    Fenced,
    """
    UPDATE inbox.subject_position p SET last = m.sequence - 1
      FROM inbox.message m
     WHERE m.id = %(id)s AND m.status <> 'COMPLETED' AND p.tenant = m.tenant AND p.source = m.source
       AND p.subject = m.subject AND p.last < m.sequence - 1
       AND (SELECT count(DISTINCT b.sequence) < m.sequence - 1 - p.last
                   AND coalesce(bool_and(b.closed_at IS NOT NULL AND NOT b.parked), true)
              FROM inbox.message b
             WHERE b.tenant = m.tenant AND b.source = m.source AND b.subject = m.subject
               AND b.sequence > p.last AND b.sequence < m.sequence)
    RETURNING m.id""",
)
