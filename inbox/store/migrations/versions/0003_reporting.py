"""The table of the report_counter handler (spec sections 10, 15)."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create schema ``reporting``."""
    op.execute("SET LOCAL lock_timeout = '3s'")
    op.execute("CREATE SCHEMA reporting")
    op.execute("CREATE TABLE reporting.counter (name text PRIMARY KEY, value bigint NOT NULL DEFAULT 0)")


def downgrade() -> None:
    """Drop schema ``reporting``."""
    op.execute("DROP SCHEMA reporting CASCADE")
