"""The script that makes the role of a trial's PostgreSQL, on a real one."""

import asyncio
import os
import subprocess

import psycopg

from server.store.migrate import check_schema, migrate
from tests.helm.chart import CHART
from tests.support.postgres import PostgresServer, default_installation

SCRIPT = CHART / "files" / "trial-postgres-init.sh"


def test_the_script_makes_what_a_node_needs() -> None:
    """The image runs it once, as its superuser; `shardwheel migrate` has to get along with the role that it makes."""
    with PostgresServer() as server:
        like_the_image(server)
        place = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGPASSWORD": "super"}
        variables = {**place, "POSTGRES_USER": "postgres", "SHARDWHEEL_PASSWORD": "it's drawn"}
        path = f"{default_installation().bin_dir}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", SCRIPT], env={**variables, "PATH": path}, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        dsn = f"postgresql://shardwheel:it%27s%20drawn@127.0.0.1:{server.port}/shardwheel"
        asyncio.run(migrate(dsn))
        assert asyncio.run(check_schema(dsn)) == (64, 16)
        with psycopg.connect(dsn) as connection:
            answer = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        assert answer == (False,)


def like_the_image(server: PostgresServer) -> None:
    """Make the superuser `postgres`, and free the names that the test's own server has taken."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE postgres SUPERUSER LOGIN PASSWORD 'super'")
    superuser = f"postgresql://postgres:super@127.0.0.1:{server.port}/postgres"
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("ALTER DATABASE shardwheel RENAME TO of_the_test")
        connection.execute("ALTER ROLE shardwheel RENAME TO of_the_test")
