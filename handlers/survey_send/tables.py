"""The four tables of a survey-send bundle, as their migration makes them."""

from __future__ import annotations

from sqlalchemy import ARRAY, BigInteger, Column, DateTime, Integer, MetaData, Table, Text, func

metadata = MetaData(schema="survey")


def _keyed(name: str, *columns: Column[object]) -> Table:
    key = (
        Column("id", BigInteger, primary_key=True),
        Column("tenant", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("message_id", Text, nullable=False),
        Column("edition", Integer, nullable=False),
        Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    )
    return Table(name, metadata, *key, *columns)


recipient = _keyed(
    "recipient",
    Column("patno", Text, nullable=False),
    Column("name", Text),
    Column("mobile", Text),
    Column("dept", Text),
    Column("guest_id", Text, nullable=False),
)
schedule = _keyed(
    "schedule",
    Column("recipient", BigInteger, nullable=False),
    Column("send_at", DateTime(timezone=True), nullable=False),
    Column("state", Text, nullable=False),
)
assignment = _keyed(
    "assignment",
    Column("recipient", BigInteger, nullable=False),
    Column("form", Text, nullable=False),
    Column("survey_no", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("consents", ARRAY(Text), nullable=False),
)
task = _keyed(
    "task",
    Column("assignment", BigInteger, nullable=False),
    Column("schedule", BigInteger, nullable=False),
    Column("answered_at", DateTime(timezone=True)),
)
