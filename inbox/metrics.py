"""What intake counts (spec section 13). Each delivery is one of received, duplicate, conflict and rejected.

``source`` is told where it is known and configured, and never as the sender wrote it: a series for each value that
somebody makes up would have no bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import metrics

from inbox.errors import ContentConflict

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # seconds


@dataclass
class Delivery:
    """One message at a door: its ``source`` once that is known, ``created`` once it is stored or found."""

    source: str | None = None
    created: bool | None = None


class IntakeMetrics:
    """The instruments of the doors, of ``meter`` or else of the process's provider."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter("temporal-inbox")
        self._received = meter.create_counter("inbox.received", description="messages stored")
        self._duplicates = meter.create_counter("inbox.duplicates", description="deliveries of a stored message")
        self._conflicts = meter.create_counter("inbox.conflicts", description="an ID used again for other content")
        self._rejected = meter.create_counter("inbox.rejected", description="not stored, by kind of problem")
        self._duration = meter.create_histogram(
            "inbox.intake.duration",
            "s",
            "from the request's head to the answer, whatever it is",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    @contextmanager
    def delivery(self, kind: Callable[[Exception], str]) -> Iterator[Delivery]:
        """Measure and count one delivery; ``kind`` names the problem that an error is answered with."""
        began = time.perf_counter()
        seen = Delivery()
        reason = None
        counter = self._rejected
        try:
            yield seen
            counter = self._received if seen.created else self._duplicates
        except ContentConflict:
            counter = self._conflicts
            raise
        except Exception as error:
            reason = kind(error)
            raise
        finally:
            attributes = {"source": seen.source} if seen.source else {}
            self._duration.record(time.perf_counter() - began, attributes)
            counter.add(1, attributes | ({"reason": reason} if reason else {}))
