"""Makes the coordinator that the settings ask for, if it is the one in charge of the cluster."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from server.config import NodeConfig
from server.store.coordination import OtherCoordinator, newest_generation, read_cluster_id, settle_coordinator
from server.store.database import Database
from server.store.errors import StoreError
from shard_manager.coordinator import Coordinator, Member
from shard_manager.errors import CoordinatorFailed, CoordinatorUnavailable
from shard_manager.postgres import PostgresCoordinator
from shard_manager.zookeeper import ZookeeperCoordinator, ZookeeperSettings

ACL_SEPARATOR: Final = ";"


def check_coordinator(config: NodeConfig) -> None:
    """Refuse settings that cannot work before anything is opened. Raises `InvalidSetting`."""
    if config.coordinator == "zookeeper":
        zookeeper_settings(config)


def coordinator_place(config: NodeConfig) -> str:
    """Return where `config` has leases granted, as the database keeps it. Raises `InvalidSetting`.

    The servers are no part of it: nodes may list some of an ensemble's, in any order.
    """
    if config.coordinator == "postgres":
        return "postgres"
    return f"zookeeper:{zookeeper_settings(config).chroot}"


async def open_coordinator(config: NodeConfig, database: Database) -> Coordinator:
    """Return the node's coordinator once it is known that a node can join it.

    Raises `InvalidSetting`, `OtherCoordinator` if another one is in charge, or `CoordinatorError` if ZooKeeper does not
    answer, refuses the node, or belongs to others. A coordinator that is replaced later refuses to be joined again.
    """
    place = coordinator_place(config)
    if config.coordinator == "postgres":
        await settle_coordinator(database, place)
        return _InChargeCoordinator(config.database, database, place)
    coordinator = await zookeeper_coordinator(config, database)
    # Nothing is written down before ZooKeeper has answered: a wrong address or path must not bind the cluster to it.
    await coordinator.look()
    await settle_coordinator(database, place)
    await coordinator.probe()
    return coordinator


async def zookeeper_coordinator(config: NodeConfig, database: Database) -> ZookeeperCoordinator:
    """Return a coordinator on the ZooKeeper of `config` that is not joined yet. Raises `InvalidSetting`."""
    place = coordinator_place(config)

    async def draw_generation(known: int) -> int:
        try:
            return await newest_generation(database, place, known)
        except StoreError as error:
            raise CoordinatorUnavailable("join", f"no generation from the database: {error}") from error
        except OtherCoordinator as error:
            raise CoordinatorFailed("join", str(error)) from error

    return ZookeeperCoordinator(
        zookeeper_settings(config), cluster_id=await read_cluster_id(database), draw_generation=draw_generation
    )


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


class _InChargeCoordinator(PostgresCoordinator):
    """The coordinator on PostgreSQL, which is joined only while no other one is in charge."""

    def __init__(self, conninfo: str, database: Database, place: str) -> None:
        super().__init__(conninfo)
        self._database = database
        self._place = place

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        try:
            await settle_coordinator(self._database, self._place)
        except StoreError as error:
            raise CoordinatorUnavailable("join", str(error)) from error
        except OtherCoordinator as error:
            raise CoordinatorFailed("join", str(error)) from error
        await super().join(member, ttl=ttl, replaces=replaces)
