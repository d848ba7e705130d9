"""The SQL of a report's life: OWED by a message's statement, then SENDING, then SENT or GIVEN_UP (spec section 7)."""

from dataclasses import dataclass

from inbox.store.engine import Statement
from inbox.store.statements import Fenced

# The lock order: the message's row before its report's.
LOCK_MESSAGE_OF = Statement(
    "lock message",
    Fenced,
    """
    SELECT m.id FROM inbox.message m JOIN inbox.report r ON r.message = m.id
     WHERE r.id = %(id)s FOR NO KEY UPDATE OF m""",
)


@dataclass(frozen=True)
class Sending:
    """A report about to be sent, with the message that it is about."""

    id: int
    tries: int
    workflow_id: str
    kind: str
    code: str
    reason: str
    source: str
    message_id: str
    type: str


# SENDING is committed before the first call: from here on upstream may have heard it. No row: it is closed.
BEGIN_REPORT = Statement(
    "begin report",
    Sending,
    """
    WITH sending AS (
        UPDATE inbox.report SET state = 'SENDING', tries = tries + 1, updated_at = now(), next_try_at = NULL
         WHERE id = %(id)s AND closed_at IS NULL
        RETURNING *
    ), shown AS (
        UPDATE inbox.message m SET report_state = 'SENDING' FROM sending s
         WHERE m.id = s.message AND s.tries = 1
           AND NOT EXISTS (SELECT FROM inbox.report r WHERE r.message = s.message AND r.number > s.number)
    )
    SELECT s.id, s.tries, s.workflow_id, s.kind, s.code, s.reason, m.source, m.message_id, m.type
      FROM sending s JOIN inbox.message m ON m.id = s.message""",
)

# Opens the report of a closed message that was given up, where nothing was said or is to be said after it: due at once,
# under its own key. SENDING, where upstream may have heard it: a redrive withdraws what nobody heard. No row: it is not
# so.
SEND_AGAIN = Statement(
    "send again",
    Fenced,
    """
    WITH again AS (
        UPDATE inbox.report r
           SET state = CASE WHEN r.tries = 0 THEN 'OWED' ELSE 'SENDING' END, closed_at = NULL, next_try_at = NULL,
               due_at = now(), dispatched_at = NULL, run_id = NULL, updated_at = now()
          FROM inbox.message m
         WHERE m.id = %(id)s AND m.closed_at IS NOT NULL AND r.message = m.id AND r.state = 'GIVEN_UP'
           AND NOT EXISTS (SELECT FROM inbox.report n WHERE n.message = m.id AND n.number > r.number)
        RETURNING r.message, r.state
    )
    UPDATE inbox.message m SET report_state = a.state FROM again a WHERE m.id = a.message
    RETURNING m.id""",
)

# The wait before the next call, for operators and for dispatch, which leaves a waiting report alone.
DELAY_REPORT = Statement(
    "delay report",
    Fenced,
    """
    UPDATE inbox.report
       SET last_fault = %(fault)s, updated_at = now(), next_try_at = now() + make_interval(secs => %(delay)s)
     WHERE id = %(id)s AND tries = %(tries)s AND closed_at IS NULL
    RETURNING id""",
)

# Closes a report as SENT or GIVEN_UP, and makes the message's next one due: reports of one message go in order.
CLOSE_REPORT = Statement(
    "close report",
    Fenced,
    """
    WITH closed AS (
        UPDATE inbox.report
           SET state = %(state)s, closed_at = now(), updated_at = now(), due_at = NULL, next_try_at = NULL,
               sent_at = CASE WHEN %(state)s = 'SENT' THEN now() END
         WHERE id = %(id)s AND closed_at IS NULL
        RETURNING *
    ), next AS (
        UPDATE inbox.report r SET due_at = now(), dispatched_at = NULL
         WHERE r.id = (SELECT n.id FROM inbox.report n JOIN closed c ON n.message = c.message
                        WHERE n.closed_at IS NULL AND n.id <> c.id ORDER BY n.number LIMIT 1)
    ), shown AS (
        UPDATE inbox.message m SET report_state = c.state FROM closed c
         WHERE m.id = c.message
           AND NOT EXISTS (SELECT FROM inbox.report r WHERE r.message = c.message AND r.number > c.number)
    )
    SELECT id FROM closed""",
)


@dataclass(frozen=True)
class Told:
    """What became of a report."""

    state: str


# What a report says of itself, read as it is now.
READ_REPORT = Statement("read report", Told, "SELECT state FROM inbox.report WHERE id = %(id)s")
