"""How a failed try is judged: what stands in the row, what upstream hears, and whether a further try can help."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inbox.errors import BusinessError, InvalidPayload, PayloadGone, fault_of
from inbox.handler import Handler, codes_of, non_retryable_of
from inbox.sources import CodeSettings
from inbox.states import OwnCode

LONGEST = 2000  # characters
LONGEST_CODE = 255  # bytes
NO_RULES: Mapping[str, CodeSettings] = {}
# What an operator can do about the inbox's own codes; a handler's hints stand beside them.
HINTS: Mapping[str, str] = {
    OwnCode.SYSTEM_ERROR: "see the failed tries for error class and status, and mend that service",
    OwnCode.TRY_LOST: "its worker died or hung in every try: read the workers' logs before a redrive",
    OwnCode.INVALID_PAYLOAD: "the payload does not fit the handler's model: the producer must send a right one",
    OwnCode.PAYLOAD_GONE: "its payload is past retention: the producer must send it again",
    OwnCode.SEQUENCE_GAP: "the number before it did not come in time; let it be sent, then redrive, or release it",
    OwnCode.CANCELLED: "an operator cancelled its execution; a redrive sends it through again",
    OwnCode.TERMINATED: "an operator terminated its execution; a redrive sends it through again",
    OwnCode.DISCARDED: "an operator discarded it; a redrive sends it through again",
}


@dataclass(frozen=True)
class Verdict:
    """One failed try: ``reason`` is kept in the row, ``told`` goes upstream should it be the last one."""

    code: str
    reason: str
    told: str
    error_class: str | None = None
    non_retryable: bool = False


class HandlerExit(Exception):
    """What a handler raised is no Exception; ``orig`` is what it was."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__()
        self.orig = orig


@contextmanager
def kept_in() -> Iterator[None]:
    """Have whatever a handler raises fail its try, and end nothing else. Raises HandlerExit for what is no Exception.

    A cancellation is passed on where somebody did cancel.
    """
    try:
        yield
    except (Exception, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise HandlerExit(error).with_traceback(error.__traceback__) from None


def storable(text: str) -> str:
    """Return another's text as Postgres can keep it: without NUL and lone surrogates, and of bounded length."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()[:LONGEST]


def _constant(code: str) -> str:
    """Return a handler's code, of bounded length: a search attribute takes no more, and fails its workflow for ever."""
    return storable(code).encode()[:LONGEST_CODE].decode(errors="ignore")


def judge(
    error: Exception, handler: Handler[Any, Any], phrase: str, rules: Mapping[str, CodeSettings] = NO_RULES
) -> Verdict:
    """Judge the error that ended a try; a message of an error that is not ours is neither kept nor told.

    ``phrase`` is what upstream hears instead (spec section 8); ``rules`` are the source's, over the handler's own.
    """
    match error:
        case BusinessError():
            rule = rules.get(error.code)
            retry = rule.retry if rule else None
            final = error.code in non_retryable_of(handler) if retry is None else not retry
            reason = storable(error.reason)
            return Verdict(_constant(error.code), reason, reason, non_retryable=final)
        case PayloadGone():
            return Verdict(OwnCode.PAYLOAD_GONE, "the payload is past retention", phrase, non_retryable=True)
        case InvalidPayload():
            reason = "the payload does not fit the handler's model"
            return Verdict(OwnCode.INVALID_PAYLOAD, reason, phrase, non_retryable=True)
        case _:
            fault = fault_of(error)
            return Verdict(OwnCode.SYSTEM_ERROR, str(fault), phrase, fault.error_class)


def hint_for(
    code: str | None, handlers: Iterable[Handler[Any, Any]], rules: Mapping[str, CodeSettings] = NO_RULES
) -> str | None:
    """Return the static hint of a code: the source's (``rules``), a handler's, or the inbox's own."""
    if code is None:
        return None
    if code in rules and rules[code].hint:
        return rules[code].hint
    for handler in handlers:
        if code in codes_of(handler):
            return codes_of(handler)[code]
    return HINTS.get(code)
