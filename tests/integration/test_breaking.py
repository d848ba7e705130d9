"""Services that hang, types that nobody serves, odd handlers' errors, clocks set back, limits lowered."""

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor

import inbox.spans
from handlers.report_counter import Count, ReportCounter
from handlers.survey_send import clients
from inbox.errors import BusinessError
from inbox.handler import Outcome
from inbox.registry import load_handlers
from inbox.store.statements import CLAIM
from inbox.temporal import DATA_CONVERTER
from tests.integration.test_nothing_personal import texts_of_temporal
from tests.support.hospital import HospitalServer
from tests.support.stack import Stack, event, survey
from tests.support.upstream import Behaviour, Upstream, answer, drip, hang
from tests.support.waiting import eventually

WELL = {
    "/forms/": '{"surveyNo": "S", "group": "g", "distributed": true}',
    "/consents/": "[]",
    "/guests/": '{"guestId": "G"}',
}


@pytest.mark.parametrize("slow", [hang, drip])
@pytest.mark.parametrize("where", WELL)
async def test_a_service_that_hangs_once_costs_a_try_at_most(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, where: str, slow: Behaviour
) -> None:
    monkeypatch.setattr(clients, "TIMEOUT", 2)
    slows = iter([slow])

    def choose(path: str) -> Behaviour:
        well = answer(body=next(body for start, body in WELL.items() if path.startswith(start)))
        return next(slows, well) if path.startswith(where) else well

    async with Upstream(choose) as services:
        stack.configure({"handlers": {"survey_send": {"url": services.url}}}, tries=3)
        await stack.start()
        messages = [survey(patno=f"90000000{number}") for number in range(5)]
        for message in messages:
            await stack.legacy(message)
        rows = [await stack.closed(message["srvyDrawupNo"]) for message in messages]
    assert {row["status"] for row in rows} == {"COMPLETED"}
    assert max(row["tries"] for row in rows) == 2
    lines = await stack.sql("SELECT DISTINCT code, error_class FROM inbox.attempt")
    assert {line["code"] for line in lines} == {"SYSTEM_ERROR"}


async def test_a_type_that_nobody_serves_holds_up_no_other_and_loses_nothing(stack: Stack) -> None:
    stack.configure({"dispatch": {"share": 3, "cap": 5}}, types=["survey.send", "new.type"])
    await stack.open()
    unserved = [f"N{number}" for number in range(12)]
    for name in unserved:
        await stack.post(event({"counter": "new"}, id=name, type="new.type"))
    good = survey()
    await stack.legacy(good)
    async with stack.dispatching():
        async with stack.working():
            assert (await stack.closed(good["srvyDrawupNo"], 20))["status"] == "COMPLETED"
        rows = [await stack.row(name) for name in unserved]
        assert {(row["status"], row["tries"]) for row in rows} == {("RECEIVED", 0)}
        async with stack.working(load_handlers(stack.settings) | {"new.type": ReportCounter()}):
            rows = [await stack.closed(name) for name in unserved]
    assert {(row["status"], row["tries"]) for row in rows} == {("COMPLETED", 1)}
    assert [line["value"] for line in await stack.sql("SELECT value FROM reporting.counter")] == [len(unserved)]


@pytest.fixture
async def traced(
    name: str, database_url: str, temporal: Client, hospital: HospitalServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Stack, InMemorySpanExporter]]:
    """An inbox whose spans are kept, those of Temporal's client too."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(inbox.spans, "tracer", provider.get_tracer("inbox"))
    client = await Client.connect(
        temporal.service_client.config.target_host,
        data_converter=DATA_CONVERTER,
        interceptors=[TracingInterceptor(provider.get_tracer("temporal"))],
    )
    async with Stack(name, database_url, client, hospital) as stack:
        yield stack, exporter


class Overtaken:
    """Its first try fails of an error with a marker in it, after the row has moved on."""

    type = "survey.send"
    payload = Count

    def __init__(self, stack: Stack, moved: str, error: BaseException) -> None:
        self._stack, self._moved, self._errors = stack, moved, iter([error])

    async def prepare(self, _: Any) -> None:
        error = next(self._errors, None)
        if error is not None:
            await self._stack.sql(self._moved)
            raise error from ValueError("PLANTED inner")

    async def register(self, *_: Any) -> Outcome:
        return Outcome({})


LATER_CLAIM = "UPDATE inbox.message SET tries = tries + 1"
DEAD = """
    UPDATE inbox.message SET status = 'DEAD', last_code = 'DISCARDED', closed_at = now(), dead_at = now(), due_at = NULL"""
REQUEST = httpx.Request("GET", "http://hospital/guests/PLANTED")
ERRORS = [
    httpx.HTTPStatusError("for url http://hospital/guests/PLANTED", request=REQUEST, response=httpx.Response(404)),
    BusinessError("CODE", "PLANTED reason"),
    RuntimeError("PLANTED"),
]


@pytest.mark.parametrize("moved", [LATER_CLAIM, DEAD], ids=["claimed again", "dead"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_the_error_of_a_try_that_was_overtaken_is_told_to_nobody(
    traced: tuple[Stack, InMemorySpanExporter], moved: str, error: Exception
) -> None:
    stack, exporter = traced
    await stack.start(handlers={"survey.send": Overtaken(stack, moved, error)})
    await stack.post(event({"counter": "c"}, id="C1"))
    workflow_id = (await stack.closed("C1"))["workflow_id"]
    await eventually(
        lambda: stack.execution_status(workflow_id), lambda found: found is not None and found.name != "RUNNING"
    )
    texts = [item async for item in texts_of_temporal(stack)]
    texts += [(f"span {span.name}", span.to_json()) for span in exporter.get_finished_spans()]
    assert {"span RunActivity:register", "span prepare"} <= {place for place, _ in texts}
    assert [place for place, text in texts if "PLANTED" in text] == []


class Refuses:
    """Refuses with a code and a reason that are none."""

    type = "survey.send"
    payload = Count

    def __init__(self, *words: Any) -> None:
        self._words = words

    async def prepare(self, _: Any) -> None:
        raise BusinessError(*self._words)

    async def register(self, *_: Any) -> Outcome:
        return Outcome({})


@pytest.mark.parametrize("words", [(None, "a reason"), ("", "a reason"), (5, "a reason"), ("CODE", None)])
async def test_a_refusal_without_code_or_reason_is_a_system_error(stack: Stack, words: tuple[Any, ...]) -> None:
    stack.configure(tries=2, report={"url": f"{stack.hospital.url}/reports", "system_error": "ask us"})
    await stack.start(handlers={"survey.send": Refuses(*words)})
    await stack.post(event({"counter": "c"}, id="C1"))
    row = await stack.reported("C1")
    assert (row["status"], row["last_code"], row["last_reason"]) == ("DEAD", "SYSTEM_ERROR", "TypeError")
    assert [line["error_class"] for line in await stack.attempts("C1")] == ["TypeError"] * 2
    assert [report["reason"] for report in await stack.reports("C1")] == ["ask us"]


@dataclasses.dataclass
class Attempts:
    """Claims as attempts of Temporal's make them; each is answered by a word."""

    stack: Stack
    message: int

    async def claim(self, attempt: int, began: datetime, *, run: str = "r", name: str = "1", tries: int = 5) -> str:
        parameters = {
            "id": self.message,
            "max_tries": tries,
            "longest": 30,
            "worker": "w",
            "run_id": run,
            "first_run_id": run,
            "activity": name,
            "attempt": attempt,
            "began_at": began,
            "asked": 1,
            "ordered": False,
            "sequenced": False,
        }
        claimed = await self.stack.database.one(CLAIM, parameters)
        assert claimed is not None
        return claimed.answer


@pytest.fixture
async def attempts(stack: Stack) -> Attempts:
    await stack.open()
    await stack.post(event({"counter": "c"}, id="C1"))
    return Attempts(stack, (await stack.row("C1"))["id"])


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, MOMENT = timedelta(hours=1), timedelta(seconds=1)


async def test_the_next_attempt_claims_though_temporals_clock_was_set_back(attempts: Attempts) -> None:
    assert await attempts.claim(1, NOON) == "CLAIMED"
    assert await attempts.claim(2, NOON - HOUR) == "CLAIMED"
    assert await attempts.claim(3, NOON - HOUR + MOMENT) == "CLAIMED"


async def test_an_attempt_that_woke_behind_the_next_one_is_refused(attempts: Attempts) -> None:
    assert await attempts.claim(2, NOON + MOMENT) == "CLAIMED"
    assert await attempts.claim(1, NOON) == "SUPERSEDED"
    row = await attempts.stack.row("C1")
    assert (row["tries"], row["claimed_attempt"], row["claim_began_at"]) == (1, 2, NOON + MOMENT)


async def test_attempts_that_an_operator_reset_may_claim(attempts: Attempts) -> None:
    assert await attempts.claim(4, NOON) == "CLAIMED"
    assert await attempts.claim(1, NOON + MOMENT) == "CLAIMED"


@pytest.mark.parametrize("other", [{"run": "other"}, {"name": "2"}])
async def test_an_attempt_of_an_earlier_run_or_activity_is_refused_while_the_later_ones_try_may_go_on(
    attempts: Attempts, other: dict[str, str]
) -> None:
    assert await attempts.claim(1, NOON, tries=1) == "CLAIMED"
    assert await attempts.claim(3, NOON - MOMENT, tries=1, **other) == "SUPERSEDED"  # EXHAUSTED would bury it
    row = await attempts.stack.row("C1")
    assert (row["status"], row["tries"]) == ("PROCESSING", 1)


@pytest.mark.parametrize("other", [{"run": "later"}, {"name": "2"}])
async def test_a_later_run_or_activity_claims_though_temporals_clock_was_set_back(
    attempts: Attempts, other: dict[str, str]
) -> None:
    assert await attempts.claim(3, NOON) == "CLAIMED"
    await attempts.stack.sql("UPDATE inbox.message SET updated_at = updated_at - interval '31 s'")
    assert await attempts.claim(1, NOON - HOUR, **other) == "CLAIMED"


async def test_a_message_goes_on_though_temporals_clock_was_set_back(stack: Stack) -> None:
    stack.configure(tries=3)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.sql("CREATE FUNCTION ahead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                    " NEW.claim_began_at := NEW.claim_began_at + interval '1 hour'; RETURN NEW; END $$")  # fmt: skip
    await stack.sql("CREATE TRIGGER ahead BEFORE UPDATE OF claim_began_at ON inbox.message"
                    " FOR EACH ROW EXECUTE FUNCTION ahead()")  # fmt: skip
    row = await stack.closed(message["srvyDrawupNo"], 20)
    assert (row["status"], row["tries"]) == ("DEAD", 3)


@pytest.mark.parametrize(
    ("down", "code", "reason", "told"),
    [
        (False, "FORM_NOT_REGISTERED", "form P-UNKNOWN is not registered", "form P-UNKNOWN is not registered"),
        (True, "SYSTEM_ERROR", "HTTPStatusError 503", "ask us"),
    ],
)
async def test_a_limit_lowered_below_the_tries_spent_buries_with_the_last_trys_own_words(
    stack: Stack, down: bool, code: str, reason: str, told: str
) -> None:
    reporting = {"url": f"{stack.hospital.url}/reports", "system_error": "ask us"}
    stack.configure(tries=50, report=reporting)
    await stack.hospital.control(down=down)
    await stack.open()
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    async with stack.dispatching(), stack.working():
        await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda row: row["tries"] >= 2)
    await stack.hospital.control(down=False)
    stack.configure(tries=2, report=reporting)
    await stack.start()
    row = await stack.reported(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["last_reason"]) == ("DEAD", code, reason)
    (heard,) = (await stack.hospital.seen())["reports"]
    assert (heard["body"]["code"], heard["body"]["reason"]) == (code, told)
    assert {line["code"] for line in await stack.attempts(message["srvyDrawupNo"])} == {code}
