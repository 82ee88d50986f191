"""An order and its job in one transaction, with psycopg."""

import os

import psycopg

from worker_sdk import Client

with psycopg.connect(os.environ["APP_DATABASE"]) as connection, Client() as client:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY, job_id bigint)")
    job = client.submit_in(connection, "order.ship", {"order": 1}, dedupe_key="ship/1")
    connection.execute("INSERT INTO orders VALUES (1, %s)", (job.job_id,))
    connection.commit()
    client.nudge(job.job_id)
