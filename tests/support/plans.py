"""A database as full as that of a busy year, and the plans of the statements on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from psycopg import Connection, sql

from inbox.store.direct import LOOK, PUT
from inbox.store.due import MESSAGES
from inbox.store.editions import LOCK_DEAD_SUBJECT, LOCK_NEWEST, REDELIVER
from inbox.store.engine import Statement
from inbox.store.order import ADOPT, DECIDE, LOCK_SUBJECT, READ_MISSING, RELEASE, RESUME
from inbox.store.reads import COUNT_BEHIND, LIST, READ_BACKLOG
from inbox.store.statements import CLAIM, COMPLETE, FAIL, TAKE_FENCE
from tests.support.rows import acceptance, claim, completion, failure

# Where each order has its source; the long subject is there in both of the ordered ones.
SOURCES = {"arrival": "a", "sequence": "q", "none": "n"}
XACT = "the transaction's"  # a parameter that is known in the transaction only

# Closed rows first: of one in fifty the subject is the long one. A subject's numbers go on from row to row.
CLOSED = """
    INSERT INTO inbox.message (status, source, message_id, type, subject, sequence, payload_sha256, tries, max_tries,
                               workflow_id, outcome, last_code, closed_at, dead_at, starts, dispatched_at, received_at)
    SELECT CASE WHEN n %% 100 = 0 THEN 'DEAD' ELSE 'COMPLETED' END, s, 'c' || n, 'report.count', t,
           CASE WHEN s = 'q' THEN row_number() OVER (PARTITION BY s, t ORDER BY n) END, sha256(n::text::bytea), 1, 5,
           'inbox/' || s || '/c' || n, CASE WHEN n %% 100 <> 0 THEN '{"value": 7}'::jsonb END,
           CASE WHEN n %% 100 = 0 THEN 'SYSTEM_ERROR' END, at, CASE WHEN n %% 100 = 0 THEN at END, 1, at, at
      FROM (SELECT n, CASE n %% 3 WHEN 0 THEN 'a' WHEN 1 THEN 'q' ELSE 'n' END AS s,
                   CASE WHEN n %% 50 < 1 THEN 'long' ELSE 's' || n %% 49999 END AS t,
                   now() - interval '1 year' * (1 - n::float / %(closed)s) - interval '1 hour' AS at
              FROM generate_series(1, %(closed)s) n) r
     ORDER BY n"""
PLACES = """
    INSERT INTO inbox.subject_position (tenant, source, subject, last)
    SELECT tenant, source, subject, max(sequence) FROM inbox.message WHERE source <> 'n' GROUP BY 1, 2, 3"""
# A third is due now, the rest was started a while ago: half of that waits for its next try, half for its first.
OPEN = """
    INSERT INTO inbox.message (status, source, message_id, type, subject, sequence, payload_sha256, tries, max_tries,
                               workflow_id, last_code, due_at, starts, dispatched_at)
    SELECT CASE WHEN n %% 3 = 1 THEN 'FAILED' ELSE 'RECEIVED' END, s, 'o' || n, 'report.count', 'o' || n,
           CASE WHEN s = 'q' THEN 1 END, sha256(n::text::bytea), CASE WHEN n %% 3 = 1 THEN 1 ELSE 0 END, 5,
           'inbox/' || s || '/o' || n, CASE WHEN n %% 3 = 1 THEN 'SYSTEM_ERROR' END,
           now() + interval '1 ms' * n + interval '1 minute' * CASE WHEN n %% 3 = 0 THEN -2 ELSE 5 END,
           CASE WHEN n %% 3 = 0 THEN 0 ELSE 1 END, CASE WHEN n %% 3 <> 0 THEN now() END
      FROM (SELECT n, CASE n / 3 %% 3 WHEN 0 THEN 'a' WHEN 1 THEN 'q' ELSE 'n' END AS s
              FROM generate_series(1, %(open)s) n) r
     ORDER BY n"""
OPEN_PLACES = """
    INSERT INTO inbox.subject_position (tenant, source, subject, last)
    SELECT tenant, source, subject, sequence - 1 FROM inbox.message WHERE source <> 'n' AND message_id LIKE 'o%%'"""
# The first of the long subject is being tried; the others wait behind it, each behind the one before.
HELD = """
    INSERT INTO inbox.message (source, message_id, type, subject, sequence, payload_sha256, max_tries, workflow_id)
    SELECT %(source)s, 'h' || n, 'report.count', 'long',
           (SELECT last + n FROM inbox.subject_position WHERE source = %(source)s AND subject = 'long'),
           sha256(n::text::bytea), 5, 'inbox/' || %(source)s || '/h' || n
      FROM generate_series(1, %(held)s) n ORDER BY n"""
WAIT = """
    UPDATE inbox.message SET held_since = now(), held_behind = id - 1
     WHERE source = %(source)s AND subject = 'long' AND message_id LIKE 'h%%' AND message_id <> 'h1'"""
# Of another subject all numbers died but the last, before which one is missing.
GRAVES = """
    INSERT INTO inbox.message (status, source, message_id, type, subject, sequence, payload_sha256, tries, max_tries,
                               workflow_id, last_code, closed_at, dead_at)
    SELECT 'DEAD', 'q', 'g' || n, 'report.count', 'graves', n, sha256(n::text::bytea), 1, 5, 'inbox/q/g' || n,
           'SYSTEM_ERROR', now(), now()
      FROM generate_series(1, %(held)s) n ORDER BY n"""
SURVIVOR = """
    WITH place AS (INSERT INTO inbox.subject_position (tenant, source, subject, last) VALUES ('', 'q', 'graves', 0))
    INSERT INTO inbox.message (source, message_id, type, subject, sequence, payload_sha256, max_tries, workflow_id)
    VALUES ('q', 'survivor', 'report.count', 'graves', %(held)s + 2, sha256('x'), 5, 'inbox/q/survivor')"""
REPORTS = """
    INSERT INTO inbox.report (state, message, number, source, kind, code, reason, workflow_id, sent_at, closed_at)
    SELECT 'SENT', id, 1, source, 'DEAD', last_code, '', 'inbox-report/' || id, now(), now()
      FROM inbox.message WHERE status = 'DEAD'"""
PAYLOADS = """
    INSERT INTO inbox.payload (message, received_at, content_type, body)
    SELECT id, received_at, 'application/json', '{}' FROM inbox.message WHERE closed_at IS NULL"""
BEGIN = """
    WITH first AS (UPDATE inbox.message SET status = 'PROCESSING', tries = 1
                    WHERE message_id = 'h1' RETURNING id, source, subject)
    UPDATE inbox.subject_position p SET processing = f.id FROM first f WHERE (p.source, p.subject) = (f.source, f.subject)"""


def fill(connection: Connection[Any], closed: int, opened: int, held: int) -> None:
    """Fill an empty database, autocommitted, and look at what is in it as autovacuum would."""
    connection.prepare_threshold = None  # or psycopg would deallocate the statements of explain() with its own
    connection.execute(CLOSED, {"closed": closed})
    connection.execute(PLACES)
    connection.execute(OPEN, {"open": opened})
    connection.execute(OPEN_PLACES, {})
    for source in ("a", "q"):
        connection.execute(HELD, {"source": source, "held": held})
        connection.execute(WAIT, {"source": source})
    connection.execute(GRAVES, {"held": held})
    connection.execute(SURVIVOR, {"held": held})
    connection.execute(REPORTS)
    connection.execute(PAYLOADS)
    connection.execute(BEGIN)
    connection.execute("VACUUM (ANALYZE) inbox.message, inbox.subject_position, inbox.payload, inbox.report")


@dataclass(frozen=True)
class Question:
    """A statement with its parameters, and what must have been done before it in the same transaction."""

    name: str
    statement: Statement[Any]
    params: Mapping[str, Any]
    before: tuple[tuple[Statement[Any], Mapping[str, Any]], ...] = ()


def questions(connection: Connection[Any], held: int) -> Iterator[Question]:
    """Yield what is asked of a full database."""

    def row(source: str, message_id: str) -> int:
        found = connection.execute(
            "SELECT id FROM inbox.message WHERE source = %s AND message_id = %s", (source, message_id)
        ).fetchone()
        assert found, (source, message_id)
        return int(found[0])

    def single(source: str) -> int:
        found = connection.execute(
            "SELECT id FROM inbox.message WHERE source = %s AND status = 'RECEIVED' AND message_id LIKE 'o%%'"
            " AND due_at < now() ORDER BY id DESC LIMIT 1",
            (source,),
        ).fetchone()
        assert found, source
        return int(found[0])

    for order, source in SOURCES.items():
        one = single(source)
        work = claim(one, ordered=order != "none")
        yield Question(f"claim, order {order}", CLAIM, work)
        fenced = ((CLAIM, work),)
        yield Question(f"fail, order {order}", FAIL, failure(one), fenced)
    yield Question("lock subject", LOCK_SUBJECT, {"id": row("a", f"h{held // 2}")})
    for order in ("arrival", "sequence"):
        source = SOURCES[order]
        for place, number in (("first", 2), ("middle", held // 2), ("last", held)):
            asked = {"id": row(source, f"h{number}"), "gap": 3600.0}
            yield Question(f"decide by {order}, {place}", DECIDE[order], asked)
        yield Question(f"decide by {order}, alone", DECIDE[order], {"id": single(source), "gap": 3600.0})
        first = row(source, "h1")
        closed = ((FAIL, failure(first, non_retryable=True)),)
        yield Question(f"release by {order}", RELEASE[order], {"id": first}, closed)
    yield Question(
        "decide by sequence, gap after dead ones", DECIDE["sequence"], {"id": row("q", "survivor"), "gap": 3600.0}
    )
    first = row("a", "h1")
    yield Question("take fence", TAKE_FENCE, {"id": first, "generation": 1, "tries": 1})
    yield Question("complete", COMPLETE, completion(first, XACT))
    yield Question("find due sources", MESSAGES.due_sources, {"again": 900.0, "window": 1000})
    for order, source in SOURCES.items():
        lease = {"source": source, "share": 50, "again": 900.0, "lease": 30.0, "order": order}
        yield Question(f"lease, order {order}", MESSAGES.lease, lease)
    yield Question("backlog", READ_BACKLOG, {})
    for what, statement in LIST.items():
        yield Question(
            f"list {what}", statement, {"source": "a", "after_type": "report.count", "after": row("a", "h2")}
        )
    asked = {"id": row("q", "survivor"), "most": 11}
    yield Question("read missing, after dead ones", READ_MISSING, asked)
    for order, source in SOURCES.items():
        yield Question(f"resume, order {order}", RESUME, {"source": source, "order": order})
        if order == "none":
            continue
        yield Question(f"adopt, order {order}", ADOPT, {"source": source})
        asked = {"id": row(source, "h1"), "most": 1000}
        yield Question(f"count behind, order {order}", COUNT_BEHIND[order], asked)
    yield from _directs(connection, held)
    yield from _redeliveries()


def _directs(connection: Connection[Any], held: int) -> Iterator[Question]:
    """What direct mode asks, of a new ID: of a subject of closed rows alone, and of one that many wait in."""
    for (order, source), alone in zip(SOURCES.items(), ("s600", "s601", "s602"), strict=True):
        for place, subject, ahead in (("alone", alone, 1), ("long", "long", held + 1), ("graves", "graves", held + 1)):
            if place == "graves" and order != "sequence":
                continue
            found = connection.execute(
                "SELECT last FROM inbox.subject_position WHERE source = %s AND subject = %s", (source, subject)
            ).fetchone()
            number = found[0] + ahead if found and found[0] is not None else None
            changes = {"edition": 1, "resend_of": None, "obsolete": "obsolete", "resend_after": 600.0}
            asked = acceptance("new", source, subject, sequence=number) | changes
            yield Question(f"look, order {order}, {place}", LOOK[order], asked)
            yield Question(f"put, order {order}, {place}", PUT[order], asked | {"received_at": "now"})


def _redeliveries() -> Iterator[Question]:
    """What a redelivery asks of a source whose redeliveries may be wishes."""
    for name, number in (("duplicate", 303), ("wish", 303), ("redrive", 300)):
        content = sha256(str(number).encode()).digest() if name == "duplicate" else b"1" * 32
        changes = {"resend_after": 600.0, "edition_id": f"inbox/a/c{number}~", "resend": True, "sha256": content}
        asked = acceptance(f"c{number}", "a", f"s{number}", **changes)
        yield Question(f"redeliver, {name}", REDELIVER, asked)
    yield Question("lock dead subject", LOCK_DEAD_SUBJECT, asked)
    yield Question("lock newest", LOCK_NEWEST, asked)


@dataclass(frozen=True)
class Plan:
    """How a statement was executed; ``rows`` is what it returned."""

    name: str
    nodes: list[dict[str, Any]]
    rows: int
    buffers: int
    milliseconds: float

    @property
    def indexes(self) -> list[str]:
        """The indexes that were read, in the order of the plan, each with the rows that it gave."""
        return sorted({node["Index Name"] for node in self.nodes if "Index Name" in node and node["Actual Loops"]})

    @property
    def sorts(self) -> list[dict[str, Any]]:
        """What was sorted."""
        return [node for node in self.nodes if "Sort" in node["Node Type"] and node["Actual Loops"]]

    @property
    def sequential(self) -> set[str]:
        """The tables that were read from end to end."""
        return {
            node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan" and node["Actual Loops"]
        }

    @property
    def most(self) -> int:
        """The largest number of rows that one node read, those that it dropped included."""
        return max(int(n["Actual Loops"] * (n["Actual Rows"] + n.get("Rows Removed by Filter", 0))) for n in self.nodes)


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _walk(below)


def explain(connection: Connection[Any], question: Question, *, generic: bool) -> Plan:
    """Execute a statement and take it back; ``generic`` is the plan that a prepared statement may settle on."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", question.statement.sql)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", question.statement.sql).replace(
        "%%", "%"
    )
    mode = "force_generic_plan" if generic else "force_custom_plan"
    with connection.transaction(force_rollback=True):
        xact = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert xact
        params = {name: xact[0] if question.params[name] == XACT else question.params[name] for name in names}
        values = sql.SQL(", ").join(sql.Literal(value) for value in params.values())
        execute = sql.SQL("EXECUTE asked ({})").format(values) if names else sql.SQL("EXECUTE asked")
        connection.execute(sql.SQL("SET LOCAL plan_cache_mode = {}").format(sql.Literal(mode)))
        for statement, given in question.before:
            connection.execute(statement.sql, given)
        connection.execute(sql.SQL("PREPARE asked AS {}").format(sql.SQL(text)))  # type: ignore[arg-type]
        try:
            for _ in range(2):  # the first fills the caches of the connection
                with connection.transaction(force_rollback=True):
                    found = connection.execute(
                        sql.SQL("EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS) {}").format(execute)
                    ).fetchone()
        finally:
            connection.execute("DEALLOCATE asked")
    assert found
    top = found[0][0]["Plan"]
    return Plan(
        question.name,
        list(_walk(top)),
        int(top["Actual Rows"]),
        top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        found[0][0]["Execution Time"],
    )
