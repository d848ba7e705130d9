"""While a server is away no process says one cause more than once a second, and none is silent about it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from temporalio.client import Client

from deploy.dev.postgres import Postgres
from deploy.dev.service import Service
from deploy.dev.temporal import Temporal
from inbox.temporal import DATA_CONVERTER
from tests.support.hospital import HospitalServer
from tests.support.processes import answering, environment, process
from tests.support.stack import TOKENS, Stack, survey
from tests.support.waiting import eventually

AWAY = 10.0  # seconds
SENDERS = 3
SLACK = 0.05  # seconds: a line's time is taken after the decision to write it


class Servers(NamedTuple):
    """What a stack needs, all of it this test's own."""

    postgres: Postgres
    temporal: Temporal
    hospital: HospitalServer


@pytest.fixture
def servers(own_postgres: Postgres, own_temporal: Temporal, hospital: HospitalServer) -> Servers:
    return Servers(own_postgres, own_temporal, hospital)


def spoken(log: Path) -> dict[str, list[float]]:
    """Return the seconds at which each cause was named: logger and words, without numbers."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in log.read_text().splitlines():
        said = json.loads(line)  # whatever is written there is one line of JSON
        words = re.sub(r" \(\{.*| \(and \d+ times more\)|\d+", "", said["message"])
        found[f"{said['level']} {said['logger']}: {words}"].append(datetime.fromisoformat(said["time"]).timestamp())
    return found


def judge(log: Path) -> tuple[int, int]:
    """Find no cause that is named twice within a second; return how many causes and lines there are."""
    found = spoken(log)
    quick = {
        cause: round(min(later - sooner for sooner, later in pairwise(times)), 3)
        for cause, times in found.items()
        if len(times) > 1 and min(later - sooner for sooner, later in pairwise(times)) < 1 - SLACK
    }
    assert not quick, quick
    return len(found), sum(map(len, found.values()))


@asynccontextmanager
async def traffic(base: str) -> AsyncIterator[None]:
    """Deliver to an ingest without a pause, whatever it answers."""

    async def send(http: httpx.AsyncClient) -> None:
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        while True:
            with suppress(httpx.HTTPError):
                await http.post("/legacy/survey-send", json=survey(), headers=headers)
            await asyncio.sleep(0.1)  # as a producer would, and not faster than the machine

    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
        senders = [asyncio.create_task(send(http)) for _ in range(SENDERS)]
        try:
            yield
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)


@pytest.mark.parametrize("who", ["postgres", "temporal"])
async def test_one_cause_is_said_once_a_second_at_the_most(
    who: str, name: str, servers: Servers, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    client = await Client.connect(servers.temporal.address, data_converter=DATA_CONVERTER)
    async with Stack(name, servers.postgres.url, client, servers.hospital) as stack:
        settings = environment(stack, tmp_path)
        logs = {part: tmp_path / f"{part}.log" for part in ("worker", "serve")}
        async with (
            process(settings, "worker", log=logs["worker"]) as worker,
            process(settings, "serve", log=logs["serve"]) as serve,
        ):
            base = f"http://{settings['INBOX_LISTEN']}"
            async with httpx.AsyncClient(base_url=base, trust_env=False) as http:
                await answering(http)
            async with traffic(base):
                await stack.eventually_row("SELECT id FROM inbox.message WHERE status = 'COMPLETED'")
                lines = {part: len(log.read_text().splitlines()) for part, log in logs.items()}
                server: Service = getattr(servers, who)
                server.kill()
                # The outage itself: nothing shows how long it has lasted but the clock.
                await asyncio.sleep(AWAY)
                server.start()
            (newest,) = await stack.sql("SELECT max(id) AS id FROM inbox.message")

            async def done() -> int:
                rows = await stack.sql(
                    "SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL AND id <= %s", newest["id"]
                )
                return int(rows[0]["n"])

            await eventually(done, lambda found: found == 0, 120)
            assert (worker.returncode, serve.returncode) == (None, None)
        said = []
        for part, log in logs.items():
            causes, count = judge(log)
            assert count > lines[part], part  # something was said of it
            said.append(f"{part} {count} lines of {causes} causes")
        record_property("measured", f"{who} away for {AWAY:.0f} s under load: {', '.join(said)}")
