"""Senders as they are outside: each delivers its list in turn, and again until it is answered with a 2xx."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx

from deploy.chaos.pace import Pace
from deploy.chaos.traffic import Delivery, Key, Message

_ANSWER = 4.0  # seconds that a sender waits for an answer
_PAUSE = 0.25  # seconds until it delivers again
_GIVES_UP = 180.0  # seconds after the end of the faults: an inbox that takes nothing then has not recovered


@dataclass
class Heard:
    """What a message's senders saw; Unix times in seconds, ``wrong`` in words."""

    sent_at: float  # the first request of all
    acknowledged_at: float | None = None  # the first 2xx of all
    deliveries: int = 0  # answered with a 2xx
    created: int = 0  # of those said not to be a duplicate
    unanswered: int = 0
    refused: int = 0  # the ID with other content, refused as it should be
    wrong: list[str] = field(default_factory=list)


@dataclass
class Senders:
    """All senders of a run, against the base URLs of every ingest."""

    ingests: Sequence[str]
    tokens: Mapping[str, str]
    seed: int
    pace: Pace
    heard: dict[Key, Heard] = field(default_factory=dict)
    end: float | None = None  # monotonic time of the end of the faults
    left: int = 0  # deliveries that are still to be made

    async def run(self, lists: Sequence[Sequence[Delivery]]) -> None:
        """Deliver everything."""
        self.left = sum(map(len, lists))
        async with asyncio.TaskGroup() as group:
            for number, deliveries in enumerate(lists):
                group.create_task(self._send(number, deliveries))

    async def _send(self, number: int, deliveries: Sequence[Delivery]) -> None:
        dice = random.Random(f"sender {self.seed} {number}")
        async with httpx.AsyncClient(trust_env=False, timeout=_ANSWER) as client:
            for delivery in deliveries:
                await self.pace.reached(delivery.at)
                await self._deliver(client, delivery, dice)
                self.left -= 1

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery, dice: random.Random) -> None:
        message = delivery.message
        heard = self.heard.setdefault(message.key, Heard(time.time()))
        while True:
            url = dice.choice(self.ingests)
            answer = await self._post(client, url, message, reuse=delivery.reuse)
            if answer is not None and answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                _note(heard, answer, delivery)
                return
            heard.unanswered += answer is None
            if self.end is not None and time.monotonic() > self.end + _GIVES_UP:
                heard.wrong.append(f"no 2xx within {_GIVES_UP:.0f} s of the last fault")
                return
            await asyncio.sleep(_PAUSE)

    async def _post(
        self, client: httpx.AsyncClient, url: str, message: Message, *, reuse: bool
    ) -> httpx.Response | None:
        """Return the answer; None where there was none, and nobody knows what became of the request."""
        headers = {"Authorization": f"Bearer {self.tokens[message.source]}"}
        data = message.data | {"other": "content"} if reuse else message.data
        try:
            async with asyncio.timeout(_ANSWER):
                if message.legacy:
                    return await client.post(f"{url}/legacy/survey-send", json=data, headers=headers)
                headers["Content-Type"] = "application/cloudevents+json"
                return await client.post(f"{url}/messages", json=_event(message, data), headers=headers)
        except (httpx.TransportError, TimeoutError):
            return None


def _event(message: Message, data: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = {"specversion": "1.0", "source": message.source, "id": message.id, "type": message.type}
    if message.subject is not None:
        event["partitionkey"] = message.subject
    if message.number is not None:
        event["sequence"] = str(message.number)
    return event | {"data": data}


def _note(heard: Heard, answer: httpx.Response, delivery: Delivery) -> None:
    """Note an answer; whatever is neither a 2xx, nor a 503, nor the refusal of a reused ID is wrong."""
    legacy = delivery.message.legacy
    taken = answer.is_success and answer.headers.get("X-Result", "Y") == "Y"
    refused = answer.headers.get("X-Result") == "N" if legacy else answer.status_code == HTTPStatus.CONFLICT
    if delivery.reuse and refused:
        heard.refused += 1
    elif delivery.reuse:
        heard.wrong.append(f"its ID with other content was answered with {answer.status_code}")
    elif not taken:
        said = " and N" if answer.is_success else ""
        heard.wrong.append(f"was answered with {answer.status_code}{said}")
    else:
        if heard.acknowledged_at is None:
            heard.acknowledged_at = time.time()
        heard.deliveries += 1
        heard.created += answer.json().get("duplicate") is False
