"""http_bundle: for data that another service owns; its atomic endpoint does the bundle (spec section 10).

The call is made in ``prepare``, at least once, and applied once because the service keeps the idempotency key. The
inbox writes nothing of its own but the row's COMPLETED and what the service answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue, RootModel
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.http_bundle.client import HttpBundleSettings, Service
from inbox.handler import Message, Outcome

# How much longer than its call a try may take: the bundle's own transaction, and the records of its end.
AROUND = 20.0  # seconds


class AnyJson(RootModel[JsonValue]):
    """The payload is the service's business: whatever is JSON."""


class HttpBundle:
    """POSTs each message of one type to one endpoint; a table of the settings for each type."""

    payload = AnyJson
    settings = HttpBundleSettings

    def __init__(self, settings: HttpBundleSettings) -> None:
        self.type = settings.type
        self.timeout = settings.timeout + AROUND
        self._service = Service(settings)

    async def aclose(self) -> None:
        """Close the connections to the service."""
        await self._service.aclose()

    async def prepare(self, message: Message[AnyJson]) -> Mapping[str, Any]:
        """Let the service apply the message, and return what the outcome keeps of its answer.

        Raises BusinessError where it refuses with a problem document (RFC 9457); anything else is a system error.
        """
        return await self._service.apply(message.key, message.payload.root)

    async def register(self, _: AsyncConnection, __: Message[AnyJson], prepared: Mapping[str, Any]) -> Outcome:
        """Write nothing: the bundle is the service's."""
        return Outcome(prepared)
