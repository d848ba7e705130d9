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


# What makes a subject's rows of ``m`` those of ``{me}``.
_SUBJECT = "{m}.tenant = {me}.tenant AND {m}.source = {me}.source AND {m}.subject = {me}.subject"

# Numbers that no row has, between ``last`` and the row's own (``me``): each gap's first and last number.
_GAPS = f"""
               SELECT n.before + 1 AS missing, n.sequence - 1 AS until
                 FROM (SELECT s.sequence, lag(s.sequence, 1, {{last}}) OVER (ORDER BY s.sequence) AS before
                         FROM inbox.message s
                        WHERE {_SUBJECT.format(m="s", me="me")}
                          AND s.sequence > {{last}} AND s.sequence <= me.sequence{{condition}}) n
                WHERE n.sequence - 1 > n.before
                ORDER BY n.sequence"""

# Holds a waiting row that order forbids, and frees one that it no longer does; decided under the subject's lock. No row
# returned: it is processing, or closed. A held row is not due, and what stands before it makes it due when it ends;
# behind a gap it is due when the gap's time is over. That time is the subject's (``gap_since``): it begins when the
# subject comes to stand before a missing number, or with the row where that came later, and ends when the next may go.
_DECIDE = """
    WITH me AS MATERIALIZED (
        SELECT m.id, m.tenant, m.source, m.subject, m.sequence, m.held_since, m.updated_at, p.processing, p.gap_since,
               p.last AS stored, {last} AS last
          FROM inbox.message m JOIN inbox.subject_position p USING (tenant, source, subject)
         WHERE m.id = %(id)s AND m.status IN ('RECEIVED', 'FAILED')
    ), ahead AS ({ahead}
    ), found AS MATERIALIZED (
        SELECT a.*, coalesce(a.before, x.id) AS behind
          FROM ahead a
          LEFT JOIN inbox.message x ON x.id = a.processing AND x.id <> a.id AND x.status = 'PROCESSING'
    ), decided AS MATERIALIZED (
        SELECT f.*,
               CASE WHEN f.behind IS NOT NULL THEN coalesce(f.held_since, now())
                    WHEN f.missing IS NOT NULL THEN greatest(f.updated_at, coalesce(f.gap_since, now())) END AS since,
               {waits} AS waits
          FROM found f
    ), answered AS (
        SELECT d.*, CASE WHEN d.since IS NULL THEN 'FREE'
                         WHEN d.behind IS NULL AND d.since + make_interval(secs => %(gap)s) <= now() THEN 'GAP'
                         ELSE 'HELD' END AS answer
          FROM decided d
    ), held AS (
        UPDATE inbox.message m
           SET held_behind = d.behind, held_since = d.since,
               due_at = CASE WHEN d.answer <> 'HELD' THEN coalesce(m.due_at, now())
                             WHEN d.behind IS NOT NULL THEN NULL
                             ELSE d.since + make_interval(secs => %(gap)s) END,
               dispatched_at = CASE WHEN d.answer <> 'HELD' THEN m.dispatched_at END
          FROM answered d
         WHERE m.id = d.id AND (d.answer = 'HELD' OR m.held_since IS DISTINCT FROM d.since OR m.held_behind IS NOT NULL)
    ), place AS (
        UPDATE inbox.subject_position p SET last = d.moved, gap_since = d.waits
          FROM answered d
         WHERE (d.moved IS DISTINCT FROM d.stored OR d.waits IS DISTINCT FROM d.gap_since)
           AND p.tenant = d.tenant AND p.source = d.source AND p.subject = d.subject
    )
    SELECT answer, missing FROM answered"""

# In order of arrival: behind the row just before that is open or parked.
DECIDE_ARRIVAL = Statement(
    "decide by arrival",
    Decision,
    _DECIDE.format(
        last="p.last",
        waits="f.gap_since",
        ahead=f"""
        SELECT me.*, NULL::bigint AS missing, me.last AS moved, b.id AS before
          FROM me
          LEFT JOIN LATERAL (
               SELECT b.id FROM inbox.message b
                WHERE {_SUBJECT.format(m="b", me="me")} AND b.id < me.id AND (b.closed_at IS NULL OR b.parked)
                ORDER BY b.id DESC LIMIT 1) b ON true""",
    ),
)

# By sequence: behind the next lower number that is open or parked; only without one, the first number above the last
# applied that no row has is looked for, and missing. A row that is DEAD and not parked fills its number. Where the
# source's order was another once, the subject begins at its lowest number that is open or parked, and the position
# moves to a number that was applied meanwhile: none below it is waited for.
DECIDE_SEQUENCE = Statement(
    "decide by sequence",
    Decision,
    _DECIDE.format(
        last=f"""coalesce(p.last, (
               SELECT s.sequence - 1 FROM inbox.message s
                WHERE {_SUBJECT.format(m="s", me="m")}
                  AND s.sequence IS NOT NULL AND (s.closed_at IS NULL OR s.parked)
                ORDER BY s.sequence LIMIT 1))""",
        waits="""
               CASE WHEN f.behind IS NOT NULL THEN f.gap_since
                    WHEN f.missing IS NOT NULL THEN coalesce(f.gap_since, now())
                    WHEN f.sequence > f.last THEN NULL ELSE f.gap_since END""",
        ahead=f"""
        SELECT me.*, CASE WHEN c.sequence IS NULL THEN g.missing ELSE h.missing END AS missing,
               greatest(me.last, c.sequence) AS moved, b.id AS before
          FROM me
          LEFT JOIN LATERAL (
               SELECT b.id FROM inbox.message b
                WHERE {_SUBJECT.format(m="b", me="me")}
                  AND b.sequence > me.last AND b.sequence < me.sequence AND (b.closed_at IS NULL OR b.parked)
                ORDER BY b.sequence DESC LIMIT 1) b ON true
          LEFT JOIN LATERAL ({_GAPS.format(last="me.last", condition=" AND b.id IS NULL")} LIMIT 1) g ON true
          LEFT JOIN LATERAL (
               SELECT s.sequence FROM inbox.message s
                WHERE {_SUBJECT.format(m="s", me="me")}
                  AND g.missing IS NOT NULL AND s.sequence > g.missing AND s.sequence < me.sequence
                  AND s.status = 'COMPLETED'
                ORDER BY s.sequence DESC LIMIT 1) c ON true
          LEFT JOIN LATERAL (
               {_GAPS.format(last="c.sequence", condition=" AND c.sequence IS NOT NULL")} LIMIT 1) h ON true""",
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

# A parked row holds nobody any more, and what waited behind it did not wait for a gap; where a generation is given, of
# that one alone.
UNPARK = Statement(
    "unpark",
    Fenced,
    f"""
    WITH unparked AS (
        UPDATE inbox.message SET parked = false, last_code = coalesce(%(code)s, last_code), updated_at = now(),
               last_reason = coalesce(%(reason)s, last_reason)
         WHERE id = %(id)s AND parked AND (%(generation)s::int IS NULL OR generation = %(generation)s)
        RETURNING *
    ), place AS (
        UPDATE inbox.subject_position p SET gap_since = NULL
          FROM unparked u WHERE {_SUBJECT.format(m="p", me="u")} AND p.gap_since IS NOT NULL
    )
    SELECT id FROM unparked""",
)


@dataclass(frozen=True)
class Missing:
    """Numbers of a subject that no row has, from ``missing`` to ``until``."""

    missing: int
    until: int


# What is missing before a row, the lowest first.
READ_MISSING = Statement(
    "read missing",
    Missing,
    f"""
    SELECT g.*
      FROM (SELECT m.*, p.last FROM inbox.message m JOIN inbox.subject_position p USING (tenant, source, subject)
             WHERE m.id = %(id)s) me, LATERAL ({_GAPS.format(last="me.last", condition="")} LIMIT %(most)s) g""",
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

# What another order held, as the source's was once, is asked again: whoever is held behind one that does not go before
# it by this order, or that is closed. Rows that somebody has locked are left for the next time.
RESUME = Statement(
    "resume",
    Fenced,
    """
    UPDATE inbox.message SET due_at = now(), held_behind = NULL, held_since = NULL, dispatched_at = NULL
     WHERE id IN (
           SELECT m.id FROM inbox.message m
            WHERE m.source = %(source)s AND m.closed_at IS NULL AND m.held_since IS NOT NULL
              AND CASE WHEN m.held_behind IS NULL THEN %(order)s <> 'sequence'
                       ELSE NOT EXISTS (
                            SELECT FROM inbox.message b
                             WHERE b.id = m.held_behind AND %(order)s <> 'none'
                               AND (b.status = 'PROCESSING' OR (b.closed_at IS NULL OR b.parked)
                                    AND CASE WHEN %(order)s = 'sequence' THEN b.sequence < m.sequence
                                             ELSE b.id < m.id END)) END
              FOR UPDATE SKIP LOCKED)
    RETURNING id""",
)

# A try that began while its source had no order takes its subject's place, unless a try has it.
ADOPT = Statement(
    "adopt",
    Fenced,
    f"""
    INSERT INTO inbox.subject_position AS p (tenant, source, subject, processing)
    SELECT DISTINCT ON (m.tenant, m.subject) m.tenant, m.source, m.subject, m.id
      FROM inbox.message m
     WHERE m.source = %(source)s AND m.closed_at IS NULL AND m.status = 'PROCESSING' AND m.subject IS NOT NULL
       AND NOT EXISTS (SELECT FROM inbox.subject_position o JOIN inbox.message x ON x.id = o.processing
                        WHERE {_SUBJECT.format(m="o", me="m")} AND x.status = 'PROCESSING')
     ORDER BY m.tenant, m.subject, m.id
    ON CONFLICT (tenant, source, subject) DO UPDATE SET processing = excluded.processing
     WHERE NOT EXISTS (SELECT FROM inbox.message x WHERE x.id = p.processing AND x.status = 'PROCESSING')
    RETURNING processing AS id""",
)
