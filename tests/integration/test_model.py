"""Order, editions and modes by model: whatever befalls the messages of a few subjects, the rows are what it says.

The product's own code moves the rows, on real Postgres; Temporal is played: dispatch's starts are noted, and the
machine makes the tries. ``MODEL_STEPS=n`` takes about n steps at random, in place of the same few thousand each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from psycopg.rows import dict_row

from inbox.store.engine import Database
from tests.support.model.intake import Intake
from tests.support.model.operators import Operators
from tests.support.model.tries import Work
from tests.support.model.world import AGAIN, BUNDLES, GAPS, MORE, World

STEPS = MORE or 2000
EACH = 50  # steps of one life


class Machine(Intake, Work, Operators):
    """All that can befall messages, and their end: with nobody's help all is done, but what is parked or a gap holds."""

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
        self.check()  # after a step that failed the rest would hide it
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
        sql.execute(BUNDLES)
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
