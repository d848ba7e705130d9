"""What leaves the process: by OTLP where an endpoint is set, and to Prometheus where it may ask."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import httpx
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

from tests.support.processes import ROOT, environment, free_port, process
from tests.support.stack import TOKENS, Stack, survey
from tests.support.waiting import eventually

RECEIVED = 'inbox_received_total{otel_scope_name="temporal-inbox",source="hospital"} 1.0'


async def _text(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(url)).text
        except httpx.TransportError:
            return ""


async def _deliver(ingest: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['hospital']}"}
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(f"{ingest}/legacy/survey-send", json=survey(), headers=headers)).status_code == 200
        assert (await http.post(f"{ingest}/messages", headers={"Content-Type": "PLANTED"})).status_code == 401


async def test_prometheus_reads_what_ingest_counted(stack: Stack, tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    settings = environment(stack, tmp_path, INBOX_METRICS_LISTEN=listen)
    ingest = f"http://{settings['INBOX_LISTEN']}"
    async with process(settings, "serve"):
        await eventually(lambda: _text(f"{ingest}/readyz"), lambda text: "ready" in text)
        await _deliver(ingest)
        shown = await _text(f"http://{listen}/metrics")
    lines = [
        line.replace('otel_scope_schema_url="",', "").replace('otel_scope_version="",', "")
        for line in shown.splitlines()
    ]
    assert RECEIVED in lines
    assert any(line.startswith("inbox_rejected_total{") and 'reason="unauthorized"' in line for line in lines)
    assert any(line.startswith("inbox_intake_duration_seconds_bucket{") for line in lines)
    assert "PLANTED" not in shown


async def test_metrics_go_out_by_otlp(stack: Stack, tmp_path: Path) -> None:
    port = free_port()
    tap = await OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(http_port=port)).start()
    seen: set[str] = set()

    async def collect() -> None:
        async for metric in tap.stream_metrics():
            seen.add(metric.name)

    collecting = asyncio.create_task(collect())
    settings = environment(
        stack,
        tmp_path,
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"http://127.0.0.1:{port}/v1/metrics",
        OTEL_METRIC_EXPORT_INTERVAL="100",
    )
    ingest = f"http://{settings['INBOX_LISTEN']}"
    try:
        async with process(settings, "serve"):
            await eventually(lambda: _text(f"{ingest}/readyz"), lambda text: "ready" in text)
            await _deliver(ingest)

            async def names() -> set[str]:
                return seen

            await eventually(names, {"inbox.received", "inbox.rejected", "inbox.intake.duration"}.issubset)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        await tap.stop()


async def test_an_address_that_is_taken_is_one_clear_line(stack: Stack, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        settings = environment(stack, tmp_path, INBOX_METRICS_LISTEN=taken)
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "inbox", "serve", env=settings, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(running.communicate(), 30)
    assert running.returncode == 1
    assert (
        said.decode().splitlines()[-1]
        == f"inbox: INBOX_METRICS_LISTEN: cannot listen on {taken}: Address already in use"
    )
