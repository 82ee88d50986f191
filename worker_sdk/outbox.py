"""Brings outcomes and progress from handlers' threads to the nodes, and keeps results until they are acknowledged."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shardwheel.v1.worker_service_pb2 import Progress, Result
from worker_sdk.attempt import Attempt
from worker_sdk.ledger import Ledger
from worker_sdk.links import Links
from worker_sdk.outcomes import Outcome
from worker_sdk.results import reference, result_message
from worker_sdk.session import Session

# A stream does not lose messages; this helps only against a node that forgets what it has read.
_RESEND_S = 30.0


class Finisher(Protocol):
    """Takes the results of attempts that came on one stream, and keeps them until they are acknowledged."""

    @property
    def stream(self) -> str:
        """The stream."""
        ...

    def finish(self, result: Result, progress: bytes | None) -> None:
        """Take a result, and the progress that was not sent before it."""
        ...

    def dropped(self, attempt: Attempt) -> None:
        """An attempt has ended that was superseded before: it has no result."""
        ...


class Outbox:
    """Used in the event loop of the sessions, but for `report` and `record_progress`."""

    def __init__(self, ledger: Ledger, links: Links, on_settled: Callable[[], None]) -> None:
        """`on_settled` is called when attempts have ended."""
        self._loop = asyncio.get_running_loop()
        self._ledger = ledger
        self._links = links
        self._on_settled = on_settled
        self._ended: deque[tuple[Attempt, Outcome]] = deque()
        self._wake_pending = False
        self._progress: dict[Attempt, bytes] = {}
        self._progress_sent: dict[Attempt, bytes] = {}
        self._finisher: Finisher | None = None

    def finish_through(self, finisher: Finisher) -> None:
        """Bring the results of attempts that came on its stream to a finisher, instead of to sessions."""
        self._finisher = finisher

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Take the outcome of an attempt. May be called from any thread; does not block."""
        self._ended.append((attempt, outcome))
        # The flag is lowered before the queue is emptied, so an outcome that finds it raised will be seen.
        if not self._wake_pending:
            self._wake_pending = True
            try:
                self._loop.call_soon_threadsafe(self.flush)
            except RuntimeError:
                # The worker is gone; so is whoever could take the result.
                pass

    def record_progress(self, attempt: Attempt, data: bytes) -> None:
        """Take the latest progress of an attempt. May be called from any thread; does not block."""
        self._progress[attempt] = data

    def flush(self) -> None:
        """Send the results of the attempts that have ended, many in one message."""
        self._wake_pending = False
        now = time.monotonic()
        sessions: dict[tuple[str, str], Session | None] = {}
        results: dict[Session, list[Result]] = {}
        progress: dict[Session, list[Progress]] = {}
        while self._ended:
            attempt, outcome = self._ended.popleft()
            last_progress = self._progress.pop(attempt, None) if self._progress else None
            if self._progress_sent:
                self._progress_sent.pop(attempt, None)
            if not self._ledger.remove(attempt):
                if self._finisher is not None and attempt.stream == self._finisher.stream:
                    self._finisher.dropped(attempt)
                continue
            finished = self._ledger.keep(attempt, result_message(attempt, outcome))
            if self._finisher is not None and attempt.stream == self._finisher.stream:
                self._finisher.finish(finished.result, last_progress)
                continue
            route = attempt.stream, attempt.node
            if route not in sessions:
                sessions[route] = self._links.session_for(*route)
            session = sessions[route]
            if session is None:
                continue
            finished.sent_on, finished.sent_at = session.stream, now
            results.setdefault(session, []).append(finished.result)
            if last_progress is not None:
                message = Progress(attempt=reference(attempt), data=last_progress)
                progress.setdefault(session, []).append(message)
        for session, batch in results.items():
            session.send_results(batch, progress.get(session, ()))
        self._on_settled()

    def send_waiting(self) -> None:
        """Send the results that no open session has carried yet, or that have been unacknowledged for very long."""
        now = time.monotonic()
        live = {session.stream for session in self._links.live}
        batches: dict[Session, list[Result]] = {}
        for finished in self._ledger.finished.values():
            if finished.sent_on in live and now - finished.sent_at < _RESEND_S:
                continue
            if self._finisher is not None and finished.stream == self._finisher.stream:
                continue
            session = self._links.session_for(finished.stream, finished.owner)
            if session is None:
                return
            finished.sent_on, finished.sent_at = session.stream, now
            batches.setdefault(session, []).append(finished.result)
        for session, batch in batches.items():
            session.send_results(batch)

    def take_progress(self, session: Session) -> list[Progress]:
        """Return the progress to be sent on a session: of its node's attempts, and of those whose node is away."""
        taken: list[Progress] = []
        for attempt in list(self._progress):
            if attempt.node != session.node and self._links.has_session(attempt.node):
                continue
            data = self._progress.pop(attempt, None)
            if data is not None and self._ledger.running.get(attempt.job_id) is attempt:
                self._progress_sent[attempt] = data
                taken.append(Progress(attempt=reference(attempt), data=data))
        return taken

    def awaits(self, session: Session) -> bool:
        """Return whether results were sent on a session and are not acknowledged."""
        return any(finished.sent_on == session.stream for finished in self._ledger.finished.values())

    def session_ended(self) -> None:
        """Send again what may have been lost with a session."""
        for attempt, data in self._progress_sent.items():
            self._progress.setdefault(attempt, data)
        self._progress_sent.clear()
        for finished in self._ledger.finished.values():
            if not self._links.has_stream(finished.sent_on):
                finished.sent_on = ""
        self.send_waiting()
