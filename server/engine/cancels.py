"""Telling workers to stop attempts: on their stream to this node, else through all other nodes."""

from server.domain.job import AttemptRef
from server.engine.ports_peers import Peers, StopAttempt
from server.engine.slots import SlotBook


class Cancels:
    """Sends cancels to workers, wherever they are connected."""

    def __init__(self, slots: SlotBook, peers: Peers) -> None:
        self._slots = slots
        self._peers = peers

    def send(self, ref: AttemptRef, worker_id: int, reason: str) -> bool:
        """Tell a worker to stop an attempt; `reason` is "requested", "timeout" or "superseded".

        Return whether it was told here, by a stream that works as far as this node knows.
        """
        self.send_here(ref, worker_id, reason)
        if self._slots.heard(worker_id):
            return True
        # It may be cut off from this node alone.
        self._peers.tell_all(StopAttempt(ref, worker_id, reason))
        return False

    def send_here(self, ref: AttemptRef, worker_id: int, reason: str) -> None:
        """Tell a worker on its stream to this node, if there is one."""
        session = self._slots.of_worker(worker_id)
        if session is not None:
            session.link.send_cancels([(ref, reason)])
