"""What is ZooKeeper's own: its outages, lost answers, generations, watches, rights."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kazoo.client import KazooClient

from shard_manager.coordinator import Lease, Member, MemberState, Plan
from shard_manager.errors import (
    CoordinatorFailed,
    CoordinatorUnavailable,
    ForeignCluster,
    InvalidSetting,
    PlanCorrupt,
    SessionLost,
)
from shard_manager.zookeeper import LinkState, ZookeeperSettings
from tests.contract.coordinator.benches import TimedCoordinator, ZookeeperBench
from tests.support.waiting import eventually
from tests.support.zookeeper import ZookeeperEnsemble, ZookeeperServer, free_ports

TTL = timedelta(seconds=10)
SHORT = timedelta(seconds=1)
A = Member(node="a", incarnation=1, address="127.0.0.1:7400")
B = Member(node="b", incarnation=2)


async def joined(
    bench: ZookeeperBench, member: Member, ttl: timedelta = TTL, *, deadline_s: float = 3.0
) -> TimedCoordinator:
    coordinator = bench.coordinator(deadline_s=deadline_s)
    await coordinator.join(member, ttl=ttl)
    return coordinator


async def ask_until_answered(coordinator: TimedCoordinator) -> dict[int, Lease]:
    """View until ZooKeeper answers; return what is held then."""
    held: dict[int, Lease] = {}

    async def answered() -> bool:
        try:
            held.update((await coordinator.view(fresh=True)).held)
        except CoordinatorUnavailable:
            return False
        return True

    await eventually(answered, what="an answer")
    return held


async def call(coordinator: TimedCoordinator, name: str, lease: Lease) -> None:
    match name:
        case "view":
            await coordinator.view()
        case "acquire":
            await coordinator.acquire([lease.shard])
        case "release":
            await coordinator.release([lease])
        case _:
            await coordinator.leave()


async def keep_renewing(coordinator: TimedCoordinator, member: Member) -> None:
    """Show signs of life as a node does, whether they arrive or not."""
    while True:
        try:
            await coordinator.renew(member)
        except CoordinatorUnavailable:
            pass
        await asyncio.sleep(0.05)


@pytest.fixture
def admin(zookeeper_bench: ZookeeperBench) -> Iterator[KazooClient]:
    """A client beside the coordinators, within the bench's tree."""
    client = KazooClient(hosts=zookeeper_bench.hosts)
    client.start(5)
    client.ensure_path(zookeeper_bench.chroot)
    client.chroot = zookeeper_bench.chroot
    yield client
    client.stop()
    client.close()


# Lost answers and late requests.


async def test_what_became_of_a_call_without_an_answer_is_known_at_the_next_view(
    breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    a = await joined(breakable_bench, A, deadline_s=0.5)
    leases = list(await a.acquire([0, 1, 5]))
    with breakable_zookeeper.paused(), pytest.raises(CoordinatorUnavailable):
        await a.release(leases[:2])
    assert set(await ask_until_answered(a)) == {5}


async def test_a_call_that_is_broken_off_at_any_moment_leaves_the_view_true(
    zookeeper_bench: ZookeeperBench, admin: KazooClient
) -> None:
    a = await joined(zookeeper_bench, A)
    outcomes: set[int] = set()
    for number in range(60):
        acquiring = asyncio.create_task(a.acquire([number, number + 100]))
        for _ in range(number):
            await asyncio.sleep(0.0001)
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        held = set((await a.view()).held)
        assert held == {int(name) for name in await asyncio.to_thread(admin.get_children, "/leases")}
        outcomes.add(len(held))
        await a.release(list((await a.view()).held.values()))
    assert outcomes == {0, 2}


async def test_leases_that_somebody_deleted_are_noticed_by_a_fresh_view(
    zookeeper_bench: ZookeeperBench, admin: KazooClient
) -> None:
    a, b = await joined(zookeeper_bench, A), await joined(zookeeper_bench, B)
    leases = list(await a.acquire(range(4)))
    # The first of them reads every lease, the second finds that nothing has changed.
    for _ in range(2):
        assert set((await a.view(fresh=True)).held) == {0, 1, 2, 3}
    for name in ("0001", "0002"):
        await asyncio.to_thread(admin.delete, f"/leases/{name}")
    [taken] = await b.acquire([2])
    assert set((await a.view(fresh=True)).held) == {0, 3}
    await asyncio.to_thread(admin.delete, "/leases/0003")
    await a.release(leases)
    assert (await a.view(fresh=True)).held == {}
    assert (await b.view(fresh=True)).held == {2: taken}
    assert await asyncio.to_thread(admin.get_children, "/leases") == ["0002"]


async def test_nothing_is_done_in_a_later_session_of_somebody_else(zookeeper_bench: ZookeeperBench) -> None:
    """A node whose candidate is gone can neither release, nor lease, nor plan, although its connection is fine."""
    a = await joined(zookeeper_bench, A)
    leases = list(await a.acquire([0]))
    successor = zookeeper_bench.coordinator()
    await successor.join(replace(A, incarnation=9), ttl=TTL, replaces=[1])
    [taken] = await successor.acquire([0])
    assert a.state is LinkState.CONNECTED
    with pytest.raises(SessionLost):
        await a.release(leases)
    assert (await successor.view(fresh=True)).held == {0: taken}


# Outages.


async def test_while_the_server_is_away_calls_fail_at_once_and_the_session_lives_on(
    breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    ttl = timedelta(seconds=2)
    a = await joined(breakable_bench, A, ttl)
    held = {lease.shard: lease for lease in await a.acquire(range(8))}
    session = a.session
    renewing = asyncio.create_task(keep_renewing(a, A))
    breakable_zookeeper.kill9()
    try:
        await eventually(lambda: a.state is LinkState.SUSPENDED)
        over_s = time.monotonic() + ttl.total_seconds() + 0.6
        while time.monotonic() < over_s:
            began = time.monotonic()
            for name in ("view", "acquire", "release", "leave"):
                with pytest.raises(CoordinatorUnavailable):
                    await call(a, name, held[0])
            assert time.monotonic() - began < 0.3
            await asyncio.sleep(0.05)
        assert a.state is LinkState.SUSPENDED
    finally:
        await asyncio.to_thread(breakable_zookeeper.start)
    began = time.monotonic()
    await eventually(lambda: a.state is LinkState.CONNECTED)
    assert time.monotonic() - began < 2
    assert a.session == session
    assert (await a.view(fresh=True)).held == held
    renewing.cancel()


async def test_a_server_that_hangs_longer_than_the_sessions_ends_them_all(
    breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    nodes = [(await joined(breakable_bench, member, SHORT, deadline_s=0.3), member) for member in (A, B)]
    old = {lease.shard: lease for lease in await nodes[0][0].acquire([0])}

    async def all_lost() -> bool:
        return all([await session_is_lost(*node) for node in nodes])

    # When it goes on, requests that have piled up may reach it before its own clock does: then the sessions live.
    for _ in range(5):
        with breakable_zookeeper.paused():
            over_s = time.monotonic() + 2 * SHORT.total_seconds()
            while time.monotonic() < over_s:
                assert not await all_lost()
                await asyncio.sleep(0.05)
        for coordinator, _ in nodes:
            await told_how_it_is(coordinator)
        if await all_lost():
            break
    else:
        pytest.fail("the sessions outlived every pause")
    a, _ = nodes[0]
    await a.join(A, ttl=SHORT)
    [new] = await a.acquire([0])
    assert new > old[0]


async def told_how_it_is(coordinator: TimedCoordinator) -> None:
    await eventually(lambda: coordinator.state in (LinkState.CONNECTED, LinkState.LOST), what="a connection")


async def session_is_lost(coordinator: TimedCoordinator, member: Member) -> bool:
    """Renew, as every node does; the answer is whether that was refused because the session is over."""
    try:
        await coordinator.renew(member)
    except CoordinatorUnavailable:
        return False
    except SessionLost:
        return True
    return False


async def test_a_node_goes_in_bounded_time_from_a_server_that_hangs(
    breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    a, b = await joined(breakable_bench, A), await joined(breakable_bench, B)
    with breakable_zookeeper.paused():
        began = time.monotonic()
        await a.leave()
        await b.close()
        assert time.monotonic() - began < 3
    assert a.session is None


async def test_an_ensemble_may_lose_a_server_and_come_back_from_the_loss_of_its_majority() -> None:
    with ZookeeperEnsemble() as ensemble:
        bench = ZookeeperBench(ensemble.hosts)
        a, b = await joined(bench, A), await joined(bench, B)
        held = {lease.shard: lease for lease in await a.acquire(range(8))}
        await a.write_plan(Plan(version=1, shards=8, owners={0: "a"}))
        assert (await b.view(fresh=True)).plan == (await a.view()).plan
        session = a.session
        lost = ensemble.leader
        lost.kill9()
        assert await ask_until_answered(a) == held
        [second] = [ensemble.leader]
        second.kill9()
        await eventually(lambda: a.state is LinkState.SUSPENDED)
        with pytest.raises(CoordinatorUnavailable):
            await a.view()
        for server in (lost, second):
            await asyncio.to_thread(server.start, wait=False)
        assert await ask_until_answered(a) == held
        assert a.session == session
        await bench.close()


# What a node does not renew.


async def test_a_session_that_its_process_does_not_renew_ends_although_the_connection_lives(
    breakable_bench: ZookeeperBench,
) -> None:
    a, b = await joined(breakable_bench, A, SHORT), await joined(breakable_bench, B)
    await a.acquire([0])
    began = time.monotonic()

    async def alone() -> bool:
        return set((await b.view()).members) == {"b"}

    await eventually(alone)
    assert SHORT.total_seconds() - 0.1 < time.monotonic() - began < SHORT.total_seconds() + 1
    assert len(await b.acquire([0])) == 1
    with pytest.raises(SessionLost):
        await a.renew(A)


# Generations.


async def test_a_wiped_server_is_noticed_and_draws_a_greater_generation(
    breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    a = await joined(breakable_bench, A, SHORT)
    [before] = await a.acquire([0])
    breakable_zookeeper.kill9()
    breakable_zookeeper.wipe()
    await asyncio.to_thread(breakable_zookeeper.start)
    # It refuses the client rather than to say that it knows no such session.
    await eventually(lambda: session_is_lost(a, A), what="the loss of the session")
    await a.join(A, ttl=SHORT)
    [after] = await a.acquire([0])
    assert after.generation > before.generation
    assert after > before


async def test_after_another_coordinator_was_in_charge_leases_outrank_its_own(zookeeper_bench: ZookeeperBench) -> None:
    a, b = await joined(zookeeper_bench, A), await joined(zookeeper_bench, B)
    [before] = await a.acquire([0])
    zookeeper_bench.generations.newest += 5
    await a.leave()
    await a.join(A, ttl=TTL)
    [after] = await a.acquire([0])
    assert after.generation > before.generation + 4
    # Whoever had joined before learns of it when it leases.
    [other] = await b.acquire([1])
    assert other.generation == after.generation


async def test_all_that_join_an_empty_tree_at_once_settle_on_one_generation(zookeeper_bench: ZookeeperBench) -> None:
    members = [Member(node=f"n{number}", incarnation=1) for number in range(6)]
    coordinators = await asyncio.gather(*(joined(zookeeper_bench, member) for member in members))
    leases = [lease for number, each in enumerate(coordinators) for lease in await each.acquire([number])]
    assert len({lease.generation for lease in leases}) == 1


async def test_a_generation_that_cannot_be_drawn_keeps_a_node_out(
    zookeeper_bench: ZookeeperBench, admin: KazooClient
) -> None:
    zookeeper_bench.generations.unreachable = CoordinatorUnavailable("draw", "the database is away")
    a = zookeeper_bench.coordinator()
    with pytest.raises(CoordinatorUnavailable, match="the database is away"):
        await a.join(A, ttl=TTL)
    assert await asyncio.to_thread(admin.get_children, "/members") == []
    zookeeper_bench.generations.unreachable = None
    await a.join(A, ttl=TTL)
    assert set((await a.view()).members) == {"a"}


# Refusals.


async def test_a_wrong_address_is_named(zookeeper_bench: ZookeeperBench) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    a = zookeeper_bench.coordinator(settings=zookeeper_bench.settings(hosts=(nobody,)), deadline_s=0.3)
    for attempt in (a.join(A, ttl=TTL), a.probe()):
        began = time.monotonic()
        with pytest.raises(CoordinatorUnavailable, match=f"{nobody}.*refused"):
            await attempt
        assert time.monotonic() - began < 2


async def test_a_name_that_does_not_exist_is_named(zookeeper_bench: ZookeeperBench) -> None:
    settings = zookeeper_bench.settings(hosts=("no-such-host.invalid:2181",))
    a = zookeeper_bench.coordinator(settings=settings, deadline_s=0.3)
    with pytest.raises(CoordinatorUnavailable, match=r"no-such-host.invalid:2181: its name cannot be resolved"):
        await a.probe()


async def test_a_server_that_is_no_zookeeper_is_told_of(zookeeper_bench: ZookeeperBench) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(100):
                continue
        finally:
            writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = zookeeper_bench.settings(hosts=(f"127.0.0.1:{port}",))
        a = zookeeper_bench.coordinator(settings=settings, deadline_s=0.3)
        with pytest.raises(CoordinatorUnavailable, match="accepts connections and does not answer"):
            await a.probe()


async def test_a_dead_server_first_in_the_list_costs_little(zookeeper_bench: ZookeeperBench) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    hosts = (nobody, zookeeper_bench.hosts)
    began = time.monotonic()
    for _ in range(4):
        a = zookeeper_bench.coordinator(settings=zookeeper_bench.settings(hosts=hosts))
        await a.join(A, ttl=TTL)
        await a.leave()
    assert time.monotonic() - began < 4


async def test_a_server_behind_a_black_hole_costs_half_a_second_of_a_session_of_two(
    zookeeper_bench: ZookeeperBench,
) -> None:
    with contextlib.ExitStack() as sockets:
        # With its queue full, nobody answers to whoever connects; the client knows of no server that is better.
        deaf = sockets.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):
            caller = sockets.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        hosts = (f"127.0.0.1:{deaf.getsockname()[1]}", zookeeper_bench.hosts)
        took_s: list[float] = []
        # Servers are tried in any order.
        for _ in range(6):
            a = zookeeper_bench.coordinator(settings=zookeeper_bench.settings(hosts=hosts))
            began = time.monotonic()
            await a.join(A, ttl=timedelta(seconds=2))
            took_s.append(time.monotonic() - began)
            await a.leave()
    assert max(took_s) < 1.5


async def test_the_tree_of_another_cluster_is_refused(zookeeper_bench: ZookeeperBench) -> None:
    a = await joined(zookeeper_bench, A)
    stranger = zookeeper_bench.coordinator(cluster_id="theirs")
    for attempt in (stranger.probe(), stranger.join(B, ttl=TTL)):
        with pytest.raises(ForeignCluster) as caught:
            await attempt
        assert (caught.value.place, caught.value.ours, caught.value.theirs) == (
            zookeeper_bench.chroot,
            "theirs",
            "ours",
        )
    assert set((await a.view(fresh=True)).members) == {"a"}


async def test_a_path_with_something_else_in_it_is_refused(zookeeper_bench: ZookeeperBench, admin: KazooClient) -> None:
    await asyncio.to_thread(admin.create, "/meta", b"\x00something")
    with pytest.raises(CoordinatorFailed, match="use another path"):
        await zookeeper_bench.coordinator().probe()


async def test_without_the_right_password_nothing_is_read_or_written(zookeeper_bench: ZookeeperBench) -> None:
    settings = zookeeper_bench.settings(auth="nodes:secret")
    a = zookeeper_bench.coordinator(settings=settings)
    await a.join(A, ttl=TTL)
    b = zookeeper_bench.coordinator(settings=settings)
    await b.join(B, ttl=TTL)
    await a.acquire([0])
    assert set((await b.view(fresh=True)).members) == {"a", "b"}
    for auth in ("", "nodes:wrong"):
        stranger = zookeeper_bench.coordinator(settings=zookeeper_bench.settings(auth=auth))
        for attempt in (stranger.probe(), stranger.join(Member(node="c", incarnation=3), ttl=TTL)):
            with pytest.raises(CoordinatorFailed, match="credentials") as caught:
                await attempt
            assert "wrong" not in str(caught.value)


# kazoo leaves it to the garbage collector to close the socket of a handshake that failed.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_over_tls_nodes_are_known_by_their_certificates(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("server", "node-a", "node-b", "stranger"):
        certificate = authority.issue_cert(
            "localhost", "127.0.0.1", common_name=name, organization_unit_name="nodes", organization_name="test"
        )
        key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
        # Java reads keys in this form only.
        pkcs8 = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (tmp_path / f"{name}.pem").write_bytes(pkcs8 + certificate.cert_chain_pems[0].bytes())
    port = free_ports(1)[0]
    secure = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "ssl.keyStore.location": str(tmp_path / "server.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(tmp_path / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
    }
    with ZookeeperServer(settings=secure) as server:
        bench = ZookeeperBench(f"127.0.0.1:{port}")

        def settings(name: str, certificate: bool = True) -> ZookeeperSettings:
            own = str(tmp_path / f"{name}.pem") if certificate else ""
            acl = tuple(f"x509:CN={one},OU=nodes,O=test" for one in ("node-a", "node-b"))
            return bench.settings(use_ssl=True, ca=str(tmp_path / "ca.pem"), certfile=own, keyfile=own, acl=acl)

        a, b = bench.coordinator(settings=settings("node-a")), bench.coordinator(settings=settings("node-b"))
        await a.join(A, ttl=TTL)
        await b.join(B, ttl=TTL)
        assert len(await a.acquire(range(256))) == 256
        assert set((await b.view(fresh=True)).members) == {"a", "b"}
        with pytest.raises(CoordinatorFailed, match="credentials"):
            await bench.coordinator(settings=settings("stranger")).probe()
        with pytest.raises(CoordinatorUnavailable):
            await bench.coordinator(settings=settings("node-a", certificate=False), deadline_s=0.3).probe()
        plain = ZookeeperBench(server.hosts, chroot=bench.chroot)
        with pytest.raises(CoordinatorFailed, match="credentials"):
            await plain.coordinator().probe()
        await bench.close()


async def test_a_plan_that_is_too_large_is_refused_before_it_is_sent(zookeeper_bench: ZookeeperBench) -> None:
    a = await joined(zookeeper_bench, A)
    plan = Plan(version=1, shards=8, owners={0: "a"}, reason="x" * 1_000_000)
    with pytest.raises(InvalidSetting, match="900000"):
        await a.write_plan(plan)
    assert (await a.view()).plan is None


async def test_a_plan_that_cannot_be_read_is_told_of_and_may_be_deleted(
    zookeeper_bench: ZookeeperBench, admin: KazooClient
) -> None:
    a = await joined(zookeeper_bench, A)
    await a.write_plan(Plan(version=1, shards=8, owners={0: "a"}))
    await asyncio.to_thread(admin.set, "/plan", b"{}")
    with pytest.raises(PlanCorrupt):
        await a.view()
    await asyncio.to_thread(admin.delete, "/plan")
    assert (await a.view()).plan is None
    await a.write_plan(Plan(version=1, shards=8, owners={1: "a"}))
    plan = (await a.view()).plan
    assert plan is not None
    assert plan.owners == {1: "a"}


# Watches.


async def woken(coordinator: TimedCoordinator) -> None:
    async with asyncio.timeout(5):
        await coordinator.wait_change(60)


async def quiet(coordinator: TimedCoordinator) -> None:
    """Look until nothing is new any more, so that only what follows can wake."""

    async def nothing_new() -> bool:
        await coordinator.view()
        before = time.monotonic()
        await coordinator.wait_change(0.1)
        return time.monotonic() - before >= 0.1

    await eventually(nothing_new)


async def test_what_concerns_a_node_wakes_it(zookeeper_bench: ZookeeperBench) -> None:
    a, b = await joined(zookeeper_bench, A), await joined(zookeeper_bench, B)
    plan = Plan(version=1, shards=8, owners={0: "a"})
    await a.write_plan(plan)
    leases = list(await a.acquire([0]))

    await quiet(a)
    await b.renew(replace(B, state=MemberState.DRAINING))
    await woken(a)  # the leader, by a member that changes

    await quiet(a)
    c = await joined(zookeeper_bench, Member(node="c", incarnation=3))
    await woken(a)  # the leader, by a member that joins

    await quiet(b)
    await a.write_plan(replace(plan, version=2))
    await woken(b)  # everybody, by a plan

    await quiet(b)
    assert list(await b.acquire([0])) == []
    await a.release(leases)
    await woken(b)  # who waits for a lease, by its release

    await quiet(b)
    await quiet(c)
    await a.leave()
    await woken(b)  # the next in line, by the end of the leader
    assert (await b.view()).leader == "b"
    await c.wait_change(0.1)
    assert (await c.view()).leader == "b"
