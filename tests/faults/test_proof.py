"""The judge of `make chaos` on a real database: proved as it was left by the inbox, and not once anybody touched it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from deploy.chaos.evidence import Evidence, read_rows, read_seen
from deploy.chaos.judge import judge
from deploy.chaos.options import HOSPITAL, LEDGER, NUMBERED, SOURCES, WARD
from deploy.chaos.senders import Heard
from deploy.chaos.traffic import FUTURE, LATER, PAST, Message, forms
from tests.support.stack import TOKENS, Stack
from tests.support.waiting import eventually

# Who answers for a message in the tests' own stack has one token for all its sources.
TOKEN = TOKENS["hospital"]


def survey(source: str, name: str, form: str = "C-OK1", fate: str = "completes", *, late: bool = False) -> Message:
    data = {"srvyDrawupNo": name, "patno": "9", "formCd": form, "sendDt": PAST if late else FUTURE}
    return Message(source, name, "survey.send", "9", None, data, fate, late, False)


def count(source: str, name: str, number: int | None = None) -> Message:
    return Message(source, name, "report.count", "s", number, {"counter": f"{source}:s"}, "completes", False, False)


MESSAGES = [
    *(survey(HOSPITAL, f"H-{n}") for n in range(3)),
    survey(HOSPITAL, "H-dead", "C-GROUP", "GROUP_NOT_FOUND"),
    survey(HOSPITAL, "H-late", late=True),
    survey(WARD, "W-0", LATER, "either"),
    *(count(LEDGER, f"L-{n}") for n in range(3)),
    *(count(NUMBERED, f"S-{n}", n) for n in (1, 3, 2)),
]


async def a_run(stack: Stack) -> Evidence:
    """Send all messages one after the other and wait until all has ended; the evidence."""
    report = {"report": {"url": f"{stack.hospital.url}/reports"}}
    kinds: dict[str, dict[str, Any]] = {
        HOSPITAL: {"types": ["survey.send"], "tries": 2},
        WARD: {"types": ["survey.send"], "tries": 1},
        LEDGER: {"types": ["report.count"]},
        NUMBERED: {"types": ["report.count"], "order": "sequence"},
    }
    common = {"tokens": Stack.tokens("hospital"), "retry_interval": 0.05} | report
    stack.configure({"sources": {name: kinds[name] | common for name in SOURCES if name in kinds}})
    await stack.hospital.control(forms=forms(all_of_them=True))
    await stack.start()
    heard = {}
    for message in MESSAGES:
        sent_at = time.time()
        event = {"specversion": "1.0", "source": message.source, "id": message.id, "type": message.type}
        event |= {"partitionkey": message.subject, "data": message.data}
        if message.number is not None:
            event["sequence"] = str(message.number)
        answer = await stack.post(event, TOKEN)
        assert answer.status_code == 202, answer.text
        heard[message.key] = Heard(sent_at, time.time(), deliveries=1, created=1)
    owed = (
        "SELECT id FROM inbox.message WHERE closed_at IS NULL UNION SELECT id FROM inbox.report WHERE closed_at IS NULL"
    )
    await eventually(lambda: stack.sql(owed), lambda found: found == [])
    seen = read_seen(await stack.hospital.seen())
    rows, strays, counters = read_rows(stack.url)
    return Evidence({m.key: m for m in MESSAGES}, heard, rows, strays, counters, seen, [])


@contextmanager
def copied(url: str, name: str) -> Iterator[str]:
    """A copy of a database that nobody else uses any more."""
    server, _, original = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [original])
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(original)))
        try:
            yield f"{server}/{name}"
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


WITHOUT_GUARD = "ALTER TABLE inbox.message DISABLE TRIGGER refuse_edge"
OF = "(SELECT id FROM inbox.message WHERE message_id = '{}')"


def swapped(table: str, column: str, one: str, other: str) -> str:
    """Return a statement that swaps a column of two messages."""
    return (
        f"UPDATE {table} x SET {column} = y.{column} FROM {table} y"
        f" WHERE (x.message_id, y.message_id) IN (('{one}', '{other}'), ('{other}', '{one}'))"
    )


MUTATIONS = {
    "nothing": ([], set()),
    "a bundle row deleted": (
        ["DELETE FROM survey.task WHERE message_id = 'H-0'"],
        {("bundles", "hospital/H-0")},
    ),
    "a second one added": (
        [
            (
                "INSERT INTO survey.recipient (tenant, source, message_id, edition, patno, guest_id)"
                " VALUES ('', 'hospital', 'H-0', 2, '9', 'G')"
            )
        ],
        {("bundles", "hospital/H-0")},
    ),
    "a bundle of no message": (
        [
            (
                "INSERT INTO survey.recipient (tenant, source, message_id, edition, patno, guest_id)"
                " VALUES ('', 'hospital', 'H-9', 1, '9', 'G')"
            )
        ],
        {("bundles", "hospital/H-9")},
    ),
    "a bundle tied to another's": (
        [
            (
                "UPDATE survey.schedule SET recipient = (SELECT id FROM survey.recipient WHERE message_id = 'H-1')"
                " WHERE message_id = 'H-0'"
            )
        ],
        {("bundles", "bundle of H-0 is tied to another's")},
    ),
    "a row reopened": (
        [
            WITHOUT_GUARD,
            "UPDATE inbox.message SET status = 'RECEIVED', outcome = NULL, closed_at = NULL WHERE message_id = 'L-2'",
        ],
        {("ended", "ledger/L-2"), ("counters", "ledger:s"), ("tries", "ledger/L-2")},
    ),
    "a stored message dropped": (
        ["DELETE FROM inbox.message WHERE message_id = 'L-2'"],
        {("stored", "ledger/L-2"), ("counters", "ledger:s")},
    ),
    "a payload dropped": (
        [f"DELETE FROM inbox.payload WHERE message = {OF.format('L-2')}"],
        {("stored", "ledger/L-2")},
    ),
    "an order swapped, by arrival": (
        [swapped("inbox.message", "outcome", "L-0", "L-1")],
        {("order", "ledger/L-0")},
    ),
    "an order swapped, in the time of the bundles": (
        [swapped("inbox.message", "closed_at", "H-0", "H-1")],
        {("order", "hospital/H-0")},
    ),
    "an order swapped, by sequence": (
        [swapped("inbox.message", "outcome", "S-2", "S-3")],
        {("order", "seq-producer/S-2")},
    ),
    "a counter moved once more": (
        ["UPDATE reporting.counter SET value = value + 1 WHERE name = 'ledger:s'"],
        {("counters", "ledger:s")},
    ),
    "a line of a try deleted": (
        [f"DELETE FROM inbox.attempt WHERE message = {OF.format('H-dead')} AND number = 1"],
        {("tries", "hospital/H-dead")},
    ),
    "a try too many": (
        ["UPDATE inbox.message SET tries = 9 WHERE message_id = 'L-0'"],
        {("tries", "ledger/L-0")},
    ),
    "a report owed again": (
        [
            (
                "UPDATE inbox.report SET state = 'OWED', closed_at = NULL, sent_at = NULL"
                f" WHERE message = {OF.format('H-late')}"
            )
        ],
        {("owed", "hospital/H-late")},
    ),
    "a report deleted": (
        [f"DELETE FROM inbox.report WHERE message = {OF.format('H-dead')}"],
        {("owed", "hospital/H-dead"), ("told", "inbox-report/hospital/H-dead/1")},
    ),
    "a report under another key": (
        [f"UPDATE inbox.report SET workflow_id = 'other' WHERE message = {OF.format('H-dead')}"],
        {("told", "inbox-report/hospital/H-dead/1"), ("told", "other")},
    ),
    "another death": (
        ["UPDATE inbox.message SET last_code = 'FORM_NOT_REGISTERED' WHERE message_id = 'H-dead'"],
        {("fates", "hospital/H-dead"), ("owed", "hospital/H-dead")},
    ),
}


async def test_a_run_is_proved_and_whatever_is_done_to_its_database_is_said(stack: Stack) -> None:
    evidence = await a_run(stack)
    assert evidence.rows[WARD, "W-0"].status == evidence.rows[HOSPITAL, "H-late"].status == "COMPLETED"
    name = stack.name.replace("inbox", "mutated")
    found = {}
    for what, (statements, _) in MUTATIONS.items():
        with copied(stack.url, name) as url:
            with psycopg.connect(url) as connection:
                for statement in statements:
                    assert connection.execute(statement).rowcount != 0, statement
            rows, strays, counters = read_rows(url)
        found[what] = {
            (finding.rule, finding.key.replace("/inbox", "/").replace(f"{stack.name}-report", "inbox-report"))
            for finding in judge(
                Evidence(evidence.sent, evidence.heard, rows, strays, counters, evidence.seen, evidence.commands)
            )
        }
    assert found == {what: expected for what, (_, expected) in MUTATIONS.items()}
