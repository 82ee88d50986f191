"""The Python SDK without the care that it takes; it breaks rules 1, 4, 5, 6 and 10."""

from collections.abc import Callable
from unittest import mock

from shardwheel.v1.worker_service_pb2 import Report
from tests.conformance.sdk_worker import worker
from worker_sdk import credit
from worker_sdk.ledger import Ledger
from worker_sdk.links import Links
from worker_sdk.session import Session


def _always(answer: object) -> Callable[..., object]:
    return lambda *_, **__: answer


def _node_of(session: Session) -> str:
    return session.node


def main() -> None:
    """Run the worker."""
    with (
        mock.patch.object(Ledger, "accepts_epoch", _always(True)),
        mock.patch.object(Ledger, "disclaimed", _always(False)),
        mock.patch.object(Ledger, "full_report", _always(Report())),
        # Results go to the same node, wherever their jobs came from.
        mock.patch.object(Links, "session_for", lambda links, *_: min(links.live, key=_node_of, default=None)),
        # What a node may still use is taken for free.
        mock.patch.object(credit._Account, "bound", _always(0)),
    ):
        worker.run()


if __name__ == "__main__":
    main()
