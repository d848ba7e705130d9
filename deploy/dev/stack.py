"""The local stack as a whole: what it is made of, started, and told to others (spec section 15)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import psycopg

from deploy.dev import postgres
from deploy.dev.leftovers import end_leftovers
from deploy.dev.logins import PARTS, logins
from deploy.dev.pollers import TemporalAccess
from deploy.dev.postgres import Postgres
from deploy.dev.programs import Hospital, Ingest, Migrate, Program, Worker
from deploy.dev.screen import Screen
from deploy.dev.service import StackError, wait_until
from deploy.dev.settings import OPERATOR, SOURCES, Options, base_environment, read_json, tokens, toml, write
from deploy.dev.signals import Signals
from deploy.dev.supervisor import Supervisor
from deploy.dev.temporal import Temporal
from inbox.sources import Sources

_AWAY = 3  # exit code: a service of the caller's does not answer
_AWAY_LIMIT = 10.0  # seconds that it gets


class Stack:
    """All servers of one data folder; use it within the folder's DataLock."""

    hospital: Program

    def __init__(self, options: Options, signals: Signals, screen: Screen, each: int = 1) -> None:
        """Start nothing yet; there will be so many ingest processes as `each` says, and so many workers."""
        self._options = options
        self._each = each
        self._signals = signals
        self._screen = screen
        self._kept_ports = read_json(options.data / "ports.json")
        self.supervisor = Supervisor(options.data, signals, screen)
        self.ingests: list[Program] = []
        self.workers: list[Program] = []
        self.temporal: Temporal | None = None  # unless it is the caller's
        self._postgres: Postgres | None = None
        self._database_url = ""
        self._temporal_address = ""
        self.tokens: dict[str, str] = {}
        self.environments: dict[str, dict[str, str]] = {}  # of each part, with its login

    @property
    def ingest(self) -> Program:
        """The first ingest process."""
        return self.ingests[0]

    @property
    def worker(self) -> Program:
        """The first worker."""
        return self.workers[0]

    @property
    def config(self) -> Path:
        """The settings file, INBOX_CONFIG."""
        return self._options.data / "inbox.toml"

    @property
    def database(self) -> str:
        """The database's URL, as its owner."""
        return self._database_url

    def start(self) -> None:
        """Start everything and return when all of it answers.

        Raises StackError when something does not, Interrupted on a wish to stop; `stop` ends what
        was started by then.
        """
        options = self._options
        for name in end_leftovers(options.data):
            self._screen.step(name, "was left over by a killed launcher: ended")
        self.tokens = tokens(options.data)
        base = base_environment(options, self.config, self.tokens)
        self.hospital = Hospital("hospital", self._log("hospital"), base, self._ports("hospital"))
        self.supervisor.begin(self.hospital)
        more = options.more.read_text(encoding="utf-8") if options.more else ""
        write(self.config, toml(self.tokens, self.hospital.url, more), 0o600)
        self._database_url = base["DATABASE_URL"] = self._start_postgres()
        temporal = self._start_temporal()
        self._temporal_address = base["TEMPORAL_ADDRESS"] = temporal.address
        self.supervisor.run(Migrate(self._log("migrate"), base))
        self.environments = {part: base | {"DATABASE_URL": url} for part, url in self._logins().items()}
        for name in self._names("ingest"):
            self.ingests.append(Ingest(name, self._log(name), self.environments["ingest"], self._ports(name)))
            self.supervisor.begin(self.ingests[-1])
        for name in self._names("worker"):
            own = self.environments["worker"]
            self.workers.append(Worker(name, self._log(name), own, self._ports(name), temporal))
            self.supervisor.begin(self.workers[-1])
        self.write_ready()

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Keep everything running until the condition holds, or someone wishes to stop."""
        self.supervisor.watch(self.write_ready, until)

    def stop(self) -> None:
        """Stop everything in order; a further wish to stop hurries."""
        # Those that use the others go first; the worker's running activities still need the hospital.
        programs = (*self._names("ingest"), *self._names("worker"))
        self.supervisor.stop((programs, ("hospital",), ("Temporal",), ("Postgres",)))

    def addresses(self) -> dict[str, str]:
        """Where things are, for the reader of the screen."""
        found = {
            "ingest": self.ingest.url,
            "Temporal": self._temporal_address,
            "Temporal UI": self._ui() or "",
            "database": self._database_url,
            "hospital": self.hospital.url,
            "metrics": f"{self.worker.url}/metrics",
            "logs": str(self._options.data / "logs"),
        }
        return {name: address for name, address in found.items() if address}

    def write_ready(self) -> None:
        """Write the READY file, if one is wished for, as a whole."""
        if self._options.ready is None:
            return
        content = {
            "ingest": self.ingest.url,
            "temporal": self._temporal_address,
            "namespace": self._options.namespace,
            "ui": self._ui(),
            "database": self._database_url,
            "hospital": self.hospital.url,
            "metrics": self.worker.url,
            "tokens": {source: self.tokens[source] for source in SOURCES},
            "operator_token": self.tokens[OPERATOR],
            "pids": {
                "ingest": [ingest.pid for ingest in self.ingests],
                "worker": [worker.pid for worker in self.workers],
                "temporal": self.temporal.pid if self.temporal else None,
                "postgres": self._postgres.pid if self._postgres else None,
                "hospital": self.hospital.pid,
            },
        }
        write(self._options.ready, json.dumps(content, indent=1) + "\n", 0o600)

    def _start_postgres(self) -> str:
        url = self._options.database_url
        if url:
            self._of_the_caller("Postgres at DATABASE_URL", lambda: postgres.answers(url))
            return url
        self._postgres = Postgres(
            self._options.data / "postgres",
            preferred=self._ports("Postgres"),
            log=self._log("postgres"),
        )
        self.supervisor.begin(self._postgres)
        return self._postgres.url

    def _logins(self) -> dict[str, str]:
        """Return each part's URL of the database: with a login of its own, unless the server is the caller's."""
        if self._postgres is None:
            return dict.fromkeys(PARTS, self._database_url)
        try:
            settings = Sources.model_validate(tomllib.loads(self.config.read_text("utf-8")))
            return logins(self._postgres.url, self._options.data, mover=settings.moves_states() is not None)
        except psycopg.Error as error:
            raise StackError(f"the logins of Postgres could not be made: {type(error).__name__}") from error

    def _start_temporal(self) -> TemporalAccess:
        options = self._options
        if options.temporal_address:
            access = TemporalAccess(options.temporal_address, options.namespace, embedded=False)
            self._of_the_caller("Temporal at TEMPORAL_ADDRESS", access.answers)
            return access
        self.temporal = Temporal(
            options.data,
            preferred=self._ports("Temporal"),
            log=self._log("temporal"),
            namespace=options.namespace,
        )
        self.supervisor.begin(self.temporal)
        return TemporalAccess(self.temporal.address, options.namespace, embedded=True)

    def _of_the_caller(self, name: str, answers: Callable[[], bool]) -> None:
        if not wait_until(answers, _AWAY_LIMIT, self._signals.check):
            raise StackError(f"{name} does not answer", exit_code=_AWAY)
        self._screen.step(name, "answers")

    def _ui(self) -> str | None:
        return self.temporal.ui_url if self.temporal else self._options.temporal_ui

    def _names(self, part: str) -> list[str]:
        return [part, *(f"{part}-{number}" for number in range(2, self._each + 1))]

    def _log(self, name: str) -> Path:
        return self._options.data / "logs" / f"{name}.log"

    def _ports(self, name: str) -> dict[str, int]:
        kept = self._kept_ports.get(name)
        if not isinstance(kept, dict):
            return {}
        return {str(k): port for k, port in kept.items() if isinstance(port, int)}
