"""What goes on outside of the inbox: the hospital's moods, and an operator at the command line."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psycopg

from deploy.chaos.options import WARD, Options
from deploy.chaos.pace import Pace
from deploy.chaos.stack import Stack
from deploy.chaos.traffic import LATER, forms
from deploy.dev.programs import ROOT

_LATER_FROM = 2 / 3  # of the run
_MOOD = (8.0, 20.0)  # seconds between two
_DOWN = (0.5, 2.5)  # seconds
_LOOKS = (3.0, 8.0)  # seconds between two of the operator's looks
_REDRIVES = 3  # messages in one look
_COMMAND, _HUNG = 120.0, 124  # seconds for one, and the exit code of one that took longer
_SAME = 2  # redrives of one parked message, then it is released or discarded


@dataclass(frozen=True)
class Command:
    """What the operator did: ``verb`` on the key, and its exit code."""

    verb: str
    source: str
    id: str
    exit_code: int


class Upstream:
    """The stand-in hospital's knowledge and moods."""

    def __init__(self, stack: Stack, options: Options, pace: Pace) -> None:
        """Nothing yet."""
        self._pace = pace
        self._url = stack.hospital
        self._options = options
        self.faults = 0

    async def settle(self) -> None:
        """Make it well, and let it know every form."""
        await self._control(down=False, reports=[], forms=forms(all_of_them=True))

    async def run(self) -> None:
        """Be down for a while, or answer reports with errors, at times drawn from the seed; until cancelled."""
        await self._control(forms=forms(all_of_them=False), consents={})
        async with asyncio.TaskGroup() as group:
            group.create_task(self._register_later())
            group.create_task(self._moods())

    async def _register_later(self) -> None:
        await self._pace.reached(self._options.seconds * _LATER_FROM)
        await self._control(forms=forms(all_of_them=True))

    async def _moods(self) -> None:
        dice = random.Random(f"upstream {self._options.seed}")
        while True:
            await asyncio.sleep(dice.uniform(*_MOOD))
            self.faults += 1
            if dice.choice([True, False]):
                await self._control(reports=dice.choices([200, 429, 500, 503], k=4))
                continue
            await self._control(down=True)
            await asyncio.sleep(dice.uniform(*_DOWN))
            await self._control(down=False)

    async def _control(self, **parts: object) -> None:
        """Change it for certain: on a machine with much to do an answer may take long."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                with suppress(httpx.TransportError):
                    (await client.post(f"{self._url}/_control", json=parts)).raise_for_status()
                    return


class Operator:
    """Looks for DEAD messages, and redrives, releases or discards some, by the real commands."""

    def __init__(self, stack: Stack, seed: int) -> None:
        """Nothing yet."""
        self._stack = stack
        self._dice = random.Random(f"operator {seed}")
        self.commands: list[Command] = []

    async def run(self, over: Callable[[], bool]) -> None:
        """Look now and then until it is over: never cancelled, or nobody would know what a command did."""
        while not over():
            await asyncio.sleep(self._dice.uniform(*_LOOKS))
            await self.look_at_parked()
            await self._dead()

    async def look_at_parked(self) -> None:
        """Let some of the parked messages go, or send them through again."""
        found = await self._find(
            "SELECT m.source, m.message_id, convert_from(p.body, 'UTF8') LIKE %s FROM inbox.message m"
            " JOIN inbox.payload p ON p.message = m.id WHERE m.parked ORDER BY m.id LIMIT 4",
            f"%{LATER}%",
        )
        for source, name, heals in found:
            redriven = sum(c.verb == "redrive" and (c.source, c.id) == (source, name) for c in self.commands)
            verbs = ["redrive"] if heals and redriven < _SAME else ["release", "discard"]
            await self._command(self._dice.choice(verbs), source, name)

    async def _dead(self) -> None:
        found = await self._find(
            "SELECT source, message_id FROM inbox.message WHERE status = 'DEAD' AND NOT parked AND generation < 3"
            " AND source <> %s ORDER BY random() LIMIT 30",
            WARD,
        )
        for source, name in self._dice.sample(found, min(len(found), self._dice.randrange(_REDRIVES + 1))):
            await self._command("redrive", source, name)

    async def _find(self, query: str, *parameters: str) -> list[tuple[str, ...]]:
        try:
            async with (
                asyncio.timeout(5),
                await psycopg.AsyncConnection.connect(self._stack.logins["operator"], connect_timeout=3) as connection,
            ):
                return await (await connection.execute(query, parameters)).fetchall()
        except (psycopg.Error, TimeoutError):
            return []

    async def _command(self, verb: str, source: str, name: str) -> None:
        line = [sys.executable, "-m", "inbox", verb, f"{source}/{name}"]
        line += ["--reason", "chaos"] if verb == "discard" else []
        environment = self._stack.operators_environment
        # In a thread, since this loop is not the main thread's: it would have to watch for the child's end itself.
        try:
            code = (
                await asyncio.to_thread(
                    subprocess.run, line, cwd=ROOT, env=environment, capture_output=True, timeout=_COMMAND
                )
            ).returncode
        except subprocess.TimeoutExpired:
            code = _HUNG
        self.commands.append(Command(verb, source, name, code))
