"""The rehearsal: accept, Temporal away, direct, Temporal back and drained, accept again, all under traffic."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import psycopg

from deploy.dev.programs import ROOT
from deploy.dev.screen import Screen
from deploy.dev.service import StackError, wait_until
from deploy.dev.settings import write
from deploy.dev.signals import Signals
from deploy.dev.stack import Stack
from deploy.rollback.judge import Journal, Totals, faults, standing, totals
from deploy.rollback.traffic import LINES, TOGETHER, Sent, Traffic

AWAY, TO_DIRECT, DIRECT = "Temporal away", "to direct", "direct, away"
BACK, DRAINED, TO_ACCEPT, AGAIN = "Temporal back", "drained", "to accept", "accept again"
_LIMIT = 300.0  # seconds that a phase may take
_ASKED_TWICE = 2
_BETWEEN = 1.0  # seconds between two questions whether it is drained


@dataclass
class Phase:
    """What happened from one step to the next; `registered` and `open` as they were at its end."""

    name: str
    seconds: float
    registered: int
    open: int
    sent: int = 0
    answers: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outcome:
    """What the rehearsal shows; it proves something where `faults` is empty."""

    phases: list[Phase]
    drained: list[dict[str, Any]]
    before: Totals
    after: Totals
    sent: int
    faults: list[str]


class Rehearsal:
    """One run with a stack that answers; a sender gets `each` messages through in a phase, one a subject at least."""

    def __init__(self, stack: Stack, signals: Signals, screen: Screen, each: int) -> None:
        """Send nothing yet."""
        self._stack = stack
        self._signals = signals
        self._screen = screen
        self._each = max(each, TOGETHER)
        self._run = secrets.token_hex(4)
        self._traffic = Traffic([ingest.url for ingest in stack.ingests], stack.tokens, self._run)
        self._connection = psycopg.connect(stack.database, autocommit=True)
        self._phases: list[Phase] = []
        self._asked: list[dict[str, Any]] = []
        self._faults: list[str] = []
        self._began = 0.0

    def run(self) -> Outcome:
        """Do it all. Raises StackError where it cannot go on, and Interrupted."""
        before = totals(self._connection)
        try:
            self._there()
            self._and_back()
            self._settle()
        finally:
            self._traffic.abandon()
            sent = self._traffic.sent
            journal = Journal(self._run, before, sent)
            journal.keep(self._stack.config.with_name("rollback.json"))
        for phase in self._phases:
            own = [one for one in sent if one.phase == phase.name]
            phase.sent, phase.answers = len(own), Counter(code for one in own for code in one.answers)
        found = [*self._faults, *faults(self._connection, journal)]
        return Outcome(self._phases, self._asked, before, totals(self._connection), len(sent), found)

    # The steps

    def _there(self) -> None:
        """Accept; Temporal goes; direct."""
        self._begin("accept")
        self._traffic.begin()
        self._each_taken()
        self._begin(AWAY)
        self._temporal().kill()
        self._each_taken()
        self._begin(TO_DIRECT)
        self._sql("GRANT inbox_worker TO dev_ingest")
        self._switch(direct=True)
        self._begin(DIRECT)
        self._each_taken()
        self._ask()
        self._end()
        self._expect(
            "something is open while Temporal is away", self._asked[-1]["exit"] == 1 and self._asked[-1]["open"]
        )
        new = [one for one in self._traffic.of(DIRECT, "newcomers") if one.taken and one.place == 1]
        self._expect(
            "a new patient's message is registered at once",
            new and not any(HTTPStatus.ACCEPTED in one.answers for one in new),
        )
        behind = self._traffic.of(DIRECT, "patient")
        self._expect("a message behind an open one is accepted", not any(one.registered for one in behind))

    def _and_back(self) -> None:
        """Temporal returns; all drains; accept."""
        self._begin(BACK)
        self._stack.supervisor.restart(self._temporal())
        self._drain()
        self._begin(DRAINED)
        self._each_taken()
        self._drain()
        for line in LINES:
            own = self._traffic.of(DRAINED, line.name)
            self._expect(f"{line.name}: registered at once when all is drained", any(one.registered for one in own))
        self._begin(TO_ACCEPT)
        self._switch(direct=False)
        self._sql("REVOKE inbox_worker FROM dev_ingest")
        self._begin(AGAIN)
        self._each_taken()
        self._expect("all is accepted again", not any(one.registered for one in self._traffic.of(AGAIN)))

    def _settle(self) -> None:
        """Stop the senders, and wait for what is open or owed."""
        self._begin("no traffic")
        self._traffic.end()

        def settled() -> bool:
            now = totals(self._connection)
            return not (now.open or now.owed)

        self._wait("everything that is open has ended", settled)
        self._end()

    # What they are made of

    def _begin(self, name: str) -> None:
        self._end()
        self._screen.line(f"\n{name}")
        self._traffic.phase = name
        self._began = time.monotonic()

    def _end(self) -> None:
        name = self._traffic.phase
        if name and name not in (phase.name for phase in self._phases):
            self._phases.append(Phase(name, time.monotonic() - self._began, *standing(self._connection, self._run)))

    def _expect(self, what: str, holds: object) -> None:
        if not holds:
            self._faults.append(f"not so: {what}")

    def _temporal(self) -> Any:
        if self._stack.temporal is None:
            raise StackError("a rehearsal stops Temporal, so it has to be its own")
        return self._stack.temporal

    def _sql(self, statement: str) -> None:
        self._connection.execute(statement)
        self._screen.step("database", statement)

    def _switch(self, *, direct: bool) -> None:
        """Write the sources' mode into the settings file, and restart ingest, one process after the other."""
        text = re.sub(r'^mode = "direct"\n', "", self._stack.config.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if direct:
            text = re.sub(r"^(\[sources\.[\w-]+\]\n)", r'\1mode = "direct"\n', text, flags=re.MULTILINE)
        write(self._stack.config, text, 0o600)
        for ingest in self._stack.ingests:
            self._stack.supervisor.restart(ingest)

    def _drain(self) -> None:
        """Ask until the answer is yes twice in a row: what came in at the moment of the first is seen by the second."""
        yes, end = 0, time.monotonic() + _LIMIT
        while yes < _ASKED_TWICE:
            yes = yes + 1 if self._ask() else 0
            if time.monotonic() > end:
                raise StackError(f"not drained within {_LIMIT:.0f} s: {self._asked[-1]['open']}")
            self._pause()

    def _pause(self) -> None:
        end = time.monotonic() + _BETWEEN
        wait_until(lambda: time.monotonic() > end, _LIMIT, self._check)

    def _ask(self) -> bool:
        """Ask `inbox drained` as an operator does; tell whether all is."""
        done = subprocess.run(
            [sys.executable, "-m", "inbox", "drained", "--json"],
            env=self._stack.environments["operator"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise StackError(f"inbox drained ended with exit code {done.returncode}", tail=done.stderr)
        found = json.loads(done.stdout)["open"]
        self._asked.append({"phase": self._traffic.phase, "exit": done.returncode, "open": found})
        lines = [f"{line['count']} of {line['source']} {line['what']} ({line['state']})" for line in found]
        self._screen.step("drained", f"exit {done.returncode}" + "".join(f", {line}" for line in lines))
        self._expect("drained says what is open", bool(found) == bool(done.returncode))
        return done.returncode == 0

    def _each_taken(self) -> None:
        """Wait until each sender got its messages of this phase through."""

        def through() -> bool:
            taken = Counter(_line(one) for one in self._traffic.of(self._traffic.phase) if one.taken)
            return all(taken[line.name] >= self._each for line in LINES)

        self._wait(f"each sender has {self._each} messages through", through)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        if not wait_until(condition, _LIMIT, self._check):
            raise StackError(f"{self._traffic.phase}: not within {_LIMIT:.0f} s: {what}")

    def _check(self) -> None:
        self._signals.check()
        self._traffic.check()
        for service in (*self._stack.ingests, *self._stack.workers, self._stack.hospital):
            if not service.alive():
                raise service.failure("ended, though nobody asked it to")


def _line(one: Sent) -> str:
    return one.id.split("-")[1]
