"""Direct mode beside order: what a message does to those of its subject that wait (spec sections 9, 11)."""

from __future__ import annotations

from typing import Any

from tests.integration.test_direct import post
from tests.support.stack import Stack, survey

AGE = """
    UPDATE inbox.subject_position SET gap_since = gap_since - interval '30 minutes';
    UPDATE inbox.message SET held_since = held_since - interval '30 minutes', due_at = due_at - interval '30 minutes',
           updated_at = updated_at - interval '30 minutes' WHERE held_since IS NOT NULL"""


async def sent(stack: Stack, number: int, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Deliver a message of one subject; return its ID and the answer."""
    message = survey(patno="p") | changes
    answer = await post(stack, message, sequence=str(number))
    assert answer.status_code in (201, 202), answer.text
    return message["srvyDrawupNo"], answer.json()


async def test_for_a_number_that_was_passed_nobody_is_asked(stack: Stack) -> None:
    stack.configure(mode="direct", order="sequence")
    await stack.open()
    await sent(stack, 3)
    asked = (await stack.hospital.seen())["lookups"]
    for changes in ({"formCd": "P-UNKNOWN"}, {"sendDt": []}):  # a form that is refused, a payload that does not fit
        name, told = await sent(stack, 2, **changes)
        assert (told["status"], told["outcome"]) == ("COMPLETED", "obsolete")
        assert await stack.bundles(name) == (0, 0, 0, 0)
    assert (await stack.hospital.seen())["lookups"] == asked


async def test_a_number_that_was_passed_leaves_a_gap_its_time(stack: Stack) -> None:
    stack.configure(mode="direct", order="sequence")
    await stack.open()
    await sent(stack, 3)
    name, told = await sent(stack, 5)
    assert told["status"] == "RECEIVED"
    async with stack.dispatching():
        await stack.eventually_row("SELECT 1 FROM inbox.message WHERE message_id = %s AND held_since IS NOT NULL", name)
    await stack.sql(AGE)
    before = await stack.row(name), await stack.sql("SELECT * FROM inbox.subject_position")
    assert (await sent(stack, 2))[1]["outcome"] == "obsolete"
    assert (await stack.row(name), await stack.sql("SELECT * FROM inbox.subject_position")) == before


async def test_what_no_handler_here_serves_sets_its_subjects_start(stack: Stack) -> None:
    stack.configure(mode="direct", order="sequence", types=["survey.send", "other"])
    await stack.open()
    message = survey(patno="p")
    assert (await post(stack, message, type="other", sequence="7")).status_code == 202
    assert [row["last"] for row in await stack.sql("SELECT last FROM inbox.subject_position")] == [6]
