"""Steps of operators."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from inbox.burial import NotDead, NotHeld, NotOpen, bury, discard, redrive, release
from inbox.message import Key
from inbox.references import BuryInput
from tests.support.model.rows import WAITING, Row
from tests.support.model.world import ANY, Base


class Operators(Base):
    """What operators do."""

    def key(self, row: Row) -> Key:
        return Key("", self.source, row.name, row.edition)

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
