"""The statements read what they need and no more, on a database with a past (tests/benchmarks has a larger one)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Connection, errors

from deploy.dev.postgres import Postgres
from inbox.store.order import LOCK_SUBJECT
from inbox.store.reads import PAGE
from inbox.store.statements import ACCEPT
from tests.conftest import TEMPLATE
from tests.integration.test_schema import database
from tests.support.plans import Plan, explain, fill, questions
from tests.support.rows import acceptance

HELD = 500
BY_KEY = {"message_pkey", "subject_position_pkey"}
NUMBERED = BY_KEY | {"message_number", "message_sequence"}

# What each may read of messages and positions, rows of one node at the most, and pages.
# A lease is for 50 rows, and moves each in every index; the count of a round ends at the window; the backlog is all.
EXPECTED: dict[str, tuple[set[str], int, int]] = {
    "claim, order arrival": (BY_KEY, 1, 40),
    "claim, order sequence": (BY_KEY, 1, 40),
    "claim, order none": ({"message_pkey"}, 1, 30),
    "fail, order arrival": ({"message_pkey"}, 1, 20),
    "fail, order sequence": ({"message_pkey"}, 1, 20),
    "fail, order none": ({"message_pkey"}, 1, 20),
    "lock subject": ({"message_pkey"}, 1, 15),
    "decide by arrival, first": (BY_KEY | {"message_order"}, 1, 20),
    "decide by arrival, middle": (BY_KEY | {"message_order"}, 1, 20),
    "decide by arrival, last": (BY_KEY | {"message_order"}, 1, 20),
    "decide by arrival, alone": (BY_KEY | {"message_order"}, 1, 20),
    "decide by sequence, first": (BY_KEY | {"message_number"}, 1, 20),
    "decide by sequence, middle": (BY_KEY | {"message_number"}, 1, 20),
    "decide by sequence, last": (BY_KEY | {"message_number"}, 1, 20),
    "decide by sequence, alone": (BY_KEY | {"message_number", "message_sequence"}, 1, 20),
    "decide by sequence, gap after dead ones": (BY_KEY | {"message_number", "message_sequence"}, HELD + 1, 60),
    "release by arrival": (BY_KEY | {"message_order"}, 1, 50),
    "release by sequence": (BY_KEY | {"message_number"}, 1, 50),
    "take fence": ({"message_pkey"}, 1, 10),
    "complete": ({"message_pkey"}, 1, 50),
    "find due sources": ({"message_due"}, 1000, 300),
    "lease, order arrival": (BY_KEY | {"message_due", "message_order"}, 50, 50 * 40),
    "lease, order sequence": ({"message_due", "message_pkey"}, 50, 50 * 40),
    "lease, order none": ({"message_due", "message_pkey"}, 50, 50 * 40),
    "read missing, after dead ones": (BY_KEY | {"message_sequence"}, HELD + 1, 40),
    # All that are open of a source, and whoever holds them; of those at work only.
    "resume, order arrival": ({"message_open", "message_pkey"}, 2 * HELD + 50, 4 * HELD),
    "resume, order sequence": ({"message_open", "message_pkey"}, 2 * HELD + 50, 4 * HELD),
    "resume, order none": ({"message_open"}, HELD, 100),
    "adopt, order arrival": (BY_KEY | {"message_open"}, 2 * HELD + 50, 150),
    "adopt, order sequence": (BY_KEY | {"message_open"}, 2 * HELD + 50, 150),
    "count behind, order arrival": ({"message_pkey", "message_order"}, HELD, 100),
    "count behind, order sequence": ({"message_pkey", "message_number"}, HELD, 100),
    "look, order arrival, alone": ({"message_key", "message_order", "subject_position_pkey"}, 1, 15),
    "look, order arrival, long": ({"message_key", "message_order", "subject_position_pkey"}, 1, 15),
    "look, order sequence, alone": (NUMBERED | {"message_key"}, 1, 20),
    "look, order sequence, long": (BY_KEY | {"message_key"}, 1, 20),
    "look, order sequence, graves": (NUMBERED | {"message_key"}, HELD, 40),
    "look, order none, alone": ({"message_key", "subject_position_pkey"}, 1, 10),
    "look, order none, long": ({"message_key", "subject_position_pkey"}, 1, 10),
    "put, order arrival, alone": ({"message_order"}, 1, 40),
    "put, order arrival, long": ({"message_order"}, 1, 10),
    "put, order sequence, alone": (NUMBERED, 1, 50),
    "put, order sequence, long": (BY_KEY, 1, 10),
    "put, order sequence, graves": (NUMBERED, HELD, 70),
    "put, order none, alone": (set(), 1, 40),
    "put, order none, long": (set(), 1, 40),
    "redeliver, duplicate": ({"message_key", "message_pkey"}, 1, 20),
    "redeliver, wish": ({"message_key", "message_pkey"}, 1, 50),
    "redeliver, redrive": ({"message_key", "message_pkey"}, 1, 50),
    "lock dead subject": ({"message_key"}, 1, 15),
    "lock newest": ({"message_key", "message_pkey"}, 1, 25),
    "backlog": ({"message_open", "message_parked"}, 2 * HELD + 1000 + 500, 300),
    "list open": ({"message_open", "message_pkey"}, PAGE, PAGE * 5),
    "list parked": ({"message_parked"}, 1, 10),
}
# A lease gives its share in order of arrival; a source of few started rows may have them sorted instead of read in order.
# Tries are sorted by subject, and an ID's editions.
SORTED = (
    {f"lease, order {order}": 50 for order in ("arrival", "sequence", "none")}
    | {"find due sources": 250, "list open": PAGE}  # a page may be sorted too
    | {f"adopt, order {order}": 1 for order in ("arrival", "sequence")}
    | {f"redeliver, {kind}": 1 for kind in ("duplicate", "wish", "redrive")}
)


@pytest.fixture(scope="module")
def plans(postgres: Postgres) -> Iterator[dict[str, list[Plan]]]:
    """The two plans of each statement."""
    with database(postgres, "plans", TEMPLATE) as url, psycopg.connect(url, autocommit=True) as connection:
        fill(connection, 20_000, 1_000, HELD)
        asked = list(questions(connection, HELD))
        yield {q.name: [explain(connection, q, generic=generic) for generic in (False, True)] for q in asked}


def test_every_statement_has_its_bounds(plans: dict[str, list[Plan]]) -> None:
    assert set(plans) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("generic", [False, True])
def test_a_statement_reads_a_few_rows_by_its_indexes(plans: dict[str, list[Plan]], name: str, *, generic: bool) -> None:
    plan = plans[name][generic]
    indexes, rows, buffers = EXPECTED[name]
    assert {index for index in plan.indexes if index.startswith(("message_", "subject_"))} == indexes
    assert not plan.sequential & {"message", "subject_position"}
    assert 0 < plan.buffers <= buffers
    if name == "backlog":  # sorts its lines; a statement for operators, not of a try
        return
    assert plan.most <= rows
    assert all(node["Actual Rows"] <= SORTED.get(name, 0) for node in plan.sorts)
    assert name in SORTED or not plan.sorts


@pytest.mark.parametrize("order", ["arrival", "sequence"])
def test_the_place_in_a_long_subject_makes_no_difference(plans: dict[str, list[Plan]], order: str) -> None:
    for generic in (False, True):
        buffers = [plans[f"decide by {order}, {place}"][generic].buffers for place in ("first", "middle", "last")]
        assert max(buffers) - min(buffers) <= 4


def test_without_order_nothing_is_paid_for_it(plans: dict[str, list[Plan]]) -> None:
    for generic in (False, True):
        assert "subject_position_pkey" not in plans["claim, order none"][generic].indexes
        assert plans["claim, order none"][generic].buffers < plans["claim, order arrival"][generic].buffers


def test_a_subjects_lock_keeps_others_out_and_writes_no_version(database_url: str) -> None:
    def place(connection: Connection[Any]) -> Any:
        return connection.execute("SELECT ctid, * FROM inbox.subject_position").fetchall()

    with psycopg.connect(database_url) as first, psycopg.connect(database_url) as second:
        row = first.execute(ACCEPT.sql, acceptance("1")).fetchone()
        assert row
        first.commit()
        before = place(first)
        first.execute(LOCK_SUBJECT.sql, {"id": row[1]})
        assert place(first) == before
        second.execute("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable):
            second.execute(LOCK_SUBJECT.sql, {"id": row[1]})
        second.rollback()
        first.rollback()
        second.execute(LOCK_SUBJECT.sql, {"id": row[1]})
