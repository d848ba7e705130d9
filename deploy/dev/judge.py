"""Whether each message of the sample ended as it should, and the figures of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_SETTLED_REPORTS = (None, "SENT", "GIVEN_UP", "WITHDRAWN")


@dataclass(frozen=True)
class Line:
    """A line of the sample: what is sent, and what is expected of it."""

    number: int
    send: dict[str, Any]
    result: str
    status: str | None
    code: str | None
    duplicate: bool
    notice: str | None

    @property
    def id(self) -> str:
        """The message ID; may be empty in a malformed message."""
        return str(self.send.get("srvyDrawupNo") or "")

    @property
    def name(self) -> str:
        """How it is called on the screen: nothing personal."""
        return f"line {self.number} ({self.id or 'without ID'})"


@dataclass(frozen=True)
class Delivery:
    """What ingest answered. `again`: earlier answers were lost, so it may be a duplicate of those."""

    http: int
    result: str | None
    message: str
    duplicate: bool
    milliseconds: float
    again: bool


@dataclass(frozen=True)
class Record:
    """What the inbox says of a message."""

    status: str
    code: str | None
    report_state: str | None
    tries: int

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self.status in ("COMPLETED", "DEAD")

    @property
    def settled(self) -> bool:
        """Whether it has ended, and so has its notice."""
        return self.closed and self.report_state in _SETTLED_REPORTS


@dataclass
class Summary:
    """The table; `as_json` has the shape of spec section 15."""

    completed: int = 0
    dead: int = 0
    duplicates: int = 0
    refused: int = 0
    seconds: float = 0.0
    p50: float = 0.0  # ms
    p99: float = 0.0  # ms
    made: int = 0
    saved: int = 0
    mismatches: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the SUMMARY file: times in seconds and milliseconds, as the names say."""
        return {
            "completed": self.completed,
            "dead": self.dead,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "mismatches": self.mismatches,
            "seconds": round(self.seconds, 2),
            "intake_ms": {"p50": round(self.p50, 2), "p99": round(self.p99, 2)},
            "lookups": {"made": self.made, "saved": self.saved},
        }

    def as_rows(self) -> dict[str, str]:
        """For the screen."""
        return {
            "completed": str(self.completed),
            "dead": str(self.dead),
            "duplicates": str(self.duplicates),
            "refused": str(self.refused),
            "intake p50": f"{self.p50:.1f} ms",
            "intake p99": f"{self.p99:.1f} ms",
            "look-ups made": str(self.made),
            "look-ups saved": str(self.saved),
            "first request to last end": f"{self.seconds:.1f} s",
            "mismatches": str(len(self.mismatches)),
        }


@dataclass(frozen=True)
class Day:
    """All that is known when the sample has been sent and has ended."""

    lines: Sequence[Line]
    deliveries: Sequence[Delivery]
    records: Mapping[str, Record | None]
    known: frozenset[str]  # stored already before this run
    before: Mapping[str, Any]  # what the hospital had seen before it
    after: Mapping[str, Any]
    seconds: float

    def judge(self) -> Summary:
        """Compare every line, and count."""
        times = sorted(d.milliseconds for d in self.deliveries)
        made = looked_up(self.after) - looked_up(self.before)
        summary = Summary(
            seconds=self.seconds,
            p50=percentile(times, 0.50),
            p99=percentile(times, 0.99),
            made=made,
            saved=max(0, self._without_cache() - made),
        )
        for line, delivery in zip(self.lines, self.deliveries, strict=True):
            self._count(summary, line, delivery)
            summary.mismatches += [f"{line.name}: {words}" for words in self._wrong(line, delivery)]
        return summary

    def _count(self, summary: Summary, line: Line, delivery: Delivery) -> None:
        """Count a duplicate as that, the rest by how they ended."""
        record = self.records.get(line.id)
        if delivery.result != "Y":
            summary.refused += 1
        elif delivery.duplicate:
            summary.duplicates += 1
        elif record and record.status == "COMPLETED":
            summary.completed += 1
        elif record and record.status == "DEAD":
            summary.dead += 1

    def _wrong(self, line: Line, delivery: Delivery) -> list[str]:
        """Say in words what is not as the sample says."""
        wrong = []
        if delivery.result != line.result:
            said = f": {delivery.message}" if delivery.message else ""
            wrong.append(f"X-Result is {delivery.result} (HTTP {delivery.http}{said}), expected {line.result}")
        if line.result != "Y":
            return wrong + self._trace(line)
        expected = line.duplicate or line.id in self.known
        if delivery.duplicate != expected and not delivery.again:
            wrong.append(f"duplicate is {delivery.duplicate}, expected {expected}")
        record = self.records.get(line.id)
        if record is None:
            return [*wrong, "is not stored"]
        if not record.closed:
            return [*wrong, f"is still {record.status} after {record.tries} tries, last code {record.code}"]
        if record.status != line.status:
            wrong.append(f"ended {record.status}, expected {line.status}")
        if record.code != line.code:
            wrong.append(f"code is {record.code}, expected {line.code}")
        if not record.settled:
            wrong.append(f"its notice is still {record.report_state}")
        return wrong + self._notices(line)

    def _trace(self, line: Line) -> list[str]:
        """Check that a refused message is not stored; a reused ID's first message of course is."""
        accepted = any(other.id == line.id and other.result == "Y" for other in self.lines)
        stored = bool(line.id) and not accepted and self.records.get(line.id) is not None
        return ["was refused, and is stored"] if stored else []

    def _notices(self, line: Line) -> list[str]:
        """Compare the notices that the old system took; it has forgotten those of an earlier run."""
        if line.id in self.known or line.duplicate:
            return []
        taken = {
            str(report.get("key")): report["body"]
            for report in self.after["reports"]
            if report["status"] < HTTPStatus.MULTIPLE_CHOICES
            and isinstance(report["body"], dict)
            and report["body"].get("srvyDrawupNo") == line.id
        }
        found = sorted((str(body.get("result")), str(body.get("code"))) for body in taken.values())
        expected = {
            "DEAD": [("N", str(line.code))],
            "NOT_SENT": [("Y", "NOT_SENT")],
        }.get(line.notice or "", [])
        if found == expected:
            return []
        return [f"notices taken by the old system: {_words(found)}, expected {_words(expected)}"]

    def _without_cache(self) -> int:
        """Look-ups that this run's messages would have made without a cache.

        Without one, a try asks for the form, and where that is found with a group and distributed
        it asks for the consents. How far a failed try came before a COMPLETED one is not in the
        record: such a try counts as one look-up, so the figure is never too high.
        """
        total = 0
        for name, record in self.records.items():
            if record is None or name in self.known:
                continue
            total += record.tries
            if record.status == "COMPLETED" and record.tries:
                total += 1
        return total


def looked_up(seen: Mapping[str, Any]) -> int:
    """All look-ups that the hospital has counted."""
    return sum(sum(keys.values()) for keys in seen["lookups"].values())


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of ordered values; 0 where there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _words(notices: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{result} {code}" for result, code in notices) or "none"
