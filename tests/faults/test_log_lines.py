"""While a server is away no process says one cause more than once a second, and none is silent about it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, defaultdict
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
from tests.faults.test_backlog import ROWS
from tests.support.hospital import HospitalServer
from tests.support.processes import answering, environment, process
from tests.support.stack import TOKENS, Stack, survey
from tests.support.waiting import eventually

# Before the server comes back each process has named one cause so often, and much more has failed.
NAMED = 4
REFUSED = 15  # deliveries, of Postgres
SILENT = 5  # failed starts that no line of their own tells of, of Temporal
BURST = 200  # messages that are being started when the server goes away
LIMIT = 90  # seconds until it has
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


def whole(log: Path) -> list[str]:
    """Return the lines that are written to their end."""
    return log.read_text().split("\n")[:-1]


def silent(log: Path) -> int:
    """Return how often a cause came up and was not named, as far as a later line has counted it."""
    return sum(map(int, re.findall(r"\(and (\d+) times more\)", log.read_text())))


def spoken(log: Path, since: int = 0) -> dict[str, list[float]]:
    """Return the seconds at which each cause was named: logger and words, without numbers; from line ``since`` on."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in whole(log)[since:]:
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
async def traffic(base: str) -> AsyncIterator[Counter[int]]:
    """Deliver to an ingest without a pause, whatever it answers; yields how often it answered what."""
    answers: Counter[int] = Counter()

    async def send(http: httpx.AsyncClient) -> None:
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        while True:
            with suppress(httpx.HTTPError):
                answer = await http.post("/legacy/survey-send", json=survey(), headers=headers)
                answers[answer.status_code] += 1
            await asyncio.sleep(0.1)  # as a producer would, and not faster than the machine

    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
        senders = [asyncio.create_task(send(http)) for _ in range(SENDERS)]
        try:
            yield answers
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
            async with traffic(base) as answers:
                await stack.eventually_row("SELECT id FROM inbox.message WHERE status = 'COMPLETED'")
                await stack.sql(ROWS, "report-producer", "burst", stack.name, "burst", BURST)
                await stack.eventually_row(
                    "SELECT id FROM inbox.message WHERE source = 'report-producer' AND starts > 0 AND dispatched_at IS NULL"
                )
                lines = {part: len(whole(log)) for part, log in logs.items()}
                server: Service = getattr(servers, who)
                server.kill()
                began = time.monotonic()

                async def failed() -> tuple[int, int, int]:
                    """How often each process has named the cause that it names most; what else failed."""
                    named = [max(map(len, spoken(log, lines[part]).values()), default=0) for part, log in logs.items()]
                    return min(named), sum(map(silent, logs.values())), answers[503]

                await eventually(
                    failed,
                    lambda found: (
                        found[0] >= NAMED and (found[2] >= REFUSED if who == "postgres" else found[1] >= SILENT)
                    ),
                    LIMIT,
                )
                away = time.monotonic() - began
                server.start()
            (newest,) = await stack.sql("SELECT max(id) AS id FROM inbox.message")

            async def done() -> int:
                rows = await stack.sql(
                    "SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL AND id <= %s", newest["id"]
                )
                return int(rows[0]["n"])

            await eventually(done, lambda found: found == 0, 120)
            if who == "postgres":  # each process asks it once a second

                async def heard() -> bool:
                    return all("Postgres answers again" in log.read_text() for log in logs.values())

                await eventually(heard)
            assert (worker.returncode, serve.returncode) == (None, None)
        said = []
        for part, log in logs.items():
            causes, count = judge(log)
            said.append(f"{part} {count - lines[part]} lines, of {causes} causes with those before it")
        record_property(
            "measured",
            f"{who} away for {away:.0f} s under load: {', '.join(said)}; {answers[503]} deliveries refused,"
            f" failures counted in later lines {', '.join(f'{part} {silent(log)}' for part, log in logs.items())}",
        )
