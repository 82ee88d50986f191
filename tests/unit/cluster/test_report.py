"""The JSON object of a chaos run, and what is found in logs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.chaos import Options, Report
from tests.cluster.checker import check
from tests.cluster.history import History, Strike
from tests.cluster.logs import latest_leader, moved_partitions, tracebacks
from tests.cluster.nemeses import REGISTRY, Need, possible
from tests.unit.cluster.histories import again, at, execution, history, life, rerun

KEYS = {
    "seed", "minutes", "secure", "coordinator", "faults", "submitted", "executed", "lost", "duplicates",
    "stale_accepted", "overlapping", "double_firings", "missed_firings", "early", "epoch_violations", "late_ms_p99",
    "verdict",
}  # fmt: skip


def report(of: History, *broke: str) -> Report:
    return Report(Options(minutes=2.0, seed=7), history=of, verdict=check(of), broke=list(broke))


def strike(kind: str) -> Strike:
    return Strike(fault=kind, victim="x", at=at(1.0))


def test_a_run_in_which_nothing_broke() -> None:
    dead = rerun(execution(end=None), again(start=2.0, end=3.0), life(1, killed=at(1.5)), life(2))
    of = replace(dead, strikes=(strike("a"), strike("b"), strike("a")))
    found = json.loads(report(of).as_json())
    assert found.keys() == KEYS
    assert found["faults"] == {"a": 2, "b": 1}
    assert found["duplicates"] == {"worker_died": 1, "unexplained": 0}
    assert (found["seed"], found["minutes"], found["submitted"], found["executed"]) == (7, 2.0, 1, 1)
    assert found["late_ms_p99"] == 500
    assert found["verdict"] == "ok"


@pytest.mark.parametrize(
    ("of", "broke", "word"),
    [
        (history(jobs=()), [], "lost (2)"),
        (history(), ["a node has ended"], "a node has ended"),
        (history(chosen=("kill_node",)), [], "no_strike (1)"),
        (history(jobs=()), ["a node has ended"], "a node has ended; lost (2)"),
    ],
)
def test_what_broke_is_told(of: History, broke: list[str], word: str) -> None:
    assert json.loads(report(of, *broke).as_json())["verdict"] == word


def test_a_run_that_came_to_nothing_is_not_ok() -> None:
    lost = Report(Options(minutes=2.0, seed=7), broke=["no cluster"])
    assert json.loads(lost.as_json()).keys() == KEYS
    assert lost.word == "no cluster"
    assert Report(Options(minutes=2.0, seed=7)).word != "ok"


def test_logs(tmp_path: Path) -> None:
    log = tmp_path / "node.out"
    log.write_text(
        "one [error] loop failed\nTraceback (most recent call last):\n  File x\n    y()\nValueError: z\ntwo\n"
        "ERROR: tuple to be locked was already moved to another partition due to concurrent update\n"
    )
    assert moved_partitions([log, tmp_path / "missing"]) == 1
    [found] = tracebacks([log])
    assert found.splitlines()[0] == "one [error] loop failed"
    assert found.splitlines()[-1] == "ValueError: z"


def test_the_leader_is_whom_the_latest_word_names(tmp_path: Path) -> None:
    line = (
        "2026-01-01T00:00:{:02}.5Z [info     ] leader changed          [shard_manager] leader={} node=x previous=None\n"
    )
    one, other = tmp_path / "one", tmp_path / "other"
    assert latest_leader([one, other]) is None
    one.write_text(line.format(1, "node-1") + line.format(5, "node-2") + line.format(9, "None"))
    other.write_text(line.format(3, "node-3"))
    assert latest_leader([one, other]) == "node-2"


def test_faults_are_chosen_by_what_a_cluster_has() -> None:
    assert len(REGISTRY) >= 40
    plain = set(possible(frozenset()))
    assert {"kill_node", "kill_postgres"} <= plain
    assert not any(REGISTRY[kind].needs for kind in plain)
    assert set(possible(frozenset(Need))) == set(REGISTRY)
    assert "failover" in possible(frozenset({Need.STANDBY}))
