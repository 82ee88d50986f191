"""Which right each method of the API takes. A method that is not here is closed to everybody."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from server.domain.access import Right


class Place(Enum):
    """Where the right has to be held."""

    NAMESPACE = "the namespace that each request names"
    HELLO = "the namespace that the first message of the stream names in its hello"
    CLUSTER = "the cluster: every namespace"
    ANYWHERE = "nowhere: whoever is known may call"
    NODES = "nodes alone may call"
    OPEN = "everybody may call, known or not"


@dataclass(frozen=True, slots=True)
class Rule:
    """The right that a method takes, and where."""

    place: Place
    right: Right = Right.ADMIN


def _methods(service: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {f"/{service}/{name}": rule for name, rule in rules.items()}


_SUBMIT: Final = Rule(Place.NAMESPACE, Right.SUBMIT)
_WORK: Final = Rule(Place.NAMESPACE, Right.WORK)
_READ: Final = Rule(Place.NAMESPACE, Right.READ)
_ADMIN: Final = Rule(Place.NAMESPACE, Right.ADMIN)
_READ_CLUSTER: Final = Rule(Place.CLUSTER, Right.READ)
_ADMIN_CLUSTER: Final = Rule(Place.CLUSTER, Right.ADMIN)
_NODES: Final = Rule(Place.NODES)
_OPEN: Final = Rule(Place.OPEN)

RULES: Final[Mapping[str, Rule]] = {
    **_methods(
        "shardwheel.v1.JobService",
        {
            "SubmitJob": _SUBMIT,
            "SubmitJobs": _SUBMIT,
            "BulkSubmitJobs": _SUBMIT,
            "GetJob": _READ,
            "ListJobs": _READ,
            "CancelJob": _SUBMIT,
            "RetryJob": _SUBMIT,
            "WaitJob": _READ,
            "NudgeJobs": _SUBMIT,
        },
    ),
    **_methods(
        "shardwheel.v1.ScheduleService",
        {
            "CreateSchedule": _SUBMIT,
            "GetSchedule": _READ,
            "ListSchedules": _READ,
            "UpdateSchedule": _SUBMIT,
            "EnsureSchedules": _SUBMIT,
            "DeleteSchedule": _SUBMIT,
            "PauseSchedule": _SUBMIT,
            "ResumeSchedule": _SUBMIT,
            "TriggerSchedule": _SUBMIT,
            "PreviewSchedule": Rule(Place.ANYWHERE),
        },
    ),
    **_methods(
        "shardwheel.v1.WorkerService",
        {
            "Session": Rule(Place.HELLO, Right.WORK),
            "KeepAlive": _WORK,
            "StartAttempts": _WORK,
            "FinishAttempts": _WORK,
        },
    ),
    **_methods(
        "shardwheel.v1.AdminService",
        {
            "GetStatus": _READ_CLUSTER,
            "GetActivity": _READ_CLUSTER,
            "Diagnose": _READ_CLUSTER,
            "Rebalance": _ADMIN_CLUSTER,
            "DrainNode": _ADMIN_CLUSTER,
            "UndrainNode": _ADMIN_CLUSTER,
            "EvictNode": _ADMIN_CLUSTER,
            "MoveShard": _ADMIN_CLUSTER,
            "PauseRebalance": _ADMIN_CLUSTER,
            "ResumeRebalance": _ADMIN_CLUSTER,
            "ListHandlers": _READ,
            "PauseHandler": _ADMIN,
            "ResumeHandler": _ADMIN,
            "SetHandlerDispatch": _ADMIN,
            "ListWorkers": _READ,
            "CreateNamespace": _ADMIN_CLUSTER,
            "ListNamespaces": _READ_CLUSTER,
            "UpdateNamespace": _ADMIN_CLUSTER,
            "CreateToken": _ADMIN_CLUSTER,
            "ListTokens": _ADMIN_CLUSTER,
            "RevokeToken": _ADMIN_CLUSTER,
        },
    ),
    **_methods("shardwheel.v1.PeerService", {"Tell": _NODES, "GetHandlerView": _NODES, "GetNodeActivity": _NODES}),
    **_methods("grpc.health.v1.Health", {"Check": _OPEN, "List": _OPEN, "Watch": _OPEN}),
    **_methods("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": Rule(Place.ANYWHERE)}),
}
