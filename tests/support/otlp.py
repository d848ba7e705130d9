"""An OTLP receiver in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

from tests.support.processes import free_port


class Spans:
    """What an OTLP receiver got."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def of(self, trace_id: str) -> list[Any]:
        return [span for span in self.all if hexadecimal(span.trace_id) == trace_id]

    def names(self, trace_id: str) -> set[str]:
        return {span.name for span in self.of(trace_id)}

    def named(self, trace_id: str, name: str) -> list[Any]:
        return [span for span in self.of(trace_id) if span.name == name]


def hexadecimal(value: bytes | str) -> str:
    return value.hex() if isinstance(value, bytes) else value


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[str, Spans]]:
    """Run an OTLP receiver; yield its URL and the spans as they come."""
    port = free_port()
    tap = await OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(http_port=port)).start()
    spans = Spans()

    async def collect() -> None:
        async for span in tap.stream_traces():
            spans.all.append(span)

    task = asyncio.create_task(collect())
    try:
        yield f"http://127.0.0.1:{port}", spans
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await tap.stop()
