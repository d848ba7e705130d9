"""Settings: the environment (``INBOX_*``), and one TOML file named by ``INBOX_CONFIG`` for sources.

Temporal's connection is not here: its own standard environment and profiles say it (temporalio.envconfig).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    Field,
    HttpUrl,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from inbox.configfile import ConfigFile, Misplaced, Place, dotted
from inbox.errors import Malformed, SettingsError
from inbox.message import LIMITS, RESEND, check_text
from inbox.states import OwnCode
from inbox.timeouts import LONGEST, Seconds, Strict, Timeouts

GIVE_UP_AFTER = 7 * 24 * 3600.0  # seconds
SYSTEM_ERROR = "system error"
HIGHEST_PORT = 65535
# What the command reads that asks a running ingest (spec section 15), and no process of ours.
OF_THE_COMMAND = {"INBOX_URL", "INBOX_OPERATOR_TOKEN"}
# What Kubernetes puts into every pod for a Service whose name begins with "inbox".
OF_KUBERNETES = re.compile(r"INBOX_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")


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


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= HIGHEST_PORT):
        raise ValueError("must be host:port")
    return text


Address = Annotated[str, AfterValidator(_address)]


def _redis(url: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(url.get_secret_value())
        named = parts.scheme in {"redis", "rediss"} and parts.hostname and parts.port != 0
        fits = named and re.fullmatch("/?[0-9]*", parts.path)
    except ValueError:  # its text may repeat the password
        fits = None
    if not fits:
        raise ValueError("must be redis://user:password@host:port/database, or rediss:// for TLS") from None
    return url


RedisUrl = Annotated[SecretStr, AfterValidator(_redis)]


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


class Settings(BaseSettings):
    """What one process needs to know; read once, at start."""

    model_config = SettingsConfigDict(env_prefix="INBOX_", frozen=True, extra="ignore")

    database_url: SecretStr = Field(validation_alias="DATABASE_URL")
    name: str = Field(default="inbox", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    config: Path | None = None
    redis_url: RedisUrl | None = None
    listen: Address = "127.0.0.1:8080"
    metrics_listen: Address | None = None
    id_key: SecretStr | None = None
    operator_tokens: tuple[TokenHash, ...] = ()
    task_queues: tuple[QueueName, ...] = ()
    pool: int = Field(default=16, ge=4)
    activities: int = Field(default=10, ge=1)
    report_activities: int = Field(default=4, ge=1)
    max_body: int = Field(default=1024 * 1024, ge=1)
    declared: Sources = Field(default_factory=Sources, exclude=True)

    @model_validator(mode="after")
    def _pool_holds_the_activities(self) -> Settings:
        if self.pool < self.activities + self.report_activities + 2:
            raise ValueError("INBOX_POOL must be at least INBOX_ACTIVITIES + INBOX_REPORT_ACTIVITIES + 2")
        return self

    def system_phrase(self, source: str) -> str:
        """Return what upstream hears of ``source``'s messages instead of a reason that is not a handler's."""
        found = self.source(source)
        return found.report.system_error if found and found.report else SYSTEM_ERROR

    def task_queue(self, source: str) -> str:
        """Return the Temporal task queue of a source's messages: the inbox's name unless its settings say another."""
        found = self.source(source)
        return found.task_queue if found and found.task_queue else self.name

    @property
    def queues(self) -> dict[str, int]:
        """The task queues of messages that a worker serves, each with its share of ``activities``."""
        every = {self.name, *map(self.task_queue, self.declared.sources)}
        queues = sorted(set(self.task_queues) or every)
        share, rest = divmod(self.activities, len(queues))
        return {queue: share + (place < rest) for place, queue in enumerate(queues)}

    def codes(self, source: str) -> Mapping[str, CodeSettings]:
        """Return what a source's settings say of codes; empty where there is nothing."""
        found = self.source(source)
        return found.codes if found else {}

    @property
    def report_queue(self) -> str:
        """The task queue of reports: an upstream that hangs holds up no message."""
        return f"{self.name}-report"

    def source(self, name: str) -> SourceSettings | None:
        """Return a source's settings, or None."""
        return self.declared.sources.get(name)


def token_hash(token: str) -> str:
    """Return a bearer token as the settings keep it.

    Tokens are random and long, so that a plain SHA-256 is enough; nobody can go back from it.
    """
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def first_fault(error: ValidationError) -> tuple[Place, str]:
    """Return where the first fault is and what it is, without the value (it may be a secret)."""
    faults = error.errors(include_input=False, include_url=False)
    # A misspelt setting is both unknown and missing, and the first says more.
    fault = next((found for found in faults if found["type"] == "extra_forbidden"), faults[0])
    cause = fault.get("ctx", {}).get("error")
    place: Sequence[str | int] = [*fault["loc"], *(cause.place if isinstance(cause, Misplaced) else ())]
    unknown = fault["type"] == "extra_forbidden"
    return place, "unknown setting" if unknown else fault["msg"].removeprefix("Value error, ")


def _refuse_unknown(environment: Iterable[str]) -> None:
    """Raise SettingsError for an ``INBOX_*`` variable that is none of ours: a misspelt one would be without effect."""
    known = {f"INBOX_{name}".upper() for name in Settings.model_fields if name not in ("database_url", "declared")}
    for name in sorted(environment):
        given = name.upper()
        if given.startswith("INBOX_") and given not in known | OF_THE_COMMAND and not OF_KUBERNETES.fullmatch(given):
            raise SettingsError(f"{name}: unknown setting")


def _refuse_together(settings: Settings) -> None:
    """Raise SettingsError for what in file and environment does not go together."""
    for name, source in settings.declared.sources.items():
        if source.private_ids and settings.id_key is None:
            what = "needs INBOX_ID_KEY, the key of the hash"
            raise settings.declared.refusal(["sources", name, "private_ids"], what)
        if source.task_queue == settings.report_queue:
            raise settings.declared.refusal(["sources", name, "task_queue"], "is the task queue of reports")
    if settings.report_queue in settings.task_queues:
        raise SettingsError(
            f"INBOX_TASK_QUEUES: {settings.report_queue} is the queue of reports: every worker serves it"
        )
    if 0 in settings.queues.values():
        raise SettingsError(f"INBOX_ACTIVITIES must be at least 1 for each of {len(settings.queues)} task queues")


def load_settings() -> Settings:
    """Read environment and TOML file. Raises SettingsError, with one line that names the setting."""
    _refuse_unknown(os.environ)
    try:
        settings = Settings()
    except ValidationError as error:
        place, what = first_fault(error)
        raise SettingsError(f"{dotted(place)}: {what}" if place else what) from None
    except UnreadableSettings as error:  # names the field, and not its value
        raise SettingsError(str(error)) from None
    if settings.config is not None:
        try:
            declared = Sources.read(ConfigFile.read(settings.config))
        except (OSError, ValueError) as error:  # not there, not UTF-8, or not TOML
            raise SettingsError(f"INBOX_CONFIG: {error}") from None
        settings = settings.model_copy(update={"declared": declared})
    _refuse_together(settings)
    return settings
