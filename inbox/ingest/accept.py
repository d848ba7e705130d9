"""Accept: the only writer of new rows. Every door calls it, and acknowledges only after it returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inbox.errors import ContentConflict, Malformed, UnknownSource, UnknownType
from inbox.handler import Handler
from inbox.ingest.direct import Direct
from inbox.message import LIMITS, MAX_SEQUENCE, Key, check_text, workflow_id
from inbox.order import make_place
from inbox.settings import Settings
from inbox.sources import SourceSettings
from inbox.store.editions import LOCK_DEAD_SUBJECT, LOCK_KEY, LOCK_NEWEST, REDELIVER
from inbox.store.engine import Database
from inbox.store.statements import ACCEPT, Accepted

_propagator = TraceContextTextMapPropagator()
HIGHEST_EDITION = 999_999_999


@dataclass(frozen=True)
class Incoming:
    """A message as a door read it; ``body`` is what was received, byte for byte, ``sha256`` names its content."""

    tenant: str
    source: str
    id: str
    type: str
    subject: str | None
    sequence: int | None
    content_type: str
    body: bytes
    sha256: bytes


class Acceptor:
    """Stores messages. ``nudge`` wakes the dispatcher of this process once a row is committed.

    ``handlers`` register those of sources in direct mode, before they are answered.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        nudge: Callable[[], None],
        handlers: Mapping[str, Handler[Any, Any]] = MappingProxyType({}),
    ) -> None:
        self._database = database
        self._settings = settings
        self._nudge = nudge
        self._direct = Direct(database, settings, handlers)

    async def accept(self, incoming: Incoming) -> Accepted:
        """Store ``incoming``, or find the row that an earlier delivery stored: one round trip, committed.

        A source may wish to send a message again (``redelivery = "resend"``): of an ID that was used, further round
        trips then say whether this is a duplicate, a redrive or a new edition.

        Of a source in direct mode it is registered too, where nothing stands in its way.

        Raises Malformed, UnknownSource, UnknownType, ContentConflict, NotRegistered (nothing is stored), and
        StoreUnavailable (the row may or may not be stored: the sender delivers again).
        """
        source = self._check(incoming)
        row = self._row(incoming, source)
        if source.mode == "direct":
            registered = await self._direct.register(row, source)
            if registered is not None:
                self._nudge()  # for a notice that is owed now, or what waited behind a gap
                return registered
        found = await self._database.one(ACCEPT, row)
        if found is None and source.resends:
            locks = [LOCK_KEY, LOCK_DEAD_SUBJECT, LOCK_NEWEST] if source.ordered else [LOCK_KEY, LOCK_NEWEST]
            if source.ordered and row["subject"] is not None:
                await make_place(self._database, row)  # a wish's
            found = await self._database.locked(REDELIVER, row, before=locks)
        if found is None:
            raise ContentConflict("id", "was used before, for other content")
        if found.created:
            self._nudge()
        return found

    def _check(self, incoming: Incoming) -> SourceSettings:
        for field in LIMITS:
            value = getattr(incoming, field)
            if value or field not in ("tenant", "subject"):
                check_text(field, value)
        source = self._settings.source(incoming.source)
        if source is None:
            raise UnknownSource("source", "is not configured")
        if incoming.type not in source.types:
            raise UnknownType("type", "is not listed for its source")
        if source.order == "sequence":
            if incoming.subject is None:
                raise Malformed("subject", "is required where order is by sequence")
            if incoming.sequence is None or not 0 <= incoming.sequence <= MAX_SEQUENCE:
                raise Malformed("sequence", "must be an integer from 0 to 2^63-1 where order is by sequence")
        return source

    def _row(self, incoming: Incoming, source: SourceSettings) -> dict[str, Any]:
        key = Key(incoming.tenant, incoming.source, incoming.id)
        return {
            "tenant": incoming.tenant,
            "source": incoming.source,
            "message_id": incoming.id,
            "type": incoming.type,
            "subject": incoming.subject or None,
            "sequence": incoming.sequence,
            "ordered": source.ordered,
            # Where a new subject starts: just before its first row's number.
            "position": None if source.order != "sequence" else (incoming.sequence or 0) - 1,
            "sha256": incoming.sha256,
            "max_tries": source.tries,
            "workflow_id": self._workflow_id(key, source),
            "traceparent": _traceparent(),
            "content_type": incoming.content_type,
            "body": incoming.body,
            "resend": source.resends,
        } | (self._resend(key, source) if source.resends else {})

    def _resend(self, key: Key, source: SourceSettings) -> dict[str, Any]:
        """Return what REDELIVER is given besides; which edition it will be, only the statement knows."""
        highest = self._workflow_id(replace(key, edition=HIGHEST_EDITION), source)
        return {"resend_after": source.resend_after, "edition_id": highest.removesuffix(str(HIGHEST_EDITION))}

    def _workflow_id(self, key: Key, source: SourceSettings) -> str:
        secret = self._settings.id_key
        return workflow_id(
            self._settings.name,
            key,
            private=source.private_ids,
            secret=secret.get_secret_value().encode() if secret else b"",
        )


def _traceparent() -> str | None:
    """Return the W3C trace context of the current span; it lies in the row until the message's last report."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent") if trace.get_current_span().get_span_context().is_valid else None
