"""What a sender, an operator and a database client see of a running stack; addresses from its READY file."""

from __future__ import annotations

import itertools
from typing import Any, Self
from urllib.parse import quote

import httpx
import psycopg
from psycopg.rows import dict_row

from tests.acceptance.launcher import Launcher, within

SURVEY_TABLES = ("recipient", "schedule", "assignment", "task")
_numbers = itertools.count(1)


class Client:
    """Talks to one stack."""

    def __init__(self, stack: Launcher) -> None:
        self.ready = stack.ready
        self._http = httpx.Client(trust_env=False, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def bearer(self, name: str) -> dict[str, str]:
        """Return the header of a source, or of the operator."""
        token = self.ready["operator_token"] if name == "operator" else self.ready["tokens"][name]
        return {"Authorization": f"Bearer {token}"}

    def get(self, url: str, name: str | None = None) -> httpx.Response:
        """GET a whole URL, with the token of this name."""
        return self._http.get(url, headers=self.bearer(name) if name else {})

    def control(self, **parts: Any) -> None:
        """Change what the hospital knows or does."""
        self._http.post(f"{self.ready['hospital']}/_control", json=parts).raise_for_status()

    # Sending

    def offer(self, message: dict[str, Any]) -> httpx.Response:
        """Deliver over the old contract's door, once."""
        url = f"{self.ready['ingest']}/legacy/survey-send"
        return self._http.post(url, json=message, headers=self.bearer("hospital"))

    def send(self, message: dict[str, Any]) -> str:
        """Deliver as an at-least-once sender does, until it is accepted; its ID."""

        def accepted() -> bool:
            try:
                answer = self.offer(message)
            except httpx.TransportError:
                return False
            assert answer.status_code in (200, 503), answer.text
            return answer.headers.get("X-Result") == "Y"

        within(60, accepted)
        return str(message["srvyDrawupNo"])

    def event(self, name: str, event: dict[str, Any]) -> httpx.Response:
        """Deliver a CloudEvent over /messages with the token of this name."""
        headers = self.bearer(name) | {"Content-Type": "application/cloudevents+json"}
        return self._http.post(f"{self.ready['ingest']}/messages", json=event, headers=headers)

    def record(self, source: str, message_id: str, name: str = "operator") -> httpx.Response:
        """Read a record with the token of this name."""
        return self.get(f"{self.ready['ingest']}/messages/{source}/{quote(message_id, safe='')}", name)

    # The database

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run a statement of the test's own."""
        return query(self.ready["database"], statement, *parameters)

    def rows(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """Return the rows of these messages, by ID."""
        found = self.sql("SELECT * FROM inbox.message WHERE source = 'hospital' AND message_id = ANY(%s)", ids)
        return {row["message_id"]: row for row in found}

    def in_flight(self, ids: list[str]) -> None:
        """Wait until the workflow of each of these was started, and some are being processed."""

        def look() -> tuple[int, set[str]]:
            rows = self.rows(ids).values()
            return sum(row["dispatched_at"] is None for row in rows), {row["status"] for row in rows}

        within(60, look, lambda seen: seen[0] == 0 and "PROCESSING" in seen[1])

    def all_completed(self, ids: list[str], limit: float = 90) -> dict[str, dict[str, Any]]:
        """Wait until all of these are stored and closed; assert COMPLETED and one bundle each; their rows."""

        def closed() -> dict[str, tuple[str, Any]]:
            rows = self.rows(ids)
            return {i: (rows[i]["status"], rows[i]["last_code"]) if i in rows else ("MISSING", None) for i in ids}

        seen = within(limit, closed, lambda all_: {s for s, _ in all_.values()} <= {"COMPLETED", "DEAD", "MISSING"})
        assert {status for status, _ in seen.values()} == {"COMPLETED"}, seen
        for table in SURVEY_TABLES:
            found = self.sql(f"SELECT message_id FROM survey.{table} WHERE message_id = ANY(%s)", ids)
            assert sorted(row["message_id"] for row in found) == sorted(ids), table
        return self.rows(ids)


def query(url: str, statement: str, *parameters: Any) -> list[dict[str, Any]]:
    """Run a statement on any database."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def survey(form: str = "P-EQ5D") -> dict[str, Any]:
    """Return a survey-send message with an ID and a patient of its own."""
    number = next(_numbers)
    return {
        "srvyDrawupNo": f"A{number:08}",
        "patno": f"7{number:08}",
        "formCd": form,
        "sendDt": "20991201093000",
        "recipientNm": "홍길동",
        "mobile": "010-0000-0001",
    }


def surveys(count: int, form: str = "P-EQ5D") -> list[dict[str, Any]]:
    """Return so many of them."""
    return [survey(form) for _ in range(count)]
