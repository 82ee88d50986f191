"""Durations, pauses, and the telling of failures."""

import logging
import random
from datetime import timedelta

import pytest

from shard_manager.backoff import Backoff
from shard_manager.coordinator import Member
from shard_manager.errors import CoordinatorUnavailable, InvalidSetting
from shard_manager.events import ManagerEvent, TroubleBegan, TroubleOver
from shard_manager.timings import ManagerTimings
from shard_manager.trouble import REMIND_AFTER_S, Trouble

SECOND = timedelta(seconds=1)


def test_the_defaults_renew_three_times_within_a_session() -> None:
    timings = ManagerTimings()
    assert timings.session_ttl == 10 * SECOND
    assert 3 <= timings.session_ttl / timings.heartbeat < 3.01
    assert timings.poll == SECOND
    assert ManagerTimings.for_session(6 * SECOND).heartbeat == 2 * SECOND


def test_durations_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="poll"):
        ManagerTimings(poll=timedelta(0))
    with pytest.raises(InvalidSetting, match="settle"):
        ManagerTimings(settle=-SECOND)
    with pytest.raises(InvalidSetting, match="heartbeat"):
        ManagerTimings(session_ttl=10 * SECOND, heartbeat=6 * SECOND)
    with pytest.raises(InvalidSetting, match="backoff_initial"):
        ManagerTimings(backoff_initial=2 * SECOND, backoff_max=SECOND)
    assert ManagerTimings(settle=timedelta(0)).settle == timedelta(0)


def test_pauses_double_up_to_the_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff(timedelta(milliseconds=100), SECOND, random.Random(1))
    pauses = [backoff.failed() for _ in range(8)]
    for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], strict=True):
        assert longest / 2 <= pause <= longest
    backoff.succeeded()
    assert backoff.failed() <= 0.1


@pytest.mark.parametrize(
    ("field", "value"),
    [("node", ""), ("node", "a/b"), ("node", "x" * 129), ("node", "-a"), ("incarnation", 0), ("incarnation", 2**63),
     ("weight", 0), ("weight", 1001), ("address", "x" * 256), ("address", "a\nb")],
)  # fmt: skip
def test_members_that_cannot_be_are_refused_by_field_and_value(field: str, value: object) -> None:
    settings: dict[str, object] = {"node": "a", "incarnation": 1, field: value}
    with pytest.raises(InvalidSetting) as caught:
        Member(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.value == value


def test_a_streak_of_failures_is_told_once_per_kind_and_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    events: list[ManagerEvent] = []
    trouble = Trouble("round", "a", events.append)
    with caplog.at_level(logging.DEBUG):
        trouble.over()
        away = CoordinatorUnavailable("view", "gone")
        for now_s in (0.0, 1.0, 2.0):
            trouble.failed(away, now_s)
        broken = RuntimeError("bug")
        trouble.failed(broken, 3.0)
        trouble.failed(broken, 3.0 + REMIND_AFTER_S)
        trouble.over()
        trouble.over()
    assert events == [
        TroubleBegan(doing="round", error=away),
        TroubleBegan(doing="round", error=broken),
        TroubleOver(doing="round", failures=5),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "WARNING", "INFO"]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, True, False]
