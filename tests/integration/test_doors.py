"""What the doors take, what they refuse and how they say it; a refused message leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import psycopg
import pytest
from cloudevents.core.bindings.http import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from psycopg import sql
from temporalio.client import Client

from deploy.dev.ports import choose
from deploy.dev.postgres import Postgres
from tests.conftest import TEMPLATE
from tests.support.hospital import HospitalServer
from tests.support.stack import TOKENS, Stack, event, survey

MESSAGES = "/messages"
LEGACY = "/legacy/survey-send"
DOORS = pytest.mark.parametrize("door", [MESSAGES, LEGACY])
MEDIA_TYPES = {MESSAGES: "application/cloudevents+json", LEGACY: "application/json"}
PLANTED = "PLANTED"  # stands in what is refused; no answer may repeat it
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def name() -> str:
    """One inbox for the module: each test sends IDs of its own."""
    return "doors"


@pytest.fixture(scope="module")
def database_url(postgres: Postgres, name: str) -> Iterator[str]:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(copy.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    yield f"{postgres.url.rpartition('/')[0]}/{name}"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
async def stack(name: str, database_url: str, temporal: Client) -> AsyncIterator[Stack]:
    """Doors alone: neither dispatcher nor worker runs, so that rows stay as they were accepted."""
    async with HospitalServer() as hospital, Stack(name, database_url, temporal, hospital) as made:
        await made.open()
        yield made


async def everything(stack: Stack) -> list[dict[str, Any]]:
    """Return every row with its payload, whole."""
    return await stack.sql(
        "SELECT to_jsonb(m) AS message, p.received_at, p.content_type, p.key_id, sha256(p.body) AS body"
        " FROM inbox.message m FULL JOIN inbox.payload p ON p.message = m.id ORDER BY m.id, p.message"
    )


def content(value: Any) -> bytes:
    """Return ``value`` as JSON; lone surrogates as escapes, as a sender would have to write them."""
    return json.dumps(value).encode()


async def deliver(
    stack: Stack, door: str, body: Any, *, token: str | None = TOKENS["hospital"], headers: dict[str, str] | None = None
) -> httpx.Response:
    sent = {"Content-Type": MEDIA_TYPES[door]} | ({"Authorization": f"Bearer {token}"} if token else {})
    return await stack.http.post(door, content=body, headers=sent | (headers or {}))


def body_of(door: str, **changes: Any) -> bytes:
    """Return a good body for this door, with an ID of its own."""
    message = survey(**changes)
    return content(message if door == LEGACY else event(message, id=message["srvyDrawupNo"]))


def assert_problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The answer is a problem document (RFC 9457) that says what is wrong, and repeats nothing of what was sent."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert set(document) >= {"type", "title", "status", "detail"}
    assert (document["status"], document["type"]) == (status, f"urn:temporal-inbox:problem:{kind}")
    assert document["title"]
    assert document["detail"]
    assert PLANTED not in answer.text + str(answer.headers)
    return document


def assert_refused(door: str, answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """As ``assert_problem``; over the old door a fault of the message is 200 with N and the reason."""
    document = assert_problem(answer, status, kind)
    if door == MESSAGES:
        assert answer.status_code == status
    else:
        assert answer.status_code == 200
        assert answer.headers["X-Result"] == "N"
        assert unquote(answer.headers["X-Result-Message"], errors="strict") == document["detail"]
    return document


# Who is asking


@DOORS
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {PLANTED}",
        f"Basic {PLANTED}",
        TOKENS["hospital"],
        "Bearer token-of-hospita",
    ],
)
async def test_without_a_sources_token_nothing_is_taken(stack: Stack, door: str, authorization: str | None) -> None:
    before = await everything(stack)
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await deliver(stack, door, body_of(door), token=None, headers=headers)
    assert answer.status_code == 401
    assert_problem(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert await everything(stack) == before


@DOORS
async def test_the_operators_token_reads_and_does_not_write(stack: Stack, door: str) -> None:
    before = await everything(stack)
    answer = await deliver(stack, door, body_of(door), token=TOKENS["operator"])
    assert answer.status_code == 401
    assert await everything(stack) == before


@DOORS
async def test_a_source_can_not_write_messages_of_another(stack: Stack, door: str) -> None:
    before = await everything(stack)
    answer = await deliver(stack, door, body_of(door), token=TOKENS["report-producer"])
    assert answer.status_code == 403
    assert_problem(answer, 403, "unknown-source")
    assert await everything(stack) == before


@pytest.mark.parametrize("source", [PLANTED, "hospital ", "Hospital", "hospital/", "한"])
async def test_a_source_that_is_not_configured_is_refused(stack: Stack, source: str) -> None:
    before = await everything(stack)
    answer = await stack.post(event({}, source=source, id=PLANTED))
    assert answer.status_code == 403
    assert_problem(answer, 403, "unknown-source")
    assert await everything(stack) == before


# What it is


@DOORS
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/xml", "", "{door}; charset=euc-kr", "{door}; charset=utf-16", PLANTED]
)
async def test_another_media_type_or_charset_is_refused(stack: Stack, door: str, media_type: str) -> None:
    before = await everything(stack)
    headers = {"Content-Type": media_type.format(door=MEDIA_TYPES[door])}
    answer = await deliver(stack, door, body_of(door), headers=headers)
    assert answer.status_code == 415
    assert_problem(answer, 415, "media-type")
    assert await everything(stack) == before


@DOORS
@pytest.mark.parametrize("parameters", ["; charset=utf-8", ';charset="UTF-8"', " ; Charset=UTF8"])
async def test_the_media_type_may_say_utf8(stack: Stack, door: str, parameters: str) -> None:
    headers = {"Content-Type": MEDIA_TYPES[door].upper() + parameters}
    answer = await deliver(stack, door, body_of(door), headers=headers)
    assert answer.status_code == (202 if door == MESSAGES else 200)
    assert answer.json()["status"] == "RECEIVED"


def padded(door: str, size: int) -> bytes:
    body = body_of(door)
    return body + b" " * (size - len(body))


@DOORS
async def test_a_message_may_have_one_mebibyte(stack: Stack, door: str) -> None:
    body = padded(door, MIB)
    answer = await deliver(stack, door, body)
    row = await stack.row(answer.json()["id"])
    stored = await stack.sql("SELECT body FROM inbox.payload WHERE message = %s", row["id"])
    assert [line["body"] for line in stored] == [body]


@DOORS
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_larger_one_is_read_away_and_refused(stack: Stack, door: str, chunked: bool) -> None:
    before = await everything(stack)
    body = padded(door, MIB + 1)
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for start in range(0, len(body), 65_536):
            sent += len(body[start : start + 65_536])
            yield body[start : start + 65_536]

    answer = await deliver(stack, door, chunks() if chunked else body)
    assert answer.status_code == 413
    assert_problem(answer, 413, "too-large")
    assert sent == (len(body) if chunked else 0)
    assert await everything(stack) == before


@DOORS
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"PLANTED",
        b'{"PLANTED": ',
        b"{} PLANTED",
        b"\xff\xfePLANTED",
        b"\xef\xbb\xbf{}",
        '{"srvyDrawupNo": "한PLANTED"}'.encode("euc-kr"),
        b"[]",
        b'["PLANTED"]',
        b'"PLANTED"',
        b"42",
        b"null",
        b"true",
    ],
)
async def test_what_is_not_a_json_object_is_not_readable(stack: Stack, door: str, body: bytes) -> None:
    before = await everything(stack)
    assert_refused(door, await deliver(stack, door, body), 400, "unreadable")
    assert await everything(stack) == before


@DOORS
@pytest.mark.parametrize(
    "inner",
    [
        b"NaN",
        b"-Infinity",
        b'{"PLANTED": 1, "PLANTED": 2}',
        b"[" * 64 + b'"PLANTED"' + b"]" * 64,
        b"9" * 5000,
    ],
)
async def test_what_json_leaves_undefined_is_refused(stack: Stack, door: str, inner: bytes) -> None:
    before = await everything(stack)
    good = content(survey(recipientNm=None) if door == LEGACY else event(None))
    body = good.replace(b"null", inner)
    assert body != good
    assert_refused(door, await deliver(stack, door, body), 422, "malformed")
    assert await everything(stack) == before


# Which field is wrong

LONG = {"tenant": 64, "source": 255, "id": 512, "type": 255, "subject": 512}
UNFIT: dict[str, Callable[[int], Any]] = {
    "blank": lambda _: " \t",
    "wide blank": lambda _: "\u3000",
    "too long": lambda limit: PLANTED + "a" * (limit + 1 - len(PLANTED)),
    "too long in UTF-8": lambda limit: PLANTED + "한" * (limit // 3),
    "NUL": lambda _: f"{PLANTED}\0",
    "lone surrogate": lambda _: f"{PLANTED}\ud800",
    "number": lambda _: 987654321,
    "list": lambda _: [PLANTED],
    "boolean": lambda _: True,
}
EMPTY: dict[str, Callable[[int], Any]] = {"empty": lambda _: "", "null": lambda _: None}


@pytest.mark.parametrize(
    ("field", "limit", "fault"),
    [(field, LONG[field], fault) for field in ("id", "type") for fault in [*UNFIT, *EMPTY]]
    + [(field, LONG["subject"], fault) for field in ("subject", "partitionkey") for fault in UNFIT]
    + [("tenant", LONG["tenant"], fault) for fault in UNFIT],
)
async def test_an_attribute_that_is_wrong_is_named(stack: Stack, field: str, limit: int, fault: str) -> None:
    before = await everything(stack)
    value = (UNFIT | EMPTY)[fault](limit)
    answer = await deliver(stack, MESSAGES, content(event({"a": PLANTED}) | {field: value}))
    document = assert_refused(MESSAGES, answer, 422, "malformed")
    named = "subject" if field == "partitionkey" and fault not in ("number", "list", "boolean") else field
    assert document["detail"].startswith(f"{named}: ")
    assert "987654321" not in answer.text
    assert await everything(stack) == before


@pytest.mark.parametrize("field", ["specversion", "source", "id", "type"])
async def test_an_attribute_that_is_missing_is_named(stack: Stack, field: str) -> None:
    before = await everything(stack)
    attributes = {name: value for name, value in event({"a": PLANTED}).items() if name != field}
    document = assert_refused(MESSAGES, await stack.post(attributes), 422, "malformed")
    assert document["detail"] == f"{field}: is required"
    assert await everything(stack) == before


@pytest.mark.parametrize("version", ["0.3", "1", "1.1", "", None, 1.0])
async def test_another_version_of_cloudevents_is_refused(stack: Stack, version: Any) -> None:
    before = await everything(stack)
    document = assert_refused(MESSAGES, await stack.post(event({}, specversion=version)), 422, "malformed")
    assert document["detail"].startswith("specversion: ")
    assert await everything(stack) == before


@pytest.mark.parametrize(
    "data",
    [
        {"data_base64": "====" + PLANTED},
        {"data_base64": "e30"},
        {"data_base64": 7},
        {"data_base64": None},
        {"data_base64": "e30=", "data": {}},
        {"data_base64": "한"},
    ],
)
async def test_binary_data_that_can_not_be_read_is_refused(stack: Stack, data: dict[str, Any]) -> None:
    before = await everything(stack)
    attributes = {name: value for name, value in event(None).items() if name != "data"}
    document = assert_refused(MESSAGES, await stack.post(attributes | data), 422, "malformed")
    assert document["detail"].startswith("data_base64: ")
    assert await everything(stack) == before


@pytest.mark.parametrize("field", ["srvyDrawupNo", "patno", "formCd"])
@pytest.mark.parametrize("fault", [*UNFIT, *EMPTY, "missing"])
async def test_a_field_of_the_old_contract_that_is_wrong_is_named(stack: Stack, field: str, fault: str) -> None:
    before = await everything(stack)
    message = survey(recipientNm=PLANTED)
    if fault == "missing":
        del message[field]
    else:
        message[field] = (UNFIT | EMPTY)[fault](512)
    answer = await deliver(stack, LEGACY, content(message))
    document = assert_refused(LEGACY, answer, 422, "malformed")
    assert document["detail"].startswith(f"{field}: ")
    assert await everything(stack) == before


@pytest.mark.parametrize("kind", ["a" * 255, PLANTED, "survey.send ", "Survey.Send", "report.count", "한"])
async def test_a_type_that_is_not_listed_for_its_source_is_refused(stack: Stack, kind: str) -> None:
    before = await everything(stack)
    document = assert_refused(MESSAGES, await stack.post(event({}, type=kind)), 422, "unknown-type")
    assert document["detail"].startswith("type: ")
    assert await everything(stack) == before


async def test_fields_may_be_as_long_as_their_limits(stack: Stack) -> None:
    widest = {"tenant": "한" * 21 + "a", "id": "한" * 170 + "ab", "subject": "😀" * 128}
    answer = await stack.post(event({}, **widest))
    assert answer.status_code == 202
    row = await stack.row(widest["id"])
    assert (row["tenant"], row["subject"]) == (widest["tenant"], widest["subject"])
    assert len(row["workflow_id"]) <= 900


@pytest.mark.parametrize(
    "absent", [{}, {"tenant": None, "subject": None}, {"tenant": "", "partitionkey": "", "subject": ""}]
)
async def test_an_optional_attribute_may_be_absent_null_or_empty(stack: Stack, absent: dict[str, Any]) -> None:
    sent = event({}, id=f"optional-{len(absent)}") | absent
    assert (await stack.post(sent)).status_code == 202
    row = await stack.row(sent["id"])
    assert (row["tenant"], row["subject"], row["sequence"]) == ("", None, None)


async def test_the_partition_key_is_the_subject_where_it_is_set(stack: Stack) -> None:
    await stack.post(event({}, id="with-key", subject="subject", partitionkey="key"))
    await stack.post(event({}, id="without-key", subject="subject"))
    assert (await stack.row("with-key"))["subject"] == "key"
    assert (await stack.row("without-key"))["subject"] == "subject"


# Order by sequence


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sequence": "1"}, "subject"),
        ({"sequence": "1", "subject": ""}, "subject"),
        ({"subject": "s"}, "sequence"),
        *[
            ({"subject": "s", "sequence": value}, "sequence")
            for value in (
                None,
                "",
                "PLANTED",
                "-1",
                -1,
                "1.0",
                1.5,
                True,
                [1],
                " 1",
                "+1",
                "1_0",
                "１",
                "²",
                str(2**63),
                2**63,
            )
        ],
    ],
)
async def test_a_sequence_source_needs_subject_and_sequence(stack: Stack, changes: dict[str, Any], field: str) -> None:
    before = await everything(stack)
    sent = event({"counter": PLANTED}, source="seq-producer", type="report.count", id="seq") | changes
    document = assert_refused(MESSAGES, await stack.post(sent, TOKENS["seq-producer"]), 422, "malformed")
    assert document["detail"].startswith(f"{field}: ")
    assert await everything(stack) == before


@pytest.mark.parametrize(
    ("given", "number"), [("0", 0), (0, 0), ("0007", 7), (str(2**63 - 1), 2**63 - 1), (2**63 - 1, 2**63 - 1)]
)
async def test_a_sequence_is_an_integer_or_its_digits(stack: Stack, given: Any, number: int) -> None:
    sent = event({}, source="seq-producer", type="report.count", id=f"seq-{given!r}", subject="s", sequence=given)
    assert (await stack.post(sent, TOKENS["seq-producer"])).status_code == 202
    assert (await stack.row(sent["id"]))["sequence"] == number


# Identity


@DOORS
@pytest.mark.parametrize("first_over", [MESSAGES, LEGACY])
async def test_an_id_used_again_for_other_content_leaves_the_first_untouched(
    stack: Stack, first_over: str, door: str
) -> None:
    message = survey()
    name = message["srvyDrawupNo"]

    def over(door: str, **changes: Any) -> bytes:
        return content(message | changes if door == LEGACY else event(message | changes, id=name))

    await deliver(stack, first_over, over(first_over))
    before = await everything(stack)
    document = assert_refused(door, await deliver(stack, door, over(door, recipientNm=PLANTED)), 409, "id-reused")
    assert "other content" in document["detail"]
    assert await everything(stack) == before
    again = await deliver(stack, first_over, over(first_over))
    assert again.json()["duplicate"] is True


@DOORS
async def test_a_duplicate_gets_the_first_answer_and_touches_two_columns(stack: Stack, door: str) -> None:
    body = body_of(door)
    first = await deliver(stack, door, body)
    before = await everything(stack)
    second = await deliver(stack, door, body)
    assert second.status_code == 200
    assert second.json() == first.json() | {"duplicate": True}
    after = await everything(stack)
    old, new = before[-1].pop("message"), after[-1].pop("message")
    assert {column for column in new if new[column] != old[column]} == {"duplicates", "delivered_at"}
    assert after == before


async def test_equal_content_under_two_ids_is_two_messages(stack: Stack) -> None:
    for number in ("one", "two"):
        assert (await stack.post(event({"a": 1}, id=number))).status_code == 202
    one, two = await stack.row("one"), await stack.row("two")
    assert one["payload_sha256"] == two["payload_sha256"]
    assert one["id"] != two["id"]


async def test_one_id_of_two_tenants_or_sources_is_two_messages(stack: Stack) -> None:
    shared = {"id": "shared"}
    assert (await stack.post(event({"a": 1}, **shared))).status_code == 202
    assert (await stack.post(event({"a": 2}, tenant="seoul", **shared))).status_code == 202
    other = event({"a": 3}, source="report-producer", type="report.count", **shared)
    assert (await stack.post(other, TOKENS["report-producer"])).status_code == 202
    rows = await stack.sql("SELECT DISTINCT workflow_id FROM inbox.message WHERE message_id = 'shared'")
    assert len(rows) == 3


async def test_key_order_white_space_and_number_spelling_make_no_other_content(stack: Stack) -> None:
    spellings = [b'{"a":1,"b":[2,"\xed\x95\x9c"]}', b' { "b" : [ 2.0 , "\\ud55c" ] ,\n "a" : 1.0 } ']
    answers = [
        await deliver(stack, MESSAGES, content(event(None, id="spelt")).replace(b"null", spelling))
        for spelling in spellings
    ]
    assert [answer.status_code for answer in answers] == [202, 200]


async def test_integers_beyond_2_53_are_compared_as_they_were_sent(stack: Stack) -> None:
    bodies = [content(event({"n": number}, id="big")) for number in (2**53 + 1, 2**53)]
    answers = [await deliver(stack, MESSAGES, body) for body in (bodies[0], bodies[0], bodies[1])]
    assert [answer.status_code for answer in answers] == [202, 200, 409]


# What is kept

TEXTS = [
    "홍길동",
    "Oʻzbekcha Ўзбек қўшиқ",
    "👩‍⚕️😀🇰🇷",
    "e\u0301é ½ \u202eabc",
    "a'b\"c\\d%s;--",
    "\u2028\ufeff\U0010ffff",
]


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("text", TEXTS)
async def test_any_text_in_any_field_is_kept_byte_for_byte(stack: Stack, text: str, escaped: bool) -> None:
    name = f"{text}{'escaped' if escaped else 'plain'}"
    message = survey(
        srvyDrawupNo=name, patno=text, formCd=text, recipientNm=text, mobile=text, deptCd=text, sendDt=text
    )
    body = b" \n" + json.dumps(message | {text: [text]}, ensure_ascii=escaped, indent=1).encode() + b"\r\n\t"
    answer = await deliver(stack, LEGACY, body)
    assert answer.headers["X-Result"] == "Y"
    assert answer.headers["X-Result-Message"].isascii()
    assert answer.json()["id"] == name
    row = await stack.row(name)
    assert (row["source"], row["subject"], row["type"]) == ("hospital", text, "survey.send")
    stored = await stack.sql("SELECT * FROM inbox.payload WHERE message = %s", row["id"])
    assert [(line["body"], line["content_type"]) for line in stored] == [(body, "application/json")]
    assert stored[0]["received_at"] == row["received_at"]


@pytest.mark.parametrize("text", TEXTS)
async def test_any_text_in_an_event_is_kept_byte_for_byte(stack: Stack, text: str) -> None:
    sent = event({text: text}, id=f"{text}-event", tenant=text, subject=text, extension=text)
    body = json.dumps(sent, ensure_ascii=False, indent=2).encode()
    answer = await deliver(stack, MESSAGES, body)
    assert answer.status_code == 202
    row = await stack.row(sent["id"])
    assert (row["tenant"], row["subject"]) == (text, text)
    stored = await stack.sql("SELECT body FROM inbox.payload WHERE message = %s", row["id"])
    assert [line["body"] for line in stored] == [body]


async def test_what_a_text_column_could_not_hold_is_kept_in_the_payload(stack: Stack) -> None:
    body = content(survey(srvyDrawupNo="unfit", recipientNm="\0\ud800", mobile=float("1e300"), more=2**80))
    assert (await deliver(stack, LEGACY, body)).headers["X-Result"] == "Y"
    stored = await stack.sql("SELECT body FROM inbox.payload WHERE message = %s", (await stack.row("unfit"))["id"])
    assert [line["body"] for line in stored] == [body]


@pytest.mark.parametrize("data", [{"counter": "a", "한": "😀"}, None, "text", b"\x00\xff binary"])
async def test_an_event_of_the_official_sdk_is_taken(stack: Stack, data: Any) -> None:
    attributes = {"type": "survey.send", "source": "hospital", "subject": "900000001", "partitionkey": "키"}
    made = CloudEvent(
        attributes=attributes | ({} if isinstance(data, dict) else {"datacontenttype": "text/plain"}), data=data
    )
    message = to_structured_event(made)
    headers = message.headers | {"Authorization": f"Bearer {TOKENS['hospital']}"}
    answers = [await stack.http.post(MESSAGES, content=message.body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 200]
    row = await stack.row(made.get_id())
    assert (row["type"], row["source"], row["subject"]) == ("survey.send", "hospital", "키")
    stored = await stack.sql("SELECT body FROM inbox.payload WHERE message = %s", row["id"])
    assert [line["body"] for line in stored] == [message.body]


async def test_the_answer_says_where_the_record_is(stack: Stack) -> None:
    name = "a/b~1 한?#%2F"
    answer = await stack.post(event({}, id=name, tenant="ten/ant"))
    assert answer.json() == {
        "source": "hospital",
        "id": name,
        "status": "RECEIVED",
        "duplicate": False,
        "workflowId": (await stack.row(name))["workflow_id"],
        "receivedAt": answer.json()["receivedAt"],
    }
    found = await stack.get(answer.headers["Location"])
    assert (found.status_code, found.json()["id"], found.json()["tenant"]) == (200, name, "ten/ant")


@pytest.mark.parametrize("where", ["attribute", "header"])
async def test_the_producers_trace_is_kept_in_the_row(stack: Stack, where: str) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traceparent = f"00-{trace_id}-b7ad6b7169203331-01"
    body = content(event({}, id=f"traced-{where}") | ({"traceparent": traceparent} if where == "attribute" else {}))
    headers = {"traceparent": traceparent} if where == "header" else {}
    await deliver(stack, MESSAGES, body, headers=headers)
    assert (await stack.row(f"traced-{where}"))["traceparent"].split("-")[1] == trace_id


@pytest.mark.parametrize(
    "traceparent", ["", "x", "00-zz-zz-01", 7, None, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800\0"]
)
async def test_a_trace_that_is_not_one_costs_no_message(stack: Stack, traceparent: Any) -> None:
    body = content(event({}, id=f"untraced-{traceparent!r}", traceparent=traceparent))
    assert (await deliver(stack, MESSAGES, body)).status_code == 202
    assert (await stack.row(f"untraced-{traceparent!r}"))["traceparent"] is None


# What is no door, and no store


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", f"/{PLANTED}", 404),
        ("GET", MESSAGES, 405),
        ("PUT", LEGACY, 405),
        ("DELETE", MESSAGES, 405),
    ],
)
async def test_what_the_router_refuses_is_a_problem_document_too(
    stack: Stack, method: str, path: str, status: int
) -> None:
    answer = await stack.http.request(method, path)
    assert answer.status_code == status
    assert_problem(answer, status, {404: "not-found", 405: "method-not-allowed"}[status])


@DOORS
async def test_while_the_store_is_away_the_sender_is_asked_to_send_again(stack: Stack, door: str) -> None:
    port = choose(["none"])["none"]
    away = Stack("away", f"postgresql://{PLANTED}@127.0.0.1:{port}/none", stack.temporal, stack.hospital)
    away.configure({"timeouts": {"connect": 0.3}})
    async with away:
        await away.open()
        answer = await deliver(away, door, body_of(door))
    assert answer.status_code == 503
    assert_problem(answer, 503, "store-unavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert "X-Result" not in answer.headers
