"""The real command, `python -m deploy.dev`, as a process that is signalled, and all processes that it started."""

# ruff: noqa: S603 - what is started is ours

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

ROOT = Path(__file__).parents[2]
START_LIMIT = 120.0  # seconds: a machine that runs other tests meanwhile is slow
STOP_LIMIT = 90.0
_MARK = "ACCEPTANCE_MARK"
# What would make it another stack than the one that is tested.
_OURS = ("DATA", "READY", "SUMMARY", "ONCE", "DATABASE_URL", "MAKELEVEL", "MAKEFLAGS")
_THEIRS = ("TEMPORAL_", "INBOX_", "PG")
T = TypeVar("T")


def within(limit: float, look: Callable[[], T], accept: Callable[[T], bool] = bool) -> T:
    """Return the first look that is accepted; fails with the last one after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not accept(seen := look()):
        assert time.monotonic() < end, f"not within {limit} s; the last look was {seen!r}"
        time.sleep(0.05)
    return seen


def running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return began(pid) != ""


@dataclass
class Python:
    """Who runs the command, with which interpreter, from which copy of the repository."""

    executable: str = sys.executable
    root: Path = ROOT
    user: str | None = None
    more: tuple[tuple[str, str], ...] = ()


OWN = Python()


def copy_of_the_repository(target: Path) -> Path:
    """Copy what the command needs, as a second clone; where it is."""
    for name in ("activities", "deploy", "handlers", "inbox", "workflows"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "worker.py", target)
    return target


def began(pid: int) -> str:
    """When a process began; empty when there is none, or it is a zombie. A number can be used again, this not."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


class Launcher:
    """One run of the command; its output in ``folder``/output, its data in ``data``."""

    def __init__(
        self,
        folder: Path,
        command: str = "up",
        *,
        data: Path | None = None,
        python: Python = OWN,
        line: Sequence[str] = (),
        terminal: int | None = None,
        **more: str,
    ) -> None:
        """Start it, or another command ``line``. ``more`` are environment variables beside DATA and READY."""
        name = uuid.uuid4().hex
        self.data = data or folder / "data"
        self.ready_path = folder / f"ready-{name}.json"
        self.output = folder / f"output-{name}"
        self._mark = f"{_MARK}={name}".encode()
        around = {k: v for k, v in os.environ.items() if k not in _OURS and not k.startswith(_THEIRS)}
        environment = around | dict(python.more) | more
        environment |= {"DATA": str(self.data), "READY": str(self.ready_path), _MARK: name}
        account: dict[str, Any] = {}
        if python.user:
            account = {"user": python.user, "group": "nogroup", "extra_groups": []}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                line or [python.executable, "-m", "deploy.dev", command],
                cwd=python.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output if terminal is None else terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **account,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever the test found."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_LIMIT)
            self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # What it tells

    @property
    def said(self) -> str:
        """All that it has written to its terminal."""
        return self.output.read_text(encoding="utf-8")

    @property
    def ready(self) -> dict[str, Any]:
        """The READY file as it is now, waited for."""
        within(START_LIMIT, lambda: self.ready_path.exists() or self.process.poll() is not None)
        assert self.ready_path.exists(), self.said
        found: dict[str, Any] = json.loads(self.ready_path.read_text())
        return found

    def pid(self, name: str) -> int:
        """Return the process number that READY gives a child; of the only one where there may be several."""
        found = self.ready["pids"][name]
        (pid,) = found if isinstance(found, list) else [found]
        return int(pid)

    def replaced(self, name: str, old: int) -> int:
        """Wait until a child that was signalled is gone, and another runs in its place; the new process number."""
        try:
            return within(60, lambda: self.pid(name), lambda pid: pid != old and running(pid))
        finally:
            if self.pid(name) == old:  # it hangs: the next test shall find a whole stack
                os.kill(old, signal.SIGKILL)

    # What is done to it

    def signal(self, number: signal.Signals) -> None:
        """Signal the launcher alone."""
        self.process.send_signal(number)

    def ended(self, limit: float = STOP_LIMIT) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(limit)

    def processes(self) -> list[int]:
        """Return every process that was started by it, whoever its parent is now.

        Known by a mark in the environment, which all inherit, or by the data folder that it works in:
        Postgres's backends write over their environment.
        """
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not running(int(entry.name)):
                continue
            with contextlib.suppress(OSError):
                if self._mark in (entry / "environ").read_bytes().split(b"\0") or (
                    entry / "cwd"
                ).resolve().is_relative_to(self.data.resolve()):
                    found.append(int(entry.name))
        return found

    def nothing_left(self) -> None:
        """Assert that no process of it runs; one that the kernel is just ending gets a moment."""
        within(10, self.processes, lambda found: not found)


@contextmanager
def up(folder: Path, **more: Any) -> Iterator[Launcher]:
    """Run `up` until it is ready."""
    with Launcher(folder, **more) as launcher:
        assert launcher.ready
        yield launcher
