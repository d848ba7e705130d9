"""Order by model: whatever befalls the messages of a few subjects, the rows are what a small model says.

The product's own code moves the rows, on real Postgres; Temporal is played: dispatch's starts are noted, and the
machine makes the tries. ``MODEL_STEPS=n`` takes about n steps at random, in place of the same few thousand each time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from inbox.burial import NotDead, NotHeld, NotOpen, bury, discard, redrive, release
from inbox.errors import ContentConflict, Malformed, StaleTry
from inbox.ingest.accept import Acceptor, Incoming
from inbox.message import Key
from inbox.order import adopt, resume
from inbox.references import BuryInput, RegisterInput
from inbox.settings import Settings, Sources
from inbox.states import OBSOLETE
from inbox.store.engine import Database
from inbox.store.statements import ACCEPT
from inbox.timeouts import Timeouts
from inbox.verdict import Verdict
from tests.support.trying import Noting, Tries, nothing_written

MORE = int(os.environ.get("MODEL_STEPS", "0"))
STEPS = MORE or 2000
EACH = 50  # steps of one life
TRIES = 3
GAP = 600
SOON, GAPS, AGAIN = 31, 700, 1000  # past a lease, past a gap's time, past dispatch's long wait
SUBJECTS = ("s", "t")
ORDERS = ["arrival", "sequence", "none"]
ANY = st.integers(0, 9999)
OPEN = ("RECEIVED", "PROCESSING", "FAILED")
WAITING = ("RECEIVED", "FAILED")
FIRST = datetime(2020, 1, 1, tzinfo=UTC)

ROWS = """
    SELECT m.*, (SELECT count(*) FROM inbox.attempt a WHERE a.message = m.id) AS lines, due_at <= now() AS is_due,
           dispatched_at IS NOT NULL
           AND greatest(updated_at, next_try_at) > now() - make_interval(secs => 900) AS put_off
      FROM inbox.message m WHERE source = %s ORDER BY id"""
PLACES = "SELECT * FROM inbox.subject_position WHERE source = %s"
ELAPSE = """
    UPDATE inbox.message SET due_at = due_at - %(t)s, held_since = held_since - %(t)s, updated_at = updated_at - %(t)s,
           next_try_at = next_try_at - %(t)s, dispatched_at = dispatched_at - %(t)s
     WHERE source = %(source)s AND closed_at IS NULL"""
ELAPSE_PLACES = "UPDATE inbox.subject_position SET gap_since = gap_since - %(t)s WHERE source = %(source)s"
# What a life that failed left behind is nobody's any more.
FORGET = "DELETE FROM inbox.message WHERE closed_at IS NULL OR parked"


@dataclass
class Hold:
    """Held since when, and behind which row: any one of these; none of them is a gap."""

    behind: frozenset[int]
    since: float


@dataclass
class Row:
    """What the model knows of a message."""

    id: int
    name: str
    subject: str | None
    number: int | None
    content: int
    status: str = "RECEIVED"
    generation: int = 1
    tries: int = 0
    before: int = 0
    parked: bool = False
    obsolete: bool = False
    code: str | None = None
    lines: int = 0
    duplicates: int = 0
    hold: Hold | None = None
    since: float = 0  # received, redriven or failed
    era: int = 0  # the order under which it was claimed last
    attempt: int = 0
    began: datetime = FIRST

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def holds(self) -> bool:
        return self.open or self.parked


@dataclass
class Place:
    """What the model knows of a subject."""

    processing: int | None = None
    last: int | None = None
    gap: float | None = None  # since when it stands before one
    applied: list[Row] = field(default_factory=list)


class Model:
    """What the spec says of order (section 9), over a handful of rows."""

    def __init__(self, order: str, *, parks: bool) -> None:
        self.order = order
        self.parks = parks
        self.rows: dict[int, Row] = {}
        self.places: dict[str, Place] = {}
        self.clock = 0.0
        self.era = 0
        self.unsure: set[int] = set()  # of two with one number either may have been released

    def ordered(self, row: Row) -> bool:
        return self.order != "none" and row.subject is not None

    def place(self, row: Row) -> Place:
        return self.places.setdefault(row.subject or "", Place())

    def at_work(self, row: Row) -> int | None:
        """Return the row whose try has the subject; what ended without order left its name behind."""
        processing = self.place(row).processing
        return processing if processing and self.rows[processing].status == "PROCESSING" else None

    def beside(self, row: Row) -> list[Row]:
        return [other for other in self.rows.values() if other.subject == row.subject and other is not row]

    def rank(self, row: Row) -> tuple[bool, int]:
        """Return its turn; by sequence rows without a number come last."""
        numbered = self.order == "sequence" and row.number is not None
        return (self.order == "sequence" and not numbered, row.number or 0 if numbered else row.id)

    def add(self, row: Row, *, known: bool) -> None:
        """Add an accepted row; ``known`` subjects have a place already."""
        others = [o.number for o in self.beside(row) if o.holds and o.number is not None]
        self.rows[row.id] = row
        row.since = self.clock
        if self.order == "sequence" and not known and not others:
            self.place(row).last = (row.number or 0) - 1

    def before(self, row: Row) -> frozenset[int]:
        """Return the nearest rows before this one, open or parked, that it waits for."""
        lower = [o for o in self.beside(row) if o.holds and self.rank(o) < self.rank(row)]
        if self.order == "sequence":
            floor = self.place(row).last or 0
            lower = [o for o in lower if row.number is not None and o.number is not None and o.number > floor]
        nearest = max(map(self.rank, lower), default=None)
        return frozenset(o.id for o in lower if self.rank(o) == nearest)

    def missing(self, row: Row) -> int | None:
        """Return the first number between the last applied and this row's that no row has."""
        last, number = self.place(row).last, row.number
        if self.order != "sequence" or last is None or number is None:
            return None
        known = {o.number for o in self.beside(row)}
        return next((n for n in range(last + 1, number) if n not in known), None)

    def begin(self, row: Row) -> None:
        """Find the start of a subject that was known before its source's order was by sequence."""
        place = self.place(row)
        if place.last is None:
            numbers = [o.number for o in [row, *self.beside(row)] if o.holds and o.number is not None]
            place.last = min(numbers) - 1 if numbers else None

    def decide(self, row: Row) -> str | None:
        if not self.ordered(row) or row.status not in WAITING:
            return None
        place = self.place(row)
        if self.order == "sequence":
            self.begin(row)
        behind = self.before(row)
        missing = None if behind else self.missing(row)
        if missing is not None:  # one that was applied in another order is not waited for, nor any below it
            passed = [o.number for o in self.beside(row) if o.status == "COMPLETED" and o.number is not None]
            place.last = max([place.last or 0, *(n for n in passed if missing < n < (row.number or 0))])
            missing = self.missing(row)
        at_work = self.at_work(row)
        if not behind and at_work not in (None, row.id):
            behind = frozenset({at_work or 0})
        if behind:
            row.hold = Hold(behind, row.hold.since if row.hold else self.clock)
            return "HELD"
        if missing is not None:
            place.gap = self.clock if place.gap is None else place.gap
            row.hold = Hold(behind, max(row.since, place.gap))
            return "GAP" if row.hold.since + GAP <= self.clock else "HELD"
        row.hold = None
        if self.order == "sequence" and not self.passed(row):
            place.gap = None
        return "FREE"

    def claim(self, row: Row, asked: int, *, zombie: bool) -> str | None:
        decision = self.decide(row)
        if not row.open:
            return None
        if row.generation != asked or zombie:
            return "OVERTAKEN" if row.generation != asked else "SUPERSEDED"
        lost = row.status == "PROCESSING"
        if row.tries - row.before >= TRIES:
            row.lines += lost
            return "EXHAUSTED"
        if decision in ("HELD", "GAP"):
            return "HELD"
        if lost and self.ordered(row) and self.at_work(row) not in (None, row.id):
            return "SUPERSEDED"
        row.lines += lost
        row.hold = None
        row.era = self.era
        if self.ordered(row):
            assert self.at_work(row) in (None, row.id)
            assert lost or (not self.before(row) and self.missing(row) is None)
            self.place(row).processing = row.id
        row.status, row.tries = "PROCESSING", row.tries + 1
        return "CLAIMED"

    def passed(self, row: Row) -> bool:
        last = self.place(row).last if self.order == "sequence" else None
        return last is not None and row.number is not None and row.number <= last

    def release(self, row: Row) -> None:
        if not self.ordered(row) or row.status == "PROCESSING":
            return
        place = self.place(row)
        if place.processing == row.id:
            place.processing = None
            if row.status == "COMPLETED" and self.order == "sequence" and row.number is not None:
                place.last = row.number if place.last is None else max(place.last, row.number)
        waiting = [o for o in [row, *self.beside(row)] if o.open]
        least = min(map(self.rank, waiting), default=None)
        first = [o for o in waiting if self.rank(o) == least]
        if len(first) > 1:
            self.unsure |= {o.id for o in first}
        elif first and first[0] is not row and first[0].status != "PROCESSING":
            first[0].hold = None

    def die(self, row: Row, code: str, *, park: bool) -> None:
        row.status, row.code, row.hold = "DEAD", code, None
        row.parked = park and self.parks and self.ordered(row)

    def bury(self, row: Row, code: str, *, park: bool = False) -> None:
        if row.open:
            row.lines += row.status == "PROCESSING"
            self.die(row, code, park=park)
        elif row.parked and not park:
            row.parked, row.code = False, code
            self.place(row).gap = None

    def resume(self, held_behind: dict[int, int | None]) -> None:
        """Let go what this order would not hold behind the row that holds it."""
        for row in self.rows.values():
            if not row.open or not row.hold:
                continue
            other = self.rows.get(held_behind[row.id] or 0)
            if other is None:
                right = self.order == "sequence"
            else:
                numbered = self.order == "arrival" or None not in (row.number, other.number)
                before = numbered and self.rank(other) < self.rank(row)
                right = self.order != "none" and (other.status == "PROCESSING" or (other.holds and before))
            if not right:
                row.hold = None

    def adopt(self) -> None:
        for row in sorted(self.rows.values(), key=lambda o: o.id):
            if self.ordered(row) and row.status == "PROCESSING" and self.at_work(row) is None:
                self.place(row).processing = row.id

    def redrive(self, row: Row) -> None:
        row.since = self.clock
        row.status, row.parked, row.hold = "RECEIVED", False, None
        row.generation, row.before = row.generation + 1, row.tries


@dataclass
class World:
    """What the machines share: one database, one loop."""

    url: str
    runner: asyncio.Runner
    database: Database
    sql: psycopg.Connection[dict[str, Any]]
    lives: int = 0
    steps: int = 0


class Machine(RuleBasedStateMachine):
    """One source, some subjects, and all that can befall their messages."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model("none", parks=False)
        self.live: set[int] = set()  # rows whose workflow is at work
        self.claims: list[Any] = []
        self.names = 0
        self.late: tuple[psycopg.Connection[Any], Row] | None = None
        self.began = FIRST
        self.changes = False

    def run(self, job: Coroutine[Any, Any, Any]) -> Any:
        return self.world.runner.run(job)

    @initialize(order=st.sampled_from(ORDERS), parks=st.booleans(), changes=st.booleans())
    def begin(self, order: str, parks: bool, changes: bool) -> None:
        self.changes = changes  # half of the lives change their order now and then
        self.world.lives += 1
        self.world.sql.execute(FORGET)
        self.source = f"{order}{self.world.lives}"
        self.environment = ActivityEnvironment()
        self.model = Model(order, parks=parks)
        self.configure(order, parks=parks)

    def configure(self, order: str, *, parks: bool) -> None:
        declared = {
            "types": ["t"],
            "order": order,
            "tries": TRIES,
            "gap_timeout": GAP,
            "on_dead": "park" if parks else "release",
        }
        sources = Sources.model_validate({"sources": {self.source: declared}})
        self.settings = Settings(DATABASE_URL=self.world.url).model_copy(update={"declared": sources})
        self.its: Any = self.settings.source(self.source)
        self.model.order, self.model.parks = order, self.its.parks
        self.acceptor = Acceptor(self.world.database, self.settings, lambda: None)
        self.dispatcher = Noting(self.world.database, self.settings)
        self.tries = Tries(self.world.database, {}, self.settings, "w", lambda: None)

    @precondition(lambda self: self.late is None and self.changes and self.model.rows)
    @rule(order=st.sampled_from(ORDERS), parks=st.booleans(), now=st.integers(0, 2))
    def restart_with_another_order(self, order: str, parks: bool, now: int) -> None:
        if now:
            return
        self.configure(order, parks=parks)
        self.model.era += 1
        for place in self.model.places.values():
            place.applied.clear()
        held_behind = {row["id"]: row["held_behind"] for row in self.rows()}
        self.run(adopt(self.world.database, self.settings))
        self.run(resume(self.world.database, self.settings))
        self.model.adopt()
        self.model.resume(held_behind)

    # Intake

    def incoming(self, name: str, subject: str | None, number: int | None, content: int) -> Incoming:
        return Incoming("", self.source, name, "t", subject, number, "application/json", b"{}", bytes([content]) * 32)

    def new(self, subject: int, number: int | None) -> Row:
        self.names += 1
        if self.model.order == "sequence":
            return Row(0, f"m{self.names}", SUBJECTS[subject % 2], number or 0, self.names % 7)
        return Row(0, f"m{self.names}", (*SUBJECTS, *SUBJECTS, None)[subject % 5], number, self.names % 7)

    @rule(subject=ANY, number=st.none() | st.integers(3, 9))
    def accept(self, subject: int, number: int | None) -> None:
        row = self.new(subject, number)
        known = row.subject in self.known()
        found = self.run(self.acceptor.accept(self.incoming(row.name, row.subject, row.number, row.content)))
        assert found.created
        row.id = found.id
        self.model.add(row, known=known)

    @rule(subject=ANY)
    def accept_next(self, subject: int) -> None:
        """The number that follows, mostly."""
        numbers = [o.number or 0 for o in self.model.rows.values() if o.subject == SUBJECTS[subject % 2]]
        self.accept(subject, max(numbers, default=4) + 1)

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY, same=st.booleans())
    def deliver_again(self, which: int, same: bool) -> None:
        row = self.pick(which)
        incoming = self.incoming(row.name, row.subject, row.number, row.content + (0 if same else 1))
        if self.model.order == "sequence" and (row.subject is None or row.number is None):
            with pytest.raises(Malformed):
                self.run(self.acceptor.accept(incoming))
            return
        if not same:
            with pytest.raises(ContentConflict):
                self.run(self.acceptor.accept(incoming))
            return
        found = self.run(self.acceptor.accept(incoming))
        assert (found.created, found.id, found.status) == (False, row.id, row.status)
        row.duplicates += 1

    def known(self) -> list[str]:
        """Return the subjects that have a place."""
        places = self.world.sql.execute(PLACES, (self.source,)).fetchall()
        return sorted(row["subject"] for row in places)

    @precondition(lambda self: self.late is None and self.model.rows and self.known())
    @rule(which=ANY, number=st.integers(3, 9))
    def begin_late(self, which: int, number: int) -> None:
        """A delivery takes its ID now, and becomes visible later."""
        row = self.new(0, number)
        row.subject = self.known()[which % len(self.known())]
        incoming = self.incoming(row.name, row.subject, row.number, row.content)
        connection = psycopg.connect(self.world.url, row_factory=dict_row)
        found = connection.execute(ACCEPT.sql, self.acceptor._row(incoming, self.its)).fetchone()
        assert found
        assert found["created"]
        row.id = found["id"]
        self.late = (connection, row)

    @precondition(lambda self: self.late)
    @rule()
    def commit_late(self) -> None:
        assert self.late
        connection, row = self.late
        connection.commit()
        connection.close()
        self.model.add(row, known=True)
        self.late = None

    # Dispatch

    @precondition(lambda self: self.model.rows)
    @rule()
    def dispatch(self) -> None:
        due = [row["id"] for row in self.rows() if row["is_due"] and not row["put_off"]]
        self.dispatcher.started.clear()
        self.run(self.dispatcher.round())
        started = set(self.dispatcher.started)
        expected = {id_ for id_ in due if self.model.decide(self.model.rows[id_]) != "HELD"}
        assert started == expected
        self.live |= started

    @precondition(lambda self: self.live)
    @rule(which=ANY)
    def lose_a_workflow(self, which: int) -> None:
        """One that ends by hand, or is gone: dispatch starts another once the row falls due again."""
        self.live.discard(sorted(self.live)[which % len(self.live)])

    @rule(seconds=st.sampled_from([SOON, SOON, GAPS, AGAIN]))
    def elapse(self, seconds: int) -> None:
        self.model.clock += seconds
        for statement in (ELAPSE, ELAPSE_PLACES):
            self.world.sql.execute(statement, {"t": timedelta(seconds=seconds), "source": self.source})

    # Tries

    @precondition(lambda self: self.live)
    @rule(which=ANY, restart=st.booleans())
    def claim(self, which: int, restart: bool) -> None:
        """The next attempt of a workflow; where its row is PROCESSING, the last try was lost."""
        row = self.model.rows[sorted(self.live)[which % len(self.live)]]
        self.attempt(row, row.generation, restart=restart)

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY, old=st.booleans(), restart=st.booleans())
    def claim_any(self, which: int, old: bool, restart: bool) -> None:
        """An attempt that comes late, or that nobody expects."""
        row = self.pick(which)
        self.attempt(row, max(1, row.generation - old), restart=restart)

    @precondition(lambda self: any(row.attempt for row in self.model.rows.values()))
    @rule(which=ANY)
    def claim_as_zombie(self, which: int) -> None:
        """An attempt that began before the one that holds the row, or held it last."""
        row = self.pick(which, [row for row in self.model.rows.values() if row.attempt])
        self.attempt(row, row.generation, zombie=True)

    def attempt(self, row: Row, asked: int, *, zombie: bool = False, restart: bool = False) -> None:
        self.began += timedelta(seconds=2)
        began = row.began - timedelta(seconds=1) if zombie else self.began
        number = row.attempt if zombie else row.attempt + 1
        self.environment.info = replace(
            self.environment.info,
            attempt=1 if restart else number,
            started_time=began,
            workflow_run_id=f"run of {row.id}",
            activity_id=str(began) if restart else "1",
        )
        work = RegisterInput(row.id, self.source, "t", "run", asked, row.subject is not None)
        answer = self.model.claim(row, asked, zombie=zombie)
        claimed = self.run(self.environment.run(self.tries._claim, work, self.its, Timeouts()))
        assert (claimed.answer if claimed else None) == answer
        if answer == "CLAIMED":
            row.attempt, row.began = self.environment.info.attempt, began
            if restart:
                row.attempt = 0  # a zombie of another activity is another story
            assert (claimed.tries, claimed.obsolete) == (row.tries, self.model.passed(row))
            assert claimed.body == b"{}"
            self.claims.append(claimed)
            return
        if answer != "SUPERSEDED":
            self.live.discard(row.id)
        if answer == "EXHAUSTED":
            with pytest.raises(ApplicationError):
                self.run(self.environment.run(self.tries._exhausted, claimed, self.its))
            self.model.die(row, row.code if row.code and row.status == "FAILED" else "TRY_LOST", park=True)
            self.model.release(row)
        elif answer == "HELD":
            self.run(self.environment.run(self.tries._held, claimed, work, self.its))
            if self.model.order == "sequence" and self.model.decide(row) == "GAP":
                self.model.bury(row, "SEQUENCE_GAP", park=True)
                self.model.release(row)

    def current(self, claimed: Any) -> Row | None:
        row = self.model.rows[claimed.id]
        same = (row.status, row.generation, row.tries) == ("PROCESSING", claimed.generation, claimed.tries)
        return row if same else None

    def at_work(self) -> list[Any]:
        return [claimed for claimed in self.claims if self.current(claimed)]

    @precondition(lambda self: self.at_work())
    @rule(which=ANY)
    def complete(self, which: int) -> None:
        working = self.at_work()
        self.bundle(working[which % len(working)])

    @precondition(lambda self: self.at_work())
    @rule(which=ANY, final=st.booleans())
    def fail(self, which: int, final: bool) -> None:
        working = self.at_work()
        self.record(working[which % len(working)], final=final)

    @precondition(lambda self: self.claims)
    @rule(which=ANY, final=st.booleans(), completes=st.booleans())
    def end_any(self, which: int, final: bool, completes: bool) -> None:
        """A try that was overtaken, mostly."""
        claimed = self.claims[which % len(self.claims)]
        if completes:
            self.bundle(claimed)
        else:
            self.record(claimed, final=final)

    def bundle(self, claimed: Any) -> None:
        row = self.current(claimed)
        result = OBSOLETE if claimed.obsolete else None
        if row is None:
            with pytest.raises(StaleTry):
                self.run(self.tries._bundle(claimed, self.its, nothing_written, result))
            return
        self.run(self.tries._bundle(claimed, self.its, nothing_written, result))
        if self.model.ordered(row) and not claimed.obsolete:
            place = self.model.place(row)
            if row.number is not None and row.era == self.model.era:  # not begun in another order
                if self.model.order == "sequence":
                    assert all((o.number or 0) < row.number for o in place.applied)
                place.applied.append(row)
        row.status, row.obsolete = "COMPLETED", claimed.obsolete
        self.model.release(row)
        self.live.discard(row.id)

    def record(self, claimed: Any, *, final: bool) -> None:
        row = self.current(claimed)
        verdict = Verdict("NEVER" if final else "NOT_YET", "no", "no", non_retryable=final)
        with pytest.raises(ApplicationError if row else StaleTry):
            self.run(self.environment.run(self.tries._fail, claimed, verdict, self.its))
        if row:
            row.lines += 1
            row.status, row.code, row.since = "FAILED", verdict.code, self.model.clock
            if final or row.tries - row.before >= TRIES:
                self.model.die(row, verdict.code, park=True)
                self.live.discard(row.id)
        self.model.release(self.model.rows[claimed.id])

    # Operators

    def key(self, row: Row) -> Key:
        return Key("", self.source, row.name)

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY)
    def discard(self, which: int) -> None:
        row = self.pick(which)
        job = discard(self.world.database, self.settings, self.key(row), "not wanted")
        if not row.holds:
            with pytest.raises(NotOpen):
                self.run(job)
            return
        self.run(job)
        self.model.bury(row, "DISCARDED")
        self.model.release(row)
        self.live.discard(row.id)

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY, old=st.booleans())
    def cancel(self, which: int, old: bool) -> None:
        """A workflow that was cancelled closes its row, of its own generation alone."""
        row = self.pick(which)
        generation = max(1, row.generation - old)
        self.run(bury(self.world.database, self.settings, BuryInput(row.id, self.source, generation, "CANCELLED"), "r"))
        if generation == row.generation:
            self.model.bury(row, "CANCELLED")
        self.model.release(row)

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY)
    def redrive(self, which: int) -> None:
        row = self.pick(which)
        job = redrive(self.world.database, self.key(row))
        if row.status != "DEAD":
            with pytest.raises(NotDead):
                self.run(job)
            return
        self.run(job)
        self.model.redrive(row)
        self.live.discard(row.id)

    @precondition(lambda self: any(row.status == "DEAD" for row in self.model.rows.values()))
    @rule(which=ANY)
    def redrive_a_dead_one(self, which: int) -> None:
        dead = self.pick(which, [row for row in self.model.rows.values() if row.status == "DEAD"])
        self.redrive([*self.model.rows].index(dead.id))

    @precondition(lambda self: self.model.rows)
    @rule(which=ANY)
    def release(self, which: int) -> None:
        self.let_go(self.pick(which))

    @precondition(lambda self: any(row.parked for row in self.model.rows.values()))
    @rule(which=ANY)
    def release_a_parked_one(self, which: int) -> None:
        self.let_go(self.pick(which, [row for row in self.model.rows.values() if row.parked]))

    def let_go(self, row: Row) -> None:
        job = release(self.world.database, self.settings, self.key(row))
        if row.parked:
            self.run(job)
            row.parked = False
            self.model.place(row).gap = None
            self.model.release(row)
            return
        gap = self.model.order == "sequence" and row.status != "COMPLETED"
        if not gap or self.model.before(row) or self.model.missing(row) is None:
            with pytest.raises(NotHeld):
                self.run(job)
            return
        self.run(job)
        self.model.place(row).last = (row.number or 0) - 1
        if row.status in WAITING:
            row.hold = None
        elif row.status == "DEAD":
            self.model.redrive(row)

    # What must be true

    def pick(self, which: int, among: list[Row] | None = None) -> Row:
        rows = list(self.model.rows.values()) if among is None else among
        return rows[which % len(rows)]

    def rows(self) -> list[dict[str, Any]]:
        return self.world.sql.execute(ROWS, (self.source,)).fetchall()

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        found = {row["id"]: row for row in self.rows()} if self.model.rows else {}
        assert found.keys() == self.model.rows.keys()
        for id_, row in self.model.rows.items():
            real = found[id_]
            told = (
                row.status,
                row.generation,
                row.tries,
                row.before,
                row.parked,
                row.lines,
                row.duplicates,
                row.obsolete,
                row.code,
            )
            assert told == (
                real["status"],
                real["generation"],
                real["tries"],
                real["tries_before"],
                real["parked"],
                real["lines"],
                real["duplicates"],
                real["outcome"] == OBSOLETE,
                real["last_code"],
            )
            if id_ in self.model.unsure and real["held_since"] is None:
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
        self.model.unsure.clear()

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

    # The end: with nobody's help all is done, but what is parked; and that when it is let go

    def check(self) -> None:
        self.rows_are_as_the_model_says()
        self.one_of_a_subject_at_a_time()

    def go_on(self) -> None:
        """Dispatch and work until nothing moves; no time passes."""
        while True:
            self.dispatch()
            self.check()
            if not self.live and not self.at_work():
                return
            for id_ in sorted(self.live):
                if self.model.rows[id_].status != "PROCESSING" or not any(c.id == id_ for c in self.at_work()):
                    self.attempt(self.model.rows[id_], self.model.rows[id_].generation)
                    self.check()
                for claimed in self.at_work():
                    if claimed.id == id_:
                        self.bundle(claimed)
                        self.check()
            for claimed in self.at_work():
                self.bundle(claimed)
                self.check()

    def teardown(self) -> None:
        if self.late:
            self.commit_late()
        if not self.model.rows:
            return
        for seconds in (AGAIN, *[GAPS] * len(self.model.rows)):
            self.elapse(seconds)
            self.go_on()
            gaps = {o.subject for o in self.model.rows.values() if o.open and o.hold and not o.hold.behind}
            parked = {o.subject for o in self.model.rows.values() if o.parked}
            assert {o.subject for o in self.model.rows.values() if o.open} <= gaps | parked
            for row in self.model.rows.values():
                if row.parked and row.subject not in gaps:
                    self.let_go(row)
                    self.go_on()
            if not any(row.holds for row in self.model.rows.values()):
                break
        assert not [row for row in self.rows() if row["closed_at"] is None or row["parked"]]


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with asyncio.Runner() as runner, psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as sql:
        database = Database(database_url, size=4, name="model")
        runner.run(database.open())
        yield World(database_url, runner, database, sql)
        runner.run(database.close())


def test_rows_are_at_every_step_what_the_model_says(world: World) -> None:
    run_state_machine_as_test(
        lambda: Machine(world),
        settings=settings(
            max_examples=max(1, STEPS // EACH),
            stateful_step_count=EACH,
            derandomize=not MORE,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert world.steps >= STEPS // 2
