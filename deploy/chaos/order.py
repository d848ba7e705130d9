"""Whether each subject's bundles were committed in its order, and what may overtake (spec section 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from deploy.chaos.evidence import Evidence, Row
from deploy.chaos.options import COUNTS, NUMBERED, WARD
from deploy.chaos.senders import Heard


def value(row: Row) -> int:
    """Return where in its counter a message that was applied stands; -1 where its outcome does not say."""
    found = row.outcome.get("value") if isinstance(row.outcome, dict) else None
    return found if isinstance(found, int) else -1


def place(row: Row) -> int:
    """Return a number that grows with each bundle of the subject: drawn in the bundle's transaction, under its lock."""
    return row.places["recipient"][1] if "recipient" in row.places else value(row)


def faults(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield whoever was applied out of turn, subject by subject."""
    subjects: dict[tuple[str, str], list[Row]] = {}
    for row in evidence.rows.values():
        if row.subject is not None and row.source != COUNTS:
            subjects.setdefault((row.source, row.subject), []).append(row)
    for (source, _), rows in subjects.items():
        yield from _by_sequence(evidence, rows) if source == NUMBERED else _by_arrival(evidence, rows)


def _by_arrival(evidence: Evidence, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Find whoever was acknowledged before another was sent, and has the higher ID or went second.

    Of two that were under way at once either may be visible first. Those may be late that were DEAD once and let the
    others go: redriven, they come when they come. One that is parked keeps its place when it is redriven.
    """
    for earlier in rows:
        for later in rows:
            if not _before(evidence.heard.get(earlier.key), evidence.heard.get(later.key)):
                continue
            if earlier.row > later.row:
                yield _name(earlier), f"came before {later.id}, and has the higher number of the two"
            if not (earlier.applied and later.applied) or _let_others_go(evidence, earlier):
                continue
            if place(earlier) > place(later):
                yield _name(earlier), f"came before {later.id}, and was applied after it"
            elif (earlier.closed_at or 0) > (later.closed_at or 0):  # type: ignore[operator]
                yield _name(earlier), f"came before {later.id}, and was closed after it"


def _let_others_go(evidence: Evidence, row: Row) -> bool:
    if row.source != WARD:
        return row.generation > 1
    return any(c.verb != "redrive" and (c.source, c.id) == row.key for c in evidence.commands)


def _before(earlier: Heard | None, later: Heard | None) -> bool:
    return (
        earlier is not None
        and later is not None
        and earlier.acknowledged_at is not None
        and earlier.acknowledged_at < later.sent_at
    )


def _by_sequence(evidence: Evidence, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Numbers that were applied only go up; one is obsolete only where a higher one, or the start, was before it."""
    applied = sorted((row for row in rows if row.applied), key=place)
    for one, next_one in pairwise(applied):
        if (one.number or 0) >= (next_one.number or 0):
            yield _name(next_one), f"is number {next_one.number}, and was applied after {one.number}"
    start = _start(evidence, rows)
    for row in rows:
        if not row.obsolete or row.generation > 1 or (row.number or 0) < start:
            continue
        yield _name(row), f"is number {row.number} and obsolete, though order should have waited for it"


def _start(evidence: Evidence, rows: Sequence[Row]) -> int:
    """Return the highest number that can have been the subject's first: of those sent before one was answered."""
    heard = [(evidence.heard[row.key], row.number or 0) for row in rows if row.key in evidence.heard]
    answered = min((h.acknowledged_at for h, _ in heard if h.acknowledged_at is not None), default=float("inf"))
    return max((number for h, number in heard if h.sent_at <= answered), default=0)


def _name(row: Row) -> str:
    return f"{row.source}/{row.id}"
