"""The inbox: messages, payloads, attempts, reports, positions of subjects (spec sections 3, 9, 11, 15)."""

from alembic import op

revision = "0001"
down_revision = None

MESSAGE = """
CREATE TABLE inbox.message (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status         text NOT NULL DEFAULT 'RECEIVED'
                   CHECK (status IN ('RECEIVED', 'PROCESSING', 'FAILED', 'COMPLETED', 'DEAD')),
    tenant         text NOT NULL DEFAULT '' CHECK (octet_length(tenant) <= 64),
    source         text NOT NULL CHECK (source <> '' AND octet_length(source) <= 255),
    message_id     text NOT NULL CHECK (message_id <> '' AND octet_length(message_id) <= 512),
    edition        integer NOT NULL DEFAULT 1 CHECK (edition >= 1),
    type           text NOT NULL CHECK (type <> '' AND octet_length(type) <= 255),
    subject        text CHECK (subject <> '' AND octet_length(subject) <= 512),
    sequence       bigint CHECK (sequence >= 0),
    payload_sha256 bytea NOT NULL CHECK (octet_length(payload_sha256) = 32),
    generation     integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    tries          integer NOT NULL DEFAULT 0,
    tries_before   integer NOT NULL DEFAULT 0 CHECK (tries_before BETWEEN 0 AND tries),
    max_tries      integer NOT NULL CHECK (max_tries >= 1),
    last_code      text,
    last_reason    text,
    next_try_at    timestamptz,
    due_at         timestamptz,
    starts         integer NOT NULL DEFAULT 0,
    dispatched_at  timestamptz,
    held_behind    bigint,
    held_since     timestamptz,
    parked         boolean NOT NULL DEFAULT false,
    duplicates     integer NOT NULL DEFAULT 0,
    delivered_at   timestamptz NOT NULL DEFAULT now(),
    workflow_id    text NOT NULL CHECK (octet_length(workflow_id) <= 900),
    run_id         text,
    traceparent    text,
    claimed_by     text,
    claimed_run_id text,
    claimed_activity text,
    claimed_attempt integer,
    claim_began_at timestamptz,
    outcome        jsonb,
    report_state   text CHECK (report_state IN ('OWED', 'SENDING', 'SENT', 'GIVEN_UP', 'WITHDRAWN')),
    resend_of      bigint REFERENCES inbox.message (id) ON DELETE SET NULL,
    received_at    timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    closed_at      timestamptz,
    dead_at        timestamptz,
    CONSTRAINT message_key UNIQUE (tenant, source, message_id, edition),
    CONSTRAINT closed_means_closed CHECK ((closed_at IS NOT NULL) = (status IN ('COMPLETED', 'DEAD'))),
    CONSTRAINT dead_means_dead CHECK ((dead_at IS NOT NULL) = (status = 'DEAD')),
    CONSTRAINT closed_is_not_due CHECK (closed_at IS NULL OR due_at IS NULL),
    CONSTRAINT completed_has_outcome CHECK ((outcome IS NOT NULL) = (status = 'COMPLETED')),
    CONSTRAINT failed_has_code CHECK (status NOT IN ('FAILED', 'DEAD') OR last_code IS NOT NULL),
    CONSTRAINT held_is_waiting CHECK (held_since IS NULL OR status IN ('RECEIVED', 'FAILED')),
    CONSTRAINT held_behind_since CHECK (held_behind IS NULL OR held_since IS NOT NULL),
    CONSTRAINT parked_is_dead CHECK (NOT parked OR status = 'DEAD')
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
"""

# No key or predicate uses status, tries or updated_at: claims and failures then stay HOT (design: 0 of 200 else).
INDEXES = """
CREATE INDEX message_due ON inbox.message (source, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX message_order ON inbox.message (tenant, source, subject, id)
    WHERE subject IS NOT NULL AND (closed_at IS NULL OR parked);
CREATE INDEX message_number ON inbox.message (tenant, source, subject, sequence)
    WHERE sequence IS NOT NULL AND (closed_at IS NULL OR parked);
CREATE INDEX message_open ON inbox.message (source, type, id) WHERE closed_at IS NULL;
CREATE INDEX message_parked ON inbox.message (source, type, id) WHERE parked;
CREATE INDEX message_dead ON inbox.message (source, dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX message_subject ON inbox.message (tenant, source, subject, id);
CREATE INDEX message_sequence ON inbox.message (tenant, source, subject, sequence) WHERE sequence IS NOT NULL;
CREATE INDEX message_closed ON inbox.message (source, closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX message_resend_of ON inbox.message (resend_of) WHERE resend_of IS NOT NULL;
"""

# A second guard under the statements: whoever updates a row by hand cannot leave the state machine either.
EDGES = """
CREATE FUNCTION inbox.refuse_edge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.tries < OLD.tries OR NEW.generation < OLD.generation THEN
        RAISE EXCEPTION 'message %: tries and generation never go down', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.tenant, NEW.source, NEW.message_id, NEW.edition)
        IS DISTINCT FROM (OLD.tenant, OLD.source, OLD.message_id, OLD.edition) THEN
        RAISE EXCEPTION 'message %: its key never changes', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('RECEIVED', 'PROCESSING'), ('RECEIVED', 'DEAD'),
        ('PROCESSING', 'COMPLETED'), ('PROCESSING', 'FAILED'), ('PROCESSING', 'DEAD'),
        ('FAILED', 'PROCESSING'), ('FAILED', 'DEAD'),
        ('DEAD', 'RECEIVED')) THEN
        RAISE EXCEPTION 'message %: no edge from % to %', OLD.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.status = 'DEAD' AND NEW.status = 'RECEIVED' AND NEW.generation <> OLD.generation + 1 THEN
        RAISE EXCEPTION 'message %: a redrive begins a generation', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_edge
    BEFORE UPDATE OF status, tries, generation, tenant, source, message_id, edition ON inbox.message
    FOR EACH ROW EXECUTE FUNCTION inbox.refuse_edge();
"""

# A row that is stored as COMPLETED before its bundle is written has JSON's null for an outcome until that is done. It
# cannot be committed so, by whoever ends the transaction, and however.
HALF = """
CREATE FUNCTION inbox.refuse_half() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM inbox.message WHERE id = NEW.id AND outcome = 'null') THEN
        RAISE EXCEPTION 'message %: its bundle is not finished', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse_half
    AFTER INSERT ON inbox.message DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.outcome = 'null') EXECUTE FUNCTION inbox.refuse_half();
"""

PAYLOAD = """
CREATE TABLE inbox.payload (
    message      bigint NOT NULL REFERENCES inbox.message (id) ON DELETE CASCADE,
    received_at  timestamptz NOT NULL,
    content_type text NOT NULL,
    key_id       text,
    body         bytea NOT NULL,
    PRIMARY KEY (message, received_at)
) PARTITION BY RANGE (received_at);
CREATE TABLE inbox.payload_kept (
    message      bigint PRIMARY KEY REFERENCES inbox.message (id) ON DELETE CASCADE,
    received_at  timestamptz NOT NULL,
    content_type text NOT NULL,
    key_id       text,
    body         bytea NOT NULL
);
"""

# SECURITY DEFINER: ingest and worker may make partitions and nothing else that needs the owner's rights.
# The advisory lock keeps two processes that start together from making the same partition.
PARTITIONS = """
CREATE FUNCTION inbox.make_payload_partitions(days integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day date;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('inbox.make_payload_partitions'));
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(0, days) AS n LOOP
        IF to_regclass(format('inbox.payload_%s', to_char(day, 'YYYYMMDD'))) IS NULL THEN
            EXECUTE format('CREATE TABLE inbox.%I PARTITION OF inbox.payload FOR VALUES FROM (%L) TO (%L)',
                'payload_' || to_char(day, 'YYYYMMDD'), day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
REVOKE ALL ON FUNCTION inbox.make_payload_partitions(integer) FROM PUBLIC;
SELECT inbox.make_payload_partitions(7);
"""

ATTEMPT = """
CREATE TABLE inbox.attempt (
    message     bigint NOT NULL REFERENCES inbox.message (id) ON DELETE CASCADE,
    number      integer NOT NULL CHECK (number >= 1),
    generation  integer NOT NULL,
    began_at    timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    code        text NOT NULL,
    reason      text NOT NULL,
    error_class text,
    worker      text,
    run_id      text,
    trace_id    text,
    PRIMARY KEY (message, number)
)
"""

REPORT = """
CREATE TABLE inbox.report (
    id            bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    state         text NOT NULL DEFAULT 'OWED'
                  CHECK (state IN ('OWED', 'SENDING', 'SENT', 'GIVEN_UP', 'WITHDRAWN')),
    message       bigint NOT NULL REFERENCES inbox.message (id) ON DELETE CASCADE,
    number        integer NOT NULL CHECK (number >= 1),
    source        text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('DEAD', 'NOT_SENT', 'CANNOT_RESEND', 'CORRECTION')),
    code          text NOT NULL,
    reason        text NOT NULL,
    tries         integer NOT NULL DEFAULT 0,
    last_fault    text,
    next_try_at   timestamptz,
    due_at        timestamptz,
    starts        integer NOT NULL DEFAULT 0,
    dispatched_at timestamptz,
    workflow_id   text NOT NULL,
    run_id        text,
    traceparent   text,
    owed_at       timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    sent_at       timestamptz,
    closed_at     timestamptz,
    PRIMARY KEY (message, number),
    CONSTRAINT report_closed_means_closed
        CHECK ((closed_at IS NOT NULL) = (state IN ('SENT', 'GIVEN_UP', 'WITHDRAWN'))),
    CONSTRAINT report_sent_means_sent CHECK ((sent_at IS NOT NULL) = (state = 'SENT')),
    CONSTRAINT report_closed_is_not_due CHECK (closed_at IS NULL OR due_at IS NULL)
);
CREATE INDEX report_due ON inbox.report (source, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX report_open ON inbox.report (source, kind, id) WHERE closed_at IS NULL;
CREATE INDEX report_given_up ON inbox.report (source, id) WHERE state = 'GIVEN_UP';
"""

POSITION = """
CREATE TABLE inbox.subject_position (
    tenant     text NOT NULL,
    source     text NOT NULL,
    subject    text NOT NULL,
    processing bigint,
    last       bigint,
    gap_since  timestamptz,
    PRIMARY KEY (tenant, source, subject)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
"""


def upgrade() -> None:
    """Create the schema; no waiting behind a long transaction, an operator starts it again instead."""
    op.execute("SET LOCAL lock_timeout = '3s'")
    op.execute("CREATE SCHEMA IF NOT EXISTS inbox")  # env.py made it for the version table
    for statement in (MESSAGE, INDEXES, EDGES, HALF, PAYLOAD, PARTITIONS, ATTEMPT, REPORT, POSITION):
        op.execute(statement)


def downgrade() -> None:
    """There is no way back from the first revision but dropping the record by hand."""
    raise NotImplementedError
