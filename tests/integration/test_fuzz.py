"""Every route, header, path and body fuzzed over real HTTP: never a 5xx, never a stored half (spec section 17).

Bounded and the same in every run; ``FUZZ_EXAMPLES=n`` takes n random examples a test instead.
"""

from __future__ import annotations

import json
import os
import socket
import string
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st
from psycopg import sql
from schemathesis import checks as st_checks
from schemathesis.specs.openapi import checks as openapi_checks

from deploy.dev.postgres import Postgres
from inbox.ingest.openapi import openapi
from inbox.message import LIMITS
from tests.conftest import TEMPLATE
from tests.integration.bad_input import LEGACY, MEDIA_TYPES, MESSAGES, good, message
from tests.support import raw
from tests.support.serving import Served, serving, settings_for
from tests.support.stack import TOKENS

MORE = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def bounded(examples: int) -> Callable[[Any], Any]:
    """``examples`` of them, the same each time; or as many as were asked for, at random."""
    return settings(
        max_examples=MORE or examples,
        derandomize=not MORE,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def served(postgres: Postgres) -> Iterator[Served]:
    """One ingest for the module."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE fuzz TEMPLATE {}").format(sql.Identifier(TEMPLATE)))
    with serving(f"{postgres.url.rpartition('/')[0]}/fuzz", "fuzz") as running:
        yield running
        assert running.halves() == 0
        assert running.http.get("/readyz").status_code == 200


def stored(served: Served) -> tuple[int, int]:
    """Return how many rows and how many payloads there are."""
    found = served.sql("SELECT (SELECT count(*) FROM inbox.message) AS m, (SELECT count(*) FROM inbox.payload) AS p")
    return found[0]["m"], found[0]["p"]


def assert_whole(before: tuple[int, int], after: tuple[int, int], status: int, answer: Any) -> None:
    """A row and its payload for what is new, and neither for anything else; never a 5xx."""
    assert status < 500
    new = isinstance(answer, dict) and answer.get("duplicate") is False and status in (200, 202)
    assert after == (before[0] + new, before[1] + new)


# Every route, from the OpenAPI document


DOCUMENT = json.loads(json.dumps(openapi(settings_for("postgresql://", "fuzz"))))
ROUTES = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    st_checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]


def test_the_document_is_served(served: Served) -> None:
    assert served.http.get("/openapi.json").json() == DOCUMENT


@ROUTES.given(fit=st.booleans(), token=st.sampled_from([*["hospital"] * 4, "report-producer", "operator", None]))
@ROUTES.parametrize()
@bounded(60)
def test_every_route_answers_as_its_document_says(case: Any, served: Served, fit: bool, token: str | None) -> None:
    if fit and isinstance(case.body, dict):
        case.body |= {"source": "hospital", "type": "survey.send"}
    if fit and case.path_parameters:
        case.path_parameters["source"] = "hospital"
    before = stored(served)
    headers = {"Authorization": f"Bearer {TOKENS[token]}"} if token else {}
    answer = case.call(str(served.http.base_url), headers=headers)
    case.validate_response(answer, checks=CHECKS)
    body = answer.json() if answer.headers["content-type"] == ["application/json"] else None
    event(f"{case.operation.label} {answer.status_code}")
    if case.operation.path in (MESSAGES, LEGACY):
        assert_whole(before, stored(served), answer.status_code, body)
    else:
        assert stored(served) == before


# Bodies

SCRIPTS = [
    "홍길동 설문",
    "Oʻzbekcha Ўзбек қўшиқ",
    "👩‍⚕️😀🇰🇷",
    "e\u0301 ½ \u202e",
    "a'b\"c\\d%s;--",
    "\0",
    "\ud800",
    "\ufeff",
    " \u3000",
]
TEXTS = st.one_of(
    st.text(st.characters(), max_size=30),
    st.text(st.characters(categories=["Cs", "Cc", "Zs"]), min_size=1, max_size=5),
    st.builds(lambda script, times: script * times, st.sampled_from(SCRIPTS), st.integers(1, 300)),
    st.builds(lambda limit, more: "a" * (limit + more), st.sampled_from(sorted(LIMITS.values())), st.integers(-1, 1)),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=6
)
DEEP = st.builds(
    lambda depth, opening: (opening * depth, depth), st.integers(50, 20_000), st.sampled_from(["[", '{"a":'])
)
FIELDS = {
    MESSAGES: (
        *("specversion", "source", "id", "type", "subject", "partitionkey", "tenant", "sequence", "traceparent"),
        *("data", "data_base64", "datacontenttype", "time"),
    ),
    LEGACY: ("srvyDrawupNo", "patno", "formCd", "sendDt", "recipientNm", "mobile"),
}
ENCODINGS = (*["utf-8"] * 15, "utf-16", "utf-32", "euc-kr", "latin-1", "utf-7")
DOORS = st.sampled_from([MESSAGES, LEGACY])
SOURCES = st.sampled_from(
    [("hospital", "survey.send"), ("report-producer", "report.count"), ("seq-producer", "report.count")]
)


@st.composite
def bodies(draw: st.DrawFn, door: str, source: str, kind: str) -> bytes:
    """A good message with some fields replaced, in some encoding, and now and then with bytes changed."""
    made = message(door)
    if door == MESSAGES:
        made |= {"source": source, "type": kind}
    made |= draw(st.dictionaries(st.sampled_from(FIELDS[door]) | TEXTS, VALUES, max_size=3))
    text = json.dumps(made, ensure_ascii=draw(st.booleans()))
    if draw(st.integers(0, 9)) == 0:
        opening, depth = draw(DEEP)
        text = text[:-1] + ', "deep": ' + opening + ("]" if opening[0] == "[" else "1" + "}") * depth + "}"
    encoding = draw(st.sampled_from(ENCODINGS))
    body = text.encode(encoding, "surrogatepass" if encoding.startswith("utf-") and encoding != "utf-7" else "replace")
    if draw(st.integers(0, 7)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=8)) + body[at + draw(st.integers(0, 8)) :]
    return body


def send_and_check(served: Served, door: str, body: bytes, headers: dict[str, str]) -> int:
    before = stored(served)
    answer = served.http.post(door, content=body, headers=headers)
    told = answer.json()
    assert_whole(before, stored(served), answer.status_code, told)
    if told.get("duplicate") is False:
        (newest,) = served.sql(
            "SELECT m.message_id, m.source, p.body FROM inbox.message m JOIN inbox.payload p ON p.message = m.id"
            " ORDER BY m.id DESC LIMIT 1"
        )
        assert newest == {"message_id": told["id"], "source": told["source"], "body": body}
        read = served.http.get(answer.headers["Location"], headers=headers) if door == MESSAGES else None
        assert read is None or read.json()["id"] == told["id"]
    event(f"{door} {answer.status_code} {told.get('type', told.get('status'))}")
    return answer.status_code


@bounded(800)
@given(data=st.data(), door=DOORS, named=SOURCES)
def test_a_message_with_anything_in_any_field(
    served: Served, data: st.DataObject, door: str, named: tuple[str, str]
) -> None:
    source, kind = ("hospital", "survey.send") if door == LEGACY else named
    body = data.draw(bodies(door, source, kind))
    headers = {"Content-Type": MEDIA_TYPES[door], "Authorization": f"Bearer {TOKENS[source]}"}
    send_and_check(served, door, body, headers)


@bounded(100)
@given(door=DOORS, body=st.binary(max_size=400))
@example(door=MESSAGES, body=b"[" * 500_000)
@example(door=LEGACY, body=b'{"a":' * 200_000)
@example(door=LEGACY, body=b'"' + b"\\ud800" * 100_000 + b'"')
@example(door=MESSAGES, body=b"9" * 1_000_000)
@example(door=MESSAGES, body=b"1e" + b"9" * 1_000_000)
@example(door=MESSAGES, body=b"0." + b"9" * 1_000_000)
def test_any_bytes(served: Served, door: str, body: bytes) -> None:
    headers = {"Content-Type": MEDIA_TYPES[door], "Authorization": f"Bearer {TOKENS['hospital']}"}
    assert send_and_check(served, door, body, headers) < 500


# Headers and paths, as bytes on a socket

FRAMING = {b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade", b"host"}
TOKEN = st.text(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~", min_size=1, max_size=20).map(str.encode)
VALUE = st.one_of(
    st.binary(max_size=60).filter(lambda value: not {10, 13} & set(value)),
    TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")).filter(lambda value: not {10, 13} & set(value)),
)
TRACE = st.from_regex(rb"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
HEADERS = st.one_of(
    st.tuples(TOKEN.filter(lambda name: name.lower() not in FRAMING), VALUE),
    st.tuples(
        st.sampled_from([b"traceparent", b"tracestate", b"baggage", b"cookie", b"accept", b"range"]), VALUE | TRACE
    ),
    st.tuples(st.just(b"Content-Type"), VALUE | st.builds(b"application/json; charset=".__add__, VALUE)),
    st.tuples(st.just(b"Authorization"), VALUE | st.builds(b"Bearer ".__add__, VALUE)),
)


def good_headers(door: str) -> list[raw.Header]:
    return [
        (b"Content-Type", MEDIA_TYPES[door].encode()),
        (b"Authorization", b"Bearer " + TOKENS["hospital"].encode()),
    ]


@bounded(300)
@given(door=DOORS, headers=st.lists(HEADERS, max_size=6), first=st.booleans())
def test_any_headers(served: Served, door: str, headers: list[raw.Header], first: bool) -> None:
    before = stored(served)
    ours = good_headers(door)
    sent = raw.request(door.encode(), [*headers, *ours] if first else [*ours, *headers], good(door))
    status = raw.exchange(served.address, sent)
    event(f"{door} {status}")
    assert status is not None
    assert status < 500
    rows, payloads = stored(served)
    assert rows == payloads
    assert rows == before[0] + (status == 202 or (status == 200 and door == LEGACY))


ANYTHING = st.binary(min_size=1, max_size=40).filter(lambda value: not {10, 13, 32} & set(value))
PARTS = st.one_of(TEXTS.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe="").encode()), ANYTHING)
EDITIONS = st.one_of(st.just(b""), st.from_regex(rb"\A~[0-9]{1,30}\Z"), st.builds(b"~".__add__, ANYTHING))
TARGETS = st.one_of(
    st.builds(
        lambda parts, edition: b"/messages/" + b"/".join(parts) + edition,
        st.lists(PARTS, min_size=1, max_size=4),
        EDITIONS,
    ),
    st.builds(b"/messages/hospital/P1".__add__, EDITIONS),
    st.builds(b"/".__add__, ANYTHING),
    st.builds(b"/backlog?".__add__, ANYTHING),
    ANYTHING,
)


@bounded(300)
@given(
    target=TARGETS, method=st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS"])
)
@example(target=b"/messages/hospital/P1~" + b"9" * 5000, method=b"GET")
@example(target=b"/messages/hospital/P1~2147483648", method=b"GET")
def test_any_path(served: Served, target: bytes, method: bytes) -> None:
    before = stored(served)
    headers = [(b"Authorization", b"Bearer " + TOKENS["operator"].encode())]
    status = raw.exchange(served.address, raw.request(target, headers, method=method), method.decode())
    event(f"{method.decode()} {status}")
    assert status is not None
    assert status < 500
    assert stored(served) == before


@bounded(150)
@given(
    noise=st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda at, noise: _whole()[:at] + noise + _whole()[at:],
            st.integers(0, 400),
            st.binary(min_size=1, max_size=20),
        ),
        st.builds(lambda at, to: _whole()[:at] + _whole()[to:], st.integers(0, 400), st.integers(0, 400)),
    )
)
def test_any_bytes_on_the_wire(served: Served, noise: bytes) -> None:
    with raw.connect(served.address) as connection:
        raw.send(connection, noise)
        connection.shutdown(socket.SHUT_WR)
        answer = raw.ended(connection)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert served.halves() == 0


def _whole() -> bytes:
    return raw.request(MESSAGES.encode(), good_headers(MESSAGES), good(MESSAGES))
