"""PeerService: what other nodes tell and ask. For nodes only."""

from collections.abc import Awaitable
from typing import TypeAlias, TypeVar

import grpc.aio
from google.protobuf.message import Message

from server.api.activity import NodeActivity
from server.api.ports import EngineHandle
from server.api.validation import Problems
from server.engine.ports_peers import NewsSink
from server.peers.messages import news_of, problems
from shardwheel.v1 import peer_service_pb2 as pb
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.peer_service_pb2_grpc import PeerServiceServicer

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Request, Awaitable[Response]]"


class PeerService(PeerServiceServicer):
    """Serves the other nodes of the cluster, which has `shards` shards."""

    def __init__(self, *, engine: EngineHandle, news: NewsSink, shards: int, activity: NodeActivity) -> None:
        self._engine = engine
        self._news = news
        self._shards = shards
        self._activity = activity

    async def Tell(
        self, request: pb.TellRequest, context: "Context[pb.TellRequest, pb.TellResponse]"
    ) -> pb.TellResponse:
        """Take in news."""
        found = Problems()
        for field, value, reason in problems(request, self._shards):
            found.add(field, value, reason)
        found.check()
        return pb.TellResponse(newly_watched_jobs=self._news.take(request.node, news_of(request)))

    async def GetHandlerView(
        self,
        request: pb.GetHandlerViewRequest,
        context: "Context[pb.GetHandlerViewRequest, pb.GetHandlerViewResponse]",
    ) -> pb.GetHandlerViewResponse:
        """Show what this node sees of a handler's workers."""
        view = self._engine.handler_view(request.handler_id)
        return pb.GetHandlerViewResponse(
            serves_shard=request.shard in self._engine.owned_shards(),
            workers=view.workers,
            slots=view.slots,
            free=view.free,
            published=view.published,
        )

    async def GetNodeActivity(
        self, request: pb.GetNodeActivityRequest, context: "Context[pb.GetNodeActivityRequest, Activity]"
    ) -> Activity:
        """Show what this node alone did lately."""
        return self._activity.message()
