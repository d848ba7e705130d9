"""What the TOML file named by ``INBOX_CONFIG`` declares: sources, doors, dispatch, time-outs, handlers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, HttpUrl, PrivateAttr, SecretStr, ValidationError, model_validator

from inbox.configfile import ConfigFile, Misplaced, Place, dotted, first_fault
from inbox.errors import Malformed, SettingsError
from inbox.message import LIMITS, RESEND, check_text
from inbox.states import OwnCode
from inbox.timeouts import LONGEST, Seconds, Strict, Timeouts

GIVE_UP_AFTER = 7 * 24 * 3600.0  # seconds
SYSTEM_ERROR = "system error"


def _token(text: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", text):
        raise ValueError('must be "sha256:" and the token\'s hash in hexadecimal: printf %s "$TOKEN" | sha256sum')
    return text


TokenHash = Annotated[str, AfterValidator(_token)]


QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("not a time zone of the IANA database") from error
    return name


class ReportSettings(Strict):
    """Where a source's notices go: ``url`` takes a POST; success is any 2xx unless ``success`` lists statuses."""

    url: HttpUrl
    token: SecretStr | None = None
    success: tuple[int, ...] = ()
    give_up_after: Seconds = GIVE_UP_AFTER
    system_error: str = Field(default=SYSTEM_ERROR, description="told instead of a reason that is not ours")


class CodeSettings(Strict):
    """What a source says of one code, over what its handler says: a hint for operators, whether a further try helps."""

    hint: str | None = Field(default=None, min_length=1, max_length=300)
    retry: bool | None = None


class SourceSettings(Strict):
    """One producer. Times are in seconds; ``tokens`` are hashes, as ``token_hash`` makes them.

    After its n-th failed try a message waits ``retry_interval`` times ``retry_growth`` to the power of n - 1, and
    no longer than ``retry_cap``. ``task_queue`` is the inbox's own unless given.

    ``auth`` is ``none`` for an old sender that cannot be given a token: whoever reaches the door may then write as this
    source (spec section 12). Its record is read with a token all the same.
    """

    types: tuple[str, ...]
    tokens: tuple[TokenHash, ...] = ()
    auth: Literal["token", "none"] = "token"
    mode: Literal["accept", "direct"] = "accept"
    order: Literal["arrival", "sequence", "none"] = "arrival"
    tries: int = Field(default=5, ge=1, le=1000)
    retry_interval: Seconds = 60
    retry_growth: float = Field(default=1, ge=1, le=100, allow_inf_nan=False)
    retry_cap: Seconds | None = None
    codes: Mapping[str, CodeSettings] = Field(default_factory=dict)
    task_queue: QueueName | None = None
    gap_timeout: Seconds = 3600
    on_dead: Literal["release", "park"] = "release"
    redelivery: Literal["ignore", "resend"] = "ignore"
    resend_after: Seconds = 600
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    private_ids: bool = False
    report: ReportSettings | None = None

    @model_validator(mode="after")
    def _resends_have_a_type(self) -> SourceSettings:
        long = next((name for name in self.types if len(name.encode()) > LIMITS["type"] - len(RESEND)), None)
        if long and self.resends:
            raise Misplaced(["types"], f"redelivery = resend needs room for {RESEND!r} behind the type {long!r}")
        return self

    @model_validator(mode="after")
    def _retries_fit(self) -> SourceSettings:
        if self.retry_cap is not None and self.retry_cap < self.retry_interval:
            raise Misplaced(["retry_cap"], "must not be smaller than retry_interval")
        for code, rule in self.codes.items():
            if rule.hint is None and rule.retry is None:
                raise Misplaced(["codes", code], "gives neither a hint nor retry")
            if rule.retry is not None and code in set(OwnCode):
                raise Misplaced(["codes", code, "retry"], "the code is the inbox's own: it takes a hint alone")
        return self

    def retry_after(self, tries: int) -> float:
        """Return the seconds from the failed try of this number, from 1 in each generation, to the next."""
        limit = LONGEST if self.retry_cap is None else self.retry_cap
        try:
            return min(limit, self.retry_interval * self.retry_growth ** (tries - 1))
        except OverflowError:
            return limit

    @property
    def kinds(self) -> tuple[str, ...]:
        """What types its messages can have: those listed, and theirs that are sent again."""
        return (*self.types, *(name + RESEND for name in self.types if self.resends))

    @property
    def resends(self) -> bool:
        """Whether a redelivery can be a wish to send the message again."""
        return self.redelivery == "resend"

    @property
    def ordered(self) -> bool:
        """Whether messages of one subject go one at a time, in turn."""
        return self.order != "none"

    @property
    def parks(self) -> bool:
        """Whether a DEAD message holds those behind it until an operator lets it go."""
        return self.ordered and self.on_dead == "park"


class LegacySettings(Strict):
    """The old hospital contract's door: path and header names are the old sender's (spec section 5)."""

    source: str = "hospital"
    type: str = "survey.send"
    path: str = "/legacy/survey-send"
    result_header: str = "X-Result"
    message_header: str = "X-Result-Message"


class DispatchSettings(Strict):
    """How rows become workflows (spec section 6). Times in seconds.

    ``share``: rows a source a round; ``cap``: started rows of a source that no try has claimed yet;
    ``concurrency``: starts under way at once; ``again``: after how long a started row falls due again.
    """

    tick: Seconds = 1
    share: int = Field(default=50, ge=1)
    cap: int = Field(default=200, ge=1)
    concurrency: int = Field(default=20, ge=1)
    again: Seconds = 15 * 60


class Sources(Strict):
    """What the TOML file holds."""

    sources: Mapping[str, SourceSettings] = Field(default_factory=dict)
    legacy: LegacySettings | None = None
    dispatch: DispatchSettings = DispatchSettings()
    timeouts: Timeouts = Timeouts()
    handlers: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    _file: ConfigFile | None = PrivateAttr(default=None)

    @classmethod
    def read(cls, file: ConfigFile) -> Sources:
        """Return what ``file`` holds. Raises SettingsError, naming its line, and ValueError where it is not TOML."""
        try:
            found = cls.model_validate(file.content)
        except ValidationError as error:
            raise file.refusal(*first_fault(error)) from None
        found._file = file  # noqa: SLF001  its own
        return found

    def refusal(self, place: Place, what: str) -> SettingsError:
        """Return the error that says what is wrong with the setting at ``place``, and where that stands."""
        return self._file.refusal(place, what) if self._file else SettingsError(f"{dotted(place)}: {what}")

    def moves_states(self) -> Place | None:
        """Return the first setting for which ingest itself moves messages from state to state, or None."""
        for name, source in self.sources.items():
            if source.mode == "direct":
                return ["sources", name, "mode"]
            if source.resends:
                return ["sources", name, "redelivery"]
        return None

    @property
    def direct(self) -> bool:
        """Whether a source's messages are registered by ingest itself."""
        return any(source.mode == "direct" for source in self.sources.values())

    @model_validator(mode="after")
    def _names_fit(self) -> Sources:
        for name in self.sources:
            try:
                check_text("source", name)
            except Malformed as error:
                raise Misplaced(["sources", name], f"a source's name {error.detail}") from error
        return self

    @model_validator(mode="after")
    def _legacy_source_takes_it(self) -> Sources:
        legacy = self.legacy
        if legacy and legacy.source not in self.sources:
            raise Misplaced(["legacy", "source"], f"names {legacy.source!r}, which is not among the sources")
        if legacy and legacy.type not in self.sources[legacy.source].types:
            raise Misplaced(["legacy", "type"], f"{legacy.type!r} is not among the types of sources.{legacy.source}")
        return self


def token_hash(token: str) -> str:
    """Return a bearer token as the settings keep it.

    Tokens are random and long, so that a plain SHA-256 is enough; nobody can go back from it.
    """
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()
