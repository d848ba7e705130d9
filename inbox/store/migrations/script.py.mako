"""${message}."""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """."""
    op.execute("SET LOCAL lock_timeout = '3s'")


def downgrade() -> None:
    """."""
