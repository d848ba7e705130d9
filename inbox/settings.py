"""Settings: the environment (``INBOX_*``), and the TOML file that it names (sources.py).

Temporal's connection is not here: its own standard environment and profiles say it (temporalio.envconfig).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from inbox.configfile import ConfigFile, dotted, first_fault
from inbox.errors import SettingsError
from inbox.sources import SYSTEM_ERROR, CodeSettings, QueueName, Sources, SourceSettings, TokenHash

HIGHEST_PORT = 65535
# What the command reads that asks a running ingest (spec section 15), and no process of ours.
OF_THE_COMMAND = {"INBOX_URL", "INBOX_OPERATOR_TOKEN"}
# What Kubernetes puts into every pod for a Service whose name begins with "inbox".
OF_KUBERNETES = re.compile(r"INBOX_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")


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
