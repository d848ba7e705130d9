"""A run comes to its end, whatever the inbox does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.chaos import run
from deploy.chaos.options import Options
from deploy.dev.service import StackError


def a_run() -> run.Run:
    stack: Any = SimpleNamespace(ingests=[], tokens={}, hospital="", database="", temporal="")
    signals: Any = None
    return run.Run(Options.read({"SEED": "1"}), stack, signals, print)


async def test_one_that_moves_for_ever_is_ended_without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_TIMES", 0)
    monkeypatch.setattr(run, "_MORE", 0.0)
    monkeypatch.setattr(run, "_LOOK", 0.001)
    tries = iter(range(1_000_000))

    def moving(_: str) -> run.Waiting:
        return run.Waiting(open=1, parked=0, owed=0, tries=next(tries), calls=0)

    async def nobody() -> None:
        pass

    endless = a_run()
    monkeypatch.setattr(run, "waiting", moving)
    monkeypatch.setattr(endless.operator, "look_at_parked", nobody)
    with pytest.raises(StackError, match="no proof"):
        await endless._settle()


async def test_a_temporal_that_does_not_say_what_runs_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_: str) -> list[str]:
        raise RuntimeError

    monkeypatch.setattr(run, "running", away)
    monkeypatch.setattr(run, "_STILL", 0.01)
    monkeypatch.setattr(run, "_LOOK", 0.001)
    unknown = a_run()
    await unknown._let_executions_end()
    assert unknown._running
