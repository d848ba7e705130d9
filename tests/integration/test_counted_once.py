"""E-42 moves the counter from 6 to 7 and never to 8: from many processes at once, in both modes, killed at commit."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from inbox.ingest.accept import Acceptor, Incoming
from inbox.registry import load_handlers
from inbox.settings import Settings
from inbox.store.statements import Accepted
from tests.support.processes import answering, died, environment, process
from tests.support.stack import TOKENS, Stack, event
from tests.support.waiting import eventually

TIMEOUTS = {"lock": 0.5, "heartbeat": 1.5, "rpc": 1, "lease": 2}
COUNTER = "report-worker"
PRODUCER: dict[str, Any] = {"types": ["report.count"], "tokens": Stack.tokens("report-producer"), "retry_interval": 0.2}
HEADERS = {"Authorization": f"Bearer {TOKENS['report-producer']}", "Content-Type": "application/cloudevents+json"}


def count(message_id: str, **more: Any) -> dict[str, Any]:
    more = {"source": "report-producer", "type": "report.count", "id": message_id} | more
    return event({"counter": COUNTER}, **more)


def configure(stack: Stack, mode: str, order: str = "arrival") -> None:
    sources = {"report-producer": PRODUCER | {"mode": mode, "order": order}}
    stack.configure({"sources": sources, "legacy": None, "handlers": {}, "timeouts": TIMEOUTS})


async def value(stack: Stack) -> int:
    (row,) = await stack.sql("SELECT value FROM reporting.counter WHERE name = %s", COUNTER)
    return int(row["value"])


@pytest.mark.parametrize(
    ("mode", "serving", "working"),
    [
        ("direct", "direct committing", "none"),
        ("direct", "direct committed", "none"),
        ("accept", "none", "bundle committing"),
        ("accept", "accepted", "bundled"),
    ],
)
async def test_fifty_deliveries_at_once_from_four_processes_killed_at_commit(
    stack: Stack, tmp_path: Path, mode: str, serving: str, working: str
) -> None:
    configure(stack, mode)
    await stack.sql("INSERT INTO reporting.counter (name, value) VALUES (%s, 6)", COUNTER)
    doomed, urls = [], []
    async with AsyncExitStack() as running:
        for number in range(4):
            folder = tmp_path / str(number)
            folder.mkdir()
            settings = environment(stack, folder)
            urls.append(f"http://{settings['INBOX_LISTEN']}")
            point = serving if number < 2 else "none"
            ingest = await running.enter_async_context(process(settings, "serve", point))
            doomed += [ingest] if point != "none" else []
            point = working if number < 2 else "none"
            if mode == "accept":
                await running.enter_async_context(process(settings, "worker", point))
        http = await running.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        await asyncio.gather(*(answering(http, url) for url in urls))

        async def deliver(number: int) -> None:
            """As an at-least-once sender does: again, elsewhere, until it is answered with a success."""

            async def answered() -> bool:
                nonlocal number
                number += 1
                try:
                    answer = await http.post(f"{urls[number % 4]}/messages", json=count("E-42"), headers=HEADERS)
                except httpx.HTTPError:
                    return False
                assert answer.status_code in (200, 201, 202, 503), answer.text
                return answer.is_success

            await eventually(answered, limit=60)

        if mode == "direct":  # the first of them meets a process that dies of it
            with suppress(httpx.HTTPError):
                await http.post(f"{urls[0]}/messages", json=count("E-42"), headers=HEADERS)
            await died(doomed[0])
        await asyncio.gather(*(deliver(number) for number in range(50)))
        row = await stack.closed("E-42", limit=60)
        assert (row["status"], row["outcome"]) == ("COMPLETED", {"value": 7})
        assert await value(stack) == 7
        await asyncio.gather(*(deliver(number) for number in range(8)))
    assert await value(stack) == 7
    assert len(await stack.sql("SELECT id FROM inbox.message")) == 1


class Both:
    """The same source in both modes at once, as during a switch: two acceptors over one database."""

    def __init__(self, stack: Stack, order: str) -> None:
        configure(stack, "direct", order)
        self.stack = stack
        self.direct = self._acceptor(stack.settings)
        configure(stack, "accept", order)
        self.accept = self._acceptor(stack.settings)

    def _acceptor(self, settings: Settings) -> Acceptor:
        return Acceptor(self.stack.database, settings, lambda: None, load_handlers(settings))

    async def open(self) -> None:
        """Let both use the pool of the last configuration."""
        await self.stack.open()
        for acceptor in (self.direct, self.accept):
            acceptor._database = self.stack.database
            acceptor._direct._database = self.stack.database

    async def deliver(self, message: Incoming, *, direct: bool) -> Accepted:
        """Deliver one way; accepting is the quicker one, and so begins a little later at times."""
        if direct:
            return await self.direct.accept(message)
        await asyncio.sleep(random.choice([0, 0.002, 0.005, 0.01, 0.02, 0.05]))
        return await self.accept.accept(message)


def incoming(message_id: str, subject: str, sequence: int | None = None) -> Incoming:
    body = b'{"counter": "report-worker"}'
    return Incoming(
        "", "report-producer", message_id, "report.count", subject, sequence, "application/json", body, b"x" * 32
    )


@pytest.mark.parametrize("order", ["none", "arrival", "sequence"])
async def test_one_id_in_both_modes_at_once_is_counted_once(stack: Stack, order: str) -> None:
    both = Both(stack, order)
    await both.open()
    rounds = 40
    ways = set()
    for number in range(rounds):
        message = incoming(f"m{number}", f"s{number}", 1)
        found = await asyncio.gather(*(both.deliver(message, direct=n % 2 == 0) for n in range(6)))
        assert sum(one.created for one in found) == 1
        assert len({one.id for one in found}) == 1
        ways.add(next(one.status for one in found if one.created))
    assert ways == {"RECEIVED", "COMPLETED"}  # each way has won
    async with stack.dispatching(), stack.working():
        await all_closed(stack, rounds)
    assert await value(stack) == rounds


@pytest.mark.parametrize("order", ["arrival", "sequence"])
async def test_one_subject_in_both_modes_at_once_keeps_its_order(stack: Stack, order: str) -> None:
    both = Both(stack, order)
    await both.open()
    rounds, of_each = 12, 6
    async with stack.dispatching(), stack.working():
        for number in range(rounds):
            messages = [incoming(f"m{number}-{n}", f"s{number}", n + 1) for n in range(of_each)]
            if order == "sequence":
                await both.accept.accept(messages[0])
            ways = [both.deliver(message, direct=n % 2 == 1) for n, message in enumerate(messages)]
            if order == "sequence":
                await asyncio.gather(*ways)
            for way in ways if order == "arrival" else []:  # of two that are under way at once either may come first
                await way
        await all_closed(stack, rounds * of_each)
    assert await value(stack) == rounds * of_each
    place = "sequence" if order == "sequence" else "id"
    for number in range(rounds):
        rows = await stack.sql(
            "SELECT id, sequence, tries, outcome FROM inbox.message WHERE subject = %s ORDER BY (outcome->>'value')::int",
            f"s{number}",
        )
        assert [row[place] for row in rows] == sorted(row[place] for row in rows)


async def all_closed(stack: Stack, messages: int) -> None:
    query = "SELECT count(*) AS n FROM inbox.message WHERE status = 'COMPLETED'"
    await eventually(lambda: stack.sql(query), lambda rows: rows[0]["n"] == messages, limit=120)
