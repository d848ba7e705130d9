"""The SQL of redelivery where a source may wish to send a message again: its editions (spec section 9)."""

from inbox.store.engine import Statement
from inbox.store.statements import REDRIVEN, WITHDRAWN, Accepted, Fenced

_KEY = "tenant = %(tenant)s AND source = %(source)s AND message_id = %(message_id)s"
_NEWEST = f"SELECT * FROM inbox.message WHERE {_KEY} ORDER BY edition DESC LIMIT 1"

# Redeliveries of one ID are decided one after the other: two wishes at once are one edition, and a duplicate of it.
LOCK_KEY = Statement(
    "lock key",
    Fenced,
    """
    SELECT 0::bigint AS id FROM pg_advisory_xact_lock(
        hashtextextended(concat_ws(chr(31), 'inbox', %(tenant)s::text, %(source)s::text, %(message_id)s::text), 0))""",
)

# A redrive changes who may go: its subject first (the lock order). Other redeliveries wait for nobody of the subject.
LOCK_DEAD_SUBJECT = Statement(
    "lock dead subject",
    Fenced,
    f"""
    INSERT INTO inbox.subject_position AS p (tenant, source, subject)
    SELECT n.tenant, n.source, n.subject FROM ({_NEWEST}) n WHERE n.status = 'DEAD' AND n.subject IS NOT NULL
    ON CONFLICT (tenant, source, subject) DO UPDATE SET last = p.last WHERE false
    RETURNING 0::bigint AS id""",
)

# What the newest edition says can no longer change. It is not held by the duplicate of an older one, which waits for
# that one's try, whose end makes due whoever is next of its subject: the newest, say.
LOCK_NEWEST = Statement(
    "lock newest",
    Fenced,
    f"""
    SELECT m.id FROM inbox.message m, ({_NEWEST}) n
     WHERE m.id = n.id
       AND NOT EXISTS (
           SELECT FROM inbox.message e
            WHERE e.tenant = n.tenant AND e.source = n.source AND e.message_id = n.message_id AND e.id <> n.id
              AND e.payload_sha256 = %(sha256)s AND n.payload_sha256 <> %(sha256)s
              AND e.delivered_at > now() - make_interval(secs => %(resend_after)s))
       FOR NO KEY UPDATE OF m""",
)

# A redelivery of a message that has an edition at least. With the content of the newest one, which is DEAD, it
# redrives that. With the content of any edition, soon after that was last delivered, it is its duplicate. Else it
# redrives a DEAD newest one with its own content, and is a wish otherwise, for a new edition. A redriven row takes the
# body as it came now, into the table that has no days: the day of its receipt may have no partition left.
REDELIVER = Statement(
    "redeliver",
    Accepted,
    f"""
    WITH editions AS (
        SELECT * FROM inbox.message WHERE {_KEY}
    ), newest AS (
        SELECT * FROM editions ORDER BY edition DESC LIMIT 1
    ), same AS (
        SELECT e.id FROM editions e, newest n
         WHERE e.payload_sha256 = %(sha256)s AND NOT (n.status = 'DEAD' AND n.payload_sha256 = %(sha256)s)
           AND e.delivered_at > now() - make_interval(secs => %(resend_after)s)
         ORDER BY e.edition DESC LIMIT 1
    ), repeated AS (
        UPDATE inbox.message m SET duplicates = m.duplicates + 1, delivered_at = now()
          FROM same s WHERE m.id = s.id
        RETURNING m.*
    ), redriven AS (
        UPDATE inbox.message m
           SET {REDRIVEN},
               payload_sha256 = %(sha256)s, delivered_at = now()
          FROM newest n WHERE m.id = n.id AND m.status = 'DEAD' AND NOT EXISTS (SELECT FROM same)
        RETURNING m.*
    ), withdrawn AS (
        {WITHDRAWN}
    ), replaced AS (
        DELETE FROM inbox.payload p USING redriven d WHERE p.message = d.id AND p.received_at = d.received_at
    ), kept AS (
        INSERT INTO inbox.payload_kept AS k (message, received_at, content_type, body)
        SELECT id, received_at, %(content_type)s, %(body)s FROM redriven
        ON CONFLICT (message) DO UPDATE SET content_type = excluded.content_type, body = excluded.body, key_id = NULL
    ), wished AS (
        INSERT INTO inbox.message (tenant, source, message_id, edition, type, subject, sequence, payload_sha256,
                                   max_tries, workflow_id, traceparent, due_at, resend_of)
        SELECT n.tenant, n.source, n.message_id, n.edition + 1, %(type)s || '.resend', %(subject)s, %(sequence)s,
               %(sha256)s, %(max_tries)s, %(edition_id)s || (n.edition + 1), %(traceparent)s, now(), n.id
          FROM newest n WHERE n.status <> 'DEAD' AND NOT EXISTS (SELECT FROM same)
        RETURNING *
    ), body AS (
        INSERT INTO inbox.payload (message, received_at, content_type, body)
        SELECT id, received_at, %(content_type)s, %(body)s FROM wished
    )
    SELECT NOT was AS created, id, edition, status, workflow_id, received_at, last_code, last_reason, outcome
      FROM (SELECT true AS was, * FROM repeated UNION ALL SELECT false, * FROM redriven
            UNION ALL SELECT false, * FROM wished) met""",
)
