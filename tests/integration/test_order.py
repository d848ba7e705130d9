"""One message of a subject at a time, in turn."""

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.api.sdk.v1 import WorkflowMetadata

from activities.register import RegisterActivity
from inbox.burial import NotHeld, discard, passed, redrive, release
from inbox.handler import BusinessError, Message, Outcome
from inbox.message import Key
from inbox.references import RegisterResult
from inbox.store.engine import one
from inbox.store.statements import REDRIVE
from tests.integration.test_roles import command
from tests.support.processes import environment
from tests.support.stack import TOKENS, Stack, event
from tests.support.waiting import eventually


class Step(BaseModel):
    """What a message makes the handler do."""

    fail: int = 0  # how many of its tries fail


class Recorder:
    """Applies messages one after the other, and notes who was at work at once."""

    type = "report.count"
    payload = Step
    non_retryable = ("NEVER",)

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}
        self.applied: list[tuple[str | None, str]] = []
        self.working: dict[str | None, int] = {}
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}
        self.never: set[str] = set()

    def gate(self, message_id: str) -> asyncio.Event:
        """Return what a message waits for in its prepare."""
        return self.gates.setdefault(message_id, asyncio.Event())

    async def prepare(self, message: Message[Step]) -> None:
        self.working[message.subject] = self.working.get(message.subject, 0) + 1
        self.most = max(self.most, self.working[message.subject])
        try:
            if message.id in self.gates:
                await self.gates[message.id].wait()
            self.tries[message.id] = self.tries.get(message.id, 0) + 1
            if message.id in self.never:
                raise BusinessError("NEVER", "never")
            if self.tries[message.id] <= message.payload.fail:
                raise BusinessError("NOT_YET", "not yet")
        finally:
            self.working[message.subject] -= 1

    async def register(self, tx: AsyncConnection, message: Message[Step], _: None) -> Outcome:
        await tx.execute(
            text("INSERT INTO public.applied (subject, message_id) VALUES (:s, :m)"),
            {"s": message.subject, "m": message.id},
        )
        return Outcome()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def begin(stack: Stack, **source: Any) -> None:
    settings = {"types": ["report.count"], "retry_interval": 0.2, "tokens": stack.tokens("report-producer")} | source
    stack.configure({"sources": {"p": settings}, "legacy": None})
    await stack.sql(
        "CREATE TABLE public.applied (id bigint GENERATED ALWAYS AS IDENTITY, subject text, message_id text)"
    )


async def send(
    stack: Stack, message_id: str, subject: str | None = "s", sequence: int | None = None, **data: Any
) -> None:
    extensions = {"partitionkey": subject, "sequence": None if sequence is None else str(sequence)}
    cloudevent = event(data, source="p", type="report.count", id=message_id, **extensions)
    (await stack.post(cloudevent, TOKENS["report-producer"])).raise_for_status()


async def applied(stack: Stack, subject: str = "s") -> list[str]:
    rows = await stack.sql("SELECT message_id FROM public.applied WHERE subject = %s ORDER BY id", subject)
    return [row["message_id"] for row in rows]


def key(message_id: str) -> Key:
    return Key("", "p", message_id)


async def test_messages_of_a_subject_go_one_at_a_time_in_order_of_arrival(stack: Stack, recorder: Recorder) -> None:
    await begin(stack)
    await stack.start({"report.count": recorder})
    for n in range(12):
        await send(stack, f"m{n:02}", fail=n % 3)
    await stack.closed("m11", limit=60)
    assert await applied(stack) == [f"m{n:02}" for n in range(12)]
    assert recorder.most == 1


async def test_a_held_message_has_no_workflow_and_says_behind_whom_it_is(stack: Stack, recorder: Recorder) -> None:
    await begin(stack)
    gate = recorder.gate("a")
    await stack.start({"report.count": recorder})
    await send(stack, "a")
    await eventually(lambda: stack.row("a"), lambda row: row["status"] == "PROCESSING")
    await send(stack, "b")
    await send(stack, "c")
    held = await eventually(lambda: stack.row("c"), lambda row: row["held_since"] is not None)
    before = await eventually(lambda: stack.row("b"), lambda row: row["held_since"] is not None)
    assert held["held_behind"] == before["id"]
    assert before["held_behind"] == (await stack.row("a"))["id"]
    assert (held["due_at"], held["dispatched_at"], held["run_id"]) == (None, None, None)
    backlog = (await stack.get("/backlog")).json()
    assert (backlog["open"]["count"], backlog["held"]["count"]) == (1, 2)
    await send(stack, "other", subject="t")  # other subjects go on
    await stack.closed("other")
    gate.set()
    await stack.closed("c")
    assert await applied(stack) == ["a", "b", "c"]
    assert (await stack.row("c"))["held_since"] is None


async def test_one_that_becomes_visible_late_waits_for_the_running_one_and_is_not_forgotten(
    stack: Stack, recorder: Recorder
) -> None:
    await begin(stack)
    gate = recorder.gate("second")
    await stack.start({"report.count": recorder})
    async with await psycopg.AsyncConnection.connect(stack.url) as late:
        await late.execute(  # has the lower ID, and commits after the other is running
            "WITH m AS (INSERT INTO inbox.message (source, message_id, type, subject, payload_sha256, max_tries,"
            " workflow_id, due_at) VALUES ('p', 'first', 'report.count', 's', %s, 5, %s, now()) RETURNING *)"
            " INSERT INTO inbox.payload (message, received_at, content_type, body)"
            " SELECT id, received_at, 'application/json', '{}' FROM m",
            (b"x" * 32, f"{stack.name}/p/first"),
        )
        await send(stack, "second")
        await eventually(lambda: stack.row("second"), lambda row: row["status"] == "PROCESSING")
        await late.commit()
    stack.dispatcher.nudge()
    row = await eventually(lambda: stack.row("first"), lambda found: found["held_since"] is not None)
    assert row["held_behind"] == (await stack.row("second"))["id"]
    gate.set()
    await stack.closed("first")
    assert await applied(stack) == ["second", "first"]
    assert recorder.most == 1


async def test_in_order_of_arrival_a_number_says_nothing(stack: Stack, recorder: Recorder) -> None:
    await begin(stack)
    await stack.start({"report.count": recorder})
    for number in (9, 3):
        await send(stack, f"m{number}", sequence=number)
        assert (await stack.closed(f"m{number}"))["outcome"] == {}
    assert await applied(stack) == ["m9", "m3"]


@pytest.mark.parametrize("ending", ["redrive", "release", "discard"])
async def test_a_parked_message_holds_the_others_until_an_operator_ends_it(
    stack: Stack, recorder: Recorder, ending: str
) -> None:
    await begin(stack, on_dead="park", tries=1)
    recorder.never.add("a")
    await stack.start({"report.count": recorder})
    await send(stack, "a")
    row = await stack.closed("a")
    assert (row["status"], row["parked"]) == ("DEAD", True)
    await send(stack, "b")
    await send(stack, "c")
    await eventually(lambda: stack.row("c"), lambda found: found["held_since"] is not None)
    assert (await stack.get("/backlog")).json()["parked"]["count"] == 1
    recorder.never.clear()
    if ending == "redrive":
        await redrive(stack.database, key("a"))
    elif ending == "release":
        await release(stack.database, stack.settings, key("a"))
    else:
        await discard(stack.database, stack.settings, key("a"), "not wanted")
    await stack.closed("c")
    assert await applied(stack) == (["a"] if ending == "redrive" else []) + ["b", "c"]
    row = await stack.row("a")
    assert row["parked"] is False
    assert row["last_code"] == ("DISCARDED" if ending == "discard" else "NEVER")


async def test_a_dead_message_holds_nobody_otherwise(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, tries=2)
    recorder.never.add("a")
    await stack.start({"report.count": recorder})
    await asyncio.gather(*(send(stack, message_id) for message_id in ("a", "b", "c")))
    for message_id in ("a", "b", "c"):
        await stack.closed(message_id)
    assert sorted(await applied(stack)) == ["b", "c"]
    assert (await stack.row("a"))["parked"] is False


async def test_a_redriven_message_waits_for_the_running_one(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, tries=1)
    recorder.never.add("a")
    gate = recorder.gate("b")
    await stack.start({"report.count": recorder})
    await send(stack, "a")
    await stack.closed("a")
    await send(stack, "b")
    await eventually(lambda: stack.row("b"), lambda row: row["status"] == "PROCESSING")
    recorder.never.clear()
    await redrive(stack.database, key("a"))
    await eventually(lambda: stack.row("a"), lambda row: row["held_since"] is not None)
    gate.set()
    await stack.closed("b")
    row = await stack.closed("a")
    assert (row["status"], recorder.most) == ("COMPLETED", 1)


async def test_without_order_messages_of_a_subject_go_side_by_side(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="none")
    gates = [recorder.gate(f"m{n}") for n in range(3)]
    await stack.start({"report.count": recorder})
    for n in range(3):
        await send(stack, f"m{n}")

    async def at_once() -> int:
        return recorder.most

    await eventually(at_once, lambda most: most == 3)
    for gate in gates:
        gate.set()
    for n in range(3):
        await stack.closed(f"m{n}")
    assert await stack.sql("SELECT * FROM inbox.subject_position") == []


async def test_numbers_are_applied_in_sequence_whatever_order_they_come_in(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence")
    await stack.start({"report.count": recorder})
    await send(stack, "three", sequence=3)
    await stack.closed("three")
    for number in ("six", "five"):
        await send(stack, number, sequence={"six": 6, "five": 5}[number])
        await eventually(lambda n=number: stack.row(n), lambda row: row["held_since"] is not None)
    gap = await stack.row("five")
    assert gap["held_behind"] is None
    assert (gap["due_at"] - gap["held_since"]).total_seconds() == 3600
    await send(stack, "four", sequence=4)
    await stack.closed("six")
    assert await applied(stack) == ["three", "four", "five", "six"]
    (position,) = await stack.sql("SELECT processing, last FROM inbox.subject_position")
    assert position == {"processing": None, "last": 6}


async def test_a_number_that_was_passed_is_obsolete_and_has_no_bundle(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence")
    await stack.start({"report.count": recorder})
    await send(stack, "ten", sequence=10)
    await stack.closed("ten")
    await send(stack, "nine", sequence=9)
    row = await stack.closed("nine")
    assert (row["status"], row["outcome"]) == ("COMPLETED", "obsolete")
    assert await applied(stack) == ["ten"]
    duplicate = await stack.get("/messages/p/nine")
    assert duplicate.json()["outcome"] == "obsolete"


async def test_a_gap_that_is_not_filled_in_time_is_the_end_of_what_waits_for_it(
    stack: Stack, recorder: Recorder
) -> None:
    await begin(stack, order="sequence", gap_timeout=1)
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await stack.closed("one")
    await send(stack, "three", sequence=3)
    row = await stack.closed("three")
    assert (row["status"], row["last_code"], row["last_reason"]) == ("DEAD", "SEQUENCE_GAP", "number 2 is missing")
    assert row["tries"] == 0
    await send(stack, "two", sequence=2)
    await stack.closed("two")
    await redrive(stack.database, key("three"))
    assert (await stack.closed("three"))["status"] == "COMPLETED"
    assert await applied(stack) == ["one", "two", "three"]


@pytest.mark.parametrize("dead", [False, True])
async def test_a_gap_is_accepted_by_hand(stack: Stack, recorder: Recorder, *, dead: bool) -> None:
    await begin(stack, order="sequence", gap_timeout=1 if dead else 600)
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await stack.closed("one")
    await send(stack, "four", sequence=4)
    if dead:
        await stack.closed("four")
    else:
        await eventually(lambda: stack.row("four"), lambda row: row["held_since"] is not None)
    await release(stack.database, stack.settings, key("four"))
    row = await eventually(lambda: stack.row("four"), lambda found: found["status"] == "COMPLETED")
    assert row["generation"] == (2 if dead else 1)
    await send(stack, "three", sequence=3)
    assert (await stack.closed("three"))["outcome"] == "obsolete"
    assert await applied(stack) == ["one", "four"]
    with pytest.raises(NotHeld):
        await release(stack.database, stack.settings, key("four"))


async def test_a_number_that_waits_for_a_lower_one_is_behind_no_gap(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence")
    gate = recorder.gate("one")
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await eventually(lambda: stack.row("one"), lambda row: row["status"] == "PROCESSING")
    await send(stack, "two", sequence=2)
    await eventually(lambda: stack.row("two"), lambda row: row["held_since"] is not None)
    with pytest.raises(NotHeld):  # or its next try would find number 1 obsolete
        await release(stack.database, stack.settings, key("two"))
    gate.set()
    await stack.closed("two")
    assert await applied(stack) == ["one", "two"]


async def test_a_dead_number_is_no_gap_and_obsolete_once_a_higher_one_was_applied(
    stack: Stack, recorder: Recorder
) -> None:
    await begin(stack, order="sequence", tries=1)
    recorder.never.add("two")
    await stack.start({"report.count": recorder})
    for n, message_id in enumerate(("one", "two", "three"), 1):
        await send(stack, message_id, sequence=n)
    for message_id in ("one", "two", "three"):
        await stack.closed(message_id)
    assert await applied(stack) == ["one", "three"]
    recorder.never.clear()
    await redrive(stack.database, key("two"))
    row = await eventually(lambda: stack.row("two"), lambda found: found["status"] == "COMPLETED")
    assert row["outcome"] == "obsolete"
    assert await applied(stack) == ["one", "three"]


async def test_a_parked_number_is_waited_for(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence", tries=1, on_dead="park")
    recorder.never.add("two")
    await stack.start({"report.count": recorder})
    for n, message_id in enumerate(("one", "two", "three"), 1):
        await send(stack, message_id, sequence=n)
    await stack.closed("two")
    await eventually(lambda: stack.row("three"), lambda row: row["held_since"] is not None)
    recorder.never.clear()
    await redrive(stack.database, key("two"))
    await stack.closed("three")
    assert await applied(stack) == ["one", "two", "three"]


@pytest.mark.parametrize("order", ["arrival", "sequence"])
async def test_many_subjects_with_failures_each_in_its_own_order(stack: Stack, recorder: Recorder, order: str) -> None:
    await begin(stack, order=order, tries=3)
    await stack.start({"report.count": recorder})
    chance = random.Random(7)
    subjects, each = [f"s{n}" for n in range(12)], 10
    jobs: list[Awaitable[None]] = []
    for n in range(1, each + 1):
        turn = list(subjects)
        chance.shuffle(turn)
        for subject in turn:
            fails = chance.choice([0, 0, 1, 2])
            jobs.append(send(stack, f"{subject}-{n:02}", subject, n if order == "sequence" else None, fail=fails))
    for job in jobs:
        await job
    for subject in subjects:
        await stack.closed(f"{subject}-{each:02}", limit=120)
        assert await applied(stack, subject) == [f"{subject}-{n:02}" for n in range(1, each + 1)]
    assert recorder.most == 1
    left = await stack.sql("SELECT count(*) AS n FROM inbox.subject_position WHERE processing IS NOT NULL")
    assert left == [{"n": 0}]


async def test_a_sequence_says_nothing_where_order_is_by_arrival(stack: Stack, recorder: Recorder) -> None:
    await begin(stack)
    await stack.start({"report.count": recorder})
    for message_id, number in (("a", 5), ("b", 3), ("c", 9)):
        await send(stack, message_id, sequence=number)
    await stack.closed("c")
    assert await applied(stack) == ["a", "b", "c"]


# Gaps: whose time it is


async def test_the_time_behind_another_message_is_no_time_of_a_gap(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence", gap_timeout=3600)
    gate = recorder.gate("one")
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await eventually(lambda: stack.row("one"), lambda row: row["status"] == "PROCESSING")
    await send(stack, "three", sequence=3)
    await eventually(lambda: stack.row("three"), lambda row: row["held_behind"] is not None)
    await age(stack, 7200)  # as if it had waited behind number 1 for two hours
    gate.set()
    row = await eventually(
        lambda: stack.row("three"), lambda found: found["closed_at"] or (found["held_since"] and found["due_at"])
    )
    assert (row["status"], row["held_behind"]) == ("RECEIVED", None)
    assert (row["due_at"] - row["held_since"]).total_seconds() == 3600
    assert row["held_since"] >= (await stack.row("one"))["closed_at"]


async def test_all_that_wait_for_one_number_run_out_of_time_together(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence", gap_timeout=3600)
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await stack.closed("one")
    for number in range(3, 8):
        await send(stack, f"m{number}", sequence=number)
        await eventually(lambda n=number: stack.row(f"m{n}"), lambda row: row["held_since"] is not None)
    await age(stack, 7200)
    await send(stack, "m8", sequence=8)  # it came later, and has its own hour
    stack.dispatcher.nudge()
    for number in range(3, 8):
        row = await stack.closed(f"m{number}")
        assert (row["last_code"], row["last_reason"]) == ("SEQUENCE_GAP", "number 2 is missing")
    row = await eventually(lambda: stack.row("m8"), lambda found: found["held_since"] and found["due_at"])
    assert (row["held_behind"], row["held_since"]) == (None, row["updated_at"])


async def test_a_number_that_comes_in_the_last_moment_is_in_time(
    stack: Stack, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is accepted after the claim has found the gap's time over, and before the burial."""
    await begin(stack, order="sequence", gap_timeout=3600)
    original = RegisterActivity._held

    async def held(self: RegisterActivity, *given: Any) -> RegisterResult:
        await send(stack, "two", sequence=2)
        return await original(self, *given)

    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await stack.closed("one")
    await send(stack, "three", sequence=3)
    await eventually(lambda: stack.row("three"), lambda row: row["held_since"] is not None)
    monkeypatch.setattr(RegisterActivity, "_held", held)
    await age(stack, 7200)
    stack.dispatcher.nudge()
    row = await stack.closed("three")
    assert row["status"] == "COMPLETED"
    assert await applied(stack) == ["one", "two", "three"]


async def age(stack: Stack, seconds: int) -> None:
    """Let time pass for what waits."""
    await stack.sql(
        "UPDATE inbox.message SET held_since = held_since - make_interval(secs => %s),"
        " updated_at = updated_at - make_interval(secs => %s), due_at = due_at - make_interval(secs => %s)"
        " WHERE held_since IS NOT NULL",
        *[seconds] * 3,
    )
    await stack.sql("UPDATE inbox.subject_position SET gap_since = gap_since - make_interval(secs => %s)", seconds)


async def test_a_release_of_a_dead_one_is_one_transaction_and_says_what_is_not_waited_for(
    stack: Stack, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(stack, order="sequence", gap_timeout=1)
    await stack.start({"report.count": recorder})
    await send(stack, "one", sequence=1)
    await stack.closed("one")
    await send(stack, "five", sequence=5)
    await stack.closed("five")

    class Lost(Exception):
        pass

    async def lost(connection: Any, statement: Any, params: Any) -> Any:
        if statement is REDRIVE:
            raise Lost
        return await one(connection, statement, params)

    monkeypatch.setattr("inbox.burial.one", lost)
    with pytest.raises(Lost):
        await release(stack.database, stack.settings, key("five"))
    monkeypatch.undo()
    assert (await stack.sql("SELECT last FROM inbox.subject_position"))[0]["last"] == 1
    assert str(await release(stack.database, stack.settings, key("five"))) == "released, no longer waited for: 2 to 4"
    assert (await eventually(lambda: stack.row("five"), lambda row: row["status"] == "COMPLETED"))["generation"] == 2


async def test_a_redrive_of_a_number_that_was_passed_is_told_of(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence", tries=1)
    recorder.never |= {"two", "four"}
    await stack.start({"report.count": recorder})
    for n, message_id in enumerate(("one", "two", "three", "four"), 1):
        await send(stack, message_id, sequence=n)
        await stack.closed(message_id)
    assert await passed(stack.database, stack.settings, key("two")) == 3
    assert await passed(stack.database, stack.settings, key("four")) is None


async def test_the_record_says_behind_whom_or_which_number_it_waits(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, order="sequence")
    gate = recorder.gate("a/1")
    await stack.start({"report.count": recorder})
    await send(stack, "a/1", sequence=1)
    await eventually(lambda: stack.row("a/1"), lambda row: row["status"] == "PROCESSING")
    await send(stack, "b", sequence=2)
    await send(stack, "d", sequence=4)
    await eventually(lambda: stack.row("d"), lambda row: row["held_since"] is not None)
    await eventually(lambda: stack.row("b"), lambda row: row["held_since"] is not None)
    shown = {name: (await stack.get(f"/messages/p/{name}")).json() for name in ("b", "d")}
    assert (shown["b"]["heldBehind"], shown["b"]["missingNumber"]) == ("p/a%2F1", None)
    gate.set()
    await stack.closed("b")
    await eventually(lambda: stack.row("d"), lambda row: row["held_since"] and row["due_at"])
    record = (await stack.get("/messages/p/d")).json()
    assert (record["heldBehind"], record["missingNumber"]) == (None, 3)


# What operators are shown


async def test_the_temporal_ui_shows_how_many_wait_behind_a_message(stack: Stack, recorder: Recorder) -> None:
    await begin(stack, on_dead="park", tries=2, retry_interval=1)
    await stack.open()
    for message_id in ("a", "b", "c"):
        await send(stack, message_id, fail=5)
    first, second = recorder.gate("a"), asyncio.Event()
    first.set()
    async with stack.dispatching(), stack.working({"report.count": recorder}):
        row = await eventually(lambda: stack.row("a"), lambda found: found["status"] == "FAILED")
        recorder.gates["a"] = second
        handle = stack.temporal.get_workflow_handle(row["workflow_id"])

        async def details() -> str:
            metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
            return metadata.current_details

        await eventually(details, lambda text: "**FAILED**" in text and "wait: 2." in text)
        second.set()
        await eventually(details, lambda text: "**DEAD**" in text and "wait: 2." in text)


async def test_the_command_says_first_that_a_redrive_is_obsolete_and_what_a_release_lets_go(
    stack: Stack, recorder: Recorder, tmp_path: Path
) -> None:
    await begin(stack, order="sequence", tries=1)
    recorder.never.add("two")
    await stack.start({"report.count": recorder})
    for n, message_id in ((1, "one"), (2, "two"), (3, "three"), (6, "six")):
        await send(stack, message_id, sequence=n)
    await stack.closed("three")
    await eventually(lambda: stack.row("six"), lambda row: row["held_since"] and row["due_at"])
    settings = environment(stack, tmp_path)
    assert await command(settings, "redrive", "p/two") == (
        0,
        """inbox: p/two: number 3 of its subject was applied already, so this will be obsolete, unapplied
p/two: due again, to be obsolete
""",
    )
    assert await command(settings, "release", "p/six") == (0, "p/six: released, no longer waited for: 4 to 5\n")
    await eventually(lambda: stack.row("six"), lambda row: row["status"] == "COMPLETED")
    assert (await eventually(lambda: stack.row("two"), lambda row: row["closed_at"]))["outcome"] == "obsolete"
