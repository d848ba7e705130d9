"""One child process: in a session of its own, ended with its parent, known by more than its number."""

# ruff: noqa: S603 - what is started is ours

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Loaded here, since little is safe to do between fork and exec.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Account:
    """The user and group that a child runs as."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Identity:
    """A process for good: a number that was used again has another start time."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return start_time(self.pid) == self.started != ""


def start_time(pid: int) -> str:
    """When the process began, in an opaque form; empty when there is none, or it is a zombie."""
    if sys.platform == "linux":
        try:
            # The command's name, in brackets, may itself hold spaces and brackets.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else f"{boot} {fields[19]}"
    answer = subprocess.run(["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return what a child runs before exec, so that the kernel signals it when its parent ends (Linux)."""
    parent = os.getpid()

    def ask() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
            if os.getppid() != parent:  # it ended before we could ask
                os._exit(1)

    return ask


@dataclass(frozen=True)
class Launch:
    """What is started, and how; its output goes to the end of `log`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    directory: Path
    stop_signal: signal.Signals  # also what the kernel sends when the launcher dies
    account: Account | None = None


class Child:
    """A running child and its process group.

    Must be made by a thread that lives as long as the launcher: the kernel's signal at the
    parent's death is bound to the thread that forked.
    """

    def __init__(self, launch: Launch) -> None:
        """Start it. Raises OSError when the system can't."""
        account = launch.account
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        with launch.log.open("ab") as output:
            self._process = subprocess.Popen(
                list(launch.command),
                env=dict(launch.environment),
                cwd=launch.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                preexec_fn=die_with_parent(launch.stop_signal),  # noqa: PLW1509 - two system calls
            )
        self.pid = self._process.pid
        self.identity = Identity(self.pid, start_time(self.pid))

    def alive(self) -> bool:
        """Whether it still runs; when it just ended, the rest of its group is ended too."""
        if self._process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return True
        # Before it is reaped its number, which is its group's, can't be given to others.
        self.signal_group(signal.SIGKILL)
        self._process.wait()
        return False

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess`: negative for a signal, None while it runs."""
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Signal this process alone, if it still runs."""
        if self.alive():
            self._process.send_signal(number)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal all of its process group; only while it is not reaped."""
        if self._process.returncode is None:
            # macOS answers EPERM for a group of zombies.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
