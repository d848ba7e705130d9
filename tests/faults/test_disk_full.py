"""The disk of Postgres is full: nothing is acknowledged, nothing half stored, and service returns with the room."""

# ruff: noqa: S603, S607 - mount and umount, of root's own path

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from deploy.dev.postgres import Postgres
from inbox.store.migrate import migrate
from tests.support.hospital import HospitalServer
from tests.support.stack import TOKENS, Stack, event
from tests.support.waiting import eventually

SIZE = "320m"
PADDING = 100_000  # bytes of a message: a few of them use up what Postgres has in hand


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    place = tmp_path / "postgres"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    made = subprocess.run(mount, check=False, capture_output=True).returncode == 0 if os.geteuid() == 0 else False
    if not made:
        pytest.skip("no small file system can be mounted here: that needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def own_postgres(small: Path, tmp_path: Path) -> Iterator[Postgres]:
    """A server on it; its log lies elsewhere."""
    server = Postgres(small, log=tmp_path / "postgres.log")
    server.start()
    migrate(server.url)
    yield server
    server.stop()


def fill_up(ballast: Path) -> None:
    """Leave no byte free."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def large(number: int) -> dict[str, object]:
    data = {"counter": f"c{number}", "padding": os.urandom(PADDING // 2).hex()}
    return event(data, source="report-producer", type="report.count", id=f"E-{number}")


async def test_on_a_full_disk_nothing_is_acknowledged_or_half_stored(
    small: Path, own_postgres: Postgres, name: str, temporal: Client, hospital: HospitalServer
) -> None:
    async with Stack(name, own_postgres.url, temporal, hospital) as stack:
        await stack.open()
        token = TOKENS["report-producer"]
        assert (await stack.post(large(0), token)).status_code == 202
        pid = own_postgres.pid
        fill_up(small / "ballast")
        answers = [await stack.post(large(number), token) for number in range(1, 41)]
        refused = [answer for answer in answers if answer.status_code != 202]
        assert len(refused) > 20
        for answer in refused:
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert answer.headers["Content-Type"] == "application/problem+json"
        taken = {f"E-{n}" for n, answer in enumerate(answers, 1) if answer.status_code == 202} | {"E-0"}
        stored = await stack.sql(
            "SELECT m.message_id, p.message FROM inbox.message m FULL JOIN inbox.payload p ON p.message = m.id"
        )
        assert {row["message_id"] for row in stored if row["message"]} == taken
        assert len(stored) == len(taken)
        assert (await stack.http.get("/healthz")).status_code == 200
        (small / "ballast").unlink()
        again = large(40)

        async def accepted() -> int:
            return (await stack.post(again, token)).status_code

        assert answers[-1].status_code == 503
        assert await eventually(accepted, lambda status: status != 503) == 202  # new: it was not stored before
        assert own_postgres.pid == pid  # neither of ours nor Postgres was started again
        async with stack.dispatching(), stack.working():
            for message_id in taken | {"E-40"}:
                row = await stack.closed(message_id)
                assert (row["status"], row["tries"], row["outcome"]) == ("COMPLETED", 1, {"value": 1})
