"""The stack of a run: the local stack's own servers and programs, with several of ingest and worker."""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.chaos.options import SOURCES, Options, toml
from deploy.chaos.plan import INGESTS, POSTGRES, TEMPORAL, WORKERS
from deploy.chaos.processes import family, signal_all, working_in
from deploy.dev.leftovers import end_leftovers, note_children
from deploy.dev.logins import logins
from deploy.dev.pollers import TemporalAccess
from deploy.dev.postgres import Postgres
from deploy.dev.programs import Hospital, Ingest, Migrate, Program, Worker
from deploy.dev.service import Service, wait_until
from deploy.dev.settings import Options as DevOptions
from deploy.dev.settings import base_environment, write
from deploy.dev.temporal import Temporal

_START = 90.0  # seconds
_STOP = 45.0  # seconds; the data is not needed any more


class Stack:
    """All servers of a run, on new data in `options.folder`; use it within the folder's DataLock."""

    def __init__(self, options: Options, check: Callable[[], None]) -> None:
        """Start nothing yet; `check` may raise to end a wait."""
        self._check = check
        self._folder = options.folder
        self._run = options.folder / "run"
        self.tokens = {name: secrets.token_urlsafe(32) for name in SOURCES}
        self.services: dict[str, Service] = {}
        self.ingests: list[str] = []
        self.hospital = ""
        self.database = ""  # libpq URL of the owner
        self.temporal = ""  # host:port
        self.logins: dict[str, str] = {}  # libpq URL of each part
        self.operators_environment: dict[str, str] = {}

    def start(self) -> None:
        """Start everything and return when all of it answers. Raises StackError."""
        end_leftovers(self._folder)
        signal_all(working_in(self._run), signal.SIGKILL)
        shutil.rmtree(self._run, ignore_errors=True)
        self._run.mkdir(parents=True)
        config = self._run / "inbox.toml"
        base = self._base(config)
        hospital = Hospital("hospital", self._log("hospital"), base)
        postgres = Postgres(self._run / "postgres", log=self._log("postgres"))
        temporal = Temporal(self._run, log=self._log("temporal"))
        self._begin([hospital, postgres, temporal])
        self.hospital, self.database, self.temporal = hospital.url, postgres.url, temporal.address
        write(config, toml(self.tokens, hospital.url), 0o600)
        base |= {"DATABASE_URL": postgres.url, "TEMPORAL_ADDRESS": temporal.address}
        Migrate(self._log("migrate"), base).run(self._check)
        self.logins = logins(postgres.url, self._run)
        self.operators_environment = base | {"DATABASE_URL": self.logins["operator"]}
        own = base | {"DATABASE_URL": self.logins["ingest"]}
        ingests = [Ingest(name, self._log(name), own) for name in INGESTS]
        own = base | {"DATABASE_URL": self.logins["worker"]}
        access = TemporalAccess(temporal.address, "default", embedded=True)
        workers = [Worker(name, self._log(name), own, None, access) for name in WORKERS]
        programs: list[Program] = [*ingests, *workers]
        self._begin(programs)
        self.ingests = [ingest.url for ingest in ingests]

    def stop(self) -> None:
        """End everything; those that use the others first. Whoever a fault has stopped goes on, to be able to end."""
        for service in self.services.values():
            signal_all(family(service.pid or 0) if service.alive() else [], signal.SIGCONT)
        for names in ((*INGESTS, *WORKERS), ("hospital", TEMPORAL), (POSTGRES,)):
            group = [self.services[name] for name in names if name in self.services]
            for service in group:
                service.terminate()
            wait_until(lambda some=group: not any(s.alive() for s in some), _STOP)  # type: ignore[misc]
            for service in group:
                service.kill()
        self.note()

    def note(self) -> None:
        """Write down who runs, so that the next run ends what a killed one left."""
        note_children(self._folder, self.services.values())

    def _begin(self, group: Sequence[Service]) -> None:
        for service in group:
            self.services[service.name] = service
            service.launch()
        self.note()
        for service in group:
            answered = wait_until(lambda s=service: not s.alive() or s.answers(), _START, self._check)  # type: ignore[misc]
            if not answered or not service.alive():
                raise service.failure("does not answer" if answered else "ended before it answered")

    def _base(self, config: Path) -> dict[str, str]:
        options = DevOptions(
            data=self._run,
            ready=None,
            summary=None,
            more=None,
            once=False,
            database_url=None,
            temporal_address=None,
            temporal_ui=None,
            namespace="default",
        )
        base = base_environment(options, config, {"operator": secrets.token_urlsafe(32)})
        # Another inbox's settings of the caller's are none of this run's.
        ours = ("INBOX_CONFIG", "INBOX_OPERATOR_TOKENS")
        return {k: v for k, v in base.items() if not k.startswith(("INBOX_", "OTEL_")) or k in ours}

    def _log(self, name: str) -> Path:
        return self._run / "logs" / f"{name.replace(' ', '-').lower()}.log"
