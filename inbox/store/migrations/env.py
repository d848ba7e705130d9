"""Alembic's entry: runs the revisions on the connection that ``migrate`` hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table_schema="inbox", transaction_per_migration=True)
context.run_migrations()
