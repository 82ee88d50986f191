"""The PostgreSQL coordinator, and the tables that it needs."""

from importlib import resources

from shard_manager.postgres.coordinator import PostgresCoordinator

__all__ = ["PostgresCoordinator", "schema_sql"]


def schema_sql() -> str:
    """The DDL of the coordinator's tables: plain statements, unqualified names, no transaction control."""
    return resources.files("shard_manager.postgres").joinpath("schema.sql").read_text("utf-8")
