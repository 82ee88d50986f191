"""`shardwheel change-coordinator`: put another coordinator in charge of a cluster."""

from server.cli.failure import CommandFailed
from server.cli.running import explained, run_loop, say
from server.config import NodeConfig
from server.coordination import coordinator_place, zookeeper_coordinator
from server.store.coordination import change_coordinator
from server.store.database import Database
from server.store.errors import StoreError
from server.store.migrate import check_schema


def change(config: NodeConfig) -> None:
    """Change it and say what was done. Raises `CommandFailed`."""
    with explained(config):
        run_loop(_change(config))


async def _change(config: NodeConfig) -> None:
    place = coordinator_place(config)
    await check_schema(config.database)
    database = Database(config.database, hot_connections=2, api_connections=2)
    try:
        await database.open()
        if config.coordinator == "zookeeper":
            # Nobody could serve with servers that do not answer, or with the path of another cluster.
            await (await zookeeper_coordinator(config, database)).look()
        generation = await change_coordinator(database, place)
    except StoreError as error:
        raise CommandFailed(f"the coordinator was not changed: {error}; try again") from error
    finally:
        await database.close()
    if generation is None:
        say(f"the coordinator is {place} already")
    else:
        say(f"the coordinator is {place} from now on, generation {generation}; start the nodes with its settings")
