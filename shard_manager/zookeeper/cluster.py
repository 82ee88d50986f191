"""Reading the cluster, and writing its plan."""

import asyncio
import logging
from typing import Final

from shard_manager import plan_codec
from shard_manager.coordinator import Member, Plan, SessionInfo, View
from shard_manager.errors import InvalidSetting, NotLeader, PlanConflict, PlanCorrupt
from shard_manager.zookeeper.leases import resolve, settle_uncertain
from shard_manager.zookeeper.messages import (
    Create,
    LinkLost,
    Operation,
    Refused,
    SetData,
)
from shard_manager.zookeeper.session import Session, commit, look_alive, remove_session
from shard_manager.zookeeper.tree import Unreadable, candidate_node, candidate_number, decode_member, encode_member

logger = logging.getLogger(__name__)

#: ZooKeeper refuses whatever comes near 1 MiB; a plan of 1024 shards on 50 nodes takes 18 kB.
MAX_PLAN_BYTES: Final = 900_000


async def read_view(session: Session, *, fresh: bool) -> View:
    """Read the cluster. Sets watches on what this node has to react to. Raises `LinkLost` or `PlanCorrupt`."""
    if fresh:
        await session.link.sync(session.tree.root)
    leader = await _read_leader(session)
    await settle_uncertain(session, set(session.uncertain))
    await asyncio.gather(
        _read_members(session, fresh=fresh),
        _read_plan(session, fresh=fresh),
        _look_after_leases(session, fresh=fresh),
    )
    return View(
        members=dict(session.members),
        leader=candidate_node(leader),
        plan=session.plan,
        held=dict(session.held),
        sessions=dict(session.sessions),
    )


async def _look_after_leases(session: Session, *, fresh: bool) -> None:
    """With `fresh`, read again what the session holds, if any lease was made or removed since the last time."""
    if not fresh:
        return
    leases = await session.link.stat(session.tree.leases)
    changed = leases.children_by if leases is not None else None
    if changed is None or changed != session.leases_seen:
        await resolve(session, session.held)
        session.leases_seen = changed


async def write_plan(session: Session, plan: Plan) -> None:
    """Replace the plan before `plan`. Raises `NotLeader`, `PlanConflict` or `LinkLost`."""
    data = plan_codec.encode(plan).encode()
    if len(data) > MAX_PLAN_BYTES:
        raise InvalidSetting(
            "plan", f"{len(data)} bytes", f"must be at most {MAX_PLAN_BYTES}; shorten the nodes' names"
        )
    if not session.leads:
        leader = await _read_leader(session)
        if not session.leads:
            raise NotLeader(session.node, candidate_node(leader))
    before = plan.version - 1
    if (session.plan.version if session.plan is not None else 0) != before:
        await _read_plan(session, fresh=True)
    found = session.plan.version if session.plan is not None else 0
    if found != before:
        raise PlanConflict(before, found)
    write: Operation = Create(session.tree.plan, data)
    if session.plan_stat is not None:
        write = SetData(session.tree.plan, data, session.plan_stat.version)
    try:
        # Whoever was the lowest candidate stays that while its znode is there, so the guard proves leadership, too.
        await commit(session, [write])
    except Refused as refused:
        await _read_plan(session, fresh=True)
        raise PlanConflict(before, session.plan.version if session.plan is not None else 0) from refused
    await _read_plan(session, fresh=True)


async def evict(session: Session, node: str, number: int) -> bool:
    """End session `number` of `node`, if it is its present one; says whether it was. Raises `LinkLost`."""
    await look_alive(session)
    found = await session.link.get(session.tree.member(node))
    if found is None or found[1].made_by != number:
        return False
    return await remove_session(session.link, session.tree, node, found[1].session)


async def publish(session: Session, member: Member) -> None:
    """Say what `member` says now, or if that is nothing new, look whether the session lives. Raises `LinkLost`."""
    if member == session.published:
        await look_alive(session)
        return
    # The parent's version tells everybody that some member has changed.
    await commit(session, [
        SetData(session.tree.member(member.node), encode_member(member, session.ttl_s)),
        SetData(session.tree.members, b""),
    ])  # fmt: skip
    session.published = member


async def _read_leader(session: Session) -> str:
    """The lowest candidate. Watches the one before this session's own, and no other: no herd at a leader's death."""
    names = sorted(await session.link.children(session.tree.candidates), key=candidate_number)
    if session.candidate not in names:
        raise LinkLost
    place = names.index(session.candidate)
    if place == 0:
        session.leads = True
    elif await session.link.stat(session.tree.candidate(names[place - 1]), watch=True) is None:
        return await _read_leader(session)
    return names[0]


async def _read_members(session: Session, *, fresh: bool) -> None:
    tree, link = session.tree, session.link
    # The leader has to react to members, the others only show them; a watch on each of them would be a herd.
    stat = await link.stat(tree.members, watch=session.leads)
    if stat == session.members_stat and not fresh and not session.leads:
        return
    names = await link.children(tree.members, watch=session.leads)
    if stat == session.members_stat and not fresh and set(names) == set(session.members):
        return
    found = await asyncio.gather(*(link.get(tree.member(name)) for name in names))
    members: dict[str, Member] = {}
    sessions: dict[str, SessionInfo] = {}
    for name, znode in zip(names, found, strict=True):
        if znode is None:
            continue
        try:
            members[name], _ = decode_member(name, znode[0])
        except Unreadable as error:
            logger.warning("member not understood", extra={"node": name, "error": str(error)})
            continue
        # Its znode is made anew in each session, by a later transaction.
        sessions[name] = SessionInfo(number=znode[1].made_by, opened_at=znode[1].made_at)
    session.members, session.sessions, session.members_stat = members, sessions, stat


async def _read_plan(session: Session, *, fresh: bool) -> None:
    tree, link = session.tree, session.link
    if not fresh and session.plan_stat is not None:
        stat = await link.stat(tree.plan, watch=True)
        if stat == session.plan_stat:
            return
    found = await link.get(tree.plan, watch=True)
    if found is None:
        # A watch on what is not there yet: the first plan wakes everybody.
        await link.stat(tree.plan, watch=True)
        session.plan = session.plan_stat = None
        return
    data, stat = found
    try:
        session.plan, session.plan_stat = plan_codec.decode(data), stat
    except PlanCorrupt:
        session.plan = session.plan_stat = None
        raise
