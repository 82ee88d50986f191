"""Keeps one session to every node of the cluster.

A link is the lasting will to have a session to a node: it connects, serves, and connects again with back-off. The first
link knows no node, only the addresses that the user gave, the seeds; the node behind one is named by its welcome, and
pushes the list of all nodes. Seeds are dialled only while no link is live: so the cluster is found again after all its
addresses have changed, and no hello goes by chance to a node that already has a session.

Hellos are sent one at a time, each on a connection that stands. Of two hellos to one node, the second would not know
the jobs that are still unread on the first one's stream.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import grpc

from worker_sdk.backoff import Backoff
from worker_sdk.connection import Connection
from worker_sdk.error_details import api_error
from worker_sdk.errors import AlreadyExists, ApiError, FailedPrecondition, InvalidArgument, NotFound, ShardwheelError
from worker_sdk.session import Session, SessionListener

_REPEAT_WARNING_S = 30.0
# A session that lasted this long was a success: the next try starts without back-off.
_STABLE_S = 2.0
# Nodes give a worker up whose streams have all been broken for five seconds: after three, it has to be back in time.
_PATIENCE_S = 1.0

_log = logging.getLogger("worker_sdk")


class Link:
    """The will to have a session to one node."""

    def __init__(self, node: str) -> None:
        self.node = node
        """Empty until the node behind a seed is known."""
        self.session: Session | None = None
        """The live session, from welcome to end."""
        self.task: asyncio.Task[None] | None = None


class Links:
    """All links of a worker. Used in one event loop."""

    def __init__(
        self, connection: Connection, listener: SessionListener, on_end: Callable[[Session], None],
        on_refusal: Callable[[ShardwheelError], None],
    ) -> None:  # fmt: skip
        """Connect to the addresses of `connection`.

        `on_end` is called when a session that was welcomed has ended, `on_refusal` when a node finds fault with what
        the worker says of itself before any node has ever welcomed it: trying again is of no use.
        """
        self._connection = connection
        self._listener = listener
        self._on_end = on_end
        self._on_refusal = on_refusal
        self._links: list[Link] = []
        self._members: Mapping[str, str] = {}
        self._told: dict[Session, Mapping[str, str]] = {}
        """What the node of each live session says of who is there."""
        self._hello = asyncio.Lock()
        self._ever_live = False
        self._closed = False
        self._warned_at = -_REPEAT_WARNING_S

    @property
    def live(self) -> list[Session]:
        """Sessions that are open."""
        return [link.session for link in self._links if link.session is not None]

    @property
    def addresses(self) -> list[str]:
        """Addresses at which nodes have answered or are expected, the live ones first."""
        live = [session.address for session in self.live]
        return list(dict.fromkeys([*live, *self._members.values(), *self._connection.addresses]))

    def session_for(self, stream: str, node: str) -> Session | None:
        """Return the session that should carry a result: the stream on which the attempt came, for there it frees its
        slot, else one to the node, else any; those that are about to end only if there is no other. None if none is
        open."""
        ranked = [
            (session.retiring, session.stream != stream, session.node != node, position, session)
            for position, session in enumerate(self.live)
        ]
        return min(ranked)[-1] if ranked else None

    def has_session(self, node: str) -> bool:
        """Return whether there is an open session to the node."""
        return any(session.node == node for session in self.live)

    def has_stream(self, stream: str) -> bool:
        """Return whether the stream is open."""
        return any(session.stream == stream for session in self.live)

    def is_member(self, node: str) -> bool:
        """Return whether the node belongs to the cluster, as far as is known."""
        return not self._members or node in self._members

    def start(self) -> None:
        """Begin to connect."""
        self._ensure()

    def set_members(self, session: Session, members: Mapping[str, str]) -> list[Session]:
        """Take in the nodes of the cluster, address by name, as the node of a session knows them.

        Return the live sessions to nodes that have left. A node that has lost touch with the others does not know who
        came and went, and takes itself for one of them: so a node is there if another one says so.
        """
        if not members:
            return []
        self._told[session] = dict(members)
        self._judge_members()
        return [one for one in self.live if one.node not in self._members]

    def _judge_members(self) -> None:
        others = {
            session: {node: address for node, address in members.items() if node != session.node}
            for session, members in self._told.items()
        }
        # A node that knows no other one has perhaps just started.
        found = {node: address for members in others.values() for node, address in members.items()}
        if sum(bool(members) for members in others.values()) < 2:
            for members in self._told.values():
                found.update(members)
        self._members = found
        self._ensure()

    def refrain(self) -> None:
        """Open no more sessions; those that are open go on."""
        self._closed = True

    async def close(self) -> None:
        """End all links and their sessions."""
        self._closed = True
        tasks = [link.task for link in self._links if link.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ensure(self) -> None:
        """Add the links that are missing."""
        if self._closed:
            return
        known = {link.node for link in self._links}
        for node in self._members:
            if node not in known:
                self._add(node)
        if not self._links:
            self._add("")

    def _add(self, node: str) -> None:
        link = Link(node)
        self._links.append(link)
        link.task = asyncio.create_task(self._keep(link), name=f"link {node or 'seed'}")

    async def _keep(self, link: Link) -> None:
        """Hold a session until the link is of no more use."""
        backoff = Backoff(maximum_s=_PATIENCE_S)
        tries = 0
        try:
            while self._useful(link):
                addresses = self._candidates(link)
                address = addresses[tries % len(addresses)]
                tries += 1
                started = time.monotonic()
                try:
                    await self._hold_session(link, address)
                    _log.info("session with node %s at %s has ended", link.node, address)
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # whatever happens to a session, the link tries again
                    self._note_failure(address, error)
                if time.monotonic() - started > _STABLE_S:
                    backoff.reset()
                await asyncio.sleep(backoff.next_delay_s())
        finally:
            if link in self._links:
                self._links.remove(link)
            self._ensure()

    def _useful(self, link: Link) -> bool:
        if self._closed or link not in self._links:
            return False
        if self._members:
            return link.node in self._members or not (link.node or self.live)
        return True

    def _candidates(self, link: Link) -> Sequence[str]:
        seeds = self._connection.addresses
        if link.node not in self._members:
            return seeds
        own = self._members[link.node]
        return [own] if self.live else [own, *(seed for seed in seeds if seed != own)]

    async def _hold_session(self, link: Link, address: str) -> None:
        session = Session(self._connection, address, self._listener)
        try:
            await session.connect()
            async with self._hello:
                if self.live and address != self._members.get(link.node):
                    return
                welcome = await session.open()
                if not self._identify(link, session.node):
                    return
                link.session = session
            self._ever_live = True
            self._warned_at = -_REPEAT_WARNING_S
            _log.info("connected to node %s at %s", session.node, address)
            self._listener.on_welcome(session, welcome)
            await session.serve()
        finally:
            # The old stream is discarded, unread messages included, before anything else is said to the node.
            await session.close()
            if link.session is session:
                link.session = None
                self._told.pop(session, None)
                self._on_end(session)

    def _identify(self, link: Link, node: str) -> bool:
        """Note which node a link has reached; return False if another link serves that node already."""
        other = next((item for item in self._links if item.node == node and item is not link), None)
        if other is not None:
            if other.session is not None:
                _log.warning("the addresses of nodes %s and %s lead to the same node", node, link.node)
                return False
            # The other one has not got through, this one has.
            self._links.remove(other)
            if other.task is not None:
                other.task.cancel()
        link.node = node
        self._ensure()
        return True

    def _note_failure(self, address: str, error: Exception) -> None:
        """Log why a session ended or did not come about: the first time, and then now and then."""
        failure = api_error(error) if isinstance(error, grpc.aio.AioRpcError) else error
        if isinstance(failure, InvalidArgument) and not self._ever_live:
            self._on_refusal(failure)
            return
        if not isinstance(failure, ApiError | TimeoutError):
            _log.error("session with the node at %s broke off; trying again", address, exc_info=failure)
            return
        now = time.monotonic()
        if now - self._warned_at < _REPEAT_WARNING_S:
            return
        self._warned_at = now
        text = str(failure) or "no answer in time"
        if isinstance(failure, AlreadyExists | FailedPrecondition | NotFound):
            _log.error("node at %s refuses this worker: %s; trying again until it is accepted", address, text)
        elif self._ever_live:
            _log.warning("no session with the node at %s: %s; trying again", address, text)
        else:
            _log.warning(
                "cannot reach a node at %s: %s; trying again. Is a node running there (`shardwheel dev` starts one),"
                " and is the address right?", address, text,
            )  # fmt: skip
