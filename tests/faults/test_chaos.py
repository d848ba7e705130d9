"""A short `make chaos`: the real command, with everything that it does, and the proof at its end."""

# ruff: noqa: S603 - what is started is ours

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deploy.chaos.judge import RULES
from tests.acceptance.launcher import Launcher, running, within

# With this seed each of the four is killed, and a worker stopped.
SEED, MESSAGES, KILLS = 133, 150, 4
STOPS_POSTGRES = 312  # at first, for 11 s
COMMAND = [sys.executable, "-m", "deploy.chaos"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a space in its path."""
    made = tmp_path / "a space"
    made.mkdir()
    return made


def test_a_short_run_is_proved(folder: Path) -> None:
    summary = folder / "summary.json"
    asked = {"SEED": str(SEED), "MESSAGES": str(MESSAGES), "KILLS": str(KILLS), "SUMMARY": str(summary)}
    with Launcher(folder, line=COMMAND, **asked) as chaos:
        assert chaos.ended(300) == 0, chaos.said
        chaos.nothing_left()
    told = json.loads(summary.read_text())
    assert (told["findings"], told["seed"], told["rules"]) == ([], SEED, sorted(RULES))
    counts = told["counts"]
    assert counts["accepted"] == MESSAGES == counts["completed"] + counts["dead"]
    assert counts["bundles"] == counts["completed"] - counts["obsolete"]
    assert counts["deliveries"] > MESSAGES
    assert min(counts["dead"], counts["reused_refused"], counts["reports_taken"]) > 0
    kinds = Counter((fault["what"], fault["whom"].rstrip(" 123")) for fault in told["faults"])
    assert sum(kinds.values()) == KILLS + 1
    assert {("kill -9", whom) for whom in ("ingest", "worker", "Temporal", "Postgres")} <= set(kinds)
    for what, whom in kinds:
        assert f"{what} {whom}" in chaos.said
    assert f"SEED={SEED}" in chaos.said


def test_a_run_that_ends_while_postgres_is_stopped_leaves_nothing_and_proves_nothing(folder: Path) -> None:
    asked = {"SEED": str(STOPS_POSTGRES), "MESSAGES": "2000", "KILLS": "25"}
    with Launcher(folder, line=COMMAND, **asked) as killed:
        within(120, lambda: "SIGSTOP Postgres" in killed.said)
        left = killed.processes()
        killed.signal(signal.SIGKILL)
        killed.ended()
        with Launcher(folder, line=COMMAND, **asked) as chaos:
            within(120, lambda: "SIGSTOP Postgres" in chaos.said)
            assert not any(map(running, left))  # the next run ended what the killed one left
            chaos.signal(signal.SIGTERM)
            assert chaos.ended() == 130, chaos.said
            chaos.nothing_left()
    assert "proof" not in killed.said + chaos.said


@pytest.mark.parametrize("given", [{"KILLS": "many"}, {"MESSAGES": "0"}])
def test_wrong_usage_is_refused(folder: Path, given: dict[str, str]) -> None:
    asked = os.environ | {"DATA": str(folder)} | given
    ended = subprocess.run(COMMAND, env=asked, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, next(iter(given)) in ended.stdout) == (2, True)
