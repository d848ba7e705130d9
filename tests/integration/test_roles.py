"""Each part of the inbox does its work with its own role in Postgres, and can do nothing else (spec section 12)."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

import inbox.store
from deploy.dev.logins import PARTS, logins
from deploy.dev.postgres import Postgres
from inbox.store.due import Queue
from inbox.store.engine import Statement
from inbox.store.migrate import newest_revision
from tests.support.processes import ROOT, answering, environment, process
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually

ALL = "*"
DISPATCHED = "due_at starts dispatched_at run_id"
OWED = "message number source kind code reason workflow_id traceparent due_at"
STATE = (
    "status generation tries_before last_code last_reason next_try_at held_behind held_since parked report_state"
    " updated_at closed_at dead_at"
)
READS = {"SELECT": ALL}
ADDS = {"SELECT": ALL, "INSERT": ALL}
PAYLOAD = {"SELECT": ALL, "UPDATE": "key_id body", "DELETE": ALL}

# What each part may do, by column; all the rest has to be refused.
MATRIX: dict[str, dict[str, dict[str, str]]] = {
    "inbox.alembic_version": dict.fromkeys(PARTS, READS),
    "inbox.message": {
        "ingest": {
            "SELECT": ALL,
            "INSERT": "tenant source message_id type subject sequence payload_sha256 max_tries workflow_id traceparent"
            " due_at",
            "UPDATE": f"duplicates delivered_at {DISPATCHED} held_behind held_since",
        },
        "worker": {
            "SELECT": ALL,
            "INSERT": ALL,
            "UPDATE": f"duplicates delivered_at {DISPATCHED} {STATE} tries max_tries claimed_by claimed_run_id"
            " claimed_activity claimed_attempt claim_began_at outcome payload_sha256",
        },
        "operator": {"SELECT": ALL, "UPDATE": f"{STATE} due_at dispatched_at run_id subject"},
        "reader": READS,
    },
    "inbox.payload": {"ingest": {"INSERT": ALL}, "worker": ADDS | {"DELETE": ALL}, "operator": PAYLOAD},
    "inbox.payload_kept": {"worker": ADDS | {"UPDATE": "content_type key_id body"}, "operator": PAYLOAD},
    "inbox.attempt": {"worker": {"INSERT": ALL}, "operator": READS | {"INSERT": ALL}, "reader": READS},
    "inbox.report": {
        "ingest": {"SELECT": ALL, "UPDATE": DISPATCHED},
        "worker": {
            "SELECT": ALL,
            "INSERT": OWED,
            "UPDATE": f"{DISPATCHED} state tries last_fault next_try_at updated_at sent_at closed_at",
        },
        "operator": {
            "SELECT": ALL,
            "INSERT": OWED,
            "UPDATE": "state next_try_at due_at dispatched_at run_id updated_at sent_at closed_at",
        },
        "reader": READS,
    },
    "inbox.subject_position": {
        "ingest": ADDS | {"UPDATE": "last gap_since"},
        "worker": ADDS | {"UPDATE": "processing last gap_since"},
        "operator": ADDS | {"UPDATE": "processing last gap_since"},
        "reader": READS,
    },
    "survey.recipient": {"worker": ADDS},
    "survey.schedule": {"worker": ADDS | {"UPDATE": "state"}},
    "survey.assignment": {"worker": ADDS},
    "survey.task": {"worker": ADDS},
    "reporting.counter": {"worker": ADDS | {"UPDATE": "value"}},
}
# Which part runs which statement.
DISPATCHING = "ingest worker"
RUN_BY = {
    "accept": "ingest worker",
    "make partitions": "ingest worker",
    "read revision": "ingest worker operator reader",
    "read rights": "ingest worker operator reader",
    "read record": "ingest operator reader",
    "read backlog": "ingest operator reader",
    "read chain": "worker",
    **dict.fromkeys(("list open", "list parked"), "operator reader"),
    "read standing": "worker operator",
    "read clock": "worker",
    "lock message": "worker operator",
    "set aside": "worker",
    "lock subject": "ingest worker operator",
    **{f"decide by {order}": "ingest worker" for order in ("arrival", "sequence")},
    **{f"release by {order}": "worker operator" for order in ("arrival", "sequence")},
    "lock key": "worker",
    "lock dead subject": "worker",
    "lock newest": "worker",
    "redeliver": "worker",
    **{f"{verb}, order {order}": "worker" for verb in ("look", "put") for order in ("none", "arrival", "sequence")},
    "make place": "worker",
    "lock place": "worker",
    "finish": "worker",
    **dict.fromkeys(("unpark", "accept gap", "make due", "read missing"), "worker operator"),
    "resume": "ingest worker",
    "adopt": "worker",
    "count behind by arrival": "worker",
    "count behind by sequence": "worker",
    "claim": "worker",
    "take fence": "worker",
    "complete": "worker",
    "fail": "worker",
    "bury": "worker operator",
    "redrive": "worker operator",
    "send again": "operator",
    "begin report": "worker",
    "read report": "worker",
    "delay report": "worker",
    "close report": "worker",
    **{f"find due sources of {what}": DISPATCHING for what in ("message", "report")},
    **{f"{verb} {what}": DISPATCHING for what in ("message", "report") for verb in ("lease", "mark", "put back")},
    **{f"read due {what}": DISPATCHING for what in ("message", "report")},
}
FUNCTIONS = {"inbox.make_payload_partitions": {"ingest", "worker"}}
SCHEMAS = {"inbox": set(PARTS), "survey": {"worker"}, "reporting": {"worker"}, "public": set(PARTS)}
OURS = "n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"


@pytest.fixture
def urls(database_url: str, tmp_path: Path) -> dict[str, str]:
    """The test's database, by each part's login."""
    return logins(database_url, tmp_path / "data")


def catalog(url: str, query: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as owner:
        return owner.execute(query).fetchall()


def tables(url: str) -> dict[str, list[tuple[str, str]]]:
    """Return every table of the database, partitions apart, with its columns and their types."""
    found: dict[str, list[tuple[str, str]]] = {}
    query = f"""SELECT n.nspname || '.' || c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
                  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND {OURS}
                 ORDER BY 1, a.attnum"""
    for table, column, kind in catalog(url, query):
        found.setdefault(table, []).append((column, kind))
    return found


def partitions(url: str) -> list[str]:
    query = "SELECT relid::text FROM pg_partition_tree('inbox.payload') WHERE isleaf"
    return [name for (name,) in catalog(url, query)]


def verbs(table: str, columns: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield verb, column and a statement that needs that right and no other, and touches no row."""
    for name, kind in columns:
        yield "SELECT", name, f"SELECT {name} FROM {table} WHERE false"
        yield (
            "INSERT",
            name,
            f"INSERT INTO {table} ({name}) OVERRIDING SYSTEM VALUE SELECT NULL::{kind} WHERE false",
        )
        yield "UPDATE", name, f"UPDATE {table} SET {name} = DEFAULT WHERE false"
    yield "DELETE", ALL, f"DELETE FROM {table} WHERE false"
    yield "TRUNCATE", ALL, f"TRUNCATE {table} CASCADE"


def works(connection: psycopg.Connection, statement: str) -> bool:
    """Try a statement and undo it; False where the right is missing, any other error is the test's."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
    except InsufficientPrivilege:
        return False
    return True


def test_every_table_and_function_of_the_database_is_in_the_matrix(database_url: str) -> None:
    assert set(tables(database_url)) == set(MATRIX)
    functions = catalog(
        database_url,
        "SELECT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        f" WHERE p.prorettype <> 'trigger'::regtype AND {OURS}",
    )
    assert {name for (name,) in functions} == set(FUNCTIONS)
    schemas = catalog(database_url, f"SELECT nspname FROM pg_namespace n WHERE {OURS}")
    assert {name for (name,) in schemas} == set(SCHEMAS)
    for table, parts in MATRIX.items():
        named = {name for rights in parts.values() for part in rights.values() for name in part.split()}
        assert named - {ALL} <= {name for name, _ in tables(database_url)[table]}, table


@pytest.mark.parametrize("part", PARTS)
def test_a_role_may_do_what_is_its_and_is_refused_everything_else(
    part: str, database_url: str, urls: dict[str, str]
) -> None:
    allowed, wanted = set(), set()
    tried = 0
    with psycopg.connect(urls[part], autocommit=True) as connection:
        for table, columns in tables(database_url).items():
            rights = MATRIX[table].get(part, {})
            for verb, column, statement in verbs(table, columns):
                tried += 1
                if works(connection, statement):
                    allowed.add((table, verb, column))
                granted = rights.get(verb, "").split()
                if column in granted or ALL in granted:
                    wanted.add((table, verb, column))
        for function, parts in FUNCTIONS.items():
            assert works(connection, f"SELECT {function}(0)") is (part in parts), function
        for schema, parts in SCHEMAS.items():
            used = connection.execute("SELECT has_schema_privilege(%s, 'USAGE')", [schema]).fetchone()
            assert used == (part in parts,), schema
            assert not works(connection, f"CREATE TABLE {schema}.mine ()"), schema
        for partition in partitions(database_url):
            assert not works(connection, f"SELECT FROM {partition}"), partition
            assert not works(connection, f"DELETE FROM {partition} WHERE false"), partition
        for (sequence,) in catalog(database_url, "SELECT schemaname || '.' || sequencename FROM pg_sequences"):
            assert not works(connection, f"SELECT nextval('{sequence}')"), sequence
    assert allowed == wanted
    assert tried > 300


def statements() -> list[Statement]:
    """Return every statement of inbox/store."""
    found = []
    for module in pkgutil.iter_modules(inbox.store.__path__, "inbox.store."):
        for value in vars(importlib.import_module(module.name)).values():
            parts = vars(value).values() if isinstance(value, Queue) else [value]
            parts = value.values() if isinstance(value, dict) else parts
            found += [part for part in parts if isinstance(part, Statement)]
    return found


def test_each_statement_has_the_rights_that_it_needs_in_every_part_that_runs_it(urls: dict[str, str]) -> None:
    assert {statement.name for statement in statements()} == set(RUN_BY)
    for part in PARTS:
        with psycopg.connect(urls[part], autocommit=True) as connection:
            for statement in statements():
                if part in RUN_BY[statement.name].split():
                    # The plan alone: rights are checked for it, and nothing is changed.
                    nothing = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.sql))
                    connection.execute(f"EXPLAIN {statement.sql}", nothing)


def test_a_login_of_the_local_stack_is_a_member_of_its_role_alone(
    database_url: str, urls: dict[str, str], tmp_path: Path
) -> None:
    assert logins(database_url, tmp_path / "data") == urls  # kept for the next start
    kept = tmp_path / "data/logins.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert set(json.loads(kept.read_text())) == set(PARTS)
    for part in PARTS:
        groups = catalog(
            urls[part],
            "SELECT r.rolname FROM pg_roles r WHERE pg_has_role(current_user, r.oid, 'MEMBER')"
            " AND r.rolname <> current_user",
        )
        assert groups == [(f"inbox_{part}",)]
        attributes = catalog(
            urls[part],
            "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls FROM pg_roles"
            f" WHERE rolname IN (current_user, 'inbox_{part}')",
        )
        assert attributes == [(False,), (False,)]
    assert catalog(database_url, "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'inbox\\_%' AND rolcanlogin") == [
        (0,)
    ]


async def test_a_partition_made_later_is_reached_through_the_parent_alone(stack: Stack, urls: dict[str, str]) -> None:
    await stack.open()
    await stack.legacy(survey())
    with psycopg.connect(urls["ingest"], autocommit=True) as ingest:
        ingest.execute("SELECT inbox.make_payload_partitions(7)")  # a day may have passed since the template's
        made = ingest.execute("SELECT inbox.make_payload_partitions(9)").fetchone()
        assert made == (2,)
        ingest.execute(
            "INSERT INTO inbox.payload (message, received_at, content_type, body)"
            " SELECT id, now() + interval '9 days', 'text/plain', 'x' FROM inbox.message"
        )
        newest = max(partitions(stack.url))
        assert not works(ingest, f"INSERT INTO {newest} SELECT * FROM {newest} WHERE false")
    later = "FROM inbox.payload WHERE received_at > now() + interval '8 days'"
    with psycopg.connect(urls["worker"], autocommit=True) as worker:
        assert worker.execute(f"SELECT body {later}").fetchall() == [(b"x",)]
        assert not works(worker, f"SELECT body FROM {newest}")
        assert not works(worker, "UPDATE inbox.payload SET body = body")
    with psycopg.connect(urls["operator"], autocommit=True) as operator:
        assert not works(operator, f"DELETE FROM {newest}")
        assert operator.execute(f"DELETE {later}").rowcount == 1


async def test_an_operator_completes_nothing_and_a_doors_row_is_received(stack: Stack, urls: dict[str, str]) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    by_hand = "UPDATE inbox.message SET status = 'PROCESSING'"
    with psycopg.connect(urls["operator"], autocommit=True) as operator:
        assert not works(operator, f"{by_hand}, tries = 1")
        operator.execute(by_hand)
        with pytest.raises(psycopg.errors.CheckViolation):  # COMPLETED needs an outcome, and that is the worker's
            operator.execute("UPDATE inbox.message SET status = 'COMPLETED', closed_at = now()")
    with psycopg.connect(urls["ingest"], autocommit=True) as ingest:
        assert not works(ingest, by_hand)
        assert not works(ingest, "INSERT INTO inbox.message (status, source) VALUES ('COMPLETED', 's')")


# The main job, each part on its own role


async def command(settings: dict[str, str], *arguments: str) -> tuple[int | None, str]:
    """Run ``inbox`` with these arguments to its end; return its exit code and what it said."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inbox", *arguments),
        env=settings,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await running.communicate()
    return running.returncode, said.decode()


async def test_the_main_job_runs_with_each_part_on_its_own_role(
    stack: Stack, urls: dict[str, str], tmp_path: Path
) -> None:
    stack.configure(tries=1)
    settings = environment(stack, tmp_path)
    logs = {part: tmp_path / f"{part}.log" for part in ("ingest", "worker")}
    operator = settings | {"DATABASE_URL": urls["operator"]}
    bad, good = survey(formCd="P-LATE"), survey()
    counted = event({"counter": "reports"}, source="report-producer", type="report.count", id="E-42")
    key = f"hospital/{bad['srvyDrawupNo']}"
    async with process(settings | {"DATABASE_URL": urls["worker"]}, "worker", log=logs["worker"]):
        async with (
            process(settings | {"DATABASE_URL": urls["ingest"]}, "serve", log=logs["ingest"]),
            httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", trust_env=False) as http,
        ):

            async def get(path: str) -> int:
                try:
                    headers = {"Authorization": f"Bearer {TOKENS['operator']}"}
                    return (await http.get(path, headers=headers)).status_code
                except httpx.HTTPError:
                    return 0

            async def post(path: str, body: dict, source: str, media: str = "application/json") -> int:
                headers = {"Authorization": f"Bearer {TOKENS[source]}", "Content-Type": media}
                return (await http.post(path, content=json.dumps(body), headers=headers)).status_code

            await eventually(lambda: get("/readyz"), lambda status: status == 200)
            assert await post("/legacy/survey-send", good, "hospital") == 200
            assert await post("/legacy/survey-send", good, "hospital") == 200
            assert await post("/legacy/survey-send", bad, "hospital") == 200
            assert await post("/messages", counted, "report-producer", "application/cloudevents+json") == 202
            assert (await stack.closed("E-42"))["outcome"] == {"value": 1}
            assert (await stack.closed(good["srvyDrawupNo"]))["status"] == "COMPLETED"
            assert (await stack.reported(bad["srvyDrawupNo"]))["status"] == "DEAD"
            assert await get("/backlog") == 200
            assert await get(f"/messages/{key}") == 200
        # ingest is gone: what follows is dispatched by the worker
        assert await command(operator, "redrive", key) == (0, f"{key}: due again\n")
        await eventually(lambda: stack.row(bad["srvyDrawupNo"]), lambda row: row["tries"] == 2)
        await stack.reported(bad["srvyDrawupNo"])
        form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
        await stack.hospital.control(forms={"P-LATE": form} | stack.hospital.forms)
        assert (await command(operator, "redrive", key))[0] == 0
        await eventually(lambda: stack.row(bad["srvyDrawupNo"]), lambda row: row["status"] == "COMPLETED")
        await stack.reported(bad["srvyDrawupNo"])
    assert [report["kind"] for report in await stack.reports(bad["srvyDrawupNo"])] == ["DEAD", "DEAD", "CORRECTION"]
    assert await stack.bundles(bad["srvyDrawupNo"]) == (1, 1, 1, 1)
    # nobody works here any more: an open row, that the operator discards
    await stack.open()
    left = survey()
    await stack.legacy(left)
    assert (await command(operator, "discard", f"hospital/{left['srvyDrawupNo']}", "--reason", "r"))[0] == 0
    row = await stack.row(left["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["report_state"]) == ("DEAD", "DISCARDED", "OWED")
    for log in logs.values():
        lines = log.read_text()
        assert '"INFO"' in lines
        assert '"ERROR"' not in lines, lines


@pytest.mark.parametrize("part", ["ingest", "reader"])
async def test_an_operators_work_is_refused_to_others(
    part: str, stack: Stack, urls: dict[str, str], tmp_path: Path
) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    settings = environment(stack, tmp_path, DATABASE_URL=urls[part])
    code, said = await command(settings, "discard", f"hospital/{message['srvyDrawupNo']}", "--reason", "r")
    assert (code, said) == (1, "inbox: this database user may not do that: InsufficientPrivilege 42501\n")
    assert (await stack.row(message["srvyDrawupNo"]))["status"] == "RECEIVED"


# Migrations


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Postgres]:
    """A cluster in which nothing was migrated, and so without the roles."""
    server = Postgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


def roles(url: str) -> list[str]:
    return [name for (name,) in catalog(url, "SELECT rolname FROM pg_roles WHERE rolname LIKE 'inbox\\_%' ORDER BY 1")]


async def test_an_owner_who_may_not_create_roles_is_told_so_and_goes_on_once_they_are_there(cluster: Postgres) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE plain LOGIN PASSWORD 'plain-secret'")
        admin.execute("CREATE DATABASE theirs OWNER plain")
    url = f"postgresql://plain:plain-secret@127.0.0.1:{cluster.port}/theirs"
    settings = {"DATABASE_URL": url, "PYTHONPATH": str(ROOT), "PATH": ""}
    code, said = await command(settings, "migrate", "--database-only")
    assert code == 1
    assert said == (
        "inbox: this user may not create roles: let one who may run “CREATE ROLE inbox_ingest NOLOGIN”, and so for each"
        " of inbox_ingest, inbox_worker, inbox_operator, inbox_reader, then run inbox migrate again\n"
    )
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        for part in PARTS:
            admin.execute(f"CREATE ROLE inbox_{part} NOLOGIN")
    assert await command(settings, "migrate", "--database-only") == (
        0,
        f"database at revision {newest_revision()}\n",
    )
    (made,) = re.findall(r"^```sql\n(CREATE ROLE.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    with psycopg.connect(cluster.url) as admin:  # what the README tells an administrator to do then
        admin.execute(made)
        members = (
            "SELECT pg_has_role('ingest', 'inbox_ingest', 'USAGE') AND pg_has_role('kim', 'inbox_operator', 'USAGE')"
        )
        assert admin.execute(members).fetchone() == (True,)


async def test_databases_of_one_cluster_that_are_migrated_at_once_share_the_roles(cluster: Postgres) -> None:
    names = [f"side{n}" for n in range(4)]
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE DATABASE {name}")
    base = cluster.url.rpartition("/")[0]
    found = await asyncio.gather(
        *(command(os.environ | {"DATABASE_URL": f"{base}/{n}"}, "migrate", "--database-only") for n in names)
    )
    assert set(found) == {(0, f"database at revision {newest_revision()}\n")}
    assert roles(cluster.url) == sorted(f"inbox_{part}" for part in PARTS)
    for name in names:
        granted = "SELECT has_table_privilege('inbox_reader', 'inbox.message', 'SELECT')"
        assert catalog(f"{base}/{name}", granted) == [(True,)]


async def test_ingest_refuses_to_start_where_a_source_asks_for_rights_that_its_login_has_not(
    stack: Stack, urls: dict[str, str], tmp_path: Path
) -> None:
    stack.configure(redelivery="resend")
    settings = environment(stack, tmp_path)
    log = tmp_path / "ingest.log"
    async with process(settings | {"DATABASE_URL": urls["ingest"]}, "serve", log=log) as ingest:
        assert await asyncio.wait_for(ingest.wait(), 60) == 1
    written = (tmp_path / "inbox.toml").read_text().splitlines()
    line = written.index('redelivery = "resend"') + 1
    assert log.read_text().splitlines()[-1] == (
        f"inbox: inbox.toml, line {line}: sources.hospital.redelivery:"
        " the database user needs the rights of a worker for it: GRANT inbox_worker TO its login"
    )
    async with process(settings | {"DATABASE_URL": urls["worker"]}, "serve", log=log) as ingest:
        message = survey()
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        async with httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", trust_env=False) as http:
            await answering(http)
            for content in (message, message | {"deptCd": "IM"}):
                answer = await http.post("/legacy/survey-send", json=content, headers=headers)
                assert answer.json()["duplicate"] is False
