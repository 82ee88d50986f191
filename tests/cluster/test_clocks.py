"""The clocks of nodes are wrong by minutes: nothing is early, nothing runs twice, and nobody is taken for dead."""

from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from server.store.migrate import migrate
from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, Cluster
from tests.cluster.run import new_run
from tests.cluster.service import BY_INTENT, restarted
from tests.support.postgres import PostgresServer
from tests.support.postgres_clock import ahead_by

_SECONDS: Final = 15.0
_WRONG_S: Final = (300.0, -300.0, 0.0)


@pytest.mark.soak
async def test_nodes_five_minutes_fast_and_slow(postgres: PostgresServer, tmp_path: Path, seed: int) -> None:
    clocks = [ahead_by(seconds) if seconds else {} for seconds in _WRONG_S]
    dsn = postgres.dsn(postgres.create_database())
    await migrate(dsn)
    cluster = Cluster(tmp_path, postgres, dsn, nodes=len(clocks), settings={**QUICK, "worker_lease": "4s"})
    for node, variables in zip(cluster.nodes, clocks, strict=True):
        node.set_variables(variables)
    async with cluster:
        run = new_run(cluster, seed=seed, load=Load(rate=120.0, seconds=_SECONDS, ahead_s=4.0))
        await run.add_schedules(8, _SECONDS)
        await run.load_under([])
        history, verdict = run.verdict(seed=seed)
    assert {name for name in verdict.numbers if name.startswith("again_")} <= BY_INTENT, verdict.numbers
    assert not restarted(history)
    assert verdict.numbers["firings"] > 4 * _SECONDS
    assert verdict.numbers["submitted"] > 40 * _SECONDS
    for node, wrong_s in zip(cluster.nodes, _WRONG_S, strict=True):
        started = next(life.started.wall for life in history.lives if life.process == node.name)
        assert _first_stamp(node.output) - started == pytest.approx(wrong_s, abs=30.0), "the clock was not wrong"


def _first_stamp(log: str) -> float:
    """Return when, by its own clock, a node has written the first line of its log."""
    return next(datetime.fromisoformat(line.split()[0]).timestamp() for line in log.splitlines() if line[:2] == "20")
