"""The table of bad input: what is sent, what each door answers, what is stored. docs/producers.md shows the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.stack import TOKENS, event, survey

MESSAGES = "/messages"
LEGACY = "/legacy/survey-send"
MEDIA_TYPES = {MESSAGES: "application/cloudevents+json", LEGACY: "application/json"}
BOTH = (MESSAGES, LEGACY)
# What each door calls the same thing.
NAMES = {MESSAGES: {"ID": "id", "free text": "data"}, LEGACY: {"ID": "srvyDrawupNo", "free text": "recipientNm"}}
# Faults of the sender, and not of the message: the old door answers them as what they are.
AS_IT_IS = {401, 403, 413, 415}
HANGUL = "한" * 600
MIB = 1024 * 1024


@dataclass(frozen=True)
class Sent:
    """One request; ``chunked``: without a Content-Length."""

    body: bytes
    media_type: str | None = None
    authorization: str | None = f"Bearer {TOKENS['hospital']}"
    chunked: bool = False

    def headers(self, door: str) -> dict[str, str]:
        """Return its headers."""
        media_type = MEDIA_TYPES[door] if self.media_type is None else self.media_type
        return {"Content-Type": media_type} | ({"Authorization": self.authorization} if self.authorization else {})

    def content(self) -> bytes | Iterator[bytes]:
        """Return its body, as httpx takes it."""
        return self._pieces() if self.chunked else self.body

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self.body), 65_536):
            yield self.body[start : start + 65_536]


@dataclass(frozen=True)
class Case:
    """``kind``: of the problem, or None where it is taken. ``first`` is delivered before, where that matters."""

    name: str
    status: int
    kind: str | None
    make: Callable[[str], Sent]
    doors: tuple[str, ...] = BOTH
    first: Callable[[str], Sent] | None = field(default=None)

    def answer(self, door: str) -> tuple[int, str | None]:
        """Return status and X-Result of the answer; X-Result is None at /messages."""
        if door == MESSAGES:
            return self.status, None
        if self.kind is None:
            return 200, "Y"
        return (self.status, None) if self.status in AS_IT_IS else (200, "N")

    @property
    def stored(self) -> str:
        """Say what is stored."""
        if self.kind:
            return "the first, untouched" if self.first else "nothing"
        return "the first, counted" if self.first else "the message"

    def line(self) -> str:
        """Return the case as docs/producers.md shows it."""
        return f"| {self.name} | {self._told(MESSAGES)} | {self._told(LEGACY)} | {self.stored} |"

    def _told(self, door: str) -> str:
        if door not in self.doors:
            return "–"
        status, result = self.answer(door)
        return " ".join(part for part in (str(status), result, f"`{self.kind}`" if self.kind else "") if part)


def message(door: str, **changes: Any) -> dict[str, Any]:
    """Return a good message for this door, with an ID of its own."""
    made = survey(patno="900000001")
    return (made if door == LEGACY else event(made, id=made["srvyDrawupNo"])) | changes


def good(door: str, **changes: Any) -> bytes:
    """Return a good body; lone surrogates stand as escapes in it, as a sender would have to write them."""
    return json.dumps(message(door, **changes)).encode()


def _raw(body: bytes) -> Callable[[str], Sent]:
    return lambda _: Sent(body)


def _with(thing: str, value: Any) -> Callable[[str], Sent]:
    """``value`` as the ID, or as free text."""
    return lambda door: Sent(good(door, **{NAMES[door][thing]: value}))


def _without(thing: str) -> Callable[[str], Sent]:
    def make(door: str) -> Sent:
        return Sent(json.dumps({k: v for k, v in message(door).items() if k != NAMES[door][thing]}).encode())

    return make


def _json(text: str) -> Callable[[str], Sent]:
    """``text``, as it stands, as free text."""
    return lambda door: Sent(good(door, **{NAMES[door]["free text"]: "@"}).replace(b'"@"', text.encode()))


def _attribute(**changes: Any) -> Callable[[str], Sent]:
    return lambda door: Sent(good(door, **changes))


def _but(**changes: Any) -> Callable[[str], Sent]:
    return lambda door: Sent(good(door), **changes)


def _large(*, chunked: bool) -> Callable[[str], Sent]:
    def make(door: str) -> Sent:
        body = good(door)
        return Sent(body + b" " * (2 * MIB - len(body)), chunked=chunked)

    return make


def _media_type(form: str) -> Callable[[str], Sent]:
    return lambda door: Sent(good(door), media_type=form.format(MEDIA_TYPES[door]))


def _duplicate_key(door: str) -> Sent:
    return Sent(good(door)[:-1] + b', "extra": 1, "extra": 2}')


def _fixed(thing: str, value: Any) -> Callable[[str], Sent]:
    """One ID a door, and ``value`` as free text: sent twice, it is a duplicate or a reused ID."""

    def make(door: str) -> Sent:
        name = f"again-{door}"
        named = (
            {"srvyDrawupNo": name}
            if door == LEGACY
            else {"id": name, "data": survey(srvyDrawupNo=name, patno="900000001")}
        )
        return Sent(good(door, **(named | {NAMES[door][thing]: value})))

    return make


def _big(number: int) -> Callable[[str], Sent]:
    def make(door: str) -> Sent:
        name = f"big-{door}"
        return Sent(good(door, **{NAMES[door]["ID"]: name, NAMES[door]["free text"]: number}))

    return make


def _nested(depth: int) -> Callable[[str], Sent]:
    """JSON of ``depth`` levels, the message itself being the first."""
    return _json("[" * (depth - 1) + "]" * (depth - 1))


CASES = (
    # Not to be read
    Case("an empty body", 400, "unreadable", _raw(b"")),
    Case("not JSON", 400, "unreadable", _raw(b'{"id": ')),
    Case("JSON in another charset than UTF-8", 400, "unreadable", _raw('{"id": "한"}'.encode("euc-kr"))),
    Case("random bytes", 400, "unreadable", _raw(bytes(range(255, 0, -1)))),
    Case("JSON, but an array", 400, "unreadable", _raw(b"[]")),
    Case("JSON, but a string, a number, true or null", 400, "unreadable", _raw(b"null")),
    # The ID
    Case("no ID", 422, "malformed", _without("ID")),
    Case("ID null", 422, "malformed", _with("ID", None)),
    Case("ID a number", 422, "malformed", _with("ID", 42)),
    Case("ID an object", 422, "malformed", _with("ID", {"a": 1})),
    Case("ID empty", 422, "malformed", _with("ID", "")),
    Case("ID blank", 422, "malformed", _with("ID", " \t\u3000")),
    Case("ID of 513 bytes", 422, "malformed", _with("ID", "a" * 513)),
    Case("ID of 600 Hangul characters", 422, "malformed", _with("ID", HANGUL)),
    Case("ID with NUL (`\\u0000`)", 422, "malformed", _with("ID", "a\0b")),
    Case("ID with a lone surrogate (`\\ud800`)", 422, "malformed", _with("ID", "a\ud800")),
    # The other fields
    Case(
        "no `patno`",
        422,
        "malformed",
        lambda _: Sent(json.dumps({"srvyDrawupNo": "1", "formCd": "a"}).encode()),
        (LEGACY,),
    ),
    Case("`patno` of 600 Hangul characters", 422, "malformed", _attribute(patno=HANGUL), (LEGACY,)),
    Case("`formCd` blank", 422, "malformed", _attribute(formCd=" "), (LEGACY,)),
    Case("`specversion` other than 1.0", 422, "malformed", _attribute(specversion="0.3"), (MESSAGES,)),
    Case("`partitionkey` of 600 Hangul characters", 422, "malformed", _attribute(partitionkey=HANGUL), (MESSAGES,)),
    Case("`tenant` of 65 bytes", 422, "malformed", _attribute(tenant="a" * 65), (MESSAGES,)),
    Case(
        "`data_base64` that is not Base64, or beside `data`", 422, "malformed", _attribute(data_base64="="), (MESSAGES,)
    ),
    Case("`type` not listed for the source", 422, "unknown-type", _attribute(type="survey.forget"), (MESSAGES,)),
    Case("`type` of 600 Hangul characters", 422, "malformed", _attribute(type=HANGUL), (MESSAGES,)),
    Case("`source` not configured", 403, "unknown-source", _attribute(source="nobody"), (MESSAGES,)),
    Case("`source` of 600 Hangul characters", 422, "malformed", _attribute(source=HANGUL), (MESSAGES,)),
    # What JSON leaves open
    Case("a key twice in one object", 422, "malformed", _duplicate_key),
    Case("NaN", 422, "malformed", _json("NaN")),
    Case("Infinity, or -Infinity", 422, "malformed", _json("-Infinity")),
    Case("nested 65 deep", 422, "malformed", _nested(65)),
    Case("nested 100,000 deep", 422, "malformed", _nested(100_000)),
    Case("an integer of 5,000 digits", 422, "malformed", _json("9" * 5000)),
    # The request
    Case("another media type", 415, "media-type", _media_type("text/plain")),
    Case("no media type", 415, "media-type", _media_type("")),
    Case("a charset other than UTF-8", 415, "media-type", _media_type("{}; charset=euc-kr")),
    Case("a body of 2 MiB", 413, "too-large", _large(chunked=False)),
    Case("a body of 2 MiB, chunked", 413, "too-large", _large(chunked=True)),
    Case("no token", 401, "unauthorized", _but(authorization=None)),
    Case("a token that is not known", 401, "unauthorized", _but(authorization="Bearer nobody's")),
    Case("another source's token", 403, "unknown-source", _but(authorization=f"Bearer {TOKENS['report-producer']}")),
    # The ID again
    Case("the ID again, with the same content", 200, None, _fixed("free text", "a"), first=_fixed("free text", "a")),
    Case(
        "the ID again, with other content", 409, "id-reused", _fixed("free text", "b"), first=_fixed("free text", "a")
    ),
    Case("the ID again, an integer above 2^53 one higher", 409, "id-reused", _big(2**53 + 2), first=_big(2**53 + 1)),
    # Taken
    Case("nested 64 deep", 202, None, _nested(64)),
    Case("an integer above 2^53", 202, None, _json(str(2**64))),
    Case("a number beyond a double (`1e400`)", 202, None, _json("1e400")),
    Case("NUL, or a lone surrogate, in free text", 202, None, _with("free text", "a\0\ud800")),
    Case("`sendDt` empty", 202, None, _attribute(sendDt=""), (LEGACY,)),
    Case("`sendDt` null", 202, None, _attribute(sendDt=None), (LEGACY,)),
    Case("`sendDt` unreadable", 202, None, _attribute(sendDt="tomorrow"), (LEGACY,)),
    Case("`sendDt` a number", 202, None, _attribute(sendDt=20991201093000), (LEGACY,)),
)
