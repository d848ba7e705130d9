"""Direct mode: a message is registered within its request, without Temporal (spec section 11)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import ROOT, answering, environment, free_port, process
from tests.support.stack import TOKENS, Stack, event, survey


@pytest.fixture
async def direct(stack: Stack) -> Stack:
    """The hospital in direct mode; nothing dispatches, nothing works."""
    stack.configure(mode="direct")
    await stack.open()
    return stack


async def counts(stack: Stack, table: str = "inbox.message") -> int:
    return (await stack.sql(f"SELECT count(*) AS n FROM {table}"))[0]["n"]


async def post(stack: Stack, message: dict[str, Any], **changes: Any) -> httpx.Response:
    sent = {"id": message["srvyDrawupNo"], "partitionkey": message["patno"]} | changes
    return await stack.post(event(message, source="hospital") | sent)


async def test_it_is_registered_before_the_answer(direct: Stack) -> None:
    message = survey()
    answer = await post(direct, message)
    assert answer.status_code == 201
    body = answer.json()
    assert (body["status"], body["duplicate"], body["outcome"]["sent"]) == ("COMPLETED", False, True)
    assert await direct.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    row = await direct.row(message["srvyDrawupNo"])
    assert (row["status"], row["tries"], row["due_at"], row["starts"]) == ("COMPLETED", 0, None, 0)
    assert row["outcome"] == body["outcome"]
    assert row["received_at"] <= row["closed_at"]
    assert await counts(direct, "inbox.payload") == 1
    again = await post(direct, message)
    assert (again.status_code, again.json()["duplicate"], again.json()["outcome"]) == (200, True, body["outcome"])
    assert again.json()["workflowId"] == body["workflowId"]
    assert (await direct.row(message["srvyDrawupNo"]))["duplicates"] == 1
    other = await post(direct, message | {"deptCd": "IM"})
    assert other.status_code == 409


async def test_over_the_legacy_door(direct: Stack) -> None:
    message = survey()
    answer = await direct.legacy(message)
    assert (answer.status_code, answer.headers["X-Result"], answer.headers["X-Result-Message"]) == (
        200,
        "Y",
        "registered",
    )
    refused = await direct.legacy(survey(formCd="P-UNKNOWN"))
    assert (refused.status_code, refused.headers["X-Result"]) == (200, "N")
    assert refused.json()["code"] == "FORM_NOT_REGISTERED"
    assert await counts(direct) == 1


async def test_a_business_error_is_told_and_nothing_is_stored(direct: Stack) -> None:
    answer = await post(direct, survey(formCd="P-UNKNOWN"))
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "urn:temporal-inbox:problem:not-registered"
    assert (problem["code"], problem["status"]) == ("FORM_NOT_REGISTERED", 422)
    assert [await counts(direct, table) for table in ("inbox.message", "inbox.payload")] == [0, 0]


async def test_a_payload_that_does_not_fit_is_the_messages_fault(direct: Stack) -> None:
    answer = await post(direct, survey(), data={"patno": 1})
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_PAYLOAD")


async def test_any_other_error_is_503_and_the_next_delivery_goes_through(direct: Stack) -> None:
    message = survey()
    await direct.hospital.control(down=True)
    answer = await post(direct, message)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["type"] == "urn:temporal-inbox:problem:handler-unavailable"
    assert answer.json()["detail"] == "system error"
    assert (await direct.legacy(message)).status_code == 503
    assert await counts(direct) == 0
    await direct.hospital.control(down=False)
    assert (await post(direct, message)).status_code == 201


async def test_a_notice_waits_for_dispatch(direct: Stack) -> None:
    message = survey(sendDt="20200101000000")
    assert (await post(direct, message)).status_code == 201
    row = await direct.row(message["srvyDrawupNo"])
    assert row["report_state"] == "OWED"
    async with direct.dispatching(), direct.working():
        await direct.reported(message["srvyDrawupNo"])
    (told,) = (await direct.hospital.seen())["reports"]
    assert (told["body"]["code"], told["body"]["result"]) == ("NOT_SENT", "Y")


async def test_behind_an_open_one_of_its_subject_it_is_accepted_and_goes_the_other_way(direct: Stack) -> None:
    first, second = survey(), survey()
    second["patno"] = first["patno"]
    direct.configure(mode="accept")
    await direct.open()
    assert (await post(direct, first)).status_code == 202
    direct.configure(mode="direct")
    await direct.open()
    answer = await post(direct, second)
    assert (answer.status_code, answer.json()["status"]) == (202, "RECEIVED")
    assert (await direct.hospital.seen())["lookups"] == {"form": {}, "consents": {}}  # nothing was asked for it
    again = await post(direct, first)
    assert (again.status_code, again.json()["status"]) == (200, "RECEIVED")
    async with direct.dispatching(), direct.working():
        closed = [await direct.closed(message["srvyDrawupNo"]) for message in (first, second)]
    assert [row["status"] for row in closed] == ["COMPLETED"] * 2
    assert closed[0]["closed_at"] < closed[1]["closed_at"]
    third = survey(patno=first["patno"])
    assert (await post(direct, third)).status_code == 201


async def test_a_parked_one_holds_it(stack: Stack) -> None:
    stack.configure(on_dead="park", tries=1)
    first = survey(formCd="P-UNKNOWN")
    await stack.open()
    async with stack.dispatching(), stack.working():
        await post(stack, first)
        assert (await stack.closed(first["srvyDrawupNo"]))["parked"]
    stack.configure(mode="direct", on_dead="park")
    await stack.open()
    answer = await post(stack, survey(patno=first["patno"]))
    assert (answer.status_code, answer.json()["status"]) == (202, "RECEIVED")


async def test_without_a_handler_here_it_is_accepted(stack: Stack) -> None:
    stack.configure({"handlers": {}}, mode="direct")
    await stack.open()
    assert (await post(stack, survey())).status_code == 202


async def test_without_order_and_without_a_subject_nothing_of_a_subject_is_touched(stack: Stack) -> None:
    stack.configure(mode="direct", order="none")
    await stack.open()
    assert (await post(stack, survey())).status_code == 201
    stack.configure(mode="direct")
    await stack.open()
    message = survey()
    assert (await stack.post(event(message, id=message["srvyDrawupNo"]))).status_code == 201
    assert await counts(stack, "inbox.subject_position") == 0


async def test_by_sequence(stack: Stack) -> None:
    stack.configure(mode="direct", order="sequence")
    await stack.open()

    async def send(number: int) -> tuple[int, Any]:
        message = survey(patno="1")
        answer = await post(stack, message, sequence=number)
        return answer.status_code, answer.json().get("outcome")

    assert (await send(3))[0] == 201
    asked = (await stack.hospital.seen())["guests"]
    assert await send(3) == (201, "obsolete")
    assert (await stack.hospital.seen())["guests"] == asked  # nothing is prepared for it
    assert await send(2) == (201, "obsolete")
    assert (await send(4))[0] == 201
    assert (await send(6))[0] == 202  # a gap
    assert (await send(7))[0] == 202
    assert await counts(stack, "survey.task") == 2
    async with stack.dispatching(), stack.working():
        held = "SELECT 1 FROM inbox.message WHERE sequence = 6 AND held_since IS NOT NULL"
        await stack.eventually_row(held)
        assert (await send(5))[0] == 201  # fills it, and what waited goes on
        done = "SELECT 1 FROM inbox.message WHERE sequence = 7 AND status = 'COMPLETED'"
        await stack.eventually_row(done)
    rows = await stack.sql("SELECT sequence FROM inbox.message WHERE outcome <> '\"obsolete\"' ORDER BY closed_at")
    assert [row["sequence"] for row in rows] == [3, 4, 5, 6, 7]
    assert (await send(8))[0] == 201


async def test_a_wish_is_an_edition_registered_at_once(stack: Stack) -> None:
    stack.configure(mode="direct", redelivery="resend")
    await stack.open()
    message = survey()
    number = message["srvyDrawupNo"]
    assert (await post(stack, message)).status_code == 201
    assert (await post(stack, message)).status_code == 200
    answer = await post(stack, message | {"deptCd": "IM"})
    assert (answer.status_code, answer.headers["Location"]) == (201, f"/messages/hospital/{number}~2")
    assert answer.json()["workflowId"].endswith("~2")
    rows = await stack.sql("SELECT * FROM inbox.message WHERE message_id = %s ORDER BY id", number)
    assert [(row["edition"], row["type"], row["status"]) for row in rows] == [
        (1, "survey.send", "COMPLETED"),
        (2, "survey.send.resend", "COMPLETED"),
    ]
    assert rows[1]["resend_of"] == rows[0]["id"]
    states = await stack.sql("SELECT state FROM survey.schedule WHERE message_id = %s ORDER BY edition", number)
    assert [row["state"] for row in states] == ["SUPERSEDED", "PLANNED"]


@pytest.mark.parametrize("changes", [{}, {"redelivery": "resend"}, {"order": "none"}])
async def test_parallel_deliveries_are_registered_once(stack: Stack, changes: dict[str, Any]) -> None:
    stack.configure(mode="direct", **changes)
    await stack.open()
    for _ in range(8):
        message = survey()
        answers = await asyncio.gather(*(post(stack, message) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
        assert {answer.json()["status"] for answer in answers} == {"COMPLETED"}
        assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
        assert (await stack.row(message["srvyDrawupNo"]))["duplicates"] == 7


async def test_parallel_messages_of_one_subject_are_committed_one_after_the_other(direct: Stack) -> None:
    for number in range(10):
        messages = [survey(patno=f"7{number}") for _ in range(5)]
        answers = await asyncio.gather(*(post(direct, message) for message in messages))
        assert {answer.status_code for answer in answers} == {201}
        rows = await direct.sql("SELECT id FROM inbox.message WHERE subject = %s ORDER BY closed_at", f"7{number}")
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


async def test_it_works_while_temporal_is_away(stack: Stack, tmp_path: Path) -> None:
    stack.configure(mode="direct")
    settings = environment(stack, tmp_path, TEMPORAL_ADDRESS=f"127.0.0.1:{free_port()}")
    async with (
        process(settings, "serve"),
        httpx.AsyncClient(base_url=f"http://{settings['INBOX_LISTEN']}", trust_env=False) as http,
    ):
        await answering(http)
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        message = survey()
        answer = await http.post("/legacy/survey-send", json=message, headers=headers)
        assert (answer.headers["X-Result-Message"], answer.json()["status"]) == ("registered", "COMPLETED")
        again = await http.post("/legacy/survey-send", json=message, headers=headers)
        assert again.json()["duplicate"] is True
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_switching_to_and_fro_under_traffic_loses_and_doubles_nothing_and_keeps_order(stack: Stack) -> None:
    """Six switches under senders that deliver again until they are answered; each subject's numbers go up."""
    lines, rounds = 4, 28
    stack.configure(order="arrival")
    await stack.open()
    answered: list[str] = []
    sent: dict[str, list[str]] = {}

    async def send(sender: int) -> None:
        for n in range(rounds):
            message = survey(patno=f"{sender}-{n // 4}")  # some subjects live through a switch, some begin after it
            sent.setdefault(message["patno"], []).append(message["srvyDrawupNo"])
            for _ in range(2):  # and once more, as if the first answer had been lost
                answer = await post(stack, message)
                assert answer.status_code in (200, 201, 202), answer.text
            answered.append(message["srvyDrawupNo"])

    async def switch(senders: asyncio.Future[Any]) -> None:
        modes = ["direct", "accept"] * 3
        while not senders.done() or modes:
            enough = lines * rounds * (6 - len(modes)) / 7
            if modes and len(answered) >= enough:
                stack.configure(mode=modes.pop(0))
                await stack.database.open()
            await asyncio.sleep(0.01)

    async with stack.dispatching(), stack.working():
        senders = asyncio.gather(*(send(n) for n in range(lines)))
        await asyncio.gather(senders, switch(senders))
        await stack.eventually_row(
            "SELECT 1 FROM (SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL) o WHERE n = 0", limit=120
        )
    rows = await stack.sql("SELECT * FROM inbox.message ORDER BY closed_at")
    assert {row["status"] for row in rows} == {"COMPLETED"}
    assert 0 in {row["tries"] for row in rows} != {0}  # both ways were gone
    assert sorted(row["message_id"] for row in rows) == sorted(answered)
    assert await counts(stack, "survey.task") == lines * rounds
    for subject, numbers in sent.items():
        assert [row["message_id"] for row in rows if row["subject"] == subject] == numbers


async def test_drained_says_what_is_open_until_nothing_is(stack: Stack, tmp_path: Path) -> None:
    stack.configure(tries=1)
    await stack.open()
    settings = environment(stack, tmp_path)

    async def drained(*options: str) -> tuple[int | None, str]:
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "inbox", "drained", *options, env=settings, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await run.communicate()
        return run.returncode, said.decode()

    assert (await drained())[0] == 0
    await stack.hospital.control(reports=[500] * 50)
    await post(stack, survey())
    await post(stack, survey(formCd="P-UNKNOWN"))
    code, said = await drained()
    assert (code, said.splitlines()[0].rpartition(",")[0]) == (1, "hospital: 2 of survey.send open (RECEIVED)")
    async with stack.dispatching(), stack.working():
        await stack.eventually_row("SELECT 1 FROM inbox.report WHERE state = 'SENDING'")
        await stack.eventually_row(
            "SELECT 1 FROM (SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL) o WHERE n = 0"
        )
        code, said = await drained("--json")
        (line,) = json.loads(said)["open"]
        assert (code, line["what"], line["type"], line["count"]) == (1, "owed", "DEAD", 1)
        await stack.hospital.control(reports=[])
        await stack.eventually_row("SELECT 1 FROM inbox.report WHERE state = 'SENT'", limit=60)
    assert await drained() == (0, "drained: nothing is open, held, parked or owed\n")
