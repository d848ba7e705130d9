"""The product's side of the model: its own code over one real database, and the comparison after each step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.testing import ActivityEnvironment

from inbox.errors import BusinessError
from inbox.handler import Message, Outcome
from inbox.ingest.accept import Acceptor
from inbox.order import adopt, resume
from inbox.settings import Settings
from inbox.sources import Sources
from inbox.store.engine import Database
from tests.support.model.rows import AFTER, FIRST, GAP, TRIES, Model, Row
from tests.support.trying import Noting, Tries

MORE = int(os.environ.get("MODEL_STEPS", "0"))
SOON, GAPS, AGAIN = 31, 700, 1000  # past a lease; past a gap's time, and a resend's; past dispatch's long wait
ORDERS = ["arrival", "sequence", "none"]
# How a life's messages are delivered: accepted, or to a handler that registers, refuses, or breaks after it has written.
WAYS = {
    "accept": ["accept"],
    "direct": ["registers", "registers", "refuses", "breaks"],
    "both": ["accept", "accept", "accept", "registers", "registers", "registers", "refuses", "breaks"],
}
ANY = st.integers(0, 9999)

ROWS = """
    SELECT m.*, (SELECT count(*) FROM inbox.attempt a WHERE a.message = m.id) AS lines, due_at <= now() AS is_due,
           dispatched_at IS NOT NULL
           AND greatest(updated_at, next_try_at) > now() - make_interval(secs => 900) AS put_off,
           (SELECT count(*) FROM bundle b WHERE b.source = m.source AND b.message = m.message_id
                                            AND b.edition = m.edition) AS bundles,
           (SELECT array_agg(body) FROM (
                SELECT body FROM inbox.payload p WHERE p.message = m.id AND p.received_at = m.received_at
                UNION ALL SELECT body FROM inbox.payload_kept k WHERE k.message = m.id) b) AS bodies
      FROM inbox.message m WHERE source = %s ORDER BY id"""
PLACES = "SELECT * FROM inbox.subject_position WHERE source = %s"
ELAPSE = (
    """
    UPDATE inbox.message SET due_at = due_at - %(t)s, held_since = held_since - %(t)s, updated_at = updated_at - %(t)s,
           next_try_at = next_try_at - %(t)s, dispatched_at = dispatched_at - %(t)s
     WHERE source = %(source)s AND closed_at IS NULL""",
    "UPDATE inbox.message SET delivered_at = delivered_at - %(t)s WHERE source = %(source)s",
    "UPDATE inbox.subject_position SET gap_since = gap_since - %(t)s WHERE source = %(source)s",
)
# What a life that failed left behind is nobody's any more.
FORGET = "DELETE FROM inbox.message WHERE closed_at IS NULL OR parked"
BUNDLES = "CREATE TABLE bundle (source text, message text, edition int, content int)"
BUNDLE = text("INSERT INTO bundle VALUES (:source, :message, :edition, :content)")


def body(content: int) -> bytes:
    return b'{"content": %d}' % content


class Content(BaseModel):
    content: int


async def bundle(tx: AsyncConnection, source: str, message: str, edition: int, content: Content) -> Outcome:
    """Write a bundle of one row."""
    row = {"source": source, "message": message, "edition": edition, "content": content.content}
    await tx.execute(BUNDLE, row)
    return Outcome({"content": content.content})


class Domain:
    """The handler of messages in direct mode; ``way`` says what it does."""

    type = "t"
    payload = Content
    way = "registers"

    async def prepare(self, message: Message[Content]) -> None:
        if self.way == "refuses":
            raise BusinessError("NO", "no")

    async def register(self, tx: AsyncConnection, message: Message[Content], prepared: None) -> Outcome:
        outcome = await bundle(tx, message.source, message.id, message.edition, message.payload)
        if self.way == "breaks":
            raise RuntimeError
        return outcome


@dataclass
class World:
    """What the machines share: one database, one loop."""

    url: str
    runner: asyncio.Runner
    database: Database
    sql: psycopg.Connection[dict[str, Any]]
    lives: int = 0
    steps: int = 0


class Base(RuleBasedStateMachine):
    """One source, some subjects; time, settings, and what must be true."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model("none", parks=False, resends=False)
        self.live: set[int] = set()  # rows whose workflow is at work
        self.claims: list[Any] = []
        self.names = 0
        self.contents = 0
        self.late: tuple[psycopg.Connection[Any], Row] | None = None
        self.began = FIRST
        self.changes = False
        self.ways = WAYS["accept"]
        self.domain = Domain()

    def run(self, job: Coroutine[Any, Any, Any]) -> Any:
        return self.world.runner.run(job)

    @initialize(
        order=st.sampled_from(ORDERS),
        parks=st.booleans(),
        resends=st.booleans(),
        ways=st.sampled_from(["both", "accept", "direct"]),
        changes=st.booleans(),
    )
    def begin(self, order: str, parks: bool, resends: bool, ways: str, changes: bool) -> None:
        self.changes = changes  # half of the lives change their settings now and then
        self.ways = WAYS[ways]
        self.world.lives += 1
        self.world.sql.execute(FORGET)
        self.source = f"{order}{self.world.lives}"
        self.environment = ActivityEnvironment()
        self.model = Model(order, parks=parks, resends=resends)
        self.configure(order, parks=parks, resends=resends)

    def configure(self, order: str, *, parks: bool, resends: bool) -> None:
        declared = {
            "types": ["t"],
            "order": order,
            "tries": TRIES,
            "gap_timeout": GAP,
            "on_dead": "park" if parks else "release",
            "redelivery": "resend" if resends else "ignore",
            "resend_after": AFTER,
        }
        self.settings, direct = (
            Settings(DATABASE_URL=self.world.url).model_copy(
                update={"declared": Sources.model_validate({"sources": {self.source: declared | {"mode": mode}}})}
            )
            for mode in ("accept", "direct")
        )
        self.its: Any = self.settings.source(self.source)
        self.model.order, self.model.parks, self.model.resends = order, self.its.parks, resends
        self.acceptor = Acceptor(self.world.database, self.settings, lambda: None)
        serving: Any = {"t": self.domain, "t.resend": self.domain}
        self.direct = Acceptor(self.world.database, direct, lambda: None, serving)
        self.dispatcher = Noting(self.world.database, self.settings)
        self.tries = Tries(self.world.database, {}, self.settings, "w", lambda: None)

    @precondition(lambda self: self.late is None and self.changes and self.model.rows)
    @rule(order=st.sampled_from(ORDERS), parks=st.booleans(), resends=st.booleans(), now=st.integers(0, 2))
    def restart_with_other_settings(self, order: str, parks: bool, resends: bool, now: int) -> None:
        if now:
            return
        self.configure(order, parks=parks, resends=resends)
        self.model.era += 1
        for place in self.model.places.values():
            place.applied.clear()
        held_behind = {row["id"]: row["held_behind"] for row in self.rows()}
        self.run(adopt(self.world.database, self.settings))
        self.run(resume(self.world.database, self.settings))
        self.model.adopt()
        self.model.resume(held_behind)

    @rule(seconds=st.sampled_from([SOON, SOON, GAPS, AGAIN]))
    def elapse(self, seconds: int) -> None:
        self.model.clock += seconds
        for statement in ELAPSE:
            self.world.sql.execute(statement, {"t": timedelta(seconds=seconds), "source": self.source})

    # What must be true

    def pick(self, which: int, among: list[Row] | None = None) -> Row:
        rows = list(self.model.rows.values()) if among is None else among
        return rows[which % len(rows)]

    def known(self) -> list[str]:
        """Return the subjects that have a place."""
        places = self.world.sql.execute(PLACES, (self.source,)).fetchall()
        return sorted(row["subject"] for row in places)

    def rows(self) -> list[dict[str, Any]]:
        return self.world.sql.execute(ROWS, (self.source,)).fetchall()

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        found = {row["id"]: row for row in self.rows()}
        assert found.keys() == self.model.rows.keys()
        for id_, row in self.model.rows.items():
            self.row_is_as_the_model_says(row, found[id_])
        self.model.unsure.clear()

    def row_is_as_the_model_says(self, row: Row, real: dict[str, Any]) -> None:
        told = {
            "message_id": row.name,
            "edition": row.edition,
            "resend_of": row.resend_of,
            "type": "t" if row.edition == 1 else "t.resend",
            "subject": row.subject,
            "sequence": row.number,
            "payload_sha256": row.content.to_bytes(32),
            "bodies": [body(row.content)],
            "status": row.status,
            "generation": row.generation,
            "tries": row.tries,
            "tries_before": row.before,
            "parked": row.parked,
            "lines": row.lines,
            "duplicates": row.duplicates,
            "outcome": row.outcome,
            "last_code": row.code,
            "bundles": int(row.status == "COMPLETED" and not row.obsolete),
        }
        assert told == {name: real[name] for name in told}
        if row.id in self.model.unsure and real["held_since"] is None:
            row.hold = None
        assert (real["held_since"] is not None) == (row.hold is not None)
        behind = row.hold.behind if row.hold else frozenset()
        assert real["held_behind"] in (behind or {None})
        # Whoever is not due has somebody before it whose end releases it; a gap has its time.
        assert (real["due_at"] is None) == (not row.open or bool(behind))
        if row.open and behind:
            place = self.model.place(row)
            assert place.processing is not None or any(
                o.holds and self.model.rank(o) <= self.model.rank(row) for o in self.model.beside(row)
            )

    @invariant()
    def steps_are_counted(self) -> None:
        self.world.steps += 1

    @invariant()
    def one_of_a_subject_at_a_time(self) -> None:
        if not self.model.places:
            return
        places = {row["subject"]: row for row in self.world.sql.execute(PLACES, (self.source,))}
        for subject, place in self.model.places.items():
            real = places.get(subject, {"processing": None, "last": None, "gap_since": None})
            assert real["processing"] == place.processing
            assert real["last"] == place.last
            assert (real["gap_since"] is None) == (place.gap is None)
            working = [o for o in self.model.rows.values() if o.subject == subject and o.status == "PROCESSING"]
            here = [o.id for o in working if o.era == self.model.era]
            if subject and self.model.order != "none":  # what began in another order ends beside it
                assert here in ([], [place.processing])
                assert len(working) <= 1 or len({o.era for o in working}) > 1 or not here
