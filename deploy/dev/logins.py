"""The logins of the embedded Postgres: one a part, each a member of its group role alone (spec section 12)."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from deploy.dev.settings import read_json, write

PARTS = ("ingest", "worker", "operator", "reader")


def logins(owner: str, data: Path, *, mover: bool = False) -> dict[str, str]:
    """Make what is missing as `owner` (a libpq URL), and return a libpq URL for each part.

    With `mover` ingest may do what a worker may, which a source in direct mode, or one that resends, asks of it.

    The database must have been migrated, since that makes the group roles. Passwords are kept in the data folder,
    readable by its owner alone. Raises psycopg.Error.
    """
    path = data / "logins.json"
    kept = read_json(path)
    passwords = {part: str(kept.get(part) or secrets.token_urlsafe(24)) for part in PARTS}
    if passwords != kept:
        write(path, json.dumps(passwords, indent=1) + "\n", 0o600)
    with psycopg.connect(owner) as admin:
        for part in PARTS:
            _make(admin, f"dev_{part}", f"inbox_{part}", passwords[part])
        verb, way = ("GRANT", "TO") if mover else ("REVOKE", "FROM")
        admin.execute(f"{verb} inbox_worker {way} dev_ingest")
    place = urlsplit(owner)
    host = place.netloc.rpartition("@")[2]
    return {p: urlunsplit(place._replace(netloc=f"dev_{p}:{passwords[p]}@{host}")) for p in PARTS}


def _make(admin: psycopg.Connection, login: str, group: str, password: str) -> None:
    names = {"login": sql.Identifier(login), "group": sql.Identifier(group), "password": sql.Literal(password)}
    if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [login]).fetchone() is None:
        admin.execute(sql.SQL("CREATE ROLE {login}").format(**names))
    admin.execute(sql.SQL("ALTER ROLE {login} LOGIN PASSWORD {password}").format(**names))
    admin.execute(sql.SQL("GRANT {group} TO {login}").format(**names))
