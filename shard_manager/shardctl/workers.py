"""`shardctl workers`: look at live workers."""

from collections.abc import Iterable

from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Column, Table
from shard_manager.shardctl.message_json import message_to_json
from shardwheel.v1.admin_service_pb2 import ListWorkersRequest, Worker

app = group("Look at live workers.")


@command(app, "list")
async def list_(cli: Cli) -> None:
    """List the live workers with their slots."""
    async with cli.connect() as connection:
        request = ListWorkersRequest(namespace=cli.settings.namespace)
        response = await connection.call(connection.admin.ListWorkers, request)
    data = {"workers": [message_to_json(worker) for worker in response.workers]}
    cli.output.emit(data, workers_table(response.workers))


def workers_table(workers: Iterable[Worker]) -> Table:
    """One line per worker."""
    columns = (
        Column("WORKER", minimum=12),
        Column("RUNNING", right=True),
        Column("SLOTS", right=True),
        Column("HANDLERS", minimum=12),
        Column("SINCE"),
        Column("SDK", minimum=6),
    )
    return Table(columns, [_row(each) for each in workers], empty="no live workers")


def _row(worker: Worker) -> tuple[str, ...]:
    return (
        worker.worker,
        str(worker.running_count),
        str(sum(credit.slots for credit in worker.handlers)),
        " ".join(f"{credit.handler}:{credit.slots}" for credit in worker.handlers),
        instant_text(worker, "started_at"),
        worker.sdk,
    )
