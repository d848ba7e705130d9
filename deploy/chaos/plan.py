"""The plan of faults, drawn from the seed: what is done to whom, when, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.chaos.options import Options

INGESTS = ("ingest 1", "ingest 2")
WORKERS = ("worker 1", "worker 2", "worker 3")
TEMPORAL, POSTGRES = "Temporal", "Postgres"
KILL, STOP, LOCK, CROWD = "kill -9", "SIGSTOP", "lock", "crowd"

Kind = tuple[str, str, float, float]  # what, to whom, and for how many seconds: at least, at most

_SETTLES = 2.0  # seconds of traffic before the first fault
# In every twenty faults. A stop lasts less than a heartbeat time-out (5 s) or a statement's (10 s), or more; a worker's
# rarely more than a whole try may take (30 s).
DECK: tuple[Kind, ...] = (
    *[(KILL, "worker", 0.1, 3.0)] * 4,
    *[(KILL, "ingest", 0.1, 3.0)] * 3,
    *[(KILL, POSTGRES, 0.1, 3.0)] * 3,
    *[(KILL, TEMPORAL, 0.1, 3.0)] * 2,
    (STOP, "worker", 0.5, 4.0),
    (STOP, "worker", 6.0, 10.0),
    (STOP, "ingest", 0.5, 8.0),
    (STOP, POSTGRES, 0.5, 4.0),
    (STOP, TEMPORAL, 0.5, 7.0),
    (LOCK, POSTGRES, 2.0, 6.0),
    (CROWD, POSTGRES, 2.0, 5.0),
)
_RARE: tuple[Kind, ...] = (
    (STOP, "worker", 32.0, 36.0),
    (STOP, POSTGRES, 11.0, 14.0),
    (STOP, "ingest", 22.0, 26.0),
)


@dataclass(frozen=True)
class Fault:
    """``what`` is done to ``whom``, ``at`` seconds from the beginning; after ``lasts`` more it is back, or let go."""

    at: float
    what: str
    whom: str
    lasts: float

    def __str__(self) -> str:
        return f"{self.what} {self.whom}, {self.lasts:.1f} s"


def draw_faults(options: Options) -> list[Fault]:
    """Draw the faults of a run, by time, so many ``kill -9`` among them: the same for the same options."""
    dice = random.Random(f"faults {options.seed}")
    kinds = _until(options.kills, _kinds(dice))
    times = sorted(dice.uniform(_SETTLES, max(_SETTLES, options.seconds)) for _ in kinds)
    faults = []
    for at, (what, kind, least, most) in zip(times, kinds, strict=True):
        whom = dice.choice({"worker": WORKERS, "ingest": INGESTS}.get(kind, (kind,)))
        faults.append(Fault(at, what, whom, dice.uniform(least, most)))
    return faults


def _until(kills: int, kinds: Iterator[Kind]) -> list[Kind]:
    found: list[Kind] = []
    while sum(what == KILL for what, *_ in found) < kills:
        found.append(next(kinds))
    return found


def _kinds(dice: random.Random) -> Iterator[Kind]:
    """Deal from shuffled decks, so that a run of twenty has seen every kind; each deck has one that is rare."""
    while True:
        deck = [*DECK, dice.choice(_RARE)]
        dice.shuffle(deck)
        yield from deck
