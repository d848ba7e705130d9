"""http_bundle against a real service over real HTTP that keeps idempotency keys: applied exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inbox.burial import redrive
from inbox.message import Key
from tests.support.bundles import Bundles, bundling
from tests.support.processes import environment, process
from tests.support.stack import Stack, event
from tests.support.upstream import Upstream, answer, drip, hang

SECRET = "PLANTED-token"
TRACE = "0af7651916cd43dd8448eb211c80319c"
OWN = "handlers.http_bundle:HttpBundle"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Bundles]:
    """The service that owns the data."""
    async with bundling(tmp_path) as running:
        yield running


def sections(stack: Stack, url: str, *, tries: int = 5, **own: Any) -> dict[str, Any]:
    """Return the settings of a shop whose orders go to the service."""
    shop = {
        "types": ["order.placed"],
        "tokens": stack.tokens("hospital"),
        "retry_interval": 0.1,
        "tries": tries,
        "report": {"url": f"{stack.hospital.url}/reports"},
    }
    handler = {"handler": OWN, "type": "order.placed", "url": url, "token": SECRET, "timeout": 3}
    handler |= {"headers": {"X-Tenant": "clinic"}} | own
    return {"sources": {"shop": shop}, "legacy": None, "handlers": {"orders": handler}}


async def send(stack: Stack, order: str, **play: Any) -> None:
    """Deliver one order."""
    data = {"order": order, "환자": "홍길동"} | play
    answered = await stack.post(event(data, source="shop", id=order, type="order.placed"))
    assert answered.status_code in (200, 202), answered.text


async def test_a_bundle_is_posted_with_key_token_and_trace_and_its_answer_is_the_outcome(
    stack: Stack, service: Bundles
) -> None:
    stack.configure(sections(stack, service.url))
    await stack.start()
    data = {"order": "O/1 ~ü", "환자": "홍길동"}
    sent = event(data, source="shop", id="O/1 ~ü", type="order.placed", traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    assert (await stack.post(sent)).status_code == 202
    row = await stack.closed("O/1 ~ü")
    assert row["status"] == "COMPLETED"
    assert row["outcome"] == {"status": 201, "location": "/bundles/1", "result": {"number": 1}}
    (call,) = service.calls()
    assert call["key"] == '"shop/O%2F1%20%7E%C3%BC"'
    assert call["body"] == {"order": "O/1 ~ü", "환자": "홍길동"}
    assert call["headers"]["authorization"] == f"Bearer {SECRET}"
    assert call["headers"]["x-tenant"] == "clinic"
    assert call["headers"]["content-type"] == "application/json"
    assert call["headers"]["traceparent"].startswith(f"00-{TRACE}-")


async def test_a_service_killed_between_its_commit_and_its_answer_applies_once(stack: Stack, service: Bundles) -> None:
    stack.configure(sections(stack, service.url, tries=100))
    await stack.start()
    await send(stack, "O-1", die=True)
    await service.died()
    await service.start()
    assert (await stack.closed("O-1"))["outcome"]["result"] == {"number": 1}
    assert service.applied() == ['"shop/O-1"']
    assert {call["key"] for call in service.calls()} == {'"shop/O-1"'}
    assert len(service.calls()) >= 2
    lines = await stack.attempts("O-1")
    assert {line["code"] for line in lines} == {"SYSTEM_ERROR"}
    assert lines[0]["reason"] in ("RemoteProtocolError", "ReadError")


async def test_a_service_that_answers_too_late_applies_once(stack: Stack, service: Bundles) -> None:
    stack.configure(sections(stack, service.url, timeout=0.5))
    await stack.start()
    await send(stack, "O-1", slow=2)
    assert (await stack.closed("O-1"))["status"] == "COMPLETED"
    assert service.applied() == ['"shop/O-1"']
    (line,) = await stack.attempts("O-1")
    assert (line["code"], line["reason"]) == ("SYSTEM_ERROR", "TimeoutError")


async def test_a_refusal_with_a_problem_document_is_a_business_error_told_word_for_word(
    stack: Stack, service: Bundles
) -> None:
    stack.configure(sections(stack, service.url, tries=2))
    await stack.start()
    await send(stack, "O-1", refuse=422)
    own = {"type": "about:blank", "title": "Conflict", "code": "TAKEN"}
    await send(stack, "O-2", refuse=409, problem=own)
    for order, code, reason in (("O-1", "OUT_OF_STOCK", "no more of it"), ("O-2", "TAKEN", "Conflict")):
        row = await stack.reported(order)
        assert (row["status"], row["last_code"], row["last_reason"], row["tries"]) == ("DEAD", code, reason, 2)
        (report,) = await stack.reports(order)
        assert (report["code"], report["reason"]) == (code, reason)
    # Staff mend it and redrive: another generation, and the same key.
    await service.mend()
    await redrive(stack.database, Key("", "shop", "O-1"))
    assert (await stack.closed("O-1"))["status"] == "COMPLETED"
    assert service.applied() == ['"shop/O-1"']
    assert [call["key"] for call in service.calls()].count('"shop/O-1"') == 3


@pytest.mark.parametrize(
    ("status", "bare"), [(500, False), (503, False), (408, False), (425, False), (429, False), (404, True), (422, True)]
)
async def test_any_other_failure_is_a_system_error_whose_text_is_not_told(
    stack: Stack, service: Bundles, status: int, bare: bool
) -> None:
    stack.configure(sections(stack, service.url, tries=1))
    await stack.start()
    await send(stack, "O-1", refuse=status, bare=bare, problem={"detail": "PLANTED"})
    row = await stack.reported("O-1")
    assert (row["status"], row["last_code"]) == ("DEAD", "SYSTEM_ERROR")
    assert row["last_reason"] == f"HTTPStatusError {status}"
    (report,) = await stack.reports("O-1")
    assert report["reason"] == "system error"


async def test_some_500s_and_many_deliveries_at_once_apply_each_order_once(
    stack: Stack, service: Bundles, tmp_path: Path
) -> None:
    stack.configure(sections(stack, service.url))
    await stack.start()
    orders = [f"O-{n}" for n in range(8)]
    async with process(environment(stack, tmp_path), "worker"):  # a second one
        await asyncio.gather(*(send(stack, order, fail=n % 3) for n, order in enumerate(orders) for _ in range(6)))
        for order in orders:
            assert (await stack.closed(order))["status"] == "COMPLETED"
    assert sorted(service.applied()) == [f'"shop/{order}"' for order in orders]
    assert len({(await stack.row(order))["outcome"]["result"]["number"] for order in orders}) == 8


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (hang, "TimeoutError"),
        (drip, "TimeoutError"),  # no single read takes long
        (answer(200, "x" * 70_000), "BadAnswer"),
        (answer(302, Location="http://127.0.0.1:9/"), "HTTPStatusError 302"),
    ],
)
async def test_an_answer_that_is_none_fails_the_try_in_time(stack: Stack, behaviour: Any, reason: str) -> None:
    async with Upstream(lambda _: behaviour) as upstream:
        stack.configure(sections(stack, upstream.url, tries=1, timeout=0.5))
        await stack.start()
        await send(stack, "O-1")
        row = await stack.closed("O-1")
    assert (row["status"], row["last_code"], row["last_reason"]) == ("DEAD", "SYSTEM_ERROR", reason)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("", {"status": 200}),
        ("not json", {"status": 200}),
        ("[1]", {"status": 200}),
        ('{"other": 1}', {"status": 200}),
        ('{"result": null}', {"status": 200, "result": None}),
        (json.dumps({"result": "한글"}), {"status": 200, "result": "한글"}),
        ('{"result": "a\\u0000b"}', {"status": 200}),
        ('{"result": "\\ud800"}', {"status": 200}),
        ('{"result": NaN}', {"status": 200}),
        (f'{{"result": "{"x" * 2000}"}}', {"status": 200}),
    ],
)
async def test_what_an_answer_holds_never_costs_the_bundle(stack: Stack, body: str, outcome: Any) -> None:
    async with Upstream(lambda _: answer(200, body)) as upstream:
        stack.configure(sections(stack, upstream.url, tries=1))
        await stack.start()
        await send(stack, "O-1")
        row = await stack.closed("O-1")
    assert (row["status"], row["outcome"]) == ("COMPLETED", outcome)
