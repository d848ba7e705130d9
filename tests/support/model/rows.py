"""What the spec says of order, editions and modes (sections 4, 9, 11), over a handful of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from inbox.states import OBSOLETE

TRIES = 3
GAP = 600
AFTER = 610  # from then on a redelivery of the same content is a wish
OPEN = ("RECEIVED", "PROCESSING", "FAILED")
WAITING = ("RECEIVED", "FAILED")
FIRST = datetime(2020, 1, 1, tzinfo=UTC)
NOT_STORED = 10**12  # in place of an ID: it comes last


@dataclass
class Hold:
    """Held since when, and behind which row: any one of these; none of them is a gap."""

    behind: frozenset[int]
    since: float


@dataclass
class Row:
    """What the model knows of a message."""

    id: int
    name: str
    subject: str | None
    number: int | None
    content: int
    edition: int = 1
    resend_of: int | None = None
    delivered: float = 0
    status: str = "RECEIVED"
    generation: int = 1
    tries: int = 0
    before: int = 0
    parked: bool = False
    obsolete: bool = False
    code: str | None = None
    lines: int = 0
    duplicates: int = 0
    hold: Hold | None = None
    since: float = 0  # received, redriven or failed
    era: int = 0  # the order under which it was claimed last
    attempt: int = 0
    began: datetime = FIRST

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def holds(self) -> bool:
        return self.open or self.parked

    @property
    def outcome(self) -> Any:
        """What its duplicates are answered."""
        if self.status != "COMPLETED":
            return None
        return OBSOLETE if self.obsolete else {"content": self.content}


@dataclass
class Place:
    """What the model knows of a subject."""

    processing: int | None = None
    last: int | None = None
    gap: float | None = None  # since when it stands before one
    applied: list[Row] = field(default_factory=list)


class Model:
    """One source's rows and subjects, and what befalls them."""

    def __init__(self, order: str, *, parks: bool, resends: bool) -> None:
        self.order = order
        self.parks = parks
        self.resends = resends
        self.rows: dict[int, Row] = {}
        self.places: dict[str, Place] = {}
        self.clock = 0.0
        self.era = 0
        self.unsure: set[int] = set()  # of two with one number either may have been released

    def ordered(self, row: Row) -> bool:
        return self.order != "none" and row.subject is not None

    def place(self, row: Row) -> Place:
        return self.places.setdefault(row.subject or "", Place())

    def at_work(self, row: Row) -> int | None:
        """Return the row whose try has the subject; what ended without order left its name behind."""
        processing = self.place(row).processing
        return processing if processing and self.rows[processing].status == "PROCESSING" else None

    def beside(self, row: Row) -> list[Row]:
        return [other for other in self.rows.values() if other.subject == row.subject and other is not row]

    def rank(self, row: Row) -> tuple[bool, int]:
        """Return its turn; by sequence rows without a number come last."""
        numbered = self.order == "sequence" and row.number is not None
        return (self.order == "sequence" and not numbered, row.number or 0 if numbered else row.id)

    def editions(self, name: str) -> list[Row]:
        return sorted((row for row in self.rows.values() if row.name == name), key=lambda row: row.edition)

    def meet(self, new: Row, *, direct: bool) -> tuple[str, Row | None]:
        """Return what a delivery comes to, and the stored row that it meets; ``new`` becomes the edition it would be.

        REGISTERED and OBSOLETE are stored as COMPLETED, ACCEPTED as RECEIVED; a DUPLICATE counts; what is REDRIVEN
        takes the new content; a CONFLICT stores nothing.
        """
        editions = self.editions(new.name)
        newest = editions[-1] if editions else None
        same = [o for o in editions if o.content == new.content and self.clock - o.delivered < AFTER]
        if newest is not None:
            new.edition, new.resend_of = newest.edition + 1, newest.id
        wish = newest is not None and self.resends and newest.status == "COMPLETED" and not same
        if direct and (newest is None or wish) and self.lets(new) != "HELD":
            return ("REGISTERED" if self.lets(new) == "FREE" else "OBSOLETE"), None
        if newest is None:
            return "ACCEPTED", None
        if not self.resends:
            return ("DUPLICATE", editions[0]) if new.content == editions[0].content else ("CONFLICT", None)
        if newest.status == "DEAD" and (newest.content == new.content or not same):
            return "REDRIVEN", newest
        return ("DUPLICATE", same[-1]) if same else ("ACCEPTED", None)

    def lets(self, new: Row) -> str:
        """Return whether a message that is not stored may be registered at once, in its turn."""
        if not self.ordered(new):
            return "FREE"
        if self.passed(new):
            return "OBSOLETE"
        if self.order == "sequence" and self.place(new).last is None:  # no number was applied: who waits is first
            waits = any(o.holds for o in self.beside(new))
        else:
            waits = bool(self.before(new)) or self.missing(new) is not None
        return "HELD" if waits or self.at_work(new) is not None else "FREE"

    def add(self, row: Row, *, known: bool) -> None:
        """Add an accepted row; ``known`` subjects have a place already."""
        others = [o.number for o in self.beside(row) if o.holds and o.number is not None]
        self.rows[row.id] = row
        row.since = row.delivered = self.clock
        if self.order == "sequence" and not known and not others:
            self.place(row).last = (row.number or 0) - 1

    def before(self, row: Row) -> frozenset[int]:
        """Return the nearest rows before this one, open or parked, that it waits for."""
        lower = [o for o in self.beside(row) if o.holds and self.rank(o) < self.rank(row)]
        if self.order == "sequence":
            floor = self.place(row).last or 0
            lower = [o for o in lower if row.number is not None and o.number is not None and o.number > floor]
        nearest = max(map(self.rank, lower), default=None)
        return frozenset(o.id for o in lower if self.rank(o) == nearest)

    def missing(self, row: Row) -> int | None:
        """Return the first number between the last applied and this row's that no row has."""
        last, number = self.place(row).last, row.number
        if self.order != "sequence" or last is None or number is None:
            return None
        known = {o.number for o in self.beside(row)}
        return next((n for n in range(last + 1, number) if n not in known), None)

    def begin(self, row: Row) -> None:
        """Find the start of a subject that was known before its source's order was by sequence."""
        place = self.place(row)
        if place.last is None:
            numbers = [o.number for o in [row, *self.beside(row)] if o.holds and o.number is not None]
            place.last = min(numbers) - 1 if numbers else None

    def register(self, row: Row, *, obsolete: bool) -> None:
        """Add a row that was stored as COMPLETED."""
        self.rows[row.id] = row
        row.status, row.obsolete, row.era = "COMPLETED", obsolete, self.era
        row.since = row.delivered = self.clock
        if obsolete:
            return
        self.apply(row)
        if self.order == "sequence":
            self.place(row).last, self.place(row).gap = row.number, None
        self.release(row)

    def apply(self, row: Row) -> None:
        """Note a bundle: by sequence no number comes after a higher one, begun in the same order."""
        if self.ordered(row) and row.number is not None and row.era == self.era:
            place = self.place(row)
            if self.order == "sequence":
                assert all((o.number or 0) < row.number for o in place.applied)
            place.applied.append(row)

    def decide(self, row: Row) -> str | None:
        if not self.ordered(row) or row.status not in WAITING:
            return None
        place = self.place(row)
        if self.order == "sequence":
            self.begin(row)
        behind = self.before(row)
        missing = None if behind else self.missing(row)
        if missing is not None:  # one that was applied in another order is not waited for, nor any below it
            passed = [o.number for o in self.beside(row) if o.status == "COMPLETED" and o.number is not None]
            place.last = max([place.last or 0, *(n for n in passed if missing < n < (row.number or 0))])
            missing = self.missing(row)
        at_work = self.at_work(row)
        if not behind and at_work not in (None, row.id):
            behind = frozenset({at_work or 0})
        if behind:
            row.hold = Hold(behind, row.hold.since if row.hold else self.clock)
            return "HELD"
        if missing is not None:
            place.gap = self.clock if place.gap is None else place.gap
            row.hold = Hold(behind, max(row.since, place.gap))
            return "GAP" if row.hold.since + GAP <= self.clock else "HELD"
        row.hold = None
        if self.order == "sequence" and row.number is not None and not self.passed(row):
            place.gap = None
        return "FREE"

    def claim(self, row: Row, asked: int, *, zombie: bool) -> str | None:
        decision = self.decide(row)
        if not row.open:
            return None
        if row.generation != asked or zombie:
            return "OVERTAKEN" if row.generation != asked else "SUPERSEDED"
        lost = row.status == "PROCESSING"
        if row.tries - row.before >= TRIES:
            row.lines += lost
            return "EXHAUSTED"
        if decision in ("HELD", "GAP"):
            return "HELD"
        if lost and self.ordered(row) and self.at_work(row) not in (None, row.id):
            return "SUPERSEDED"
        row.lines += lost
        row.hold = None
        row.era = self.era
        if self.ordered(row):
            assert self.at_work(row) in (None, row.id)
            assert lost or (not self.before(row) and self.missing(row) is None)
            self.place(row).processing = row.id
        row.status, row.tries = "PROCESSING", row.tries + 1
        return "CLAIMED"

    def passed(self, row: Row) -> bool:
        last = self.place(row).last if self.order == "sequence" else None
        return last is not None and row.number is not None and row.number <= last

    def release(self, row: Row) -> None:
        if not self.ordered(row) or row.status == "PROCESSING":
            return
        place = self.place(row)
        if place.processing == row.id:
            place.processing = None
            if row.status == "COMPLETED" and self.order == "sequence" and row.number is not None:
                place.last = row.number if place.last is None else max(place.last, row.number)
        waiting = [o for o in [row, *self.beside(row)] if o.open]
        least = min(map(self.rank, waiting), default=None)
        first = [o for o in waiting if self.rank(o) == least]
        if len(first) > 1:
            self.unsure |= {o.id for o in first}
        elif first and first[0] is not row and first[0].status != "PROCESSING":
            first[0].hold = None

    def die(self, row: Row, code: str, *, park: bool) -> None:
        row.status, row.code, row.hold = "DEAD", code, None
        row.parked = park and self.parks and self.ordered(row)

    def bury(self, row: Row, code: str, *, park: bool = False) -> None:
        if row.open:
            row.lines += row.status == "PROCESSING"
            self.die(row, code, park=park)
        elif row.parked and not park:
            row.parked, row.code = False, code
            self.place(row).gap = None

    def resume(self, held_behind: dict[int, int | None]) -> None:
        """Let go what this order would not hold behind the row that holds it."""
        for row in self.rows.values():
            if not row.open or not row.hold:
                continue
            other = self.rows.get(held_behind[row.id] or 0)
            if other is None:
                right = self.order == "sequence"
            else:
                numbered = self.order == "arrival" or None not in (row.number, other.number)
                before = numbered and self.rank(other) < self.rank(row)
                right = self.order != "none" and (other.status == "PROCESSING" or (other.holds and before))
            if not right:
                row.hold = None

    def adopt(self) -> None:
        for row in sorted(self.rows.values(), key=lambda o: o.id):
            if self.ordered(row) and row.status == "PROCESSING" and self.at_work(row) is None:
                self.place(row).processing = row.id

    def redrive(self, row: Row) -> None:
        row.since = self.clock
        row.status, row.parked, row.hold = "RECEIVED", False, None
        row.generation, row.before = row.generation + 1, row.tries
