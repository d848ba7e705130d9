"""Senders that deliver at least once: each message again until it is answered with a success, then the next."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx

NO_ANSWER = 0
SURVEYS, COUNTS, NUMBERS = "hospital", "report-producer", "seq-producer"
TYPES = {SURVEYS: "survey.send", COUNTS: "report.count", NUMBERS: "report.count"}
_FORMS = ("P-EQ5D", "P-PHQ9", "P-PAIN")
_AWAY_LIMIT = 90.0  # seconds that one message is delivered again
_AGAIN = 0.1  # seconds between two deliveries of it
_TWICE = 5  # every so many-th message is delivered once more, as if its answer had been lost
_LATE = 7  # every so many-th survey comes too late to be sent, so that a report is owed


@dataclass
class Sent:
    """A message, and what its deliveries were answered.

    `place` is its number among those of its subject, `phase` is when it was offered first.
    """

    id: str
    source: str
    subject: str | None
    place: int
    notice: bool
    phase: str
    answers: list[int] = field(default_factory=list)

    @property
    def registered(self) -> bool:
        """Whether it was registered within a request."""
        return HTTPStatus.CREATED in self.answers

    @property
    def taken(self) -> bool:
        """Whether a sender may forget it."""
        return any(map(httpx.codes.is_success, self.answers))


@dataclass(frozen=True)
class Line:
    """One sender: a source, which subject its n-th message is of, and its pause between two messages, in seconds."""

    name: str
    source: str
    subject: Callable[[int], int] | None
    pause: float


# A subject gets a message every few seconds: one that gets them as fast as they are registered would never drain.
TOGETHER = 4  # subjects that one sender serves by turns
LINES = (
    *(Line(f"patients{n}", SURVEYS, lambda n: n % TOGETHER, 1.0) for n in (1, 2)),
    Line("newcomers", SURVEYS, lambda n: (n + 1) // 2, 0.3),
    Line("counts", COUNTS, None, 0.3),
    Line("numbers", NUMBERS, lambda n: n % TOGETHER, 1.0),
)


class Traffic:
    """All senders, a thread each; `run` is the part of their messages' IDs that no other run has."""

    def __init__(self, ingests: Sequence[str], tokens: dict[str, str], run: str) -> None:
        """Send nothing yet."""
        self._ingests = ingests
        self._tokens = tokens
        self._run = run
        self._pool = ThreadPoolExecutor(len(LINES), thread_name_prefix="sender")
        self._over = threading.Event()
        self._senders: list[Future[None]] = []
        self._sent: dict[str, list[Sent]] = {line.name: [] for line in LINES}
        self.phase = ""

    @property
    def sent(self) -> list[Sent]:
        """Everything so far, a subject's messages in their order."""
        return [one for line in LINES for one in list(self._sent[line.name])]

    def of(self, phase: str, name: str = "") -> list[Sent]:
        """Return what was offered first in a phase, by the lines whose name begins so."""
        lines = [line.name for line in LINES if line.name.startswith(name)]
        return [one for line in lines for one in list(self._sent[line]) if one.phase == phase]

    def begin(self) -> None:
        """Let all send."""
        self._senders = [self._pool.submit(self._send, line) for line in LINES]

    def check(self) -> None:
        """Raise what a sender ended of, if one did."""
        for sender in self._senders:
            if sender.done():
                sender.result()

    def end(self) -> None:
        """Let each end with the message that it is at. Raises what a sender ended of."""
        self._over.set()
        self._pool.shutdown()
        self.check()

    def abandon(self) -> None:
        """Let all end, without waiting for them."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, line: Line) -> None:
        header = {"Authorization": f"Bearer {self._tokens[line.source]}"}
        places = itertools.cycle(self._ingests)
        with httpx.Client(trust_env=False, timeout=30, headers=header) as client:
            for number in itertools.count(1):
                one = self._message(line, number)
                self._sent[line.name].append(one)
                for _ in range(2 if number % _TWICE == 0 else 1):
                    _deliver(client, places, one)
                if not one.taken or self._over.wait(line.pause):
                    return

    def _message(self, line: Line, number: int) -> Sent:
        subject = None if line.subject is None else f"{self._run}-{line.name}-{line.subject(number)}"
        place = 1 + sum(one.subject == subject for one in self._sent[line.name])
        late = line.source == SURVEYS and number % _LATE == 0
        return Sent(f"{self._run}-{line.name}-{number}", line.source, subject, place, late, self.phase)


def counter_of(one: Sent) -> str:
    """Return which counter a message moves: its subject's own, so that its value tells the place."""
    return one.subject or one.id.rpartition("-")[0]


def _event(one: Sent) -> dict[str, Any]:
    event: dict[str, Any] = {"specversion": "1.0", "source": one.source, "type": TYPES[one.source], "id": one.id}
    if one.subject is not None:
        event["partitionkey"] = one.subject
    if one.source != SURVEYS:
        return event | {"sequence": one.place, "data": {"counter": counter_of(one)}}
    return event | {
        "data": {
            "srvyDrawupNo": one.id,
            "patno": one.subject,
            "formCd": _FORMS[one.place % len(_FORMS)],
            "sendDt": "20200101090000" if one.notice else "20991201093000",
            "recipientNm": "홍길동",
            "mobile": "010-0000-0001",
        }
    }


def _deliver(client: httpx.Client, places: Iterator[str], one: Sent) -> None:
    """Deliver, each time to the next ingest, until there is an answer that a further delivery would not change."""
    headers = {"Content-Type": "application/cloudevents+json"}
    end = time.monotonic() + _AWAY_LIMIT
    while time.monotonic() < end:
        try:
            answer = client.post(f"{next(places)}/messages", json=_event(one), headers=headers)
            one.answers.append(answer.status_code)
        except httpx.TransportError:
            one.answers.append(NO_ANSWER)
        if one.answers[-1] not in (NO_ANSWER, HTTPStatus.SERVICE_UNAVAILABLE):
            return
        time.sleep(_AGAIN)
