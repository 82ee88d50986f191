"""What a node knows of its present session, and how one begins."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from shard_manager.coordinator import Lease, Member, Plan, SessionInfo
from shard_manager.errors import NodeNameTaken
from shard_manager.zookeeper.link import Link
from shard_manager.zookeeper.messages import (
    Check,
    Create,
    Delete,
    LinkDown,
    LinkLost,
    LinkRefused,
    Operation,
    Reason,
    Refused,
    Stat,
)
from shard_manager.zookeeper.meta import Generation
from shard_manager.zookeeper.tree import Tree, Unreadable, candidate_node, decode_member, encode_member

_ATTEMPTS: Final = 5


@dataclass(slots=True, kw_only=True)
class Session:
    """One session from `join` to its end. `candidate` is the name of its candidate, `number` ZooKeeper's of it.

    `held` are the leases, `uncertain` shards whose last acquire or release got no answer, `leases_seen` the last change
    among all leases that `held` takes account of. `leads` once it has been the
    lowest candidate; it cannot cease to be that. `plan`, `members` and `sessions` are what was read last, with what
    tells whether they have changed since.
    """

    link: Link
    tree: Tree
    candidate: str
    number: int
    generation: Generation
    ttl_s: float
    published: Member
    leads: bool = False
    held: dict[int, Lease] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)
    leases_seen: int | None = None
    plan: Plan | None = None
    plan_stat: Stat | None = None
    members: dict[str, Member] = field(default_factory=dict)
    sessions: dict[str, SessionInfo] = field(default_factory=dict)
    members_stat: Stat | None = None

    @property
    def node(self) -> str:
        return self.published.node

    @property
    def guard(self) -> Check:
        """The operation that keeps a transaction within this session; the first of each."""
        return Check(self.tree.candidate(self.candidate))


async def commit(session: Session, operations: list[Operation]) -> list[str]:
    """Do `operations` if the session lives. Raises `Refused` with indices of `operations`, or `LinkLost`."""
    try:
        answers = await session.link.commit([session.guard, *operations])
    except Refused as refused:
        if refused.index == 0:
            raise LinkLost from refused
        raise Refused(refused.index - 1, refused.reason) from refused
    return answers[1:]


async def look_alive(session: Session) -> None:
    """Ask whether the session lives. Raises `LinkLost` if not."""
    if await session.link.stat(session.guard.path) is None:
        raise LinkLost


async def begin_session(
    link: Link, tree: Tree, generation: Generation, member: Member, ttl_s: float, replaces: Collection[int]
) -> Session:
    """Register `member` on `link`, ending sessions of its name that are its own or in `replaces`.

    Raises `NodeNameTaken`.
    """
    replaceable = {member.incarnation, *replaces}
    for _ in range(_ATTEMPTS):
        try:
            path, _ = await link.commit(
                [
                    Create(tree.candidate(f"{member.node}-"), b"", ephemeral=True, sequential=True),
                    Create(tree.member(member.node), encode_member(member, ttl_s), ephemeral=True),
                ]
            )
        except Refused as refused:
            if refused.reason is Reason.ABSENT:
                raise LinkRefused(
                    f"folders are missing below {tree.root}; delete {tree.meta}, then all are made"
                ) from None
            await _end_predecessor(link, tree, member.node, replaceable)
            continue
        return Session(
            link=link, tree=tree, candidate=path.rpartition("/")[2], number=link.session[0] if link.session else 0,
            generation=generation, ttl_s=ttl_s, published=member,
        )  # fmt: skip
    raise LinkDown(f"the name {member.node} kept changing hands while this node tried to take it")


async def _end_predecessor(link: Link, tree: Tree, node: str, replaceable: Collection[int]) -> None:
    """Remove all znodes of the session that has the name, as if it had expired; it finds its candidate gone then."""
    found = await link.get(tree.member(node))
    if found is None:
        return
    data, stat = found
    try:
        holder, ttl_s = decode_member(node, data)
    except Unreadable as error:
        raise NodeNameTaken(node, incarnation=0, address="", expires_in_s=0.0) from error
    if holder.incarnation not in replaceable:
        raise NodeNameTaken(node, incarnation=holder.incarnation, address=holder.address, expires_in_s=ttl_s)
    await remove_session(link, tree, node, stat.session)


async def remove_session(link: Link, tree: Tree, node: str, number: int) -> bool:
    """Remove all znodes of session `number` of `node` at once, as if it had expired; False: it has ended by itself.

    Whatever its owner does from then on finds its candidate gone. A lease that it was given in the very moment stays
    until its owner has found out, or its session expires.
    """
    candidates = [name for name in await link.children(tree.candidates) if candidate_node(name) == node]
    leases = [tree.leases + "/" + name for name in await link.children(tree.leases)]
    theirs = [path for path, session in await _sessions_of(link, leases) if session == number]
    # The candidates go in the same step, and nothing may be deleted once they are gone: the leases may be others' then.
    doomed = [*map(tree.candidate, candidates), tree.member(node), *theirs]
    try:
        await link.commit([Delete(path) for path in doomed])
    except Refused:
        return False
    return True


async def _sessions_of(link: Link, paths: list[str]) -> list[tuple[str, int]]:
    stats = await link.stats(paths)
    return [(path, stat.session) for path, stat in zip(paths, stats, strict=True) if stat is not None]
