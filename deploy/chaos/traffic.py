"""What is sent in a run: messages, and their deliveries by several senders, all drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deploy.chaos.options import COUNTS, HOSPITAL, LEDGER, NUMBERED, WARD, Options

SENDERS = 8
_SHARES = {HOSPITAL: 40, LEDGER: 15, WARD: 8, COUNTS: 15, NUMBERED: 22}  # of 100 messages
_A_SUBJECT = {HOSPITAL: 14, LEDGER: 14, WARD: 5, COUNTS: 10, NUMBERED: 12}  # messages, about
_SHARED = 0.2  # of the subjects are sent by more than one sender
_AGAIN = 0.12  # of the messages are sent once more, and as many a third time of those
_REUSED = 0.04  # of the IDs are used again for other content
_ILL = 0.10  # of the surveys are of a form that fails their tries
_LATE = 0.04  # of the rest come too late to be sent
_INVALID = 0.04  # of the counts do not fit their handler's model
_LEGACY = 0.5  # of the hospital's come through its old door

# What the stand-in hospital knows: a form for each fate.
FATES = {
    "C-OK": "completes",
    "C-NONE": "FORM_NOT_REGISTERED",
    "C-GROUP": "GROUP_NOT_FOUND",
    "C-CLOSED": "FORM_NOT_DISTRIBUTED",
    "C-LATER": "either",  # registered when two thirds of the run are over
}
_FORMS = [f"C-OK{n}" for n in range(6)]
LATER = "C-LATER"
_ILL_FORMS = {HOSPITAL: ["C-NONE", "C-GROUP", "C-CLOSED", LATER], WARD: ["C-NONE", LATER]}
INVALID = "INVALID_PAYLOAD"
PAST, FUTURE = "20200101093000", "20991201093000"


def forms(*, all_of_them: bool) -> dict[str, dict[str, Any]]:
    """Return the forms that the hospital knows, at first or later on."""
    known: dict[str, dict[str, Any]] = {
        code: {"surveyNo": f"S-{code}", "group": "G-1", "distributed": True} for code in _FORMS
    }
    known["C-GROUP"] = {"surveyNo": "S-G", "group": None, "distributed": True}
    known["C-CLOSED"] = {"surveyNo": "S-C", "group": "G-1", "distributed": False}
    if all_of_them:
        known[LATER] = {"surveyNo": "S-L", "group": "G-1", "distributed": True}
    return known


Key = tuple[str, str]  # source, message ID


@dataclass(frozen=True)
class Message:
    """One message. ``fate`` is `completes`, `either`, or the code that it dies of."""

    source: str
    id: str
    type: str
    subject: str | None
    number: int | None
    data: dict[str, Any] = field(hash=False)
    fate: str
    notice: bool  # it is too late to be sent, and upstream is told
    legacy: bool  # over the old hospital contract's door

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.source, self.id

    @property
    def counter(self) -> str | None:
        """The counter that it moves."""
        return self.data.get("counter")


@dataclass(frozen=True)
class Delivery:
    """A message to be delivered ``at`` seconds from the beginning; ``reuse``: its ID with other content."""

    at: float
    message: Message
    reuse: bool = False


@dataclass(frozen=True)
class Traffic:
    """All of a run: what each sender delivers, one after the other."""

    messages: tuple[Message, ...]
    lists: tuple[tuple[Delivery, ...], ...]


def draw(options: Options) -> Traffic:
    """Draw the traffic of a run: the same for the same seed and number of messages."""
    dice = random.Random(f"traffic {options.seed}")
    messages = list(_messages(dice, options.messages))
    lists: list[list[Delivery]] = [[] for _ in range(SENDERS)]
    starts = sorted(dice.uniform(0, options.seconds) for _ in messages)
    for message, at in zip(messages, starts, strict=True):
        mine = lists[_sender(dice, message)]
        mine.append(Delivery(at, message))
        if message.source == COUNTS and dice.random() < _AGAIN:  # two at the same time
            dice.choice(lists).append(Delivery(at, message))
        again = at
        while dice.random() < _AGAIN:
            again += dice.choice([0.0, 0.5, 5.0, 20.0])
            mine.append(Delivery(again, message))
        if dice.random() < _REUSED:
            mine.append(Delivery(again + dice.uniform(0, 5), message, reuse=True))
    return Traffic(tuple(messages), tuple(tuple(sorted(some, key=lambda d: d.at)) for some in lists))


def _sender(dice: random.Random, message: Message) -> int:
    """All of a subject by one sender, in turn; but for those subjects that several senders share."""
    place = random.Random(f"{message.source} {message.subject}")
    shared = message.subject is None or place.random() < _SHARED
    return (dice if shared else place).randrange(SENDERS)


def _messages(dice: random.Random, count: int) -> Iterator[Message]:
    sources = dice.choices(list(_SHARES), weights=list(_SHARES.values()), k=count)
    numbers = {s: _numbers(dice, sources.count(s)) for s in (NUMBERED,)}
    for index, source in enumerate(sources):
        name = f"{source[:1].upper()}-{index:06}"
        subjects = max(2, sources.count(source) // _A_SUBJECT[source])
        if source in {HOSPITAL, WARD}:
            yield _survey(dice, source, name, f"9{dice.randrange(subjects):08}")
        elif source == NUMBERED:
            subject, number = next(numbers[source])
            yield _count(dice, source, name, subject, number)
        else:
            yield _count(dice, source, name, f"s{dice.randrange(subjects)}", None)


def _numbers(dice: random.Random, count: int) -> Iterator[tuple[str, int]]:
    """Yield subjects with numbers in shuffled order; in every other subject the lowest number goes first.

    There each has to be applied, and in the rest those below the first that comes may be obsolete.
    """
    subjects = max(2, count // _A_SUBJECT[NUMBERED])
    waiting: dict[int, list[int]] = {s: [] for s in range(subjects)}
    for _ in range(count):
        mine = waiting[dice.randrange(subjects)]
        mine.append(len(mine) + 1)
    for subject, mine in waiting.items():
        for start in range(0, len(mine), 6):  # not from all over: what waits for a gap waits long
            some = mine[start : start + 6]
            first = some[:1] if start == 0 and subject % 2 == 0 else []
            rest = some[len(first) :]
            dice.shuffle(rest)
            mine[start : start + 6] = first + rest
    left = [s for s, mine in waiting.items() for _ in mine]
    dice.shuffle(left)
    for subject in left:
        yield f"q{subject}", waiting[subject].pop(0)


def _survey(dice: random.Random, source: str, name: str, patient: str) -> Message:
    form = dice.choice(_ILL_FORMS[source] if dice.random() < _ILL else _FORMS)
    late = form in _FORMS and dice.random() < _LATE
    fate = next(fate for known, fate in FATES.items() if form.startswith(known))
    data = {
        "srvyDrawupNo": name,
        "patno": patient,
        "formCd": form,
        "sendDt": PAST if late else FUTURE,
        "recipientNm": "홍길동",
        "mobile": "010-0000-0001",
    }
    legacy = source == HOSPITAL and dice.random() < _LEGACY
    return Message(source, name, "survey.send", patient, None, data, fate, late, legacy)


def _count(dice: random.Random, source: str, name: str, subject: str, number: int | None) -> Message:
    valid = dice.random() >= _INVALID
    data = {"counter": f"{source}:{subject}", "of": name} if valid else {"nothing": name}
    fate = "completes" if valid else INVALID
    return Message(source, name, "report.count", subject, number, data, fate, False, False)
