"""The Python SDK passes the checklist, and a worker that breaks rules does not."""

import sys

import pytest

from tests.conformance import cluster_checks, job_checks
from tests.conformance.checklist import CHECKS
from tests.conformance.runner import examine

# What the careless worker does not bother about.
BROKEN = (
    cluster_checks.old_epochs,
    cluster_checks.disclaimed,
    cluster_checks.two_steps,
    job_checks.reattached,
    job_checks.way_back,
)

SDK_WORKER = ("-m", "worker_sdk", "tests.conformance.sdk_worker:worker")
CARELESS_WORKER = ("-m", "tests.conformance.careless_worker")


@pytest.mark.timeout(300)
async def test_the_python_sdk_keeps_to_the_protocol() -> None:
    verdicts = [verdict async for verdict in examine([sys.executable, *SDK_WORKER])]
    faults = [str(verdict) for verdict in verdicts if not verdict.passed]
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(300)
async def test_a_careless_worker_fails_the_checks_of_what_it_does_not_do() -> None:
    checks = [one for one in CHECKS if one.run in BROKEN]
    verdicts = [verdict async for verdict in examine([sys.executable, *CARELESS_WORKER], checks)]
    failed = [verdict.check.run for verdict in verdicts if not verdict.passed]
    assert set(failed) == set(BROKEN), "\n".join(map(str, verdicts))
