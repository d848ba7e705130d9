"""A source's order is changed while its messages are under way: a restart is all, and every one of them goes on."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from inbox.ingest.accept import Acceptor, Incoming
from inbox.order import adopt, resume
from inbox.sources import Sources
from tests.integration.test_order_races import Inbox, Row, Turn, inbox
from tests.support.trying import Noting, Tries

__all__ = ["inbox"]
ORDERS = ["arrival", "sequence", "none"]


async def restart(turn: Turn, order: str, **changes: Any) -> None:
    """Have every process of the inbox run with another order for the source."""
    its = turn.inbox
    sources = Sources.model_validate({"sources": {turn.source: {"types": ["t"], "order": order} | changes}})
    its.settings = its.settings.model_copy(update={"declared": sources})
    its.acceptor = Acceptor(its.database, its.settings, lambda: None)
    its.tries = Tries(its.database, {}, its.settings, "w", lambda: None)
    its.dispatcher = Noting(its.database, its.settings)
    turn.order = order
    await adopt(its.database, its.settings)
    await resume(its.database, its.settings)


async def begin(inbox: Inbox, order: str) -> Turn:
    turn = Turn(inbox, "p", order, "s")
    await restart(turn, order)
    return turn


async def send(turn: Turn, number: int) -> Row:
    incoming = Incoming("", turn.source, f"m{number}", "t", "s", number, "application/json", b"{}", b"x" * 32)
    return Row((await turn.inbox.acceptor.accept(incoming)).id, incoming.id)


async def apply(turn: Turn, number: int) -> None:
    await send(turn, number)
    assert await turn.drain() == [f"m{number}"]


async def row(turn: Turn, of: Row) -> dict[str, Any]:
    return next(found for found in await turn.rows() if found["id"] == of.id)


@pytest.mark.parametrize(("old", "new"), [*permutations(ORDERS, 2)])
@pytest.mark.parametrize("at_work", [False, True])
async def test_what_was_held_or_at_work_goes_on_in_the_new_order(
    inbox: Inbox, old: str, new: str, *, at_work: bool
) -> None:
    turn = await begin(inbox, old)
    await apply(turn, 1)
    four, three, two = [await send(turn, number) for number in (4, 3, 2)]
    await inbox.dispatcher.round()
    working = {"arrival": [four], "sequence": [two], "none": [four, three]}[old]
    claims = [await turn.claim(one) for one in working if at_work]
    assert all(claims)
    await restart(turn, new)
    for claimed in claims:
        assert await turn.fail(claimed)
    await inbox.dispatcher.round()
    drained = await turn.drain()
    assert (sorted(drained) if new == "none" else drained) == {
        "arrival": ["m4", "m3", "m2"],
        "sequence": ["m2", "m3", "m4"],
        "none": ["m2", "m3", "m4"],
    }[new]
    assert all(found["outcome"] != "obsolete" for found in await turn.rows())


@pytest.mark.parametrize("new", ["arrival", "sequence"])
async def test_of_two_that_were_at_work_at_once_one_waits_for_the_other(inbox: Inbox, new: str) -> None:
    turn = await begin(inbox, "none")
    one, two = [await send(turn, number) for number in (1, 2)]
    assert await turn.claim(one)
    assert await turn.claim(two)
    await restart(turn, new)  # both tries are lost with their workers
    again = await turn.claim(one)
    assert again
    assert await turn.claim(two) is None
    assert await turn.complete(again)
    again = await turn.claim(two)
    assert again
    assert await turn.complete(again)


async def test_one_that_is_redriven_waits_for_a_try_that_began_without_order(inbox: Inbox) -> None:
    turn = await begin(inbox, "none")
    one, two = [await send(turn, number) for number in (1, 2)]
    claimed = await turn.claim(two)
    assert await turn.discard(one)
    await restart(turn, "arrival")
    await turn.redrive(one)
    assert await turn.claim(one, generation=2) is None
    assert await turn.complete(claimed)
    assert await turn.drain() == ["m1"]


async def test_a_try_that_ended_without_order_holds_nobody(inbox: Inbox) -> None:
    turn = await begin(inbox, "arrival")
    one, two = [await send(turn, number) for number in (1, 2)]
    claimed = await turn.claim(one)
    assert await turn.claim(two) is None
    await restart(turn, "none")
    assert await turn.complete(claimed)  # and nothing says so in the subject's place
    await restart(turn, "arrival")
    assert await turn.drain() == ["m2"]


async def test_numbers_that_were_skipped_in_another_order_are_not_waited_for(inbox: Inbox) -> None:
    turn = await begin(inbox, "sequence")
    await apply(turn, 1)
    await restart(turn, "none")
    await apply(turn, 5)
    await restart(turn, "sequence")
    await apply(turn, 6)
    seven = await send(turn, 8)
    assert await turn.decide(seven) == "HELD"  # 7 is missing


@pytest.mark.parametrize("old", ["arrival", "none"])
async def test_a_known_subject_begins_at_its_lowest_open_number(inbox: Inbox, old: str) -> None:
    turn = await begin(inbox, old)
    await send(turn, 5)
    await restart(turn, "sequence")
    await send(turn, 7)
    await send(turn, 6)
    assert await turn.drain() == ["m5", "m6", "m7"]
    assert (await row(turn, Row(1, "m5")))["outcome"] == {}
    await apply(turn, 8)
    assert await turn.decide(await send(turn, 10)) == "HELD"


async def test_who_stands_rightly_behind_another_is_left_alone(inbox: Inbox) -> None:
    for order in ("arrival", "sequence"):
        turn = Turn(inbox, order, order, "s")
        turn.source = "p"
        turn.subject = order
        await restart(turn, order)
        for number in (1, 2, 3, 5):
            incoming = Incoming("", "p", f"{order}{number}", "t", order, number, "application/json", b"{}", b"x" * 32)
            await inbox.acceptor.accept(incoming)
        await inbox.dispatcher.round()
        before = await turn.rows()
        assert await resume(inbox.database, inbox.settings) is False
        assert await turn.rows() == before


async def test_a_wish_makes_no_start_above_those_who_wait_from_a_time_of_no_order(inbox: Inbox) -> None:
    turn = await begin(inbox, "none")
    for number in (5, 6):
        await send(turn, number)
    await restart(turn, "sequence", redelivery="resend")
    wish = Incoming("", turn.source, "m6", "t", "s", 6, "application/json", b"{}", b"y" * 32)
    assert (await inbox.acceptor.accept(wish)).edition == 2
    assert await turn.drain() == ["m5", "m6", "m6"]
    # Of two with one number one is applied, whichever goes first.
    assert sorted(str(found["outcome"]) for found in await turn.rows()) == ["obsolete", "{}", "{}"]
    assert (await turn.rows())[0]["outcome"] == {}


async def test_a_message_without_a_number_leaves_a_gap_its_time(inbox: Inbox) -> None:
    turn = await begin(inbox, "sequence")
    await apply(turn, 1)
    await restart(turn, "none")
    incoming = Incoming("", turn.source, "plain", "t", "s", None, "application/json", b"{}", b"x" * 32)
    plain = Row((await inbox.acceptor.accept(incoming)).id, "plain")
    await restart(turn, "sequence")
    assert await turn.decide(await send(turn, 3)) == "HELD"
    places = "SELECT * FROM inbox.subject_position"
    before = await (await inbox.sql.execute(places)).fetchall()
    assert before[0]["gap_since"] is not None
    assert await turn.decide(plain) == "FREE"
    assert await (await inbox.sql.execute(places)).fetchall() == before
