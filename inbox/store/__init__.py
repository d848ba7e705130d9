"""The record in Postgres: schema, statements, connections."""
