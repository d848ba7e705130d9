"""Odd input, odd settings, odd texts: each was once a 5xx, a leak or a wrong end."""

import json
from pathlib import Path

import pytest
from cachetools import TLRUCache
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.service import RPCError

from handlers.report_counter import Count
from inbox.cache import HandlerLookups
from inbox.errors import InboxError, SettingsError
from inbox.handler import BusinessError, Message, Outcome
from inbox.message import Key, workflow_id
from inbox.registry import load_handlers
from inbox.settings import Settings, load_settings
from inbox.sources import Sources
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually


@pytest.mark.parametrize("edition", ["2147483648", "9" * 5000])
async def test_an_edition_that_no_row_can_have_is_not_found(stack: Stack, edition: str) -> None:
    await stack.open()
    assert (await stack.get(f"/messages/hospital/a~{edition}")).status_code == 404


async def test_a_large_number_in_an_outcome_can_be_answered(stack: Stack) -> None:
    await stack.open()
    message = survey(srvyDrawupNo="X")
    await stack.legacy(message)
    await stack.sql("UPDATE inbox.message SET status = 'PROCESSING', tries = 1")
    await stack.sql(
        "UPDATE inbox.message SET status = 'COMPLETED', outcome = %s, closed_at = now(), due_at = NULL",
        json.dumps({"n": 2**64}),
    )
    assert (await stack.get("/messages/hospital/X")).status_code == 200
    assert (await stack.legacy(message)).status_code == 200


async def test_an_id_with_a_line_feed_can_be_read(stack: Stack) -> None:
    await stack.open()
    answer = await stack.post(event({}, id="a\nb"))
    assert answer.status_code == 202
    assert (await stack.get(answer.headers["Location"])).status_code == 200


def test_a_variable_that_is_not_json_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("INBOX_OPERATOR_TOKENS", "sha256:abc")
    with pytest.raises(SettingsError):
        load_settings()


def test_a_file_that_is_not_utf8_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b'a = "\xff"')
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("INBOX_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(SettingsError):
        load_settings()


@pytest.mark.parametrize(
    "toml",
    [
        "[timeouts]\nlock = 0",
        "[timeouts]\nlock = -1",
        "[timeouts]\nlock = nan",
        "[timeouts]\nlock = 0.0004",
        "[timeouts]\ngraceful_shutdown = inf",
        "[timeouts]\nconnect = -1",
        "[dispatch]\ntick = 0",
        "[dispatch]\nagain = -1",
        '[sources.a]\ntypes = ["x"]\nretry_interval = inf',
        '[sources.a]\ntypes = ["x"]\nprivate_ids = true',  # without INBOX_ID_KEY the hash is keyed with nothing
        '[sources.""]\ntypes = ["x"]',
        f'[sources.{"a" * 256}]\ntypes = ["x"]',
        '[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "http://hospital:abc/reports"',
        '[sources.a]\ntypes = ["x"]\n[sources.a.report]\nurl = "nonsense"',
        '[sources.a]\ntypes = ["x"]\n[legacy]\nsource = "a"',  # legacy.type survey.send is not among a's types
    ],
)
def test_a_setting_that_can_not_work_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toml: str) -> None:
    (tmp_path / "c.toml").write_text(toml)
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("INBOX_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(SettingsError):
        load_settings()


def test_a_folder_of_zones_is_named_as_the_setting_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[sources.a]\ntypes = ["x"]\nzone = "Asia"')
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("INBOX_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(SettingsError, match=r"sources\.a\.zone"):
        load_settings()


def test_a_negative_body_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("INBOX_MAX_BODY", "-1")
    with pytest.raises(SettingsError):
        load_settings()


@pytest.mark.parametrize("url", ["http://[::1", "http://h:abc", "nonsense"])
def test_a_handlers_url_that_can_not_work_is_refused(url: str) -> None:
    declared = Sources.model_validate({"handlers": {"survey_send": {"url": url}}})
    with pytest.raises(SettingsError):
        load_handlers(Settings(DATABASE_URL="postgresql://h/d").model_copy(update={"declared": declared}))


async def test_a_value_that_expires_while_it_is_read_is_looked_up_again() -> None:
    async def look_up(key: str) -> str:
        return key

    cache = HandlerLookups("inbox", "handler").cache("thing", str, look_up)
    ticks = iter(range(1000))
    cache._kept = TLRUCache(10, lambda _, found, now: now + 3, timer=lambda: next(ticks))
    for _ in range(20):
        assert await cache.get("k") == "k"


async def test_data_and_data_base64_are_two_contents(stack: Stack) -> None:
    await stack.open()
    text = {"specversion": "1.0", "source": "hospital", "type": "survey.send", "id": "same"}
    assert (await stack.post(text | {"data": "e30="})).status_code == 202
    assert (await stack.post(text | {"data_base64": "e30="})).status_code == 409


async def test_a_padded_sequence_is_a_number(stack: Stack) -> None:
    await stack.open()
    sent = event({}, source="seq-producer", type="report.count", id="x", subject="s", sequence="00000000000000000007")
    assert (await stack.post(sent, TOKENS["seq-producer"])).status_code == 202


def test_a_long_id_and_its_hash_have_two_workflow_ids() -> None:
    long = "한" * 512
    hashed = workflow_id("inbox", Key("", "s", long)).rpartition("/")[2]
    assert workflow_id("inbox", Key("", "s", hashed)) != workflow_id("inbox", Key("", "s", long))


@pytest.mark.parametrize("text", ["a//b", "//", "/b", "a/"])
def test_a_key_with_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(InboxError):
        Key.parse(text)


async def test_the_legacy_door_names_the_senders_field_for_a_reused_id(stack: Stack) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    answer = await stack.legacy(message | {"deptCd": "X"})
    assert answer.json()["detail"].startswith("srvyDrawupNo")


async def test_nul_in_a_text_of_the_payload_is_an_invalid_payload(stack: Stack) -> None:
    stack.configure(tries=2)
    await stack.start()
    await stack.legacy(survey(srvyDrawupNo="nul", recipientNm="a\0b"))
    row = await stack.closed("nul")
    assert row["last_code"] == "INVALID_PAYLOAD"


async def test_a_missing_partition_is_not_an_internal_fault(stack: Stack) -> None:
    await stack.open()
    for line in await stack.sql(
        "SELECT inhrelid::regclass::text AS t FROM pg_inherits WHERE inhparent = 'inbox.payload'::regclass"
    ):
        await stack.sql(f"DROP TABLE {line['t']}")
    answer = await stack.legacy(survey())
    assert answer.status_code == 503, answer.text


async def test_a_header_of_ours_with_latin1_is_no_5xx(stack: Stack) -> None:
    await stack.open()
    for headers in (
        {"Authorization": b"Bearer \xff\xfe"},
        {"Content-Type": b"\xff"},
        {"traceparent": b"\xff"},
        {"tracestate": b"\xff=\xff,,=="},
        {"baggage": b"\xff%ff=%ED%A0%80;;,="},
    ):
        base = {"Authorization": b"Bearer token-of-hospital", "Content-Type": b"application/json"}
        answer = await stack.http.post("/legacy/survey-send", content=json.dumps(survey()), headers=base | headers)
        assert answer.status_code < 500


async def test_year_one(stack: Stack) -> None:
    await stack.start()
    for n, dt in enumerate(("00010101000000", "99991231235959")):
        await stack.legacy(survey(srvyDrawupNo=f"y{n}", sendDt=dt))
        row = await stack.closed(f"y{n}")
        assert row["status"] == "COMPLETED"


class Refusing:
    """A handler whose reason holds what Postgres cannot keep."""

    type = "survey.send"
    payload = Count

    async def prepare(self, message: Message[Count]) -> None:
        raise BusinessError("ODD", "a\0b \ud800 c" + "d" * 10_000)

    async def register(self, tx: AsyncConnection, message: Message[Count], _: None) -> Outcome:
        raise AssertionError


async def test_a_reason_that_postgres_cannot_keep_is_recorded_as_well_as_can_be(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start({"survey.send": Refusing()})
    await stack.post(event({"counter": "c"}, id="odd"))
    row = await stack.closed("odd")
    assert row["last_code"] == "ODD"
    assert row["last_reason"].startswith("a\N{REPLACEMENT CHARACTER}b ? cddd")
    assert len(row["last_reason"]) == 2000


async def test_a_statement_that_fails_puts_no_row_into_temporal(stack: Stack) -> None:
    await stack.start()
    await stack.sql("ALTER TABLE inbox.message ADD CONSTRAINT odd CHECK (status <> 'PROCESSING')")
    message = survey(patno="PLANTED")
    await stack.legacy(message)
    row = await stack.row(message["srvyDrawupNo"])
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])

    async def failure() -> str:
        try:
            pending = (await handle.describe()).raw_description.pending_activities
        except RPCError:
            return ""
        return str(pending[0].last_failure) if pending and pending[0].HasField("last_failure") else ""

    text = await eventually(failure)
    assert "CheckViolation 23514" in text
    assert "PLANTED" not in text
