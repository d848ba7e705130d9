"""Steps of intake: messages that are new, and those that are delivered again, in either mode."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from psycopg.rows import dict_row

from inbox.errors import ContentConflict, Malformed, NotRegistered
from inbox.ingest.accept import Incoming
from inbox.store.statements import ACCEPT
from tests.support.model.rows import NOT_STORED, Row
from tests.support.model.world import ANY, Base, body

SUBJECTS = ("s", "t")


class Intake(Base):
    """What producers do."""

    def incoming(self, row: Row) -> Incoming:
        kind, content = "application/json", row.content
        return Incoming(
            "", self.source, row.name, "t", row.subject, row.number, kind, body(content), content.to_bytes(32)
        )

    def content(self) -> int:
        """Return one that no message has yet."""
        self.contents += 1
        return self.contents

    def new(self, subject: int, number: int | None) -> Row:
        self.names += 1
        if self.model.order == "sequence":
            subjects: tuple[str | None, ...] = SUBJECTS
            number = number or 0
        else:
            subjects = (*SUBJECTS, *SUBJECTS, None)
        return Row(NOT_STORED, f"m{self.names}", subjects[subject % len(subjects)], number, self.content())

    @rule(subject=ANY, number=st.none() | st.integers(3, 9), way=ANY)
    def deliver(self, subject: int, number: int | None, way: int) -> None:
        self.bring(self.new(subject, number), way)

    @rule(subject=ANY, way=ANY)
    def deliver_next(self, subject: int, way: int) -> None:
        """The number that follows, mostly."""
        numbers = [o.number or 0 for o in self.model.rows.values() if o.subject == SUBJECTS[subject % 2]]
        self.deliver(subject, max(numbers, default=4) + 1, way)

    @precondition(lambda self: self.model.rows)
    @rule(
        which=ANY, content=st.sampled_from(["newest", "newest", "its own", "other"]), moved=st.integers(0, 9), way=ANY
    )
    def deliver_again(self, which: int, content: str, moved: int, way: int) -> None:
        """The content of the newest edition, or of any of its, or other content; now and then with another number."""
        row = self.pick(which)
        newest = self.model.editions(row.name)[-1]
        again = {"newest": newest.content, "its own": row.content}.get(content) or self.content()
        other = self.new(which, moved + 2) if moved in (1, 2) else newest
        self.bring(Row(NOT_STORED, row.name, other.subject, other.number, again), way)

    @precondition(lambda self: any(row.status == "DEAD" for row in self.model.rows.values()))
    @rule(which=ANY, same=st.booleans(), way=ANY)
    def deliver_a_dead_one_again(self, which: int, same: bool, way: int) -> None:
        dead = self.pick(which, [row for row in self.model.rows.values() if row.status == "DEAD"])
        again = dead.content if same else self.content()
        self.bring(Row(NOT_STORED, dead.name, dead.subject, dead.number, again), way)

    def bring(self, new: Row, way: int) -> None:
        """Deliver a message, and say what came of it."""
        self.domain.way = self.ways[way % len(self.ways)]
        direct = self.domain.way != "accept"
        job = (self.direct if direct else self.acceptor).accept(self.incoming(new))
        if self.model.order == "sequence" and (new.subject is None or new.number is None):
            with pytest.raises(Malformed):
                self.run(job)
            return
        known = new.subject in self.known()
        met, stored = self.model.meet(new, direct=direct)
        if met == "CONFLICT":
            with pytest.raises(ContentConflict):
                self.run(job)
            return
        if met == "REGISTERED" and self.domain.way != "registers":
            with pytest.raises(NotRegistered) as refused:
                self.run(job)
            assert refused.value.final == (self.domain.way == "refuses")
            return
        found = self.run(job)
        if met == "DUPLICATE" and stored:
            stored.duplicates, stored.delivered = stored.duplicates + 1, self.model.clock
        elif met == "REDRIVEN" and stored:
            self.model.redrive(stored)
            stored.content, stored.delivered = new.content, self.model.clock
            self.live.discard(stored.id)
        else:
            new.id = found.id
            if met == "ACCEPTED":
                self.model.add(new, known=known)
            else:
                self.model.register(new, obsolete=met == "OBSOLETE")
        row = stored or new
        assert found.created == (met != "DUPLICATE")
        assert (found.id, found.edition, found.status) == (row.id, row.edition, row.status)
        assert (found.last_code, found.outcome) == (row.code, row.outcome)

    @precondition(lambda self: self.late is None and self.model.rows and self.known())
    @rule(which=ANY, number=st.integers(3, 9))
    def begin_late(self, which: int, number: int) -> None:
        """A delivery takes its ID now, and becomes visible later."""
        row = self.new(0, number)
        row.subject = self.known()[which % len(self.known())]
        connection = psycopg.connect(self.world.url, row_factory=dict_row)
        found = connection.execute(ACCEPT.sql, self.acceptor._row(self.incoming(row), self.its)).fetchone()
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
