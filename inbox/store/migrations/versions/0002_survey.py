"""The tables of the survey_send handler (spec sections 10, 15)."""

from alembic import op

revision = "0002"
down_revision = "0001"

# Each row is unique by message and edition: double schedules once broke the old system's batches.
KEY = """
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text NOT NULL,
    source     text NOT NULL,
    message_id text NOT NULL,
    edition    integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
"""
UNIQUE = "UNIQUE (tenant, source, message_id, edition)"


def upgrade() -> None:
    """Create schema ``survey``."""
    op.execute("SET LOCAL lock_timeout = '3s'")
    op.execute("CREATE SCHEMA survey")
    op.execute(f"""
        CREATE TABLE survey.recipient (
            {KEY}
            patno    text NOT NULL,
            name     text,
            mobile   text,
            dept     text,
            guest_id text NOT NULL,
            {UNIQUE})""")
    op.execute("CREATE INDEX recipient_created_at ON survey.recipient (created_at)")  # asked by the audit
    op.execute(f"""
        CREATE TABLE survey.schedule (
            {KEY}
            recipient bigint NOT NULL REFERENCES survey.recipient (id),
            send_at   timestamptz NOT NULL,
            state     text NOT NULL CHECK (state IN ('PLANNED', 'NOT_SENT', 'SUPERSEDED')),
            {UNIQUE})""")
    # However often a message is sent again, one send of it is planned.
    op.execute("""
        CREATE UNIQUE INDEX schedule_planned ON survey.schedule (tenant, source, message_id)
            WHERE state = 'PLANNED'""")
    op.execute(f"""
        CREATE TABLE survey.assignment (
            {KEY}
            recipient  bigint NOT NULL REFERENCES survey.recipient (id),
            form       text NOT NULL,
            survey_no  text NOT NULL,
            group_id   text NOT NULL,
            consents   text[] NOT NULL,
            {UNIQUE})""")
    op.execute(f"""
        CREATE TABLE survey.task (
            {KEY}
            assignment  bigint NOT NULL REFERENCES survey.assignment (id),
            schedule    bigint NOT NULL REFERENCES survey.schedule (id),
            answered_at timestamptz,
            {UNIQUE})""")


def downgrade() -> None:
    """Drop schema ``survey``."""
    op.execute("DROP SCHEMA survey CASCADE")
