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
from inbox.settings import Sources

_AWAY = 3  # exit code: a service of the caller's does not answer
_AWAY_LIMIT = 10.0  # seconds that it gets
# Those that use the others go first; the worker's running activities still need the hospital.
_STOP_ORDER = (("ingest", "worker"), ("hospital",), ("Temporal",), ("Postgres",))


class Stack:
    """All servers of one data folder; use it within the folder's DataLock."""

    hospital: Program
    ingest: Program
    worker: Program

    def __init__(self, options: Options, signals: Signals, screen: Screen) -> None:
        """Start nothing yet."""
        self._options = options
        self._signals = signals
        self._screen = screen
        self._kept_ports = read_json(options.data / "ports.json")
        self._supervisor = Supervisor(options.data, signals, screen)
        self._postgres: Postgres | None = None
        self._temporal: Temporal | None = None
        self._database_url = ""
        self._temporal_address = ""
        self.tokens: dict[str, str] = {}

    def start(self) -> None:
        """Start everything and return when all of it answers.

        Raises StackError when something does not, Interrupted on a wish to stop; `stop` ends what
        was started by then.
        """
        options = self._options
        for name in end_leftovers(options.data):
            self._screen.step(name, "was left over by a killed launcher: ended")
        self.tokens = tokens(options.data)
        config = options.data / "inbox.toml"
        base = base_environment(options, config, self.tokens)
        self.hospital = Hospital("hospital", self._log("hospital"), base, self._ports("hospital"))
        self._supervisor.begin(self.hospital)
        more = options.more.read_text(encoding="utf-8") if options.more else ""
        write(config, toml(self.tokens, self.hospital.url, more), 0o600)
        self._database_url = base["DATABASE_URL"] = self._start_postgres()
        temporal = self._start_temporal()
        self._temporal_address = base["TEMPORAL_ADDRESS"] = temporal.address
        self._supervisor.run(Migrate(self._log("migrate"), base))
        urls = self._logins()
        own = base | {"DATABASE_URL": urls["ingest"]}
        self.ingest = Ingest("ingest", self._log("ingest"), own, self._ports("ingest"))
        self._supervisor.begin(self.ingest)
        own = base | {"DATABASE_URL": urls["worker"]}
        self.worker = Worker(self._log("worker"), own, self._ports("worker"), temporal)
        self._supervisor.begin(self.worker)
        self.write_ready()

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Keep everything running until the condition holds, or someone wishes to stop."""
        self._supervisor.watch(self.write_ready, until)

    def stop(self) -> None:
        """Stop everything in order; a further wish to stop hurries."""
        self._supervisor.stop(_STOP_ORDER)

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
                "ingest": [self.ingest.pid],
                "worker": [self.worker.pid],
                "temporal": self._temporal.pid if self._temporal else None,
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
        self._supervisor.begin(self._postgres)
        return self._postgres.url

    def _logins(self) -> dict[str, str]:
        """Return each part's URL of the database: with a login of its own, unless the server is the caller's."""
        if self._postgres is None:
            return dict.fromkeys(PARTS, self._database_url)
        try:
            settings = Sources.model_validate(tomllib.loads((self._options.data / "inbox.toml").read_text("utf-8")))
            return logins(self._postgres.url, self._options.data, mover=settings.moves_states() is not None)
        except psycopg.Error as error:
            raise StackError(f"the logins of Postgres could not be made: {type(error).__name__}") from error

    def _start_temporal(self) -> TemporalAccess:
        options = self._options
        if options.temporal_address:
            access = TemporalAccess(options.temporal_address, options.namespace, embedded=False)
            self._of_the_caller("Temporal at TEMPORAL_ADDRESS", access.answers)
            return access
        self._temporal = Temporal(
            options.data,
            preferred=self._ports("Temporal"),
            log=self._log("temporal"),
            namespace=options.namespace,
        )
        self._supervisor.begin(self._temporal)
        return TemporalAccess(self._temporal.address, options.namespace, embedded=True)

    def _of_the_caller(self, name: str, answers: Callable[[], bool]) -> None:
        if not wait_until(answers, _AWAY_LIMIT, self._signals.check):
            raise StackError(f"{name} does not answer", exit_code=_AWAY)
        self._screen.step(name, "answers")

    def _ui(self) -> str | None:
        return self._temporal.ui_url if self._temporal else self._options.temporal_ui

    def _log(self, name: str) -> Path:
        return self._options.data / "logs" / f"{name}.log"

    def _ports(self, name: str) -> dict[str, int]:
        kept = self._kept_ports.get(name)
        if not isinstance(kept, dict):
            return {}
        return {str(k): port for k, port in kept.items() if isinstance(port, int)}
