"""Makes `.venv` from `requirements.lock` where it is not yet that; run by the system's Python.

The standard library only, and no syntax newer than Python 3.8's, so that an old one can still say
what is wrong.
"""

# ruff: noqa: S603 - what is started is ours

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / ".made-from"
_OLDEST = 0x030B0000  # 3.11
_CACHES = (".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "build", "dist")


def check_python() -> str:
    """Say what is wrong with this Python, in words; empty when nothing is."""
    if sys.hexversion < _OLDEST:
        return (
            f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}.\n"
            "Choose another one, for example: make run PYTHON=python3.12"
        )
    if not all(map(find_spec, ("venv", "ensurepip"))):
        return (
            f"{sys.executable} can't make virtual environments: a part of it is missing.\n"
            "On Debian and Ubuntu: apt install python3-venv"
        )
    return ""


def wanted() -> list[str]:
    """Return what `.venv` must have been made from: the packages, and the project that it points at."""
    # A virtual environment can't be moved, so the place counts.
    names = {"requirements.lock": str(ROOT), "pyproject.toml": ""}
    return [hashlib.sha256((ROOT / name).read_bytes() + place.encode()).hexdigest() for name, place in names.items()]


def made_from() -> list[str]:
    """Return what it was made from; empty when it is not complete, or the Python of it is gone."""
    works = (VENV / "bin" / "python").exists() and STAMP.is_file()
    return STAMP.read_text(encoding="ascii").split() if works else []


def make() -> None:
    """Make what differs. Raises CalledProcessError when pip fails; it has said why then."""
    packages, project = wanted()
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    if made_from()[:1] != [packages]:
        sys.stderr.write("making .venv from requirements.lock …\n")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        lock = str(ROOT / "requirements.lock")
        subprocess.run([*pip, "--require-hashes", "-r", lock], cwd=ROOT, check=True)
        _stamp(packages)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
    _stamp(packages, project)


def _stamp(*made: str) -> None:
    STAMP.write_text("\n".join(made) + "\n", encoding="ascii")


def clean() -> str:
    """Remove `.venv`, caches and the default data folder; why it refuses, or an empty text."""
    data = ROOT / ".data"
    if (data / "lock").exists():
        with (data / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return f"{data} is in use by a running stack: stop it first"
    for path in (data, VENV, *(ROOT / name for name in _CACHES)):
        shutil.rmtree(path, ignore_errors=True)
    for cache in [*ROOT.rglob("__pycache__")]:
        shutil.rmtree(cache, ignore_errors=True)
    return ""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Several makes may run at once: one makes it, the others wait for that."""
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare() -> str:
    """Make `.venv` the wanted one; what is wrong, or an empty text."""
    if made_from() == wanted():
        return ""
    if wrong := check_python():
        return wrong
    with alone():
        if made_from() != wanted():
            try:
                make()
            except subprocess.CalledProcessError as error:
                return f"making .venv failed (exit code {error.returncode})"
    return ""


def main() -> int:
    """Exit code 0 when `.venv` is the wanted one in the end (or, with --clean, all is gone)."""
    try:
        wrong = clean() if sys.argv[1:] == ["--clean"] else prepare()
    except KeyboardInterrupt:
        return 130
    if wrong:
        sys.stderr.write(f"{wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
