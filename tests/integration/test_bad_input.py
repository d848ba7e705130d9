"""The table of bad input, over real HTTP on a real Postgres: status, kind of problem, what is stored, what is counted."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

import httpx
import psycopg
import pytest
from psycopg import sql

from deploy.dev.postgres import Postgres
from tests.conftest import TEMPLATE
from tests.integration.bad_input import AS_IT_IS, CASES, LEGACY, MESSAGES, Case, Sent
from tests.support.serving import Served, serving

PAIRS = [pytest.param(case, door, id=f"{door[1:7]}-{case.name}") for case in CASES for door in case.doors]


@pytest.fixture(scope="module")
def served(postgres: Postgres) -> Iterator[Served]:
    """One ingest for the module: each case sends IDs of its own."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE badinput TEMPLATE {}").format(sql.Identifier(TEMPLATE)))
    with serving(f"{postgres.url.rpartition('/')[0]}/badinput", "badinput") as running:
        yield running


def deliver(served: Served, door: str, sent: Sent) -> httpx.Response:
    return served.http.post(door, content=sent.content(), headers=sent.headers(door))


@pytest.mark.parametrize(("case", "door"), PAIRS)
def test_the_table(served: Served, case: Case, door: str) -> None:
    if case.first:
        deliver(served, door, case.first(door))
    rows, counts = served.everything(), Counter(served.counted())
    sent = case.make(door)
    answer = deliver(served, door, sent)
    status, result = case.answer(door)
    assert (answer.status_code, answer.headers.get("X-Result")) == (status, result), answer.text
    if case.kind:
        assert_problem(answer, case)
        assert served.everything() == rows
    elif case.first:
        assert answer.json()["duplicate"] is True
        assert_duplicate(rows, served.everything())
    else:
        assert answer.json()["status"] == "RECEIVED"
        *before, new = served.everything()
        assert before == rows
        assert (new["body"], new["message"]["id"]) == (hashlib.sha256(sent.body).digest(), new["payload"])
    assert Counter(served.counted()) - counts == counted(case, door)


def assert_problem(answer: httpx.Response, case: Case) -> None:
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert (document["type"], document["status"]) == (f"urn:temporal-inbox:problem:{case.kind}", case.status)
    if "X-Result" in answer.headers:
        assert unquote(answer.headers["X-Result-Message"], errors="strict") == document["detail"]


def assert_duplicate(before: list[dict], after: list[dict]) -> None:
    """One row differs, in its count of duplicates and the time of the last delivery; its payload does not."""
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    ((old, new),) = changed
    columns = {name for name in new["message"] if new["message"][name] != old["message"][name]}
    assert columns == {"duplicates", "delivered_at"}
    assert new["message"]["duplicates"] == old["message"]["duplicates"] + 1
    assert new["body"] == old["body"]


def counted(case: Case, door: str) -> dict[tuple[str, str | None, str | None], int]:
    """Return what one delivery adds: to one counter and to the histogram, with a source where one is known."""
    source: str | None = "hospital"
    if case.status == 401:
        source = None
    elif case.name == "another source's token":
        source = "report-producer" if door == MESSAGES else None
    reason = None
    if case.kind is None:
        name = "inbox.duplicates" if case.first else "inbox.received"
    elif case.kind == "id-reused":
        name = "inbox.conflicts"
    else:
        name, reason = "inbox.rejected", case.kind
    return {(name, source, reason): 1, ("inbox.intake.duration", source, None): 1}


def test_every_kind_of_answer_is_in_the_table() -> None:
    assert {case.status for case in CASES} == {200, 202, 400, 401, 403, 409, 413, 415, 422}
    assert {case.status for case in CASES if LEGACY in case.doors and case.answer(LEGACY)[0] != 200} == AS_IT_IS


def test_after_a_body_that_is_too_large_the_connection_goes_on(served: Served) -> None:
    """An early answer would reset it; so the second request goes over the same one."""
    large = next(case for case in CASES if case.name == "a body of 2 MiB").make(MESSAGES)
    with httpx.Client(base_url=served.http.base_url, limits=httpx.Limits(max_connections=1)) as one:
        answers = [one.post(MESSAGES, content=large.body, headers=large.headers(MESSAGES)) for _ in range(2)]
        streams = {answer.extensions["network_stream"].get_extra_info("client_addr") for answer in answers}
    assert [answer.status_code for answer in answers] == [413, 413]
    assert len(streams) == 1
