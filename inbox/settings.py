"""Settings: the environment (``INBOX_*``), and one TOML file named by ``INBOX_CONFIG`` for sources.

Temporal's connection is not here: its own standard environment and profiles say it (temporalio.envconfig).
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from inbox.errors import Malformed, SettingsError
from inbox.message import check_text

GIVE_UP_AFTER = 7 * 24 * 3600.0  # seconds
SYSTEM_ERROR = "system error"
HIGHEST_PORT = 65535
# What the command reads that asks a running ingest (spec section 15), and no process of ours.
OF_THE_COMMAND = {"INBOX_URL", "INBOX_OPERATOR_TOKEN"}
# What Kubernetes puts into every pod for a Service whose name begins with "inbox".
OF_KUBERNETES = re.compile(r"INBOX_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")
TokenHash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


Seconds = Annotated[float, Field(ge=0.01, le=10 * 365 * 24 * 3600, allow_inf_nan=False)]


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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Timeouts(_Strict):
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
                raise ValueError(f"{shorter} must be shorter than {longer}")
        return self


class ReportSettings(_Strict):
    """Where a source's notices go: ``url`` takes a POST; success is any 2xx unless ``success`` lists statuses."""

    url: HttpUrl
    token: SecretStr | None = None
    success: tuple[int, ...] = ()
    give_up_after: Seconds = GIVE_UP_AFTER
    system_error: str = Field(default=SYSTEM_ERROR, description="told instead of a reason that is not ours")


class SourceSettings(_Strict):
    """One producer. ``retry_interval`` is in seconds; ``tokens`` are hashes, as ``token_hash`` makes them.

    ``auth`` is ``none`` for an old sender that cannot be given a token: whoever reaches the door may then write as this
    source (spec section 12). Its record is read with a token all the same.
    """

    types: tuple[str, ...]
    tokens: tuple[TokenHash, ...] = ()
    auth: Literal["token", "none"] = "token"
    order: Literal["arrival", "sequence", "none"] = "arrival"
    tries: int = Field(default=5, ge=1, le=1000)
    retry_interval: Seconds = 60
    gap_timeout: Seconds = 3600
    on_dead: Literal["release", "park"] = "release"
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    private_ids: bool = False
    report: ReportSettings | None = None

    @property
    def ordered(self) -> bool:
        """Whether messages of one subject go one at a time, in turn."""
        return self.order != "none"

    @property
    def parks(self) -> bool:
        """Whether a DEAD message holds those behind it until an operator lets it go."""
        return self.ordered and self.on_dead == "park"


class LegacySettings(_Strict):
    """The old hospital contract's door: path and header names are the old sender's (spec section 5)."""

    source: str = "hospital"
    type: str = "survey.send"
    path: str = "/legacy/survey-send"
    result_header: str = "X-Result"
    message_header: str = "X-Result-Message"


class DispatchSettings(_Strict):
    """How rows become workflows (spec section 6). Times in seconds.

    ``share``: rows a source a round; ``cap``: started rows of a source that no try has claimed yet;
    ``concurrency``: starts under way at once; ``again``: after how long a started row falls due again.
    """

    tick: Seconds = 1
    share: int = Field(default=50, ge=1)
    cap: int = Field(default=200, ge=1)
    concurrency: int = Field(default=20, ge=1)
    again: Seconds = 15 * 60


class Sources(_Strict):
    """What the TOML file holds."""

    sources: Mapping[str, SourceSettings] = Field(default_factory=dict)
    legacy: LegacySettings | None = None
    dispatch: DispatchSettings = DispatchSettings()
    timeouts: Timeouts = Timeouts()
    handlers: Mapping[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_fit(self) -> Sources:
        for name in self.sources:
            try:
                check_text("source", name)
            except Malformed as error:
                raise ValueError(f"a source's name {error.detail}") from error
        return self

    @model_validator(mode="after")
    def _legacy_source_takes_it(self) -> Sources:
        legacy = self.legacy
        if legacy and legacy.source not in self.sources:
            raise ValueError(f"legacy.source names {legacy.source!r}, which is not among the sources")
        if legacy and legacy.type not in self.sources[legacy.source].types:
            raise ValueError(f"legacy.type {legacy.type!r} is not among the types of sources.{legacy.source}")
        return self


class Settings(BaseSettings):
    """What one process needs to know; read once, at start."""

    model_config = SettingsConfigDict(env_prefix="INBOX_", frozen=True, extra="ignore")

    database_url: SecretStr = Field(validation_alias="DATABASE_URL")
    name: str = Field(default="inbox", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    config: Path | None = None
    listen: Address = "127.0.0.1:8080"
    metrics_listen: Address | None = None
    id_key: SecretStr | None = None
    operator_tokens: tuple[TokenHash, ...] = ()
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

    @property
    def task_queue(self) -> str:
        """The Temporal task queue of messages: the inbox's name."""
        return self.name

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


def _first_line(error: ValidationError) -> str:
    """Say where the first fault is and what it is, without the value (it may be a secret)."""
    fault = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    what = "unknown setting" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
    return f"{place}: {what}" if place else what


def _refuse_unknown(environment: Iterable[str]) -> None:
    """Raise SettingsError for an ``INBOX_*`` variable that is none of ours: a misspelt one would be without effect."""
    known = {f"INBOX_{name}".upper() for name in Settings.model_fields if name not in ("database_url", "declared")}
    for name in sorted(environment):
        given = name.upper()
        if given.startswith("INBOX_") and given not in known | OF_THE_COMMAND and not OF_KUBERNETES.fullmatch(given):
            raise SettingsError(f"{name}: unknown setting")


def load_settings() -> Settings:
    """Read environment and TOML file. Raises SettingsError, with one line that names the setting."""
    _refuse_unknown(os.environ)
    try:
        settings = Settings()
        if settings.config is None:
            return settings
        declared = Sources.model_validate(tomllib.loads(settings.config.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise SettingsError(_first_line(error)) from None
    except UnreadableSettings as error:  # names the field, and not its value
        raise SettingsError(str(error)) from None
    except (OSError, ValueError) as error:  # not there, not UTF-8, or not TOML
        raise SettingsError(f"INBOX_CONFIG: {error}") from None
    private = next((name for name, source in declared.sources.items() if source.private_ids), None)
    if private and settings.id_key is None:
        raise SettingsError(f"sources.{private}.private_ids: needs INBOX_ID_KEY, the key of the hash")
    return settings.model_copy(update={"declared": declared})
