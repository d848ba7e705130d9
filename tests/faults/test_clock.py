"""The clock of one process is an hour off: the record's times are Postgres's and Temporal's, so nothing breaks."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from socket import gethostname

import httpx
import pytest

from tests.integration.test_zombies import PLACES, TIMEOUTS, let_go, spent, zombie_at
from tests.support.processes import answering, environment, process, stopped
from tests.support.stack import TOKENS, Stack, survey
from tests.support.waiting import eventually

LIBRARY = os.environ.get("FAKETIME_LIBRARY") or next(
    map(str, Path("/usr/lib").glob("*-linux-gnu/faketime/libfaketimeMT.so.1")), None
)
MESSAGES = 24

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no libfaketime here (FAKETIME_LIBRARY names it)")


def off(by: str) -> dict[str, str]:
    """Return the environment of a process whose clock of the day is wrong; its monotonic one goes on as it is."""
    return {"LD_PRELOAD": str(LIBRARY), "FAKETIME": by, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "TZ": "UTC"}


def is_wrong(log: Path) -> bool:
    """Tell whether a process had a wrong clock indeed: its lines say so."""
    said = datetime.fromisoformat(json.loads(log.read_text().splitlines()[0])["time"])
    return timedelta(minutes=50) < abs(datetime.now(UTC) - said) < timedelta(minutes=70)


@pytest.mark.parametrize("by", ["+1h", "-1h"])
async def test_processes_whose_clock_is_wrong_work_beside_others(stack: Stack, tmp_path: Path, by: str) -> None:
    stack.configure(tries=3, retry_interval=0.5)
    right = environment(stack, tmp_path)
    wrong = environment(stack, tmp_path, **off(by))
    async with AsyncExitStack() as running:
        first = await running.enter_async_context(process(right, "worker"))
        logs = {name: tmp_path / f"{name}.log" for name in ("worker", "serve")}
        await running.enter_async_context(process(wrong, "worker", log=logs["worker"]))
        await running.enter_async_context(process(wrong, "serve", log=logs["serve"]))
        base = f"http://{wrong['INBOX_LISTEN']}"
        http = await running.enter_async_context(httpx.AsyncClient(base_url=base, trust_env=False))
        await answering(http)
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        good = [survey() for _ in range(MESSAGES)]
        bad = [survey(formCd="P-UNKNOWN") for _ in range(3)]
        for message in good[: MESSAGES // 2] + bad:
            assert (await http.post("/legacy/survey-send", json=message, headers=headers)).status_code == 200

        async def closed() -> int:
            rows = await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NOT NULL")
            return int(rows[0]["n"])

        await eventually(closed, lambda found: found == MESSAGES // 2 + len(bad))
        ended = "SELECT status, tries, starts, count(*) AS n FROM inbox.message GROUP BY 1, 2, 3 ORDER BY 1"
        assert await stack.sql(ended) == [
            {"status": "COMPLETED", "tries": 1, "starts": 1, "n": MESSAGES // 2},
            {"status": "DEAD", "tries": 3, "starts": 1, "n": len(bad)},
        ]
        # Both worked, and the record's times are right whoever wrote them.
        began = await stack.sql(
            "SELECT max(abs(extract(epoch FROM clock_timestamp() - began_at)))::float8 AS away FROM inbox.attempt"
        )
        assert began[0]["away"] < timedelta(minutes=30).total_seconds()
        # A try of the worker that is right is cut off; the one that is wrong takes it for lost, once.
        forms = {f"F-{n}": {"surveyNo": f"PS{n}", "group": "G", "distributed": True} for n in range(MESSAGES)}
        await stack.hospital.control(delays=True, forms=forms | stack.hospital.forms)  # each looked up by itself
        for message, form in zip(good[MESSAGES // 2 :], forms, strict=False):
            message["formCd"] = form
            assert (await http.post("/legacy/survey-send", json=message, headers=headers)).status_code == 200
        await eventually(
            lambda: stack.sql(
                "SELECT id FROM inbox.message WHERE status = 'PROCESSING' AND claimed_by LIKE %s", f"{first.pid}@%"
            )
        )
        first.kill()
        await eventually(closed, lambda found: found == MESSAGES + len(bad))
        assert await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE status = 'COMPLETED'") == [
            {"n": MESSAGES}
        ]
        lost = await stack.sql("SELECT message FROM inbox.attempt WHERE code = 'TRY_LOST'")
        assert 1 <= len(lost) == len({row["message"] for row in lost})
        for message in good:
            assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
        for message in bad:
            await stack.reported(message["srvyDrawupNo"])
    for log in logs.values():
        assert is_wrong(log)


@pytest.mark.parametrize(("place", "by"), [*zip(PLACES, cycle(["+1h", "-1h"]), strict=False)])
async def test_a_zombie_whose_clock_is_wrong_leaves_the_next_try_alone(
    stack: Stack, tmp_path: Path, place: str, by: str
) -> None:
    """Stopped past its heartbeats at each place of a try, and woken while the next try is at work."""
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    key, log = message["srvyDrawupNo"], tmp_path / "log"
    async with stack.dispatching(), zombie_at(stack, tmp_path, place, log, **off(by)) as zombie:
        await stack.legacy(message)
        await stopped(zombie)
        await stack.hospital.control(delays=True)  # the next try is at its look-ups for a second
        tries = spent(place) + 1
        async with stack.working():
            await eventually(
                lambda: stack.row(key), lambda row: row["tries"] == tries and row["status"] == "PROCESSING"
            )
            await let_go(zombie)
            row = await stack.closed(key)
    assert (row["status"], row["tries"], row["claimed_by"]) == ("COMPLETED", tries, f"{os.getpid()}@{gethostname()}")
    assert [line["code"] for line in await stack.attempts(key)] == ["TRY_LOST"] * spent(place)
    assert await stack.bundles(key) == (1, 1, 1, 1)
    assert is_wrong(log)
