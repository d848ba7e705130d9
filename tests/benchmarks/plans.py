"""``python -m tests.benchmarks.plans``: the plans of the statements on a full database, for docs/plans.md."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.rows import namedtuple_row

from deploy.dev.postgres import Postgres
from inbox.store.engine import Statement
from inbox.store.migrate import migrate
from inbox.store.order import DECIDE, LOCK_SUBJECT, RELEASE
from inbox.store.statements import ACCEPT, CLAIM, COMPLETE, FAIL, TAKE_FENCE
from tests.support.plans import explain, fill, questions
from tests.support.rows import acceptance, claim, completion, failure

UPDATES = """
    SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
     WHERE schemaname = 'inbox' AND relname IN ('message', 'subject_position')"""


def show(connection: Connection[Any], held: int, *, texts: bool) -> None:
    """Print one line for each statement and kind of plan, and the whole plan where it is asked for."""
    print(
        "| statement | plan | rows | most rows in one node | shared buffers | ms | indexes | sorts, sequential scans |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for question in questions(connection, held):
        for generic in (False, True):
            plan = explain(connection, question, generic=generic)
            bad = [f"{node['Node Type']} of {node['Actual Rows']:.0f}" for node in plan.sorts] + sorted(plan.sequential)
            kind = "generic" if generic else "custom"
            cells = [plan.name, kind, plan.rows, plan.most, plan.buffers, f"{plan.milliseconds:.2f}"]
            print("|", " | ".join(map(str, cells)), "|", ", ".join(plan.indexes), "|", ", ".join(bad) or "none", "|")
        if texts:
            whole(connection, question.statement, question.params)


def whole(connection: Connection[Any], statement: Statement[Any], params: Any) -> None:
    """Print a plan in words."""
    with connection.transaction(force_rollback=True):
        for (line,) in connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement.sql}", params):
            print("   ", re.sub(r" {2,}", lambda found: found[0], line))


def counted(connection: Connection[Any]) -> dict[str, tuple[int, int]]:
    """Return the updates of a table so far, and how many of them were HOT."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return {row[0]: (row[1], row[2]) for row in connection.execute(UPDATES)}


def hot(connection: Connection[Any], messages: int) -> None:
    """Take messages through their states, one connection, a subject each; print how many updates were HOT."""
    before = counted(connection)
    steps: dict[str, dict[str, list[int]]] = {}

    def note(step: str) -> None:
        nonlocal before
        now = counted(connection)
        for table, (total, heap) in now.items():
            sums = steps.setdefault(step, {}).setdefault(table, [0, 0])
            sums[0] += total - before[table][0]
            sums[1] += heap - before[table][1]
        before = now

    def one(statement: Statement[Any], params: dict[str, Any]) -> Any:
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(statement.sql, params).fetchone()

    rows = [one(ACCEPT, acceptance(f"hot{n}", "a", f"hot{n}")).id for n in range(messages)]
    note("accept")
    for attempt in (1, 2):
        for row in rows:
            with connection.transaction():
                work = claim(row, attempt=attempt)
                connection.execute(LOCK_SUBJECT.sql, work)
                connection.execute(DECIDE["arrival"].sql, work)
                assert one(CLAIM, work).answer == "CLAIMED"
        note("claim")
        if attempt == 2:
            break
        for row in rows:
            with connection.transaction():
                connection.execute(LOCK_SUBJECT.sql, {"id": row})
                assert one(FAIL, failure(row)).status == "FAILED"
                connection.execute(RELEASE["arrival"].sql, {"id": row})
        note("fail")
    for row in rows:
        with connection.transaction():
            fence = {"id": row, "generation": 1, "tries": 2}
            connection.execute(LOCK_SUBJECT.sql, fence)
            xact = one(TAKE_FENCE, fence).xact
            assert one(COMPLETE, completion(row, xact, tries=2))
            connection.execute(RELEASE["arrival"].sql, fence)
    note("complete")
    print("| state change | updates of message | HOT | updates of subject_position | HOT |")
    print("| --- | --- | --- | --- | --- |")
    for step, tables in steps.items():
        print(f"| {step} | {tables['message'][0]} | {tables['message'][1]} |", end="")
        print(f" {tables['subject_position'][0]} | {tables['subject_position'][1]} |")


def main() -> None:
    """Make a server of its own, fill it, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--closed", type=int, default=1_000_000)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--held", type=int, default=5_000)
    parser.add_argument("--texts", action="store_true", help="print the whole plans too")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            migrate(server.url)
            with psycopg.connect(server.url, autocommit=True) as connection:
                began = time.monotonic()
                connection.execute("SET synchronous_commit = off")
                fill(connection, wanted.closed, wanted.open, wanted.held)
                size = connection.execute(
                    sql.SQL(
                        "SELECT count(*), pg_size_pretty(pg_total_relation_size('inbox.message')) FROM inbox.message"
                    )
                ).fetchone()
                print(f"{size} filled in {time.monotonic() - began:.0f} s, {connection.info.server_version}")
                show(connection, wanted.held, texts=wanted.texts)
                hot(connection, 500)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
