"""Every edge of the state machine is taken by an action of the product's, on the real statements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inbox.burial import discard, redrive
from inbox.message import Key
from inbox.settings import Settings
from inbox.states import EDGES, Status
from inbox.store.engine import Database, driver, one
from inbox.store.statements import ACCEPT, BURY, CLAIM, COMPLETE, FAIL, TAKE_FENCE
from tests.support.rows import acceptance, claim, completion, failure
from tests.support.stack import Stack

# Notes each edge that a statement takes; an update that stays in its state is one where it spends a try.
NOTE = """
    CREATE TABLE public.edge (n bigint GENERATED ALWAYS AS IDENTITY, old text, new text);
    CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.edge (old, new) VALUES (OLD.status, NEW.status);
        RETURN NEW;
    END $$;
    CREATE TRIGGER note AFTER UPDATE ON inbox.message FOR EACH ROW
        WHEN (OLD.status <> NEW.status OR OLD.tries <> NEW.tries) EXECUTE FUNCTION public.note();
"""


class Record:
    """One message, and what can be done to it."""

    def __init__(self, database: Database, settings: Settings, row: int) -> None:
        self.database = database
        self.settings = settings
        self.row = row
        self.tries = 0

    @property
    def key(self) -> Key:
        return Key("", "p", "1")

    async def claim(self) -> None:
        claimed = await self.database.one(CLAIM, claim(self.row, attempt=self.tries + 1))
        assert claimed is not None
        assert claimed.answer == "CLAIMED"
        self.tries = claimed.tries

    async def fail(self, **changes: Any) -> None:
        assert await self.database.one(FAIL, failure(self.row, tries=self.tries, **changes))

    async def fail_for_good(self) -> None:
        await self.fail(non_retryable=True)

    async def complete(self) -> None:
        fence = {"id": self.row, "generation": 1, "tries": self.tries}
        async with self.database.transaction() as tx:
            connection = await driver(tx)
            held = await one(connection, TAKE_FENCE, fence)
            assert held is not None
            assert await one(connection, COMPLETE, completion(self.row, held.xact, tries=self.tries))

    async def use_up(self) -> None:
        """Find the tries used, the limit having been lowered, and bury the row."""
        claimed = await self.database.one(CLAIM, claim(self.row, attempt=self.tries + 1, max_tries=1))
        assert claimed is not None
        assert claimed.answer == "EXHAUSTED"
        burial = {"id": self.row, "generation": 1, "tries": self.tries, "code": "TRY_LOST", "reason": "", "told": ""}
        assert await self.database.one(BURY, burial | {"reports": False, "park": False})

    async def discard(self) -> None:
        await discard(self.database, self.settings, self.key, "not wanted")

    async def redrive(self) -> None:
        await redrive(self.database, self.key)


Step = Callable[[Record], Awaitable[None]]
R = Record
# Action → the steps that lead to it, itself the last, and the edge that it takes.
ACTIONS: dict[str, tuple[tuple[Step, ...], tuple[str, str]]] = {
    "claim": ((R.claim,), ("RECEIVED", "PROCESSING")),
    "claim after a lost try": ((R.claim, R.claim), ("PROCESSING", "PROCESSING")),
    "claim after a failed try": ((R.claim, R.fail, R.claim), ("FAILED", "PROCESSING")),
    "complete": ((R.claim, R.complete), ("PROCESSING", "COMPLETED")),
    "fail": ((R.claim, R.fail), ("PROCESSING", "FAILED")),
    "fail for good": ((R.claim, R.fail_for_good), ("PROCESSING", "DEAD")),
    "find the last try lost": ((R.claim, R.use_up), ("PROCESSING", "DEAD")),
    "find the limit lowered": ((R.claim, R.fail, R.use_up), ("FAILED", "DEAD")),
    "discard before a try": ((R.discard,), ("RECEIVED", "DEAD")),
    "discard during a try": ((R.claim, R.discard), ("PROCESSING", "DEAD")),
    "discard after a failed try": ((R.claim, R.fail, R.discard), ("FAILED", "DEAD")),
    "redrive": ((R.discard, R.redrive), ("DEAD", "RECEIVED")),
}


@pytest.fixture
async def record(stack: Stack) -> Record:
    stack.configure({"sources": {"p": {"types": ["report.count"]}}, "legacy": None})
    await stack.open()
    await stack.sql(NOTE)
    accepted = await stack.database.one(ACCEPT, acceptance("1"))
    assert accepted is not None
    return Record(stack.database, stack.settings, accepted.id)


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_takes_its_edge(stack: Stack, record: Record, action: str) -> None:
    steps, edge = ACTIONS[action]
    for step in steps:
        await step(record)
    noted = await stack.sql("SELECT old, new FROM public.edge ORDER BY n")
    assert len(noted) == len(steps)  # one edge each
    assert (noted[-1]["old"], noted[-1]["new"]) == edge


def test_every_edge_has_an_action() -> None:
    assert {(Status(old), Status(new)) for _, (old, new) in ACTIONS.values()} == EDGES
