"""AdminService: the state of the cluster, handlers, workers, namespaces."""

import asyncio
from datetime import timedelta

import grpc
from google.protobuf.duration_pb2 import Duration

from server.domain.handler import HandlerView
from server.domain.policies import Policies
from server.store import status
from server.store.catalog import Catalog
from server.store.database import Database
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1 import job_service_pb2 as job_pb
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy, Timeouts
from tests.integration.api.node import NODE, SHARDS, ApiNode, Fleet, refused

FAR = Duration(seconds=3600)


async def submit(node: ApiNode, *specs: JobSpec) -> None:
    await node.jobs.SubmitJobs(job_pb.SubmitJobsRequest(jobs=specs))


async def test_the_status_of_an_idle_cluster(node: ApiNode) -> None:
    answer = await node.admin.GetStatus(pb.GetStatusRequest())
    assert (answer.answered_by, answer.coordinator, answer.leader, answer.plan_version) == (NODE, "postgres", NODE, 3)
    assert (answer.shard_count, len(answer.shards), answer.version) == (SHARDS, SHARDS, "0.1.0")
    assert {(shard.owner, shard.planned_owner, shard.epoch) for shard in answer.shards} == {("", NODE, 0)}
    [member] = answer.nodes
    assert (member.node, member.state, member.shard_count, member.leader) == (NODE, "up", 0, True)
    assert (answer.due_count, answer.pending_count, answer.running_count, answer.worker_count) == (0, 0, 0, 0)
    assert not answer.HasField("oldest_due")
    assert answer.HasField("now")


async def test_the_status_counts_jobs_shards_and_workers(node: ApiNode, fleet: Fleet) -> None:
    await submit(node, *[JobSpec(handler="a")] * 30, *[JobSpec(handler="b", delay=FAR)] * 20)
    handler = await node.catalog.handler(1, "a")
    claimed = (await fleet.claim(handler.handler_id, 4))[:4]
    assert len(claimed) == 4
    await node.database.run("UPDATE jobs SET due_at = due_at - interval '1 minute' WHERE state = 0 AND due_at < now()")
    answer = await node.admin.GetStatus(pb.GetStatusRequest())
    assert (answer.due_count, answer.pending_count, answer.running_count) == (26, 46, 4)
    assert timedelta(seconds=60) <= answer.oldest_due.ToTimedelta() < timedelta(seconds=90)
    assert (answer.worker_count, answer.nodes[0].shard_count) == (1, SHARDS)
    assert {shard.owner for shard in answer.shards} == {NODE}
    assert all(shard.HasField("acquired_at") for shard in answer.shards)


async def test_handlers_are_listed_with_what_waits_and_runs(node: ApiNode, fleet: Fleet) -> None:
    await submit(node, *[JobSpec(handler="a", priority=number % 5 + 1) for number in range(10)])
    await submit(node, JobSpec(handler="b", delay=FAR))
    await node.catalog.register_handlers(1, {"a": Policies(max_attempts=9, attempt=timedelta(seconds=5))})
    handler = await node.catalog.handler(1, "a")
    node.engine.views[handler.handler_id] = HandlerView(workers=2, slots=16, free=3)
    await fleet.claim(handler.handler_id, 2)
    await node.admin.PauseHandler(pb.PauseHandlerRequest(handler="b", note="later"))
    first, second = (await node.admin.ListHandlers(pb.ListHandlersRequest())).handlers
    assert (first.handler, first.paused, first.worker_count, first.slot_count) == ("a", False, 2, 16)
    assert (first.running_count, first.due_count, first.HasField("oldest_due")) == (2, 8, True)
    assert (first.retry.max_attempts, first.timeouts.attempt_timeout.seconds) == (9, 5)
    assert not first.retry.HasField("max_delay")
    assert (second.handler, second.paused, second.pause_note, second.due_count) == ("b", True, "later", 0)
    resumed = await node.admin.ResumeHandler(pb.ResumeHandlerRequest(handler="b"))
    assert (resumed.paused, resumed.pause_note) == (False, "")
    assert [paused for _, paused in node.engine.pauses] == [True, False]


async def test_an_unknown_handler_cannot_be_paused(node: ApiNode) -> None:
    async with refused(grpc.StatusCode.NOT_FOUND) as refusals:
        await node.admin.PauseHandler(pb.PauseHandlerRequest(handler="tpyo"))
    assert (refusals[0].reason, refusals[0].metadata["handler"]) == ("HANDLER_NOT_FOUND", "tpyo")


async def test_workers_are_listed_while_their_lease_runs(node: ApiNode) -> None:
    fleet = await Fleet.start(node.database, worker="w-2", handlers=b'{"a": 4, "b": 1}')
    await Fleet.start(node.database, worker="w-1")
    await node.database.run("UPDATE workers SET lease_until = now() WHERE name = 'w-1'")
    await submit(node, *[JobSpec(handler="a")] * 3)
    handler = await node.catalog.handler(1, "a")
    fleet.epochs = dict(await node.database.run("SELECT shard, epoch FROM shards"))
    await fleet.claim(handler.handler_id)
    [worker] = (await node.admin.ListWorkers(pb.ListWorkersRequest())).workers
    assert (worker.worker, worker.incarnation, worker.sdk, worker.running_count) == ("w-2", 1, "python/0.1.0", 3)
    assert [(credit.handler, credit.slots) for credit in worker.handlers] == [("a", 4), ("b", 1)]
    assert worker.lease_until.ToDatetime() > worker.started_at.ToDatetime()


async def test_a_namespace_is_created_once(node: ApiNode) -> None:
    retry = RetryPolicy(max_attempts=3, max_delay=Duration(nanos=1500))
    request = pb.CreateNamespaceRequest(namespace="shop", retry=retry, timeouts=Timeouts(total_timeout=FAR))
    created = await node.admin.CreateNamespace(request)
    assert (created.namespace, created.retry.max_attempts, created.timeouts.total_timeout) == ("shop", 3, FAR)
    assert await node.admin.CreateNamespace(request) == created
    request.retry.max_attempts = 4
    async with refused(grpc.StatusCode.ALREADY_EXISTS) as refusals:
        await node.admin.CreateNamespace(request)
    assert refusals[0].reason == "NAMESPACE_EXISTS"
    names = [one.namespace for one in (await node.admin.ListNamespaces(pb.ListNamespacesRequest())).namespaces]
    assert names == ["default", "shop"]


async def test_a_pause_on_one_node_reaches_the_catalog_of_another(database: str) -> None:
    async with ApiNode(database) as one, ApiNode(database) as two:
        assert await two.catalog.refresh() == []
        await submit(one, JobSpec(handler="a"), JobSpec(handler="b"))
        await submit(two, JobSpec(handler="a"), JobSpec(handler="b"))
        await two.catalog.refresh()
        await one.admin.PauseHandler(pb.PauseHandlerRequest(handler="a"))
        [changed] = await two.catalog.refresh()
        assert (changed.name, changed.paused) == ("a", True)
        assert await two.catalog.refresh() == []
        await one.catalog.register_handlers(1, {"b": Policies(max_attempts=9)})
        await one.catalog.register_handlers(1, {"b": Policies(max_attempts=9)})
        [changed] = await two.catalog.refresh()
        assert (changed.name, changed.policies) == ("b", Policies(max_attempts=9))
        found = await two.catalog.find_handler(1, "b")
        assert found == changed


async def test_a_small_cache_forgets_and_reads_again(database: str) -> None:
    store = Database(database)
    await store.open()
    catalog = Catalog(store, max_cached=3)
    made = await catalog.handlers_named(1, [f"h{number}" for number in range(10)])
    assert len(made) == 10
    for handler in made.values():
        assert await catalog.handler_by_id(handler.handler_id) == handler
        assert await catalog.handler(1, handler.name) == handler
    assert await store.run("SELECT count(*) FROM handlers") == [(10,)]
    await store.close()


async def test_handlers_made_on_many_nodes_at_once_are_one(database: str) -> None:
    async with ApiNode(database) as one, ApiNode(database) as two:
        names = [f"h{number}" for number in range(20)]
        catalogs = (one.catalog, two.catalog)
        found = await asyncio.gather(*(catalogs[turn % 2].handlers_named(1, names[::-1]) for turn in range(6)))
        assert len({tuple(made[name].handler_id for name in names) for made in found}) == 1
        assert await one.database.run("SELECT count(*) FROM handlers") == [(20,)]


async def test_counts_stop_at_their_caps(node: ApiNode) -> None:
    await submit(node, *[JobSpec(handler="a", priority=number % 5 + 1) for number in range(50)])
    [(partition,)] = await node.database.run("SELECT DISTINCT shard / 4 FROM jobs")
    [(_, _, _, counted)] = await node.database.run(status.DUE.on(partition), (status.MAX_GROUPS, 7))
    assert counted == 7
    # Two groups, each of one shard, handler and priority, with ten jobs.
    [(_, _, _, counted)] = await node.database.run(status.DUE.on(partition), (2, status.MAX_COUNTED))
    assert counted == 20


async def test_the_sample_skips_from_group_to_group(node: ApiNode) -> None:
    await submit(node, *[JobSpec(handler="a", delay=FAR)] * 500, *[JobSpec(handler="b")] * 20)
    [(partition,)] = await node.database.run("SELECT DISTINCT shard / 4 FROM jobs")
    lines = await node.database.run(
        b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + status.DUE.on(partition), (status.MAX_GROUPS, status.MAX_COUNTED)
    )
    plan = "\n".join(line for (line,) in lines)
    assert "Seq Scan" not in plan
    assert "rows=500" not in plan


async def test_without_a_leader_orders_are_refused_and_what_is_known_is_shown(database: str) -> None:
    async with ApiNode(database, leader="") as node:
        async with refused(grpc.StatusCode.UNAVAILABLE) as refusals:
            await node.admin.PauseRebalance(pb.PauseRebalanceRequest(), timeout=1)
        assert refusals[0].reason == "NO_LEADER"
        assert "nothing was changed" in refusals[0].message
        answer = await node.admin.GetStatus(pb.GetStatusRequest())
        assert (answer.leader, len(answer.nodes), len(answer.shards)) == ("", 1, SHARDS)
