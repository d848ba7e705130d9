"""One trace per message, from the request to the report, through two processes and the row between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.otlp import Spans, attributes, hexadecimal, receiver
from tests.support.processes import answering, environment, process
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@asynccontextmanager
async def running(stack: Stack, folder: Path, **more: str) -> AsyncIterator[tuple[httpx.AsyncClient, Spans]]:
    """Run ingest and worker as processes that export what they see."""
    async with receiver() as (url, spans):
        settings = environment(stack, folder, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_SCHEDULE_DELAY="100", **more)
        address = f"http://{settings['INBOX_LISTEN']}"
        async with (
            process(settings, "serve"),
            process(settings, "worker"),
            httpx.AsyncClient(base_url=address, trust_env=False) as http,
        ):
            await answering(http)
            yield http, spans


async def send(http: httpx.AsyncClient, message: dict[str, Any], flags: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['hospital']}", "traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
    (await http.post("/legacy/survey-send", json=message, headers=headers)).raise_for_status()


async def test_a_dead_message_and_its_report_are_one_trace(stack: Stack, tmp_path: Path) -> None:
    stack.configure(tries=2)
    message = survey(formCd="P-UNKNOWN")
    async with running(stack, tmp_path) as (http, spans):
        await send(http, message, "01")
        row = await stack.reported(message["srvyDrawupNo"])
        expected = {
            "POST /legacy/survey-send",
            "sql accept",
            "StartWorkflow:ProcessMessage",
            "RunWorkflow:ProcessMessage",
            "StartActivity:register",
            "RunActivity:register",
            "sql claim",
            "prepare",
            "look up form",
            "sql fail",
            "StartWorkflow:SendReport",
            "RunActivity:send_report",
            "sql begin report",
            "POST report",
            "sql close report",
        }
        await eventually(_never_less(spans, expected), lambda missing: missing == set())
        assert row["traceparent"].split("-")[1] == TRACE
        assert len(spans.named(TRACE, "RunActivity:register")) == 2  # one an attempt
        ids = {hexadecimal(span.span_id) for span in spans.of(TRACE)} | {PARENT}
        assert {hexadecimal(span.parent_span_id) for span in spans.of(TRACE)} <= ids
        lines = await stack.attempts(message["srvyDrawupNo"])
        assert {line["trace_id"] for line in lines} == {TRACE}


def _never_less(spans: Spans, expected: set[str]) -> Any:
    async def missing() -> set[str]:
        return expected - spans.names(TRACE)

    return missing


async def test_look_ups_say_whether_the_cache_had_them(stack: Stack, tmp_path: Path) -> None:
    first, second = survey(), survey()
    async with running(stack, tmp_path) as (http, spans):
        for message in (first, second):
            await send(http, message, "01")
            await stack.closed(message["srvyDrawupNo"])
        await eventually(_count(spans, "bundle"), lambda count: count == 2)
        for name in ("look up form", "look up consents"):
            hits = [attributes(span)["cache.hit"] for span in spans.named(TRACE, name)]
            assert sorted(hits) == [False, True]
        assert spans.names(TRACE) >= {"sql take fence", "sql complete"}


def _count(spans: Spans, name: str) -> Any:
    async def count() -> int:
        return len(spans.named(TRACE, name))

    return count


async def test_an_events_own_trace_goes_before_the_requests(stack: Stack, tmp_path: Path) -> None:
    message = survey()
    cloudevent = event(message, id=message["srvyDrawupNo"], traceparent=f"00-{TRACE}-{PARENT}-01")
    async with running(stack, tmp_path) as (http, spans):
        headers = {
            "Authorization": f"Bearer {TOKENS['hospital']}",
            "Content-Type": "application/cloudevents+json",
        }
        (await http.post("/messages", json=cloudevent, headers=headers)).raise_for_status()
        await stack.closed(message["srvyDrawupNo"])
        await eventually(_count(spans, "bundle"), lambda count: count == 1)
        (accept,) = spans.named(TRACE, "accept")
        (request,) = [span for span in spans.all if span.name == "POST /messages"]
        assert [link.span_id for link in accept.links] == [request.span_id]


async def test_a_trace_that_its_producer_does_not_sample_is_not_exported(stack: Stack, tmp_path: Path) -> None:
    silent, told = survey(), survey()
    async with running(stack, tmp_path) as (http, spans):
        await send(http, silent, "00")
        row = await stack.closed(silent["srvyDrawupNo"])
        assert row["traceparent"].split("-")[1] == TRACE
        headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
        await http.post("/legacy/survey-send", json=told, headers=headers)
        trace_id = (await stack.closed(told["srvyDrawupNo"]))["traceparent"].split("-")[1]

        async def later() -> set[str]:
            return spans.names(trace_id)

        # Exported in order: once the later message's end is there, the earlier's would be too.
        await eventually(later, lambda names: "bundle" in names)
        assert spans.of(TRACE) == []


async def test_a_round_that_belongs_to_no_message_leaves_no_trace(stack: Stack, tmp_path: Path) -> None:
    message = survey()
    async with running(stack, tmp_path) as (http, spans):
        await send(http, message, "01")
        await stack.closed(message["srvyDrawupNo"])
        await eventually(_count(spans, "bundle"), lambda count: count == 1)
        others = {span.name for span in spans.all if hexadecimal(span.trace_id) != TRACE}
        assert not any("find due" in name or "lease" in name for name in others), others
