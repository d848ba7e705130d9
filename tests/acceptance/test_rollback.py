"""`make rollback`, in short; and that its proof is one: what is missing, doubled or out of turn is found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from deploy.dev.postgres import Postgres
from deploy.rollback.judge import Journal, faults
from tests.acceptance.launcher import Launcher

LIMIT = 900.0  # seconds: some twenty processes are started, on a machine that runs other tests
PHASES = [
    *("accept", "Temporal away", "to direct", "direct, away", "Temporal back", "drained", "to accept", "accept again"),
    "no traffic",
]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """A rehearsal that has ended."""
    folder = tmp_path_factory.mktemp("rehearsed ")
    line = [sys.executable, "-m", "deploy.rollback"]
    with Launcher(folder, line=line, EACH="4", SUMMARY=str(folder / "summary.json")) as launcher:
        assert launcher.ended(LIMIT) == 0, launcher.said
        launcher.nothing_left()
    return launcher


@pytest.fixture(scope="module")
def database(rehearsed: Launcher) -> Iterator[psycopg.Connection[Any]]:
    """What it left."""
    server = Postgres(rehearsed.data / "postgres")
    server.start()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            yield connection
    finally:
        server.stop()


@pytest.fixture
def journal(rehearsed: Launcher) -> Journal:
    """What it sent and heard."""
    return Journal.read(rehearsed.data / "rollback.json")


def test_nothing_is_lost_or_doubled_and_order_holds(rehearsed: Launcher) -> None:
    summary: dict[str, Any] = json.loads((rehearsed.data.parent / "summary.json").read_text())
    assert summary["faults"] == []
    phases = {phase["name"]: phase for phase in summary["phases"]}
    assert list(phases) == PHASES
    sent = sum(phase["sent"] for phase in phases.values())
    for name in ("messages", "registered"):
        assert summary["after"][name] - summary["before"][name] == sent == summary["sent"] > 100
    assert (summary["after"]["open"], summary["after"]["owed"]) == (0, 0)
    away = phases["Temporal away"]
    assert (away["answers"]["201"], away["open"] > 0) == (0, True)
    direct = phases["direct, away"]["answers"]
    assert direct["201"] > 0
    assert direct["202"] > 0
    assert phases["accept again"]["answers"]["201"] == 0
    asked = summary["drained"]
    assert (asked[0]["phase"], asked[0]["exit"]) == ("direct, away", 1)
    assert {line["what"] for line in asked[0]["open"]} >= {"open", "held"}
    assert [one["exit"] for one in asked if one["phase"] == "Temporal back"][-2:] == [0, 0]
    assert all(bool(one["open"]) == bool(one["exit"]) for one in asked)
    assert "each message is stored once and registered once" in rehearsed.said


def test_it_is_judged_again_from_what_it_left(database: psycopg.Connection[Any], journal: Journal) -> None:
    assert faults(database, journal) == []


FIRST = "(SELECT min(id) FROM survey.task)"
# Two messages of one subject, as they came.
PAIR = """SELECT min(id) AS a, max(id) AS b FROM (SELECT id, subject FROM inbox.message
           WHERE source = '{}' AND subject IN (SELECT subject FROM inbox.message GROUP BY 1 HAVING count(*) > 3)
           ORDER BY subject, id LIMIT 2) two"""
SWAP = """WITH p AS ({pair}), x AS (SELECT m.id, m.{column} FROM inbox.message m, p WHERE m.id IN (p.a, p.b))
UPDATE inbox.message m SET {column} = x.{column} FROM x, p
 WHERE m.id IN (p.a, p.b) AND x.id = p.a + p.b - m.id"""
BROKEN = {
    "a bundle is missing": ([f"DELETE FROM survey.task WHERE id = {FIRST}"], ["registered: ", "has no task: "]),
    "a bundle is there twice": (
        [
            (
                "INSERT INTO survey.task (tenant, source, message_id, edition, assignment, schedule)"
                f" SELECT tenant, source, message_id, 2, assignment, schedule FROM survey.task WHERE id = {FIRST}"
            )
        ],
        ["registered: ", "has more than one task: "],
    ),
    "one is missing and another doubled": (
        [
            (
                f"UPDATE survey.task SET edition = 2, message_id = (SELECT message_id FROM survey.task WHERE id = {FIRST})"
                " WHERE id = (SELECT max(id) FROM survey.task)"
            )
        ],
        ["has no task: ", "has more than one task: "],
    ),
    "a message is gone": (
        [
            "ALTER TABLE inbox.report DISABLE TRIGGER ALL",
            "DELETE FROM inbox.message WHERE id = (SELECT min(id) FROM inbox.message WHERE source = 'report-producer')",
        ],
        ["messages: ", "was taken and is not stored: ", "counter "],
    ),
    "a message came from nowhere": (
        [
            (
                "INSERT INTO inbox.message (source, message_id, type, payload_sha256, max_tries, workflow_id)"
                " SELECT source, message_id || 'x', type, payload_sha256, 5, 'w' FROM inbox.message ORDER BY id LIMIT 1"
            )
        ],
        ["messages: ", "1 messages are open", "is stored and was not sent: ", "is RECEIVED: "],
    ),
    "one was counted twice": (
        ["UPDATE reporting.counter SET value = value + 1 WHERE name LIKE '%counts'"],
        ["registered: ", "counter "],
    ),
    "one was told another's value": (
        [
            (
                "UPDATE inbox.message SET outcome = '{\"value\": 1}' WHERE id ="
                " (SELECT max(id) FROM inbox.message WHERE source = 'report-producer')"
            )
        ],
        ["counter "],
    ),
    "two of a patient ended the other way round": (
        [SWAP.format(pair=PAIR.format("hospital"), column="closed_at")],
        ["its messages were not ended in the order"],
    ),
    "two of a patient were written the other way round": (
        [
            (
                "CREATE TEMPORARY TABLE two AS SELECT min(t.id) AS a, max(t.id) AS b, min(t.message_id) AS one,"
                f" max(t.message_id) AS other FROM ({PAIR.format('hospital')}) p"
                " JOIN inbox.message m ON m.id IN (p.a, p.b) JOIN survey.task t ON t.message_id = m.message_id"
            ),
            "CREATE TEMPORARY TABLE names AS SELECT t.id, t.message_id FROM survey.task t, two WHERE t.id IN (a, b)",
            "UPDATE survey.task t SET message_id = t.id::text FROM two WHERE t.id IN (a, b)",
            (
                "UPDATE survey.task t SET message_id = n.message_id FROM two, names n WHERE t.id IN (a, b)"
                " AND n.id = a + b - t.id"
            ),
        ],
        ["its messages were not registered in the order"],
    ),
    "two numbers were counted the other way round": (
        [SWAP.format(pair=PAIR.format("seq-producer"), column="outcome")],
        ["its messages were not registered in the order"],
    ),
    "a report was not sent": (
        ["DELETE FROM inbox.report WHERE id = (SELECT min(id) FROM inbox.report)"],
        ["owed a report that was not sent: "],
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found(database: psycopg.Connection[Any], journal: Journal, what: str) -> None:
    statements, expected = BROKEN[what]
    with database.transaction(force_rollback=True):
        for statement in statements:
            assert database.execute(statement).rowcount != 0, statement  # type: ignore[call-overload]
        found = faults(database, journal)
    assert len(found) >= len(expected)
    for words in expected:
        assert any(words in fault for fault in found), (words, found)


def test_what_senders_heard_is_judged_too(database: psycopg.Connection[Any], journal: Journal) -> None:
    one, *others = journal.sent
    twice = replace(journal, sent=[replace(one, answers=[202, 201]), *others])
    assert faults(database, twice) == [f"was taken as new twice: {one.id}"]
    never = replace(journal, sent=[replace(one, answers=[0, 503]), *others])
    assert faults(database, never) == [f"was never taken: {one.id}"]
