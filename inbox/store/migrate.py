"""Brings a database to the newest revision."""

from functools import cache
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from inbox.store.engine import sqlalchemy_url

# Any constant: two deploys that migrate at once then do it one after the other.
MIGRATION_LOCK = 7_215_334_091


def _config() -> Config:
    config = Config()
    # configparser would read a % in the path as an interpolation
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


@cache
def known_revisions() -> tuple[str, ...]:
    """Return every revision that this code knows, the newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def newest_revision() -> str:
    """Return the revision that this code needs."""
    return known_revisions()[0]


def migrate(url: str) -> str:
    """Migrate the database at ``url`` (libpq) to the newest revision and return that revision.

    Each revision commits by itself; several callers at once take turns. Raises
    sqlalchemy.exc.DBAPIError, and MigrationRefused where this user may not do it.
    """
    config = _config()
    engine = sa.create_engine(sqlalchemy_url(url), poolclass=sa.NullPool)
    with engine.connect() as lock, engine.connect() as connection:
        lock.execute(sa.select(sa.func.pg_advisory_lock(MIGRATION_LOCK)))
        connection.execute(sa.text("CREATE SCHEMA IF NOT EXISTS inbox"))  # holds Alembic's version table
        connection.commit()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return newest_revision()
