"""Temporal's dev server with its web UI: a child of this process, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import httpx

from deploy.dev.ports import LOOPBACK
from deploy.dev.service import Service, StackError

SEARCH_ATTRIBUTES = ("InboxStatus", "InboxSource", "InboxType", "InboxCode")  # spec section 7

# A reader at once sees attributes that were just added; one partition makes a small task queue
# faster (45 instead of 40 workflows/s, p99 0.8 instead of 2.7 s).
DYNAMIC = {
    "system.forceSearchAttributesCacheRefreshOnRead": "true",
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
_PRAGMAS = {"journal_mode": "WAL", "synchronous": "NORMAL"}


def binary() -> Path:
    """Find the `temporal` command. Raises StackError when there is none."""
    ours = Path(sys.prefix, "bin", "temporal")
    found = ours if ours.is_file() else shutil.which("temporal")
    if not found:
        raise StackError("no `temporal` command: install requirements.lock, or set TEMPORAL_ADDRESS")
    return Path(found)


def http_ok(url: str) -> bool:
    """Whether a GET on this loopback URL is answered with a 2xx or a redirect now."""
    try:
        with httpx.Client(trust_env=False, timeout=2) as client:
            return client.get(url).status_code < HTTPStatus.BAD_REQUEST
    except httpx.HTTPError:
        return False


class Temporal(Service):
    """One dev server; its state in the file `directory/temporal.db`, or in memory without one."""

    port_names: ClassVar[tuple[str, ...]] = ("grpc", "ui", "http", "metrics")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        directory: Path,
        *,
        preferred: Mapping[str, int] | None = None,
        log: Path | None = None,
        namespace: str = "default",
        in_memory: bool = False,
        dynamic: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start nothing yet; `preferred` are ports to take where they are free, `dynamic` more of its configuration."""
        self._home = directory.absolute()
        super().__init__("Temporal", log or self._home / "temporal.log", preferred)
        self._binary = binary()
        self._in_memory = in_memory
        self._dynamic = {**DYNAMIC, **dynamic}
        self.namespace = namespace

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.ports['grpc']}"

    @property
    def ui_url(self) -> str:
        """The web UI's base URL."""
        return f"http://{LOOPBACK}:{self.ports['ui']}"

    def command(self) -> list[str]:
        """Return the command line."""
        line = [str(self._binary), "server", "start-dev", "--ip", LOOPBACK, "--log-level", "error"]
        line += ["--port", str(self.ports["grpc"]), "--ui-port", str(self.ports["ui"])]
        line += ["--http-port", str(self.ports["http"])]
        line += ["--metrics-port", str(self.ports["metrics"]), "--ui-disable-news-fetch"]
        line += ["--namespace", self.namespace]
        for name in SEARCH_ATTRIBUTES:
            line += ["--search-attribute", f"{name}=Keyword"]
        for name, value in self._dynamic.items():
            line += ["--dynamic-config-value", f"{name}={value}"]
        if self._in_memory:
            return line
        for name, value in _PRAGMAS.items():
            line += ["--sqlite-pragma", f"{name}={value}"]
        return [*line, "--db-filename", str(self._home / "temporal.db")]

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        # The variables that are meant for clients would change the command's own defaults.
        return {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}

    def prepare(self) -> None:
        """Put in place what each launch needs."""
        self._home.mkdir(parents=True, exist_ok=True)

    def answers(self) -> bool:
        """Say whether it does its work now."""
        # The HTTP API goes through the same front end as gRPC, and shows that the namespace exists.
        api = f"http://{LOOPBACK}:{self.ports['http']}/api/v1/namespaces/{self.namespace}"
        return http_ok(api) and http_ok(self.ui_url)
