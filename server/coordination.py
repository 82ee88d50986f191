"""Makes the coordinator that the settings ask for."""

from typing import Final

from server.config import NodeConfig
from server.store.coordination import newest_generation, read_cluster_id
from server.store.database import Database
from server.store.errors import StoreError
from shard_manager.coordinator import Coordinator
from shard_manager.errors import CoordinatorUnavailable
from shard_manager.postgres import PostgresCoordinator
from shard_manager.zookeeper import ZookeeperCoordinator, ZookeeperSettings

ACL_SEPARATOR: Final = ";"


def check_coordinator(config: NodeConfig) -> None:
    """Refuse settings that cannot work before anything is opened. Raises `InvalidSetting`."""
    if config.coordinator == "zookeeper":
        zookeeper_settings(config)


async def open_coordinator(config: NodeConfig, database: Database) -> Coordinator:
    """Return the node's coordinator once it is known that a node can join it.

    Raises `InvalidSetting`, or `CoordinatorError` if ZooKeeper does not answer, refuses the node, or belongs to others.
    """
    if config.coordinator == "postgres":
        return PostgresCoordinator(config.database)

    async def draw_generation(known: int) -> int:
        try:
            return await newest_generation(database, known)
        except StoreError as error:
            raise CoordinatorUnavailable("join", f"no generation from the database: {error}") from error

    coordinator = ZookeeperCoordinator(
        zookeeper_settings(config), cluster_id=await read_cluster_id(database), draw_generation=draw_generation
    )
    await coordinator.probe()
    return coordinator


def zookeeper_settings(config: NodeConfig) -> ZookeeperSettings:
    """Return what `config` says about ZooKeeper. Raises `InvalidSetting`."""
    hosts, chroot = ZookeeperSettings.split(config.zookeeper)
    acl = tuple(one.strip() for one in config.zookeeper_acl.split(ACL_SEPARATOR) if one.strip())
    return ZookeeperSettings(
        hosts=hosts,
        chroot=chroot,
        auth=config.zookeeper_auth,
        acl=acl,
        use_ssl=bool(config.zookeeper_ca),
        ca=config.zookeeper_ca,
        certfile=config.zookeeper_cert,
        keyfile=config.zookeeper_key,
    )
