"""The watchdog bites when renewals stay away, and only then."""

import threading
import time

from shard_manager.zookeeper.watchdog import Watchdog
from tests.support.waiting import wait_until


def test_it_bites_once_when_there_is_no_beat() -> None:
    bitten: list[float] = []
    began = time.monotonic()
    dog = Watchdog(0.2, time.monotonic, lambda: bitten.append(time.monotonic()))
    wait_until(lambda: bitten)
    assert bitten[0] - began >= 0.2
    assert dog.late
    wait_until(lambda: not any(thread.name == "zookeeper-watchdog" for thread in threading.enumerate()))
    assert len(bitten) == 1


def test_beats_keep_it_quiet() -> None:
    now_s = [100.0]
    bitten = threading.Event()
    dog = Watchdog(1.0, lambda: now_s[0], bitten.set)
    for _ in range(5):
        now_s[0] += 0.9
        assert not dog.late
        dog.beat()
    assert not bitten.wait(0.15)
    now_s[0] += 1.0
    assert dog.late
    assert bitten.wait(5)


def test_a_dismissed_one_never_bites() -> None:
    bitten = threading.Event()
    dog = Watchdog(0.05, time.monotonic, bitten.set)
    dog.dismiss()
    wait_until(lambda: dog.late)
    assert not bitten.wait(0.2)
