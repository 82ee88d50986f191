"""How long a node waits for what. The defaults suit production; tests pass shorter ones."""

from dataclasses import dataclass, fields
from datetime import timedelta

from shard_manager.errors import InvalidSetting

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerTimings:
    """All durations of the shard manager. Raises `InvalidSetting` if they contradict each other.

    `session_ttl`: a node is dead to the others this long after its last renewal. `heartbeat`: between renewals.
    `poll`: between reads of the coordinator, and `handoff_poll` while this node waits for a shard that another still
    holds. `reread`: at the latest after this, everything is read anew, whatever watches said.
    `backoff_initial`, `backoff_max`: the pause after a failed step doubles from one to the other.
    `fence_call`, `start_call`, `stop_call`: deadlines of the calls to the shard host; a graceful stop that takes longer
    is made an immediate one. `settle`: voluntary moves wait until membership has not changed for so long, and so long
    lies between their rounds; `wave`, if people have asked for balance.
    `loss_guard`: shards of vanished nodes wait so long if several vanished together or the leader itself has only
    just come back, for then the coordinator was probably away and the others are about to return.
    `drain_handover`: a draining node serves on for so long, waiting for others to be given its shards.
    `leave_limit`: so long after its last shard has stopped, a drain ends even if the coordinator does not answer.
    `drain_limit`: after this a drain ends in any case; what is still being stopped is then stopped at once.
    """

    session_ttl: timedelta = timedelta(seconds=10)
    heartbeat: timedelta = timedelta(seconds=10) / 3
    poll: timedelta = timedelta(seconds=1)
    handoff_poll: timedelta = timedelta(milliseconds=50)
    reread: timedelta = timedelta(seconds=30)
    backoff_initial: timedelta = timedelta(milliseconds=100)
    backoff_max: timedelta = timedelta(seconds=1)
    fence_call: timedelta = timedelta(seconds=10)
    start_call: timedelta = timedelta(seconds=10)
    stop_call: timedelta = timedelta(seconds=10)
    settle: timedelta = timedelta(seconds=5)
    wave: timedelta = timedelta(seconds=1)
    loss_guard: timedelta = timedelta(seconds=3)
    drain_handover: timedelta = timedelta(seconds=3)
    leave_limit: timedelta = timedelta(seconds=3)
    drain_limit: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        may_be_zero = {"settle", "wave", "loss_guard", "drain_handover"}
        for setting in fields(self):
            value: timedelta = getattr(self, setting.name)
            if value < _ZERO or (value == _ZERO and setting.name not in may_be_zero):
                raise InvalidSetting(setting.name, value, "must be a positive duration")
        if self.heartbeat * 2 > self.session_ttl:
            raise InvalidSetting(
                "heartbeat", self.heartbeat, f"must be at most half of session_ttl ({self.session_ttl}), else one lost "
                "renewal ends the session"
            )  # fmt: skip
        if self.backoff_initial > self.backoff_max:
            raise InvalidSetting("backoff_initial", self.backoff_initial, f"must not exceed {self.backoff_max}")

    @classmethod
    def for_session(cls, session_ttl: timedelta) -> "ManagerTimings":
        """The defaults with another session length, renewed three times within it."""
        return cls(session_ttl=session_ttl, heartbeat=session_ttl / 3)
