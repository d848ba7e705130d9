"""The sample day: sends it as the old system would, waits until all has ended, judges the result.

A bulk sender: one call after the other, in the order of the file.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
from rich.progress import Progress

from deploy.dev.judge import Day, Delivery, Line, Record, Summary
from deploy.dev.service import StackError

SAMPLE = Path(__file__).with_name("sample-day.jsonl")
SOURCE = "hospital"

_SETTLE_LIMIT = 120.0  # seconds from the last answer
_AWAY_LIMIT = 30.0  # seconds that one message is sent again while ingest is away
_PAUSE = 0.25  # seconds between two rounds of looks
_LOOKS = 25  # records read in a round: enough to be quick, few enough not to disturb


def read(path: Path = SAMPLE) -> list[Line]:
    """Read the lines of the sample. Raises StackError for a door that this sender does not know."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        content = json.loads(text)
        if content["door"] != "legacy":
            raise StackError(f"{path.name}, line {number}: unknown door {content['door']!r}")
        lines.append(Line(number, content["send"], **content["expect"]))
    return lines


@dataclass
class Sender:
    """Sends the sample to `ingest` with the source's `token`.

    `progress` makes a bar; `check` is called in between and may raise to end it all.
    """

    ingest: str
    hospital: str
    token: str
    progress: Callable[[], Progress]
    check: Callable[[], None]

    def run(self) -> Summary:
        """Send, wait, judge. Raises StackError when ingest or hospital are away for too long."""
        lines = read()
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(headers=headers, trust_env=False, timeout=30) as client:
            ids = {line.id for line in lines if line.id}
            known = frozenset(name for name in ids if self._record(client, name))
            before = self._seen(client)
            began = time.monotonic()
            deliveries = self._send(client, lines)
            records = self._settle(client, ids)
            seconds = time.monotonic() - began
            after = self._seen(client)
        return Day(lines, deliveries, records, known, before, after, seconds).judge()

    def _send(self, client: httpx.Client, lines: list[Line]) -> list[Delivery]:
        deliveries = []
        with self.progress() as progress:
            for line in progress.track(lines, description="sending"):
                self.check()
                deliveries.append(self._deliver(client, line))
        return deliveries

    def _deliver(self, client: httpx.Client, line: Line) -> Delivery:
        """One message; again while ingest is away, as an at-least-once sender does."""
        url, end, again = f"{self.ingest}/legacy/survey-send", time.monotonic() + _AWAY_LIMIT, False
        while True:
            began = time.monotonic()
            try:
                answer = client.post(url, json=line.send)
                away = answer.status_code in (429, 503)
            except httpx.TransportError:
                away = True
            took = (time.monotonic() - began) * 1_000
            if not away:
                break
            if time.monotonic() > end:
                raise StackError(f"line {line.number}: ingest is away for {_AWAY_LIMIT:.0f} s")
            again = True
            self.check()
            time.sleep(_PAUSE)
        return Delivery(
            http=answer.status_code,
            result=answer.headers.get("X-Result"),
            message=unquote(answer.headers.get("X-Result-Message", "")),
            duplicate=_duplicate(answer),
            milliseconds=took,
            again=again,
        )

    def _settle(self, client: httpx.Client, ids: set[str]) -> dict[str, Record | None]:
        """Return the records when all are closed and their notices settled, or when time is up."""
        found: dict[str, Record | None] = {}
        waiting = deque(sorted(ids))
        end = time.monotonic() + _SETTLE_LIMIT
        with self.progress() as progress:
            task = progress.add_task("settling", total=len(ids))
            while waiting and time.monotonic() < end:
                self.check()
                progressed = False
                for _ in range(min(_LOOKS, len(waiting))):
                    name = waiting.popleft()
                    found[name] = record = self._record(client, name)
                    if record is None or record.settled:
                        progressed = True
                        progress.advance(task)
                    else:
                        waiting.append(name)
                if waiting and not progressed:
                    time.sleep(_PAUSE)
        return found

    def _record(self, client: httpx.Client, name: str) -> Record | None:
        """Read the message's record; None when it is not stored."""
        answer = self._get(client, f"{self.ingest}/messages/{SOURCE}/{quote(name, safe='')}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        content = answer.raise_for_status().json()
        return Record(
            status=content["status"],
            code=content.get("code"),
            report_state=content.get("reportState"),
            tries=int(content.get("tries") or 0),
        )

    def _seen(self, client: httpx.Client) -> dict[str, Any]:
        seen: dict[str, Any] = self._get(client, f"{self.hospital}/_seen").json()
        return seen

    def _get(self, client: httpx.Client, url: str) -> httpx.Response:
        end = time.monotonic() + _AWAY_LIMIT
        while True:
            try:
                answer = client.get(url)
                if answer.status_code not in (429, 503):
                    return answer
            except httpx.TransportError:
                pass
            if time.monotonic() > end:
                raise StackError(f"no answer from {url} for {_AWAY_LIMIT:.0f} s")
            self.check()
            time.sleep(_PAUSE)


def _duplicate(answer: httpx.Response) -> bool:
    try:
        content = answer.json()
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("duplicate") is True
