"""How long things may take, each shorter than the next (spec section 7)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inbox.configfile import Misplaced

LONGEST = 10 * 365 * 24 * 3600.0
Seconds = Annotated[float, Field(ge=0.01, le=LONGEST, allow_inf_nan=False)]


class Strict(BaseModel):
    """Settings that refuse a name they do not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Timeouts(Strict):
    """Seconds; each must be shorter than the next (spec section 7)."""

    lock: Seconds = 3
    heartbeat: Seconds = 5
    statement: Seconds = 10
    transaction: Seconds = 20
    start_to_close: Seconds = 30
    graceful_shutdown: Seconds = 40
    connect: Seconds = 3
    rpc: Seconds = 5
    lease: Seconds = 10
    request: Seconds = 20

    @model_validator(mode="after")
    def _in_order(self) -> Timeouts:
        chain = ("lock", "heartbeat", "statement", "transaction", "start_to_close", "graceful_shutdown")
        for shorter, longer in [*pairwise(chain), ("rpc", "lease")]:
            if getattr(self, shorter) >= getattr(self, longer):
                place = shorter if shorter in self.model_fields_set else longer
                raise Misplaced([place], f"{shorter} must be shorter than {longer}")
        return self

    def stretched(self, timeout: float) -> Timeouts:
        """Return them for tries of ``timeout`` seconds, where that is longer: whatever a try's end rests on moves.

        The transaction keeps its distance from the try's end, and a draining worker its own behind it.
        """
        more = timeout - self.start_to_close
        if more <= 0:
            return self
        moved = ("transaction", "start_to_close", "graceful_shutdown")
        return self.model_copy(update={name: getattr(self, name) + more for name in moved})
