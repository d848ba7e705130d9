"""Steps of dispatch and of tries, the product's own; the workflows between them are played."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.exceptions import ApplicationError

from inbox.errors import StaleTry
from inbox.handler import Outcome
from inbox.references import RegisterInput
from inbox.states import OBSOLETE
from inbox.verdict import Verdict
from tests.support.model.rows import TRIES, Row
from tests.support.model.world import ANY, Base, Content, body, bundle
from tests.support.trying import nothing_written


class Work(Base):
    """What dispatch and workers do."""

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
        claimed = self.run(self.environment.run(self.tries._claim, work, self.its, self.settings.declared.timeouts))
        assert (claimed.answer if claimed else None) == answer
        if answer == "CLAIMED":
            row.attempt, row.began = self.environment.info.attempt, began
            if restart:
                row.attempt = 0  # a zombie of another activity is another story
            assert (claimed.tries, claimed.obsolete) == (row.tries, self.model.passed(row))
            assert (claimed.edition, claimed.body) == (row.edition, body(row.content))
            self.claims.append(claimed)
            return
        if answer != "SUPERSEDED":
            self.live.discard(row.id)
        if answer == "EXHAUSTED":
            with pytest.raises(ApplicationError):
                self.run(self.environment.run(self.tries._endings.exhausted, claimed, self.its))
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
        async def write(tx: AsyncConnection) -> Outcome:
            content = Content.model_validate_json(claimed.body)
            return await bundle(tx, claimed.source, claimed.message_id, claimed.edition, content)

        row = self.current(claimed)
        asked = (nothing_written, OBSOLETE) if claimed.obsolete else (write, None)
        job = self.tries._bundle(claimed, self.its, *asked)
        if row is None:
            with pytest.raises(StaleTry):
                self.run(job)
            return
        self.run(job)
        if not claimed.obsolete:
            self.model.apply(row)
        row.status, row.obsolete = "COMPLETED", claimed.obsolete
        self.model.release(row)
        self.live.discard(row.id)

    def record(self, claimed: Any, *, final: bool) -> None:
        row = self.current(claimed)
        verdict = Verdict("NEVER" if final else "NOT_YET", "no", "no", non_retryable=final)
        with pytest.raises(ApplicationError if row else StaleTry):
            self.run(self.environment.run(self.tries._endings.fail, claimed, verdict, self.its))
        if row:
            row.lines += 1
            row.status, row.code, row.since = "FAILED", verdict.code, self.model.clock
            if final or row.tries - row.before >= TRIES:
                self.model.die(row, verdict.code, park=True)
                self.live.discard(row.id)
        self.model.release(self.model.rows[claimed.id])
