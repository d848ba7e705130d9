"""Every error that the inbox raises on purpose.

InboxError
├── Refused             a message that intake does not store
│   ├── Unreadable          not JSON, or JSON that RFC 8259 leaves undefined
│   ├── Malformed           a field is missing, empty, too long or of the wrong type
│   ├── UnknownSource       its source is not configured, or not the caller's
│   ├── UnknownType         its type is not listed for its source
│   └── ContentConflict     its ID was used for other content
├── BusinessError       a handler's own refusal: code and reason are told upstream
├── SettingsError       a setting that cannot work
├── MigrationRefused    the database cannot be migrated by this user
├── Unfit               a server that answers, and cannot be worked with as it is
│   ├── StoreRefuses        Postgres refuses the connection
│   ├── SchemaUnfit         the schema is not the one that this code needs
│   ├── RightsMissing       the database user may not do what a setting asks of this process
│   └── TemporalUnfit       a search attribute is missing, or of another type
├── StoreUnavailable    Postgres gave no answer
├── TransactionEnded    a handler ended the transaction that is not its own to end
├── StaleTry            the try was overtaken: its row has moved on
├── InvalidPayload      the payload does not fit the handler's model
├── PayloadGone         the payload was purged
├── NotRegistered       in direct mode: the handler did not register the message
└── NotServed           no handler or no settings here for a message (costs it no try)

Errors carry fields, not sentences; the text is made where it is shown.
"""

import traceback
from dataclasses import dataclass


class InboxError(Exception):
    """Base of all."""


@dataclass
class Refused(InboxError):
    """Intake does not store the message.

    ``field`` names the field at fault (empty: the message as a whole), ``detail`` says what is wrong with it
    and never repeats its value.
    """

    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}" if self.field else self.detail


class Unreadable(Refused):
    """The body is not what its media type says."""


class Malformed(Refused):
    """A field is missing, empty, too long or of the wrong type."""


class UnknownSource(Refused):
    """The source is not configured, or belongs to somebody else."""


class UnknownType(Refused):
    """The type is not listed for its source."""


class ContentConflict(Refused):
    """The ID was used before, for other content."""


class BusinessError(InboxError):
    """A handler refuses the message for a reason that upstream should hear word for word.

    ``code`` is a short constant (letters, digits, underscore) that operators filter by; ``reason`` is text in
    any script. Retried like any other failure, unless the handler lists the code in ``non_retryable``
    (spec section 8).
    """

    def __init__(self, code: str, reason: str) -> None:
        if not isinstance(code, str) or not code or not isinstance(reason, str):
            raise TypeError("a BusinessError has a code and a reason")
        super().__init__(code)
        self.code = code
        self.reason = reason


class SettingsError(InboxError):
    """A setting cannot work; the text is one clear line."""


class MigrationRefused(InboxError):
    """The database cannot be migrated by this user; the text is one clear line that says what to do."""


class Unfit(InboxError):
    """A server answers, and cannot be worked with as it is; the text is one clear line that says what to do."""


class StoreRefuses(Unfit):
    """Postgres refuses the connection."""


class SchemaUnfit(Unfit):
    """The schema is not the one that this code needs, or hidden from it."""


class RightsMissing(Unfit):
    """The database user may not do what a setting asks of this process."""


class TemporalUnfit(Unfit):
    """A search attribute is missing, or of another type."""


class StoreUnavailable(InboxError):
    """Postgres gave no answer; whether the statement took effect is unknown.

    ``error_class`` and ``status`` (SQLSTATE) are those of the error that said so.
    """

    def __init__(self, error_class: str = "", status: str = "") -> None:
        super().__init__(error_class)
        self.error_class = error_class
        self.status = status


class TransactionEnded(InboxError):
    """A handler committed or rolled back; its bundle and the row's COMPLETED could no longer be one transaction."""


class StaleTry(InboxError):
    """The row is no longer held by this try: nothing that it does may be kept (spec section 3, fence)."""


class InvalidPayload(InboxError):
    """The payload does not fit the handler's model; no further try can help."""


class PayloadGone(InboxError):
    """The payload was purged; no further try can help."""


class NotRegistered(InboxError):
    """In direct mode the handler did not register the message, and nothing of it is stored.

    ``reason`` may be told; ``final`` where it is the message's fault and not that of a service.
    """

    def __init__(self, code: str, reason: str, *, final: bool) -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason
        self.final = final


class NotServed(InboxError):
    """No handler or no settings here for the message; found before a try is spent."""


@dataclass(frozen=True)
class Fault:
    """What may be said of an error that is not ours: its class, and SQLSTATE or HTTP status.

    Never its message: those of Postgres hold keys, those of httpx URLs, those of pydantic the input
    (spec section 8).
    """

    error_class: str
    status: str

    def __str__(self) -> str:
        return f"{self.error_class} {self.status}".rstrip()


def place_of(error: BaseException, package: str) -> str:
    """Return file and line of the innermost frame in ``package`` that an error passed; of any, where there is none.

    For its author, who is told no text: a place holds nothing that a message holds.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [frame for frame in frames if frame[0].f_globals.get("__name__", "").partition(".")[0] == package]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}, line {line}"


def fault_of(error: BaseException) -> Fault:
    """Describe ``error`` without its message, by the status of whichever library raised it."""
    if isinstance(error, StoreUnavailable) and error.error_class:
        return Fault(error.error_class, error.status)
    original = getattr(error, "orig", None) or error  # SQLAlchemy keeps the driver's error in .orig
    sqlstate = getattr(original, "sqlstate", None)
    http_status = getattr(getattr(error, "response", None), "status_code", None)
    status = sqlstate or http_status or ""
    return Fault(type(original).__name__, str(status))
