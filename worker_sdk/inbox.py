"""Takes in what nodes say, and acts on it: runs jobs, stops attempts, answers questions."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from shardwheel.v1 import worker_service_pb2
from shardwheel.v1.worker_service_pb2 import (
    Assignment,
    Audit,
    CancelBatch,
    Credit,
    Demand,
    HandlerCredit,
    Hello,
    JobBatch,
    Members,
    OwnerHello,
    Progress,
    ResultAck,
    Welcome,
)
from worker_sdk.async_runner import AsyncRunner
from worker_sdk.attempt import SHARD_MASK, Attempt, Origin
from worker_sdk.credit import CreditBook
from worker_sdk.ledger import Ledger
from worker_sdk.links import Links
from worker_sdk.outbox import Outbox
from worker_sdk.outcomes import CancelReason, Interrupted
from worker_sdk.session import Session
from worker_sdk.thread_runner import ThreadRunner

Runner = AsyncRunner | ThreadRunner

# A node ends attempts that are over their time, and is normally first. This is for the time in which no node can.
_DEADLINE_SLACK_S = 1.0

_REASONS: dict[int, CancelReason] = {
    worker_service_pb2.CANCEL_REQUESTED: CancelReason.REQUESTED,
    worker_service_pb2.CANCEL_TIMEOUT: CancelReason.TIMEOUT,
    worker_service_pb2.CANCEL_SUPERSEDED: CancelReason.SUPERSEDED,
}

_log = logging.getLogger("worker_sdk")


class Inbox:
    """The listener of all sessions. Used in their event loop."""

    def __init__(
        self, *, origin: Origin, introduce: Callable[[], Hello], ledger: Ledger, credit: CreditBook,
        runners: Mapping[str, Runner], on_welcome: Callable[[Session, Welcome], None], on_settled: Callable[[], None],
    ) -> None:  # fmt: skip
        """`introduce` makes a hello without report; `on_settled` is called when results were acknowledged."""
        self._origin = origin
        self._introduce = introduce
        self._ledger = ledger
        self._credit = credit
        self._runners = runners
        self._on_welcome = on_welcome
        self._on_settled = on_settled
        self._draining = False
        self._topics = ""
        self._on_topics_credit: Callable[[], None] = lambda: None

    def connect(self, links: Links, outbox: Outbox) -> None:
        """Say where answers go. To be called before the first session."""
        self._links = links
        self._outbox = outbox

    def share_with_topics(self, account: str, on_credit: Callable[[], None]) -> None:
        """Split slots with what comes from topics: it has an account of its own; `on_credit` tells that it changed."""
        self._topics, self._on_topics_credit = account, on_credit
        self._credit.join(account, modest=True)

    def drain(self) -> None:
        """Take all credit from the nodes, and give back whatever they still hand out."""
        self._draining = True
        self._credit.close()
        self.grant()

    def slots_may_move(self) -> bool:
        """Return whether the end of an attempt may change the credit of a node."""
        return len(self._credit.streams) > 1 or self._credit.strained or bool(self._ledger.lingering)

    def grant(self, *, spread: bool = False) -> None:
        """Send the credits that should change: slots move to where jobs wait, and with `spread` idle ones evenly."""
        lingering = Counter(attempt.definition.name for attempt in self._ledger.lingering)
        topics_changed = False
        for grant in self._credit.grants(self._ledger.used, lingering, int(time.monotonic()), spread=spread):
            if grant.stream == self._topics:
                # It keeps to its credit from now on, so that what it lets go of can be given away in a next grant.
                self._credit.acknowledge(grant.stream, grant.sequence)
                topics_changed = True
                continue
            credits = [HandlerCredit(handler=name, slots=slots) for name, slots in grant.slots.items()]
            for session in self._links.live:
                if session.stream == grant.stream:
                    session.send_credit(Credit(sequence=grant.sequence, credits=credits))
        if topics_changed:
            self._on_topics_credit()
            # What they have let go of goes to the nodes at once.
            self.grant()

    def retire_idle(self) -> None:
        """End the streams to nodes that have left the cluster, once they have acknowledged what was sent on them."""
        for session in self._links.live:
            if session.retiring and not self._links.is_member(session.node) and not self._outbox.awaits(session):
                session.end()

    def stop_attempt(self, attempt: Attempt, reason: CancelReason) -> None:
        """Tell a running attempt to stop."""
        attempt.tell_to_stop(reason)
        self._runners[attempt.definition.name].cancel(attempt)

    def stop_overdue(self) -> None:
        """Tell the attempts to stop that are over their time and have not been told by a node."""
        over = time.monotonic() - _DEADLINE_SLACK_S
        for attempt in list(self._ledger.running.values()):
            if attempt.deadline is not None and attempt.deadline < over and attempt.cancel_reason is None:
                self.stop_attempt(attempt, CancelReason.TIMEOUT)

    def hello(self) -> Hello:
        """Return the introduction, with the report as of now."""
        hello = self._introduce()
        hello.report.CopyFrom(self._ledger.full_report())
        return hello

    def on_welcome(self, session: Session, welcome: Welcome) -> None:
        """Open the node's account, drop what is no longer the worker's, and send what waits."""
        for name in welcome.superseded:
            self.supersede(name.job_id, name.claim)
        self._credit.join(session.stream)
        self._on_welcome(session, welcome)
        self._outbox.send_waiting()
        self.grant(spread=True)

    def on_session_end(self, session: Session) -> None:
        """Close the node's account, and send elsewhere what may have been lost."""
        self._credit.leave(session.stream)
        self._outbox.session_ended()
        self.grant(spread=True)
        self._on_settled()

    def on_jobs(self, session: Session, batch: JobBatch) -> None:
        """Enter the jobs, then hand them to the runners of their handlers."""
        ledger, node, stream = self._ledger, session.node, session.stream
        attempts: dict[str, list[Attempt]] = {}
        refused = False
        for assignment in batch.jobs:
            job_id, claim = assignment.job_id, assignment.claim
            if ledger.holds(job_id, claim):
                continue
            runner = self._runners.get(assignment.handler)
            fault = self._fault(session, assignment) if runner is not None else "there is no such handler here"
            if runner is None or fault:
                _log.warning("job %s (%s) given back to node %s: %s", job_id, assignment.handler, node, fault)
                ledger.give_back(job_id, claim, stream=stream, node=node)
                refused = True
                continue
            older = ledger.running.get(job_id)
            if older is not None:
                self.supersede(job_id, older.claim)
            attempt = Attempt(assignment, runner.definition, self._origin, node, stream)
            ledger.add(attempt)
            if self._draining:
                self._outbox.report(attempt, Interrupted())
                continue
            attempts.setdefault(assignment.handler, []).append(attempt)
        for handler, batch_of_handler in attempts.items():
            self._credit.served(stream, handler, len(batch_of_handler))
            self._runners[handler].submit(batch_of_handler)
        if refused:
            self._outbox.send_waiting()

    def _fault(self, session: Session, assignment: Assignment) -> str:
        """Return why an assignment must not be run, empty if it may be."""
        ledger, job_id, claim = self._ledger, assignment.job_id, assignment.claim
        if ledger.disclaimed(job_id, claim):
            return "a node was told that it is not here"
        if not ledger.accepts_epoch(job_id & SHARD_MASK, assignment.epoch, session.node):
            return "the node does not own the shard any more"
        older = ledger.running.get(job_id)
        return "a later claim of it runs here" if older is not None and older.claim > claim else ""

    def on_acks(self, acks: Sequence[ResultAck]) -> None:
        """Forget the results; a stale one was refused because another attempt has taken its place."""
        for ack in acks:
            name = ack.attempt
            self._ledger.acknowledged(name.job_id, name.claim)
            if ack.status == ResultAck.STALE:
                _log.info("result of job %s, claim %s was refused as stale", name.job_id, name.claim)
        self._on_settled()

    def on_cancels(self, batch: CancelBatch) -> None:
        """Tell the attempts to stop."""
        for cancel in batch.cancels:
            name, reason = cancel.attempt, _REASONS.get(cancel.reason, CancelReason.REQUESTED)
            attempt = self._ledger.running.get(name.job_id)
            if reason is CancelReason.SUPERSEDED:
                self.supersede(name.job_id, name.claim)
            elif attempt is not None and attempt.claim == name.claim:
                self.stop_attempt(attempt, reason)

    def on_owner_hello(self, session: Session, hello: OwnerHello) -> None:
        """Note the new owner of shards, and report what the worker holds of them."""
        self._ledger.adopt([(item.shard, item.epoch) for item in hello.shards], session.node)
        session.send_report(self._ledger.report_on_shards(hello.request_id, [item.shard for item in hello.shards]))
        self.grant()

    def on_audit(self, session: Session, audit: Audit) -> None:
        """Say which of the attempts the worker holds."""
        session.send_report(self._ledger.report_on_attempts(audit.request_id, audit.attempts))

    def on_demand(self, session: Session, demand: Demand) -> None:
        """Move slots to where jobs wait."""
        self._credit.set_demand(session.stream, {item.handler: item.waiting for item in demand.demands})
        self.grant()

    def on_credit_ack(self, session: Session, sequence: int) -> None:
        """Give away what the node has let go of."""
        self._credit.acknowledge(session.stream, sequence)
        self.grant()

    def on_members(self, session: Session, members: Members) -> None:
        """Keep a session to each node, and take no more jobs from those that have left."""
        for one in self._links.set_members(session, {member.node: member.address for member in members.members}):
            if not one.retiring:
                _log.info("node %s has left the cluster", one.node)
                self._retire(one)
        for one in self._links.live:
            # It had lost touch with the cluster, not with this worker.
            if one.retiring and not one.stopping and self._links.is_member(one.node):
                _log.info("node %s is back in the cluster", one.node)
                one.retiring = False
                self._credit.resume(one.stream)
                self.grant(spread=True)

    def on_drain(self, session: Session) -> None:
        """Take no more jobs from the node; its running ones are finished, and reported elsewhere once it is gone."""
        _log.info("node %s is about to stop", session.node)
        session.stopping = True
        self._retire(session)

    def take_progress(self, session: Session) -> list[Progress]:
        """Return the progress that a session should send now."""
        return self._outbox.take_progress(session)

    def _retire(self, session: Session) -> None:
        session.retiring = True
        self._credit.drain(session.stream)
        self.grant(spread=True)

    def supersede(self, job_id: int, claim: int) -> None:
        """Stop an attempt that is no longer the worker's, and drop its result."""
        self._ledger.acknowledged(job_id, claim)
        attempt = self._ledger.running.get(job_id)
        if attempt is not None and attempt.claim == claim:
            _log.warning("attempt %s of job %s has been superseded", attempt.assignment.attempt, job_id)
            self._ledger.disown(attempt)
            self.stop_attempt(attempt, CancelReason.SUPERSEDED)
