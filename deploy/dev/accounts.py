"""Who runs Postgres: it refuses to run as root."""

# ruff: noqa: S603 - what is started is ours

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.dev.process import Account
from deploy.dev.service import StackError

# Root as seen from inside a user namespace of its own: an ordinary user that owns root's files.
_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@dataclass(frozen=True)
class RunAs:
    """An account to change to and a command to put in front; both empty for an ordinary user."""

    account: Account | None = None
    prefix: tuple[str, ...] = ()

    @classmethod
    def choose(cls, binary: Path, home: Path, owned: Path | None) -> RunAs:
        """How to run `binary` on data in `home`.

        As root: the owner of the data `owned` where it is not root, else `nobody`; and where that
        account can't reach the binary or the data (a parent of mode 0700), root in a user namespace.
        Raises StackError when none of these is possible.
        """
        if os.geteuid() != 0:
            return cls()
        account = _owner(owned) or _nobody()
        if _works(cls(account), binary, home):
            return cls(account)
        inside = cls(prefix=_NAMESPACE)
        if shutil.which(_NAMESPACE[0]) and _works(inside, binary, home):
            return inside
        raise StackError(
            f"Postgres can't run as root, and another account can't reach {home} and {binary}: "
            "use a folder that others may enter, run as an ordinary user, or set DATABASE_URL"
        )

    def own(self, path: Path) -> None:
        """Give the path, and all in it, to the account that will use it (as root only)."""
        if os.geteuid() != 0:
            return
        uid, gid = (self.account.uid, self.account.gid) if self.account else (0, 0)
        if path.stat().st_uid == uid:
            return
        for inner in path.rglob("*"):
            os.chown(inner, uid, gid, follow_symlinks=False)
        os.chown(path, uid, gid)  # last: it says that all within is done


def _owner(path: Path | None) -> Account | None:
    if path is None or path.stat().st_uid == 0:
        return None
    return Account(path.stat().st_uid, path.stat().st_gid)


def _nobody() -> Account:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account(65_534, 65_534)
    return Account(entry.pw_uid, entry.pw_gid)


def _works(run_as: RunAs, binary: Path, home: Path) -> bool:
    """Try it: enter the folder, and run the binary with its libraries."""
    look = ["sh", "-c", 'cd "$1" && exec "$2" --version', "sh", str(home), str(binary)]
    try:
        done = subprocess.run(
            [*run_as.prefix, *look],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            user=run_as.account.uid if run_as.account else None,
            group=run_as.account.gid if run_as.account else None,
            extra_groups=[] if run_as.account else None,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
