"""A worker whose handler inserts one row per job and completes the job in the same transaction."""

import os

import psycopg

from worker_sdk import Context, Worker

worker = Worker()


@worker.handler("effect", max_concurrency=8)
def effect(payload: dict[str, int], ctx: Context) -> None:
    """Insert the job's row; no key of the table stops a second one."""
    with psycopg.connect(os.environ["EFFECT_DATABASE"]) as connection:
        connection.execute(
            "INSERT INTO public.effects (number, job_id, claim) VALUES (%s, %s, %s)",
            (payload["number"], ctx.job_id, ctx.claim),
        )
        ctx.complete_in(connection, {"number": payload["number"]})


@worker.handler("effect.async", max_concurrency=8)
async def effect_async(payload: dict[str, int], ctx: Context) -> None:
    """The same, with asyncio."""
    async with await psycopg.AsyncConnection.connect(os.environ["EFFECT_DATABASE"]) as connection:
        await connection.execute(
            "INSERT INTO public.effects (number, job_id, claim) VALUES (%s, %s, %s)",
            (payload["number"], ctx.job_id, ctx.claim),
        )
        await ctx.complete_in(connection, {"number": payload["number"]})


@worker.handler("effect.rolled_back", max_concurrency=1)
def rolled_back(payload: dict[str, int], ctx: Context) -> None:
    """Completes the job in a transaction that is rolled back: the node finds out and tries again."""
    connection = psycopg.connect(os.environ["EFFECT_DATABASE"])
    ctx.complete_in(connection)
    if ctx.attempt == 1:
        connection.rollback()
    else:
        connection.commit()
    connection.close()
