"""What the database itself guarantees, whoever writes: states, keys, invariants, cheap updates (spec sections 3, 15)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import Connection, errors, sql
from psycopg.rows import dict_row

from deploy.dev.ports import choose
from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from inbox.states import CLOSED, EDGES, ReportKind, ReportState, Status
from inbox.store.engine import one
from inbox.store.migrate import newest_revision
from inbox.store.statements import ACCEPT, CLAIM, FAIL
from tests.conftest import ROOT, TEMPLATE
from tests.support.waiting import eventually

# What the CHECKs ask of a row in each state.
COLUMNS: dict[Status, str] = {
    Status.RECEIVED: "closed_at = NULL, dead_at = NULL, outcome = NULL",
    Status.PROCESSING: "closed_at = NULL, dead_at = NULL, outcome = NULL",
    Status.FAILED: "closed_at = NULL, dead_at = NULL, outcome = NULL, last_code = 'CODE'",
    Status.COMPLETED: "closed_at = now(), dead_at = NULL, outcome = '{}', due_at = NULL",
    Status.DEAD: "closed_at = now(), dead_at = now(), outcome = NULL, due_at = NULL, last_code = 'CODE'",
}
INSERT = """
    INSERT INTO inbox.message (source, message_id, type, subject, payload_sha256, max_tries, workflow_id, tries)
    VALUES ('s', %s, 't', 'p', sha256('x'), 5, %s, 1) RETURNING id"""

ATTEMPT = "INSERT INTO inbox.attempt (message, number, generation, began_at, ended_at, code, reason)"
REPORT = "INSERT INTO inbox.report (message, number, source, kind, code, reason, workflow_id)"


@contextmanager
def database(postgres: Postgres, name: str, template: str) -> Iterator[str]:
    """Make a database for as long as it is needed; yield its URL."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
        yield f"{postgres.url.rpartition('/')[0]}/{name}"
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def schema_url(postgres: Postgres) -> Iterator[str]:
    """A migrated database for the module; its tests roll back what they did."""
    with database(postgres, "schema", TEMPLATE) as url:
        yield url


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    """A database that nobody migrated."""
    with database(postgres, "unmigrated", "template1") as url:
        yield url


@pytest.fixture
def db(schema_url: str) -> Iterator[Connection[dict[str, Any]]]:
    with psycopg.connect(schema_url, row_factory=dict_row) as connection:
        yield connection
        connection.rollback()


def insert(db: Connection[dict[str, Any]], message_id: str = "1", status: Status = Status.RECEIVED) -> int:
    """Insert a row in this state; a state is a matter of UPDATE, so that it is reached by edges."""
    row = db.execute(INSERT, (message_id, f"inbox/s/{message_id}")).fetchone()
    assert row
    path = {
        Status.RECEIVED: [],
        Status.PROCESSING: [Status.PROCESSING],
        Status.FAILED: [Status.PROCESSING, Status.FAILED],
        Status.COMPLETED: [Status.PROCESSING, Status.COMPLETED],
        Status.DEAD: [Status.DEAD],
    }[status]
    for step in path:
        db.execute(f"UPDATE inbox.message SET status = '{step}', {COLUMNS[step]} WHERE id = %s", (row["id"],))
    return int(row["id"])


def refused(db: Connection[dict[str, Any]], statement: str, *parameters: Any) -> psycopg.Error | None:
    """Run a statement in a savepoint and take it back; return the error that refused it."""
    try:
        with db.transaction(force_rollback=True):
            db.execute(statement, parameters)
    except psycopg.Error as error:
        return error
    return None


def update(db: Connection[dict[str, Any]], row: int, assignments: str) -> psycopg.Error | None:
    return refused(db, f"UPDATE inbox.message SET {assignments} WHERE id = %s", row)


# States


def test_exactly_the_edges_of_the_state_machine_are_allowed(db: Connection[dict[str, Any]]) -> None:
    allowed = set()
    for old, new in product(Status, Status):
        if old is new:
            continue
        row = insert(db, f"{old}-{new}", old)
        # A redrive is the one edge that needs a generation of its own; the others are tried without and with.
        tried = [update(db, row, f"status = '{new}', generation = generation + {n}, {COLUMNS[new]}") for n in (0, 1)]
        for error in tried:
            assert error is None or isinstance(error, errors.CheckViolation)
        if None in tried:
            allowed.add((old, new))
        else:
            assert all(f"no edge from {old} to {new}" in str(error) for error in tried)
    assert allowed == {(old, new) for old, new in EDGES if old is not new}


@pytest.mark.parametrize("status", list(Status))
def test_a_row_may_change_within_its_state(db: Connection[dict[str, Any]], status: Status) -> None:
    row = insert(db, status=status)
    assert update(db, row, f"status = '{status}', duplicates = duplicates + 1, tries = tries + 1") is None


def test_a_claim_may_follow_a_claim(db: Connection[dict[str, Any]]) -> None:
    assert (Status.PROCESSING, Status.PROCESSING) in EDGES
    row = insert(db, status=Status.PROCESSING)
    assert update(db, row, "status = 'PROCESSING', tries = tries + 1") is None


@pytest.mark.parametrize("step", [0, 2])
def test_a_redrive_begins_exactly_one_generation(db: Connection[dict[str, Any]], step: int) -> None:
    row = insert(db, status=Status.DEAD)
    error = update(db, row, f"status = 'RECEIVED', generation = generation + {step}, {COLUMNS[Status.RECEIVED]}")
    assert isinstance(error, errors.CheckViolation)
    assert "a redrive begins a generation" in str(error)
    assert update(db, row, f"status = 'RECEIVED', generation = generation + 1, {COLUMNS[Status.RECEIVED]}") is None


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("column", ["tries", "generation"])
def test_tries_and_generation_never_go_down(db: Connection[dict[str, Any]], status: Status, column: str) -> None:
    row = insert(db, status=status)
    db.execute("UPDATE inbox.message SET generation = 2 WHERE id = %s", (row,))
    error = update(db, row, f"{column} = {column} - 1")
    assert isinstance(error, errors.CheckViolation)
    assert "never go down" in str(error)
    assert update(db, row, f"{column} = {column} + 1") is None


@pytest.mark.parametrize("change", ["tenant = 'x'", "source = 'x'", "message_id = 'x'", "edition = 2"])
def test_a_key_never_changes(db: Connection[dict[str, Any]], change: str) -> None:
    error = update(db, insert(db), change)
    assert isinstance(error, errors.CheckViolation)
    assert "its key never changes" in str(error)


# Keys


def test_a_key_is_there_once(db: Connection[dict[str, Any]]) -> None:
    columns = "tenant, source, message_id, edition"
    insert(db)
    again = f"""
        INSERT INTO inbox.message ({columns}, type, payload_sha256, max_tries, workflow_id)
        SELECT {columns}, 'other', sha256('other'), 1, 'other' FROM inbox.message"""
    error = refused(db, again)
    assert isinstance(error, errors.UniqueViolation)
    assert error.diag.constraint_name == "message_key"
    for other in ("'x', source, message_id, edition", "tenant, 'x', message_id, edition"):
        assert refused(db, again.replace(f"SELECT {columns}", f"SELECT {other}")) is None
    for other in ("tenant, source, 'x', edition", "tenant, source, message_id, 2"):
        assert refused(db, again.replace(f"SELECT {columns}", f"SELECT {other}")) is None


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO inbox.payload (message, received_at, content_type, body) VALUES (%s, now(), 't', '')",
        "INSERT INTO inbox.payload_kept (message, received_at, content_type, body) VALUES (%s, now(), 't', '')",
        f"{ATTEMPT} VALUES (%s, 1, 1, now(), now(), 'C', '')",
        f"{REPORT} VALUES (%s, 1, 's', 'DEAD', 'C', '', 'w')",
    ],
)
def test_what_belongs_to_a_message_needs_it_is_there_once_and_goes_with_it(
    db: Connection[dict[str, Any]], statement: str
) -> None:
    assert isinstance(refused(db, statement, -1), errors.ForeignKeyViolation)
    row = insert(db)
    db.execute(statement, (row,))
    assert isinstance(refused(db, statement, row), errors.UniqueViolation)
    db.execute("DELETE FROM inbox.message WHERE id = %s", (row,))
    table = statement.split()[2]
    left = db.execute(f"SELECT count(*) AS n FROM {table} WHERE message = %s", (row,)).fetchone()
    assert left == {"n": 0}


def test_the_message_that_was_sent_again_may_be_forgotten(db: Connection[dict[str, Any]]) -> None:
    first, again = insert(db, "1"), insert(db, "2")
    assert isinstance(update(db, again, "resend_of = -1"), errors.ForeignKeyViolation)
    db.execute("UPDATE inbox.message SET resend_of = %s WHERE id = %s", (first, again))
    db.execute("DELETE FROM inbox.message WHERE id = %s", (first,))
    assert db.execute("SELECT resend_of FROM inbox.message").fetchall() == [{"resend_of": None}]


# Checks: constraint → a statement that breaks it and no other

LONG = "repeat('한', {})"


def fresh(**changes: str) -> str:
    """Return an INSERT of a message with these SQL values, for what an UPDATE may not touch."""
    values = {
        "source": "'s'",
        "message_id": "'new'",
        "type": "'t'",
        "payload_sha256": "sha256('x')",
        "max_tries": "5",
        "workflow_id": "'w'",
    } | changes
    return f"INSERT INTO inbox.message ({', '.join(values)}) VALUES ({', '.join(values.values())})"


def report(**changes: str) -> str:
    """Return an INSERT of a report of the row with these SQL values."""
    values = {"number": "1", "source": "'s'", "kind": "'DEAD'", "code": "'C'", "reason": "''", "workflow_id": "'w'"}
    values = {"message": "(SELECT max(id) FROM inbox.message)"} | values | changes
    return f"INSERT INTO inbox.report ({', '.join(values)}) VALUES ({', '.join(values.values())})"


BROKEN: dict[str, list[str]] = {
    "message_status_check": [fresh(status="'OPEN'"), fresh(status="''")],
    "message_tenant_check": [fresh(tenant=LONG.format(22))],
    "message_source_check": [fresh(source="''"), fresh(source=LONG.format(86))],
    "message_message_id_check": [fresh(message_id="''"), fresh(message_id=LONG.format(171))],
    "message_edition_check": [fresh(edition="0")],
    "message_type_check": [fresh(type="''"), fresh(type=LONG.format(86))],
    "message_subject_check": [fresh(subject="''"), fresh(subject=LONG.format(171))],
    "message_sequence_check": [fresh(sequence="-1")],
    "message_payload_sha256_check": [fresh(payload_sha256="'x'"), fresh(payload_sha256="sha512('x')")],
    "message_generation_check": [fresh(generation="0")],
    "message_check": [fresh(tries_before="1"), fresh(tries_before="-1"), fresh(tries="2", tries_before="3")],
    "message_max_tries_check": [fresh(max_tries="0")],
    "message_workflow_id_check": [fresh(workflow_id="repeat('w', 901)")],
    "message_report_state_check": [fresh(report_state="'LATE'")],
    "closed_means_closed": [
        fresh(closed_at="now()"),
        fresh(status="'COMPLETED'", outcome="'{}'"),
        fresh(status="'DEAD'", last_code="'C'", dead_at="now()"),
    ],
    "dead_means_dead": [
        fresh(dead_at="now()"),
        fresh(status="'DEAD'", last_code="'C'", closed_at="now()"),
        fresh(status="'COMPLETED'", outcome="'{}'", closed_at="now()", dead_at="now()"),
    ],
    "closed_is_not_due": [fresh(status="'COMPLETED'", outcome="'{}'", closed_at="now()", due_at="now()")],
    "completed_has_outcome": [
        fresh(outcome="'{}'"),
        fresh(status="'COMPLETED'", closed_at="now()"),
        fresh(status="'DEAD'", last_code="'C'", closed_at="now()", dead_at="now()", outcome="'{}'"),
    ],
    "failed_has_code": [fresh(status="'FAILED'"), fresh(status="'DEAD'", closed_at="now()", dead_at="now()")],
    "held_is_waiting": [
        fresh(status="'PROCESSING'", held_since="now()"),
        fresh(status="'COMPLETED'", outcome="'{}'", closed_at="now()", held_since="now()"),
    ],
    "held_behind_since": [fresh(held_behind="1")],
    "parked_is_dead": [
        fresh(parked="true"),
        fresh(status="'COMPLETED'", outcome="'{}'", closed_at="now()", parked="true"),
    ],
    "attempt_number_check": [f"{ATTEMPT} SELECT id, 0, 1, now(), now(), 'C', '' FROM inbox.message"],
    "report_state_check": [report(state="'LATE'")],
    "report_number_check": [report(number="0")],
    "report_kind_check": [report(kind="'LATE'")],
    "report_closed_means_closed": [report(closed_at="now()"), report(state="'GIVEN_UP'")],
    "report_sent_means_sent": [report(sent_at="now()"), report(state="'SENT'", closed_at="now()")],
    "report_closed_is_not_due": [report(state="'WITHDRAWN'", closed_at="now()", due_at="now()")],
}


def test_every_check_has_a_violation_below(db: Connection[dict[str, Any]]) -> None:
    found = db.execute(
        "SELECT DISTINCT c.conname FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid"
        " WHERE c.contype = 'c' AND t.relnamespace = 'inbox'::regnamespace AND NOT t.relispartition"
    ).fetchall()
    assert {row["conname"] for row in found} == set(BROKEN)


@pytest.mark.parametrize(
    ("constraint", "statement"), [(name, text) for name, all_of in BROKEN.items() for text in all_of]
)
def test_a_check_refuses_what_violates_it(db: Connection[dict[str, Any]], constraint: str, statement: str) -> None:
    insert(db)
    error = refused(db, statement)
    assert isinstance(error, errors.CheckViolation)
    assert error.diag.constraint_name == constraint


@pytest.mark.parametrize(
    "statement", [fresh(), fresh(tenant=LONG.format(21)), report(), fresh(workflow_id="repeat('w', 900)")]
)
def test_what_violates_nothing_is_taken(db: Connection[dict[str, Any]], statement: str) -> None:
    insert(db)
    assert refused(db, statement) is None


@pytest.mark.parametrize("column", ["source", "message_id", "type", "payload_sha256", "max_tries", "workflow_id"])
def test_a_message_is_never_half_there(db: Connection[dict[str, Any]], column: str) -> None:
    assert isinstance(refused(db, fresh(**{column: "NULL"})), errors.NotNullViolation)


def test_the_states_of_the_code_are_those_of_the_database(db: Connection[dict[str, Any]]) -> None:
    for state in ReportState:
        closed = {"closed_at": "now()"} if state not in (ReportState.OWED, ReportState.SENDING) else {}
        sent = {"sent_at": "now()"} if state is ReportState.SENT else {}
        insert(db, f"report-{state}")
        assert refused(db, report(state=f"'{state}'", **closed, **sent)) is None
        assert refused(db, fresh(report_state=f"'{state}'")) is None
    for kind in ReportKind:
        assert refused(db, report(kind=f"'{kind}'")) is None
    assert set(COLUMNS) == set(Status)
    assert {status for status, columns in COLUMNS.items() if "closed_at = now()" in columns} == CLOSED


# Names that others rely on

KEYED = "message_id edition"
NAMES = {
    "inbox.message": (
        "id status tenant source message_id edition type subject sequence payload_sha256 generation tries last_code"
        " last_reason next_try_at due_at starts dispatched_at held_behind held_since parked duplicates delivered_at"
        " workflow_id run_id traceparent outcome report_state resend_of received_at updated_at closed_at dead_at"
    ),
    "inbox.payload": "message received_at body",
    "inbox.payload_kept": "message received_at body",
    "inbox.attempt": "message number generation began_at ended_at code reason error_class worker run_id trace_id",
    "inbox.report": "message number kind state code reason tries due_at sent_at",
    "inbox.subject_position": "tenant source subject processing last",
    "survey.recipient": KEYED,
    "survey.schedule": KEYED,
    "survey.assignment": KEYED,
    "survey.task": KEYED,
    "reporting.counter": "name value",
}


@pytest.mark.parametrize("table", NAMES)
def test_tables_and_columns_have_the_names_of_the_contract(db: Connection[dict[str, Any]], table: str) -> None:
    schema, _, name = table.partition(".")
    found = db.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        " ORDER BY ordinal_position",
        (schema, name),
    ).fetchall()
    columns = [row["column_name"] for row in found]
    assert set(NAMES[table].split()) - set(columns) == set()
    if table == "inbox.message":
        assert columns[:2] == ["id", "status"], "the status stands right after the id, for the operator's eye"


@pytest.mark.parametrize("table", [table for table in NAMES if table.startswith("survey.")])
def test_a_bundles_rows_are_unique_by_message_and_edition(db: Connection[dict[str, Any]], table: str) -> None:
    found = db.execute(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'u'",
        (table,),
    ).fetchall()
    assert [row["text"] for row in found] == ["UNIQUE (tenant, source, message_id, edition)"]


# Cheap updates


def test_no_index_uses_what_every_state_change_changes(db: Connection[dict[str, Any]]) -> None:
    found = db.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'inbox' AND tablename = 'message'"
    ).fetchall()
    assert len(found) > 1
    for row in found:
        keys = row["indexdef"].partition("USING")[2].replace("(", " ").replace(")", " ").replace(",", " ").split()
        assert not {"status", "tries", "updated_at"} & set(keys), row["indexname"]


async def test_claims_and_failures_stay_hot(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("VACUUM inbox.message")
        ids = [await accepted(connection, number) for number in range(50)]
        before = await updates(connection)
        for number in ids:
            assert (await claimed(connection, number)).answer == "CLAIMED"
        await after(connection, before, lambda total, hot: total == 50 and hot >= 40)
        before = await updates(connection)
        for number in ids:
            failed = await one(connection, FAIL, FAILURE | {"id": number})
            assert failed is not None
            assert failed.status == Status.FAILED
        await after(connection, before, lambda total, hot: total == 50 and hot >= 40)


FAILURE = {
    "generation": 1,
    "tries": 1,
    "code": "CODE",
    "reason": "because",
    "told": "because",
    "error_class": None,
    "non_retryable": False,
    "delay": 60.0,
    "began_at": datetime(2026, 1, 1, tzinfo=UTC),
    "reports": True,
    "park": False,
}


async def accepted(connection: psycopg.AsyncConnection[Any], number: int) -> int:
    row = await one(
        connection,
        ACCEPT,
        {
            "tenant": "",
            "source": "hospital",
            "message_id": f"hot-{number}",
            "type": "survey.send",
            "subject": f"{number}",
            "sequence": None,
            "ordered": True,
            "position": None,
            "sha256": b"0" * 32,
            "max_tries": 5,
            "workflow_id": f"inbox/hospital/hot-{number}",
            "traceparent": None,
            "content_type": "application/json",
            "body": b"{}",
            "resend": False,
        },
    )
    assert row is not None
    assert row.created
    return row.id


async def claimed(connection: psycopg.AsyncConnection[Any], number: int) -> Any:
    return await one(
        connection,
        CLAIM,
        {
            "id": number,
            "max_tries": 5,
            "worker": "1@test",
            "run_id": "run",
            "first_run_id": "run",
            "activity": "1",
            "attempt": 1,
            "longest": 30.0,
            "asked": 1,
            "ordered": True,
            "sequenced": False,
            "began_at": datetime(2026, 1, 1, tzinfo=UTC),
        },
    )


UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'inbox.message'::regclass"


async def updates(connection: psycopg.AsyncConnection[Any]) -> tuple[int, int]:
    """Return how many updates the table has seen, and how many of them were HOT."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    found = await (await connection.execute(UPDATES)).fetchone()
    assert found
    return found[0], found[1]


async def after(connection: psycopg.AsyncConnection[Any], before: tuple[int, int], accept: Any) -> None:
    async def look() -> tuple[int, int]:
        total, hot = await updates(connection)
        return total - before[0], hot - before[1]

    await eventually(look, lambda seen: accept(*seen), limit=10)


# Partitions


def test_payloads_have_partitions_for_today_and_a_week_ahead(db: Connection[dict[str, Any]]) -> None:
    made = db.execute("SELECT inbox.make_payload_partitions(7) AS made").fetchone()
    assert made in ({"made": 0}, {"made": 1})  # the migration made them; a day may have begun since
    again = db.execute("SELECT inbox.make_payload_partitions(7) AS made").fetchone()
    assert again == {"made": 0}
    row = insert(db)
    for days in range(8):
        db.execute(
            "INSERT INTO inbox.payload (message, received_at, content_type, body)"
            " VALUES (%s, now() + make_interval(days => %s), 't', '')",
            (row, days),
        )
    found = db.execute(
        "SELECT tableoid::regclass::text AS partition, count(*) AS n FROM inbox.payload WHERE message = %s GROUP BY 1",
        (row,),
    ).fetchall()
    assert len(found) == 8
    assert {line["n"] for line in found} == {1}


def test_missing_partitions_are_made_once_and_counted(db: Connection[dict[str, Any]]) -> None:
    db.execute("SELECT inbox.make_payload_partitions(7)")
    counts = [db.execute("SELECT inbox.make_payload_partitions(%s) AS made", (days,)).fetchone() for days in (9, 9, 10)]
    assert counts == [{"made": 2}, {"made": 0}, {"made": 1}]


async def test_processes_that_make_partitions_at_once_make_each_once(database_url: str) -> None:
    async def make() -> int:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            row = await (await connection.execute("SELECT inbox.make_payload_partitions(20)")).fetchone()
            assert row
            return int(row[0])

    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("SELECT inbox.make_payload_partitions(19)")
    assert sum(await asyncio.gather(*(make() for _ in range(8)))) in (1, 2)  # 2 where a day began meanwhile


# inbox migrate


def migrate(url: str, *arguments: str, temporal: str = "127.0.0.1:1") -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("INBOX_", "TEMPORAL_", "PG"))}
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "inbox", "migrate", *arguments],
        cwd=ROOT,
        env=environment | {"DATABASE_URL": url, "TEMPORAL_ADDRESS": temporal},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def shape(url: str) -> list[Any]:
    """Return all that the migrations made: columns, constraints, indexes, functions, triggers."""
    with psycopg.connect(url) as connection:
        return connection.execute("""
            SELECT 'column', table_schema || '.' || table_name || '.' || column_name,
                   concat_ws(' ', data_type, is_nullable, column_default)
              FROM information_schema.columns WHERE table_schema IN ('inbox', 'survey', 'reporting')
            UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
              FROM pg_constraint WHERE connamespace::regnamespace::text IN ('inbox', 'survey', 'reporting')
            UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname IN ('inbox', 'survey', 'reporting')
            UNION ALL SELECT 'function', proname, prosrc FROM pg_proc WHERE pronamespace = 'inbox'::regnamespace
            UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
            ORDER BY 1, 2, 3""").fetchall()


def test_two_deploys_may_migrate_at_once_and_again(empty_url: str) -> None:
    processes = [migrate(empty_url, "--database-only") for _ in range(2)]
    said = f"database at revision {newest_revision()}\n"
    assert [ended(process)[:2] for process in processes] == [(0, said)] * 2
    made = shape(empty_url)
    assert len(made) > 100
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(INSERT, ("kept", "inbox/s/kept"))
    assert ended(migrate(empty_url, "--database-only"))[:2] == (0, said)
    assert shape(empty_url) == made
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT message_id FROM inbox.message").fetchall() == [("kept",)]


def test_search_attributes_are_registered_once(database_url: str, temporal_server: Temporal) -> None:
    for _ in range(2):
        code, out, err = ended(migrate(database_url, temporal=temporal_server.address))
        assert (code, err) == (0, "")
        last = out.splitlines()[-1]
    assert last == "search attributes registered: all were there"


@pytest.mark.parametrize("away", ["Postgres", "Temporal"])
def test_migrate_says_which_service_is_away(database_url: str, away: str) -> None:
    port = choose(["none"])["none"]
    url = f"postgresql://PLANTED:PLANTED@127.0.0.1:{port}/PLANTED" if away == "Postgres" else database_url
    code, _, err = ended(migrate(url, temporal=f"127.0.0.1:{port}"))
    assert code == 3
    assert err.startswith(f"inbox: {away} gives no answer")
    assert len(err.splitlines()) == 1
    assert "PLANTED" not in err
