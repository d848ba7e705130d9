"""The stack's own Python programs: migrate, ingest, worker and the stand-in hospital."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from deploy.dev.pollers import TemporalAccess
from deploy.dev.ports import LOOPBACK
from deploy.dev.service import Service, wait_until
from deploy.dev.temporal import http_ok

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_HOSPITAL = Path(__file__).with_name("sample-day-hospital.json")
_MIGRATE_LIMIT = 120.0  # seconds


class Program(Service):
    """A Python module that runs from the repository's root and answers HTTP on one port."""

    probe: ClassVar[str] = "/"

    def __init__(
        self,
        name: str,
        log: Path,
        environment: Mapping[str, str],
        preferred: Mapping[str, int] | None = None,
    ) -> None:
        """Start nothing yet; `preferred` are ports to take where they are free."""
        super().__init__(name, log, preferred)
        self._environment = dict(environment)

    @property
    def listen(self) -> str:
        """host:port."""
        return f"{LOOPBACK}:{self.ports['port']}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{self.listen}"

    @property
    def address(self) -> str:
        """Where it is, for the screen."""
        return self.url

    def directory(self) -> Path:
        """Return where the child runs."""
        return ROOT

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        return self._environment

    def answers(self) -> bool:
        """Say whether it does its work now."""
        return http_ok(self.url + self.probe)


class Hospital(Program):
    """The stand-in for the old system and the account service."""

    probe = "/_seen"

    def command(self) -> list[str]:
        """Return the command line."""
        line = [sys.executable, "-m", "deploy.dev.hospital", "--port", str(self.ports["port"])]
        return [*line, "--data", str(SAMPLE_HOSPITAL)]


class Ingest(Program):
    """`inbox serve`."""

    probe = "/readyz"
    # Requests that it has begun, and its round of dispatch.
    stop_limit: ClassVar[float] = 45.0

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "inbox", "serve"]

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        return {**self._environment, "INBOX_LISTEN": self.listen}


class Worker(Program):
    """`inbox worker`: answers when Temporal has seen it poll for workflows and activities."""

    probe = "/metrics"
    stop_limit: ClassVar[float] = 45.0  # it lets running activities end (40 s, spec section 7)

    def __init__(
        self,
        name: str,
        log: Path,
        environment: Mapping[str, str],
        preferred: Mapping[str, int] | None,
        temporal: TemporalAccess,
    ) -> None:
        """Start nothing yet; `preferred` are ports to take where they are free."""
        super().__init__(name, log, environment, preferred)
        self._temporal = temporal
        self._launched = 0.0

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "inbox", "worker"]

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        return {**self._environment, "INBOX_METRICS_LISTEN": self.listen}

    def prepare(self) -> None:
        """Put in place what each launch needs."""
        self._launched = time.time()

    def answers(self) -> bool:
        """Say whether it does its work now."""
        return super().answers() and self._temporal.polled(self._launched)


class Migrate(Service):
    """`inbox migrate`: runs to its end before the others start."""

    port_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """Start nothing yet; `preferred` are ports to take where they are free."""
        super().__init__("migrate", log)
        self._environment = dict(environment)

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "inbox", "migrate"]

    def directory(self) -> Path:
        """Return where the child runs."""
        return ROOT

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        return self._environment

    def answers(self) -> bool:
        """Never: it is done when it has ended."""
        return False

    def run(self, check: Callable[[], None]) -> None:
        """Run it to its end. Raises StackError when it fails or takes more than two minutes."""
        self.launch()
        if not wait_until(lambda: not self.alive(), _MIGRATE_LIMIT, check):
            self.stop()
            raise self.failure(f"takes more than {_MIGRATE_LIMIT:.0f} s")
        if self.child and self.child.exit_code:
            raise self.failure(f"failed with exit code {self.child.exit_code}")
