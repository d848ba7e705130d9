"""Who belongs to a server: Postgres's backends are processes of their own, which a signal to its first one spares."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return the process and all its descendants, as of now."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def working_in(folder: Path) -> list[int]:
    """Return the processes whose directory is in the folder: backends that were stopped when their run was killed."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
    return found


def _parents() -> list[tuple[int, int]]:
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return [(int(line.split()[0]), int(line.split()[1])) for line in listed.stdout.splitlines()]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                # The command's name, in brackets, may itself hold spaces and brackets.
                found.append((int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])))
    return found


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Signal each of them that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
