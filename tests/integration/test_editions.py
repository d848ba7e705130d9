"""Redelivery as a wish: editions, where a source says so (spec section 9)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inbox.burial import redrive
from inbox.message import Key
from tests.integration.test_roles import command
from tests.support.processes import environment
from tests.support.stack import Stack, event, survey

LATER = "UPDATE inbox.message SET delivered_at = delivered_at - interval '11 minutes' WHERE message_id = %s"


@pytest.fixture
def resending(stack: Stack) -> Stack:
    """The hospital may send a message again."""
    stack.configure(redelivery="resend")
    return stack


async def editions(stack: Stack, message_id: str) -> list[dict[str, Any]]:
    return await stack.sql("SELECT * FROM inbox.message WHERE message_id = %s ORDER BY edition", message_id)


async def edition_closed(stack: Stack, message_id: str, edition: int) -> dict[str, Any]:
    closed = await stack.eventually_row(
        "SELECT * FROM inbox.message WHERE message_id = %s AND edition = %s AND closed_at IS NOT NULL",
        message_id,
        edition,
    )
    assert closed
    return closed


async def schedules(stack: Stack, message_id: str) -> list[tuple[int, str]]:
    rows = await stack.sql(
        "SELECT edition, state FROM survey.schedule WHERE message_id = %s ORDER BY edition", message_id
    )
    return [(row["edition"], row["state"]) for row in rows]


async def test_the_same_again_soon_is_a_duplicate(resending: Stack) -> None:
    await resending.open()
    message = survey()
    first, second = await resending.legacy(message), await resending.legacy(message)
    assert (first.json()["duplicate"], second.json()["duplicate"]) == (False, True)
    (row,) = await editions(resending, message["srvyDrawupNo"])
    assert (row["edition"], row["duplicates"]) == (1, 1)


async def test_the_same_again_later_is_an_edition_that_takes_the_firsts_place(resending: Stack) -> None:
    await resending.start()
    message = survey()
    number = message["srvyDrawupNo"]
    sent = event(message, id=number, partitionkey=message["patno"])
    await resending.post(sent)
    await edition_closed(resending, number, 1)
    await resending.sql(LATER, number)
    answer = await resending.post(sent)
    assert (answer.status_code, answer.json()["duplicate"]) == (202, False)
    assert answer.headers["Location"] == f"/messages/hospital/{number}~2"
    assert answer.json()["workflowId"] == f"{resending.name}/hospital/{number}~2"
    second = await edition_closed(resending, number, 2)
    first = (await editions(resending, number))[0]
    assert (second["status"], second["type"], second["resend_of"]) == ("COMPLETED", "survey.send.resend", first["id"])
    assert second["subject"] == first["subject"] == message["patno"]
    assert await schedules(resending, number) == [(1, "SUPERSEDED"), (2, "PLANNED")]
    assert await resending.bundles(number) == (2, 2, 2, 2)
    record = (await resending.get(f"/messages/hospital/{number}~2")).json()
    assert (record["edition"], record["status"]) == (2, "COMPLETED")
    assert (await resending.get(f"/messages/hospital/{number}~1")).json()["edition"] == 1
    third = await resending.post(sent)
    assert (third.status_code, third.json()["outcome"]) == (200, second["outcome"])
    assert third.headers["Location"] == f"/messages/hospital/{number}~2"


async def test_other_content_is_a_wish_at_once_and_that_of_an_older_edition_its_duplicate(resending: Stack) -> None:
    await resending.open()
    message = survey()
    number = message["srvyDrawupNo"]
    corrected = message | {"mobile": "010-9999-9999"}
    for content, duplicate in ((message, False), (corrected, False), (message, True), (corrected, True)):
        assert (await resending.legacy(content)).json()["duplicate"] is duplicate
    assert [(row["edition"], row["duplicates"]) for row in await editions(resending, number)] == [(1, 1), (2, 1)]
    await resending.sql(LATER, number)
    assert (await resending.legacy(message)).json()["duplicate"] is False
    assert [row["edition"] for row in await editions(resending, number)] == [1, 2, 3]


async def test_what_is_answered_is_not_sent_again_and_upstream_hears_it(resending: Stack) -> None:
    await resending.start()
    message = survey()
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await edition_closed(resending, number, 1)
    await resending.sql("UPDATE survey.task SET answered_at = now() WHERE message_id = %s", number)
    await resending.legacy(message | {"deptCd": "IM"})
    second = await edition_closed(resending, number, 2)
    assert (second["status"], second["outcome"]) == ("COMPLETED", {"sent": False})
    assert await schedules(resending, number) == [(1, "PLANNED")]
    await resending.eventually_row("SELECT 1 FROM inbox.report WHERE message = %s AND state = 'SENT'", second["id"])
    (told,) = (await resending.hospital.seen())["reports"]
    assert told["body"] == {
        "srvyDrawupNo": number,
        "result": "N",
        "code": "CANNOT_RESEND",
        "reason": "the survey was answered already",
    }


async def test_a_late_one_is_not_planned_and_the_first_is_not_sent_either(resending: Stack) -> None:
    await resending.start()
    message = survey()
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await edition_closed(resending, number, 1)
    await resending.legacy(message | {"sendDt": "20200101000000"})
    assert (await edition_closed(resending, number, 2))["outcome"]["sent"] is False
    assert await schedules(resending, number) == [(1, "SUPERSEDED"), (2, "NOT_SENT")]


async def test_a_redelivery_redrives_a_dead_one_at_once(resending: Stack) -> None:
    resending.configure(redelivery="resend", tries=1)
    await resending.start()
    message = survey(formCd="P-LATE")
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    dead = await resending.reported(number)
    assert dead["status"] == "DEAD"
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await resending.hospital.control(forms={"P-LATE": form} | resending.hospital.forms)
    answer = await resending.legacy(message)
    assert (answer.json()["duplicate"], answer.json()["status"]) == (False, "RECEIVED")
    row = await resending.closed(number)
    assert (row["status"], row["generation"], row["edition"]) == ("COMPLETED", 2, 1)
    await resending.eventually_row(
        "SELECT 1 FROM inbox.report WHERE message = %s AND kind = 'CORRECTION' AND state = 'SENT'", row["id"]
    )


async def test_corrected_content_redrives_a_dead_one_and_is_what_is_registered(resending: Stack) -> None:
    resending.configure(redelivery="resend", tries=1)
    await resending.start()
    message = survey(formCd="P-UNKNOWN")
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    assert (await resending.closed(number))["last_code"] == "FORM_NOT_REGISTERED"
    corrected = message | {"formCd": "P-PAIN"}
    await resending.legacy(corrected)
    row = await resending.closed(number)
    assert (row["status"], row["edition"], row["generation"]) == ("COMPLETED", 1, 2)
    (assignment,) = await resending.sql("SELECT form FROM survey.assignment WHERE message_id = %s", number)
    assert assignment["form"] == "P-PAIN"
    assert (await resending.legacy(corrected)).json()["duplicate"] is True
    bodies = await resending.sql(
        "SELECT message FROM inbox.payload WHERE message = %(id)s UNION ALL"
        " SELECT message FROM inbox.payload_kept WHERE message = %(id)s".replace("%(id)s", str(row["id"]))
    )
    assert len(bodies) == 1


async def test_a_redelivery_brings_a_purged_payload_back(resending: Stack) -> None:
    resending.configure(redelivery="resend", tries=1)
    await resending.start()
    message = survey(formCd="P-UNKNOWN")
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await resending.closed(number)
    await resending.sql("DELETE FROM inbox.payload")
    await resending.legacy(message)
    row = await resending.closed(number)
    assert (row["generation"], row["last_code"]) == (2, "FORM_NOT_REGISTERED")


async def test_of_a_dead_newest_edition_an_older_ones_late_duplicate_redrives_nothing(resending: Stack) -> None:
    await resending.open()
    message = survey()
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await resending.legacy(message | {"deptCd": "IM"})
    await resending.sql(
        "UPDATE inbox.message SET status = 'DEAD', closed_at = now(), dead_at = now(), due_at = NULL, last_code = 'X'"
        " WHERE message_id = %s AND edition = 2",
        number,
    )
    assert (await resending.legacy(message)).json()["duplicate"] is True
    assert [row["status"] for row in await editions(resending, number)] == ["RECEIVED", "DEAD"]
    await resending.sql(LATER, number)
    assert (await resending.legacy(message)).json()["duplicate"] is False
    first, second = await editions(resending, number)
    assert (second["status"], second["generation"], second["payload_sha256"]) == (
        "RECEIVED",
        2,
        first["payload_sha256"],
    )


async def test_an_edition_waits_for_the_one_before_it(resending: Stack) -> None:
    resending.configure(redelivery="resend", retry_interval=2.0)
    await resending.start()
    message = survey(formCd="P-LATE")
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await resending.eventually_row("SELECT 1 FROM inbox.message WHERE message_id = %s AND status = 'FAILED'", number)
    await resending.legacy(message | {"formCd": "P-PAIN"})
    held = await resending.eventually_row(
        "SELECT held_behind FROM inbox.message WHERE message_id = %s AND edition = 2 AND held_since IS NOT NULL", number
    )
    assert held["held_behind"] == (await editions(resending, number))[0]["id"]
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await resending.hospital.control(forms={"P-LATE": form} | resending.hospital.forms)
    await edition_closed(resending, number, 2)
    first, second = await editions(resending, number)
    assert first["status"] == second["status"] == "COMPLETED"
    assert first["closed_at"] < second["closed_at"]
    assert await schedules(resending, number) == [(1, "SUPERSEDED"), (2, "PLANNED")]


async def test_without_an_order_the_later_edition_is_the_one_that_is_planned(resending: Stack) -> None:
    resending.configure(redelivery="resend", order="none", retry_interval=2.0)
    await resending.start()
    message = survey(formCd="P-LATE")
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await resending.eventually_row("SELECT 1 FROM inbox.message WHERE message_id = %s AND status = 'FAILED'", number)
    await resending.legacy(message | {"formCd": "P-PAIN"})
    await edition_closed(resending, number, 2)
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await resending.hospital.control(forms={"P-LATE": form} | resending.hospital.forms)
    assert (await edition_closed(resending, number, 1))["outcome"]["sent"] is False
    assert await schedules(resending, number) == [(1, "SUPERSEDED"), (2, "PLANNED")]


async def test_by_sequence_a_wish_of_a_number_that_was_passed_is_obsolete(stack: Stack) -> None:
    stack.configure(redelivery="resend", order="sequence")
    await stack.start()
    message = survey()
    number = message["srvyDrawupNo"]
    await stack.post(event(message, id=number, partitionkey="p", sequence="1"))
    await edition_closed(stack, number, 1)
    await stack.post(event(message | {"deptCd": "IM"}, id=number, partitionkey="p", sequence="1"))
    assert (await edition_closed(stack, number, 2))["outcome"] == "obsolete"
    await stack.post(event(message | {"deptCd": "ER"}, id=number, partitionkey="p", sequence="2"))
    assert (await edition_closed(stack, number, 3))["outcome"]["sent"] is True
    await stack.post(event(message | {"deptCd": "DR"}, id=number, partitionkey="p", sequence="2"))
    assert (await edition_closed(stack, number, 4))["outcome"] == "obsolete"
    assert await schedules(stack, number) == [(1, "SUPERSEDED"), (3, "PLANNED")]


@pytest.mark.parametrize("rounds", [30])
async def test_wishes_at_once_are_one_edition_and_its_duplicates(resending: Stack, rounds: int) -> None:
    await resending.open()
    for _ in range(rounds):
        message = survey()
        number = message["srvyDrawupNo"]
        await resending.legacy(message)
        await resending.sql(LATER, number)
        answers = await asyncio.gather(*(resending.legacy(message) for _ in range(8)))
        assert sorted(answer.json()["duplicate"] for answer in answers) == [False] + [True] * 7
        first, second = await editions(resending, number)
        assert (first["duplicates"], second["duplicates"]) == (0, 7)


@pytest.mark.parametrize("rounds", [30])
async def test_different_wishes_at_once_are_an_edition_each(resending: Stack, rounds: int) -> None:
    await resending.open()
    for _ in range(rounds):
        message = survey()
        await asyncio.gather(*(resending.legacy(message | {"deptCd": f"D{n}"}) for n in range(6)))
        rows = await editions(resending, message["srvyDrawupNo"])
        assert [row["edition"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert len({row["payload_sha256"] for row in rows}) == 6
        assert [row["resend_of"] for row in rows] == [None, *(row["id"] for row in rows[:-1])]


@pytest.mark.parametrize("rounds", [30])
async def test_a_redrive_and_redeliveries_at_once_begin_one_generation(resending: Stack, rounds: int) -> None:
    await resending.open()
    for _ in range(rounds):
        message = survey()
        number = message["srvyDrawupNo"]
        await resending.legacy(message)
        await resending.sql(
            "UPDATE inbox.message SET status = 'DEAD', closed_at = now(), dead_at = now(), due_at = NULL,"
            " last_code = 'X' WHERE message_id = %s",
            number,
        )
        key = Key("", "hospital", number)
        answers = await asyncio.gather(
            redrive(resending.database, key),
            *(resending.legacy(message) for _ in range(4)),
            return_exceptions=True,
        )
        (row,) = await editions(resending, number)
        assert (row["status"], row["generation"]) == ("RECEIVED", 2)
        news = sum(1 for answer in answers[1:] if not answer.json()["duplicate"])  # type: ignore[union-attr]
        operators = 0 if isinstance(answers[0], Exception) else 1
        assert news + operators == 1
        assert row["duplicates"] == 4 - news


async def test_the_command_names_the_edition_that_it_redrives(resending: Stack, tmp_path: Path) -> None:
    await resending.open()
    message = survey()
    number = message["srvyDrawupNo"]
    await resending.legacy(message)
    await resending.sql(LATER, number)
    await resending.legacy(message)
    await resending.sql(
        "UPDATE inbox.message SET status = 'DEAD', closed_at = now(), dead_at = now(), due_at = NULL, last_code = 'X'"
        " WHERE message_id = %s AND edition = 2",
        number,
    )
    said = await command(environment(resending, tmp_path), "redrive", f"hospital/{number}")
    assert said == (0, f"hospital/{number}~2: due again\n")


async def test_the_workflow_id_of_an_edition_of_a_private_or_long_id(resending: Stack) -> None:
    await resending.open()
    long = "가" * 170  # 510 bytes, percent-encoded 1,530
    await resending.post(event({**survey(), "srvyDrawupNo": long}, id=long))
    await resending.post(event({**survey(), "srvyDrawupNo": long}, id=long))
    first, second = await editions(resending, long)
    assert second["workflow_id"] == f"{first['workflow_id']}~2"
    assert first["workflow_id"].startswith(f"{resending.name}/hospital/=")


async def test_without_the_setting_other_content_is_refused_as_ever(stack: Stack) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    refused = await stack.legacy(message | {"deptCd": "IM"})
    assert refused.headers["X-Result"] == "N"
    assert len(await editions(stack, message["srvyDrawupNo"])) == 1
