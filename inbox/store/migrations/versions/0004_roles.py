"""Who may do what: four group roles, for logins to be members of (spec section 12).

The owner of the schema migrates; nothing else runs as the owner. Roles belong to the whole cluster, so they are
made only where they are missing, and stay when a database goes. Columns are named where that says something: who
may not write ``status`` cannot move a message, whatever else is broken. Partitions of the payload get no grants:
they are reached through ``inbox.payload`` alone. Identity columns need none on their sequences.

A statement that needs more gets it in a migration of its own; tests/integration/test_roles.py holds this matrix
against the catalog.
"""

import sqlalchemy as sa
from alembic import op

from inbox.errors import MigrationRefused

revision = "0004"
down_revision = "0003"

ROLES = ("inbox_ingest", "inbox_worker", "inbox_operator", "inbox_reader")
INSUFFICIENT_PRIVILEGE = "42501"

# What accept gives a row: no status, and so always RECEIVED.
ACCEPTED = (
    "tenant, source, message_id, type, subject, sequence, payload_sha256, max_tries, workflow_id, traceparent, due_at"
)
DELIVERED = "duplicates, delivered_at"
DISPATCHED = "due_at, starts, dispatched_at, run_id"
HELD = "held_behind, held_since"
# Of a report that is owed: no state, and so always OWED.
OWED = "message, number, source, kind, code, reason, workflow_id, traceparent, due_at"
# All but the key and what was received.
STATE = """status, generation, tries, tries_before, max_tries, last_code, last_reason, next_try_at, held_behind,
    held_since, parked, claimed_by, claimed_run_id, claimed_activity, claimed_attempt, claim_began_at, outcome,
    report_state, updated_at, closed_at, dead_at"""
# No tries and no outcome: an operator can neither forge a try nor complete a message by hand.
OPERATED = """status, generation, tries_before, last_code, last_reason, next_try_at, due_at, dispatched_at, run_id,
    held_behind, held_since, parked, report_state, updated_at, closed_at, dead_at, subject"""
REPORTED = "state, tries, last_fault, next_try_at, updated_at, sent_at, closed_at"
SENT_AGAIN = "state, next_try_at, due_at, dispatched_at, run_id, updated_at, sent_at, closed_at"

GRANTS = f"""
GRANT USAGE ON SCHEMA inbox TO {", ".join(ROLES)};
GRANT SELECT ON inbox.alembic_version, inbox.message, inbox.report TO {", ".join(ROLES)};
GRANT EXECUTE ON FUNCTION inbox.make_payload_partitions(integer) TO inbox_ingest, inbox_worker;

GRANT INSERT ({ACCEPTED}), UPDATE ({DELIVERED}, {DISPATCHED}, {HELD}) ON inbox.message TO inbox_ingest;
GRANT SELECT, INSERT, UPDATE (last, gap_since) ON inbox.subject_position TO inbox_ingest;
GRANT INSERT ON inbox.payload TO inbox_ingest;
GRANT UPDATE ({DISPATCHED}) ON inbox.report TO inbox_ingest;

-- The whole row on insert: a source in direct mode is stored COMPLETED.
-- A redelivery that redrives a DEAD message brings its content.
GRANT INSERT, UPDATE ({DELIVERED}, {DISPATCHED}, {STATE}, payload_sha256) ON inbox.message TO inbox_worker;
GRANT SELECT, INSERT, DELETE ON inbox.payload TO inbox_worker;
GRANT SELECT, INSERT, UPDATE (content_type, key_id, body) ON inbox.payload_kept TO inbox_worker;
GRANT INSERT ON inbox.attempt TO inbox_worker;
GRANT INSERT ({OWED}), UPDATE ({DISPATCHED}, {REPORTED}) ON inbox.report TO inbox_worker;
GRANT SELECT, INSERT, UPDATE (processing, last, gap_since) ON inbox.subject_position TO inbox_worker;
GRANT USAGE ON SCHEMA survey, reporting TO inbox_worker;
GRANT SELECT, INSERT ON survey.recipient, survey.schedule, survey.assignment, survey.task TO inbox_worker;
GRANT UPDATE (state) ON survey.schedule TO inbox_worker;
GRANT SELECT, INSERT, UPDATE (value) ON reporting.counter TO inbox_worker;

GRANT UPDATE ({OPERATED}) ON inbox.message TO inbox_operator;
GRANT SELECT, DELETE, UPDATE (key_id, body) ON inbox.payload, inbox.payload_kept TO inbox_operator;
GRANT INSERT ({OWED}), UPDATE ({SENT_AGAIN}) ON inbox.report TO inbox_operator;
GRANT INSERT ON inbox.attempt TO inbox_operator; -- the line of a try that a discard cuts off
GRANT INSERT, UPDATE (processing, last, gap_since) ON inbox.subject_position TO inbox_operator;

GRANT SELECT ON inbox.attempt, inbox.subject_position TO inbox_operator, inbox_reader;
"""

# Two databases of one cluster may be migrated at once: whoever comes second finds the role there, in one of two ways.
CREATE = """
DO $$ BEGIN
    CREATE ROLE {role} NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""


def _create_missing() -> None:
    known = set(op.get_bind().scalars(sa.text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:r)"), {"r": [*ROLES]}))
    for role in sorted(set(ROLES) - known):
        try:
            op.execute(CREATE.format(role=role))
        except sa.exc.ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
                raise
            raise MigrationRefused(
                f"this user may not create roles: let one who may run “CREATE ROLE {role} NOLOGIN”, and so for each"
                f" of {', '.join(ROLES)}, then run inbox migrate again"
            ) from None


def upgrade() -> None:
    """Make the roles that are missing, and grant each what its processes need."""
    op.execute("SET LOCAL lock_timeout = '3s'")
    _create_missing()
    op.execute(GRANTS)


def downgrade() -> None:
    """Take the grants back; the roles stay, since other databases of the cluster may use them."""
    for schema in ("inbox", "survey", "reporting"):
        op.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {', '.join(ROLES)}")
        op.execute(f"REVOKE ALL ON SCHEMA {schema} FROM {', '.join(ROLES)}")
    op.execute(f"REVOKE ALL ON FUNCTION inbox.make_payload_partitions(integer) FROM {', '.join(ROLES)}")
