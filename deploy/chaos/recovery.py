"""How long each fault held up what was under way; docs/faults.md defines it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from deploy.chaos.evidence import Row
from deploy.chaos.keeper import Done
from deploy.chaos.options import COUNTS, WARD
from deploy.chaos.plan import POSTGRES, TEMPORAL

_ALONE = (POSTGRES, TEMPORAL)  # there is one of it: nothing goes on before it is back


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault (of a lone server: from its being back) until all that was under way had moved on.

    ``first``: until any of it had; ``under_way``: how many messages; ``disturbed``: another fault came meanwhile;
    ``slowest`` moved on last.
    """

    done: Done
    first: float
    seconds: float
    under_way: int
    disturbed: bool
    slowest: str


@dataclass(frozen=True)
class Course:
    """When a message came and ended, and its signs of life between; Unix times in seconds."""

    row: Row
    came: float
    ended: float
    signs: tuple[float, ...]

    def sign_after(self, moment: float) -> float:
        """Return the first sign of life after that."""
        return min((at for at in self.signs if at > moment), default=self.ended)


def recoveries(faults: Sequence[Done], rows: Iterable[Row]) -> list[Recovery]:
    """Measure every fault whose victim came back."""
    lines = _lines(rows)
    found = []
    for done in faults:
        if done.back_at is None:
            continue
        waiting = [first for line in lines if (first := _first_open(line, done.at)) is not None]
        origin = done.back_at if done.fault.whom in _ALONE else done.at
        slowest = max(waiting, key=lambda course: course.sign_after(done.at), default=None)
        end = slowest.sign_after(done.at) if slowest else origin
        others = [o for o in faults if o is not done and o.at < max(end, done.back_at) and (o.back_at or end) > done.at]
        key = f"{slowest.row.source}/{slowest.row.id}" if slowest else ""
        soonest = min((course.sign_after(done.at) for course in waiting), default=origin)
        times = max(0.0, soonest - origin), max(0.0, end - origin)
        found.append(Recovery(done, *times, len(waiting), bool(others), key))
    return found


def middle_and_worst(times: Sequence[float]) -> tuple[float, float]:
    """Return median and worst, in seconds; 0 where there is none."""
    return (median(times), max(times)) if times else (0.0, 0.0)


def _lines(rows: Iterable[Row]) -> list[list[Course]]:
    """Return each subject's messages in turn; those without order are a line each.

    Left out are parked subjects, which wait for a person, and with a redriven message its subject's later ones: how
    long it was dead is not a matter of recovery.
    """
    lines: dict[object, list[Course]] = {}
    for row in rows:
        if row.closed_at is None or row.source == WARD:
            continue
        signs = (*(line.ended_at.timestamp() for line in row.lines), row.closed_at.timestamp())
        course = Course(row, row.received_at.timestamp(), row.closed_at.timestamp(), signs)
        lines.setdefault(
            row.row if row.source == COUNTS or row.subject is None else (row.source, row.subject), []
        ).append(course)
    for line in lines.values():
        line.sort(key=lambda course: (course.row.number or 0, course.row.row))
    return list(lines.values())


def _first_open(line: Sequence[Course], moment: float) -> Course | None:
    """Return the message that had its turn at that moment; None where it was not there yet, or was redriven."""
    first = next((course for course in line if course.ended > moment), None)
    if first is None or first.came > moment or first.row.generation > 1:
        return None
    return first
