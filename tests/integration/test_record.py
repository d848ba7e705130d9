"""Reading the record: one message, the backlog, health. Never a payload, never a message of somebody else."""

from __future__ import annotations

from typing import Any

import httpx

from deploy.dev.ports import choose
from inbox.message import Key
from inbox.sources import token_hash
from inbox.store.migrate import newest_revision
from tests.support.stack import TOKENS, Stack, event, survey

PLANTED = "PLANTED"
COPY = """
    INSERT INTO inbox.message (tenant, source, message_id, edition, type, subject, payload_sha256, max_tries, workflow_id)
    SELECT tenant, source, message_id, %s, type || '.resend', subject, payload_sha256, max_tries, workflow_id || '~' || %s
      FROM inbox.message WHERE message_id = %s AND edition = 1"""


def assert_problem(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["type"] == f"urn:temporal-inbox:problem:{kind}"
    assert PLANTED not in answer.text


async def close(stack: Stack, message_id: str, assignments: str) -> None:
    """Bring a row through a try into a closed state, as the statements would."""
    await stack.sql(
        "UPDATE inbox.message SET status = 'PROCESSING', tries = tries + 1 WHERE message_id = %s", message_id
    )
    await stack.sql(
        f"UPDATE inbox.message SET closed_at = now(), due_at = NULL, {assignments} WHERE message_id = %s", message_id
    )


# One message


async def test_a_record_says_where_a_message_stands(stack: Stack) -> None:
    await stack.open()
    message = survey()
    name = message["srvyDrawupNo"]
    accepted = (await stack.legacy(message)).json()
    record = (await stack.get(f"/messages/hospital/{name}")).json()
    assert record == record | {
        "tenant": "",
        "source": "hospital",
        "id": name,
        "edition": 1,
        "type": "survey.send",
        "status": "RECEIVED",
        "generation": 1,
        "tries": 0,
        "maxTries": 5,
        "duplicates": 0,
        "parked": False,
        "lastCode": None,
        "workflowId": f"{stack.name}/hospital/{name}",
        "receivedAt": accepted["receivedAt"],
        "closedAt": None,
    }
    assert {"outcome", "code", "reason"} & set(record) == set()
    await stack.legacy(message)
    assert (await stack.get(f"/messages/hospital/{name}")).json()["duplicates"] == 1


async def test_a_closed_record_says_how_it_ended(stack: Stack) -> None:
    await stack.open()
    for name in ("completed", "dead"):
        await stack.post(event({}, id=name))
    await close(stack, "completed", """status = 'COMPLETED', outcome = '{"sent": true}'""")
    await close(stack, "dead", "status = 'DEAD', last_code = 'CODE', last_reason = '이유', dead_at = now()")
    completed = (await stack.get("/messages/hospital/completed")).json()
    assert (completed["status"], completed["outcome"], completed["tries"]) == ("COMPLETED", {"sent": True}, 1)
    assert completed["closedAt"]
    dead = (await stack.get("/messages/hospital/dead")).json()
    assert (dead["status"], dead["code"], dead["reason"]) == ("DEAD", "CODE", "이유")
    assert "outcome" not in dead


async def test_tries_are_those_of_the_present_generation(stack: Stack) -> None:
    await stack.open()
    await stack.post(event({}, id="redriven"))
    await stack.sql("UPDATE inbox.message SET status = 'PROCESSING', tries = 7, tries_before = 5, generation = 2")
    record = (await stack.get("/messages/hospital/redriven")).json()
    assert (record["generation"], record["tries"]) == (2, 2)


async def test_a_record_is_read_by_its_source_and_the_operator_and_by_nobody_else(stack: Stack) -> None:
    await stack.open()
    await stack.post(event({}, id="mine"))
    path = "/messages/hospital/mine"
    own, operators = await stack.get(path, TOKENS["hospital"]), await stack.get(path, TOKENS["operator"])
    assert own.json() == operators.json()
    assert own.status_code == 200
    assert_problem(await stack.get(path, TOKENS["report-producer"]), 403, "unknown-source")
    assert_problem(await stack.get(path, PLANTED), 401, "unauthorized")
    assert_problem(await stack.http.get(path), 401, "unauthorized")


async def test_what_does_not_exist_is_told_to_its_source_alone(stack: Stack) -> None:
    """Whoever may not read a source can not find out either which of its messages there are."""
    await stack.open()
    await stack.post(event({}, id="mine"))
    for name in ("mine", "none"):
        assert_problem(await stack.get(f"/messages/hospital/{name}", TOKENS["seq-producer"]), 403, "unknown-source")
        assert_problem(await stack.get(f"/messages/nobody/{name}", TOKENS["hospital"]), 403, "unknown-source")


async def test_a_message_that_is_not_there_is_not_found(stack: Stack) -> None:
    await stack.open()
    await stack.post(event({}, id="mine"))
    others = [
        "hospital/PLANTED",
        "hospital/none~2",
        "seoul/hospital/mine",
        "nobody/mine",
        "hospital/mine~2",
        "hospital/",
    ]
    no_keys = [
        "hospital",
        "a/b/c/d",
        "hospital/%ff",
        "hospital/mine%00",
        "hospital/mine~0",
        "hospital/mine~x",
        "a/%ED%A0%80",
    ]
    answers = {path: await stack.get(f"/messages/{path}") for path in [*others, *no_keys]}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 404)
    for answer in answers.values():
        assert_problem(answer, 404, "not-found")


async def test_a_key_is_percent_encoded_in_the_path(stack: Stack) -> None:
    await stack.open()
    for tenant in ("", "ten/ant~"):
        for message_id in ("a/b", "a~2", "한 글", "😀", "%2F", "a?b#c", "...", "//", "a;b", "+ &="):
            await stack.post(event({}, id=message_id, tenant=tenant))
            found = (await stack.get(f"/messages/{Key(tenant, 'hospital', message_id)}")).json()
            assert (found["id"], found["tenant"]) == (message_id, tenant)


async def test_a_source_may_hold_slashes(stack: Stack) -> None:
    source = "/ehr/seoul~1"
    other = {"types": ["t", "survey.send"], "tokens": stack.settings.declared.sources["hospital"].tokens}
    stack.configure({"sources": {source: other, "hospital": other}})
    await stack.open()
    answer = await stack.post(event({}, id="a/b", source=source, type="t"))
    assert answer.headers["Location"] == "/messages/%2Fehr%2Fseoul%7E1/a%2Fb"
    found = await stack.get(answer.headers["Location"], TOKENS["hospital"])
    assert (found.status_code, found.json()["source"]) == (200, source)


async def test_an_edition_is_named_behind_a_tilde_and_the_newest_is_meant_without(stack: Stack) -> None:
    await stack.open()
    await stack.post(event({}, id="twice"))
    for edition in (2, 10):
        await stack.sql(COPY, edition, str(edition), "twice")
    answers = {suffix: await stack.get(f"/messages/hospital/twice{suffix}") for suffix in ("", "~1", "~2", "~10", "~3")}
    assert [answers[suffix].json().get("edition") for suffix in ("", "~1", "~2", "~10")] == [10, 1, 2, 10]
    assert_problem(answers["~3"], 404, "not-found")


# The backlog


async def backlog(stack: Stack) -> dict[str, Any]:
    answer = await stack.get("/backlog")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {name: found[name]["count"] for name in ("open", "held", "parked", "owed", "givenUp")}


async def test_the_backlog_is_the_operators(stack: Stack) -> None:
    await stack.open()
    for token in (TOKENS["hospital"], PLANTED, ""):
        assert_problem(await stack.get("/backlog", token), 401, "unauthorized")
    assert_problem(await stack.http.get("/backlog"), 401, "unauthorized")


async def test_an_empty_backlog_has_no_age(stack: Stack) -> None:
    await stack.open()
    found = await backlog(stack)
    assert counts(found) == {"open": 0, "held": 0, "parked": 0, "owed": 0, "givenUp": 0}
    assert found["open"]["oldestSeconds"] is None
    assert found["lines"] == []


async def test_the_backlog_counts_by_status_source_and_type(stack: Stack) -> None:
    await stack.open()
    for number in range(3):
        await stack.legacy(survey(srvyDrawupNo=f"S{number}"))
    await stack.post(event({}, source="report-producer", type="report.count", id="R1"), TOKENS["report-producer"])
    await stack.sql("UPDATE inbox.message SET status = 'PROCESSING', tries = 1 WHERE message_id = 'S1'")
    await stack.sql("UPDATE inbox.message SET received_at = now() - interval '1 hour' WHERE message_id = 'S1'")
    await stack.sql("UPDATE inbox.message SET held_since = now(), held_behind = id WHERE message_id = 'S2'")
    found = await backlog(stack)
    assert counts(found) == {"open": 3, "held": 1, "parked": 0, "owed": 0, "givenUp": 0}
    assert [[line[name] for name in ("what", "source", "type", "state", "count")] for line in found["lines"]] == [
        ["held", "hospital", "survey.send", "RECEIVED", 1],
        ["open", "hospital", "survey.send", "PROCESSING", 1],
        ["open", "hospital", "survey.send", "RECEIVED", 1],
        ["open", "report-producer", "report.count", "RECEIVED", 1],
    ]
    assert found["open"]["oldestSeconds"] >= 3600 > found["held"]["oldestSeconds"] >= 0


async def test_what_is_closed_waits_no_more_and_what_is_parked_does(stack: Stack) -> None:
    await stack.open()
    for name in ("completed", "dead", "parked"):
        await stack.post(event({}, id=name))
    await close(stack, "completed", "status = 'COMPLETED', outcome = '{}'")
    await close(stack, "dead", "status = 'DEAD', last_code = 'CODE', dead_at = now()")
    await close(stack, "parked", "status = 'DEAD', last_code = 'CODE', dead_at = now(), parked = true")
    found = await backlog(stack)
    assert counts(found) == {"open": 0, "held": 0, "parked": 1, "owed": 0, "givenUp": 0}
    assert [line["state"] for line in found["lines"]] == ["DEAD"]


async def test_the_backlog_counts_reports_owed_and_given_up(stack: Stack) -> None:
    await stack.open()
    await stack.legacy(survey(srvyDrawupNo="S1"))
    states = {"OWED": "NULL", "SENDING": "NULL", "SENT": "now()", "GIVEN_UP": "now()", "WITHDRAWN": "now()"}
    for number, (state, closed_at) in enumerate(states.items(), 1):
        await stack.sql(
            "INSERT INTO inbox.report (message, number, state, source, kind, code, reason, workflow_id, closed_at, sent_at)"
            f" SELECT id, %s, %s, source, 'DEAD', 'CODE', %s, workflow_id, {closed_at},"
            " CASE WHEN %s = 'SENT' THEN now() END FROM inbox.message",
            *(number, state, PLANTED, state),
        )
    found = await backlog(stack)
    assert counts(found) == {"open": 1, "held": 0, "parked": 0, "owed": 2, "givenUp": 1}
    assert [(line["type"], line["state"]) for line in found["lines"] if line["what"] == "owed"] == [
        ("DEAD", "OWED"),
        ("DEAD", "SENDING"),
    ]
    assert PLANTED not in str(found)


# What is never told


async def test_no_answer_holds_the_payload_or_the_subject(stack: Stack) -> None:
    await stack.open()
    message = survey(patno=f"{PLANTED}-1", recipientNm=f"{PLANTED}-2", mobile=f"{PLANTED}-3", formCd=f"{PLANTED}-4")
    name = message["srvyDrawupNo"]
    answers = [
        await stack.legacy(message),
        await stack.legacy(message),
        await stack.legacy(message | {"sendDt": f"{PLANTED}-5"}),
        await stack.get(f"/messages/hospital/{name}"),
        await stack.get(f"/messages/hospital/{name}", TOKENS["hospital"]),
        await stack.get("/backlog"),
    ]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [PLANTED in answer.text + str(answer.headers) for answer in answers] == [False] * 6
    stored = await stack.sql("SELECT body FROM inbox.payload")
    assert PLANTED.encode() in stored[0]["body"]


# Health


async def test_a_process_that_can_store_is_alive_and_ready(stack: Stack) -> None:
    await stack.open()
    for path, status in (("/healthz", "ok"), ("/readyz", "ready")):
        answer = await stack.http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": status})


async def test_a_process_is_not_ready_while_its_schema_is_older(stack: Stack) -> None:
    await stack.open()
    await stack.sql("UPDATE inbox.alembic_version SET version_num = '0001'")
    answer = await stack.http.get("/readyz")
    assert_problem(answer, 503, "schema")
    assert newest_revision() in answer.json()["detail"]
    assert (await stack.http.get("/healthz")).status_code == 200
    await stack.sql("UPDATE inbox.alembic_version SET version_num = %s", newest_revision())
    assert (await stack.http.get("/readyz")).status_code == 200


async def test_a_process_whose_store_is_away_is_alive_and_not_ready(stack: Stack) -> None:
    port = choose(["none"])["none"]
    away = Stack("away", f"postgresql://{PLANTED}@127.0.0.1:{port}/none", stack.temporal, stack.hospital)
    away.configure({"timeouts": {"connect": 0.3}})
    async with away:
        await away.open()
        answer = await away.http.get("/readyz")
        assert_problem(answer, 503, "store-unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert (await away.http.get("/healthz")).status_code == 200
        assert_problem(await away.get("/messages/hospital/a"), 503, "store-unavailable")
        assert_problem(await away.get("/backlog"), 503, "store-unavailable")


async def test_a_source_that_needs_no_token_says_so_and_is_the_only_one(stack: Stack) -> None:
    tokens = stack.settings.declared.sources["hospital"].tokens
    others = stack.settings.declared.sources["report-producer"].model_dump()
    stack.configure(
        {
            "sources": {
                "hospital": {"types": ["survey.send"], "tokens": tokens, "auth": "none"},
                "report-producer": others,
            }
        }
    )
    await stack.open()
    message = survey()
    answer = await stack.http.post("/legacy/survey-send", json=message)
    assert (answer.status_code, answer.headers["X-Result"]) == (200, "Y")
    assert (await stack.legacy(message)).json()["duplicate"] is True
    assert (await stack.legacy(survey(), "wrong")).status_code == 401
    headers = {"Content-Type": "application/cloudevents+json"}
    other = event({"counter": "c"}, id="1", source="report-producer", type="report.count")
    assert (await stack.http.post("/messages", json=other, headers=headers)).status_code == 403
    assert (await stack.http.get(f"/messages/hospital/{message['srvyDrawupNo']}")).status_code == 401
    assert (await stack.get(f"/messages/hospital/{message['srvyDrawupNo']}")).status_code == 200


async def test_without_that_setting_every_source_needs_a_token(stack: Stack) -> None:
    await stack.open()
    assert (await stack.http.post("/legacy/survey-send", json=survey())).status_code == 401
    assert {source.auth for source in stack.settings.declared.sources.values()} == {"token"}


async def test_two_tokens_of_a_source_are_valid_at_once(stack: Stack) -> None:
    stack.configure(tokens=[token_hash("old"), token_hash("new")])
    await stack.open()
    message = survey()
    assert (await stack.legacy(message, "old")).status_code == 200
    assert (await stack.legacy(message, "new")).json()["duplicate"] is True
    assert (await stack.legacy(message, "older")).status_code == 401
