"""News as messages: nothing gets lost on the way, and what cannot be right is refused."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from server.domain.due import DueJob
from server.domain.job import AttemptRef
from server.domain.sharding import make_id
from server.engine.ports_peers import (
    AttemptAsked,
    AttemptDisclaimed,
    AttemptEnded,
    HandlersChanged,
    JobFinal,
    JobWatched,
    KeyFreed,
    News,
    ScheduleChanged,
    StopAttempt,
)
from server.peers.messages import news_of, problems, request_of
from shardwheel.v1 import peer_service_pb2 as pb

SHARDS = 64
shards = st.integers(0, SHARDS - 1)
job_ids = st.builds(make_id, st.integers(1, 2**50), shards)
refs = st.builds(AttemptRef, job_ids, st.integers(1, 2**31))
instants = st.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
due_jobs = st.builds(
    lambda priority, due_at, job_id, handler: DueJob(priority, due_at, job_id, job_id & 4095, handler),
    st.integers(1, 5),
    instants,
    job_ids,
    st.integers(1, 2**31 - 1),
)
news: st.SearchStrategy[News] = st.one_of(
    due_jobs,
    st.builds(AttemptEnded, refs, final=st.booleans(), key_told=st.booleans()),
    st.builds(AttemptAsked, refs, st.integers(1, 2**40)),
    st.builds(AttemptDisclaimed, refs),
    st.builds(JobFinal, job_ids),
    st.builds(JobWatched, job_ids),
    st.builds(KeyFreed, shards, st.integers(1, 1000), st.text(min_size=1)),
    st.builds(ScheduleChanged, shards, st.none() | instants),
    st.builds(StopAttempt, refs, st.integers(1, 2**40), st.sampled_from(["requested", "timeout", "superseded"])),
    st.just(HandlersChanged()),
)


@given(st.lists(news, unique=True))
def test_news_arrives_as_it_was_told(told: list[News]) -> None:
    request = pb.TellRequest.FromString(request_of("node-a", told).SerializeToString())
    assert list(problems(request, SHARDS)) == []
    assert set(news_of(request)) == set(told)


def test_instants_beyond_the_calendar_of_the_message_are_brought_within() -> None:
    early, late = datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    request = request_of("node-a", [ScheduleChanged(1, early), ScheduleChanged(2, late)])
    assert list(problems(request, SHARDS)) == []
    assert [one.next_fire_at for one in news_of(request) if isinstance(one, ScheduleChanged)] == [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 1, 1, tzinfo=UTC),
    ]


def test_what_cannot_be_right_is_named() -> None:
    later = (datetime(9999, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) + 1
    fine = make_id(1, 0)
    request = pb.TellRequest(
        pending_jobs=[
            pb.PendingJobNews(job_id=make_id(1, SHARDS), priority=1, handler_id=1),
            pb.PendingJobNews(job_id=fine, priority=6, due_at_us=-1, handler_id=0),
            pb.PendingJobNews(job_id=fine, priority=0, due_at_us=later, handler_id=2**31),
        ],
        schedules=[pb.ScheduleNews(shard=SHARDS), pb.ScheduleNews(shard=-1, next_fire_at_us=later)],
        ended_attempts=[pb.EndedAttemptNews(job_id=-1)],
        freed_keys=[pb.FreedKeyNews(shard=SHARDS)],
        final_jobs=[0],
        watched_jobs=[fine, make_id(1, 4095)],
        cancels=[pb.CancelNews(job_id=fine)],
    )
    assert [field for field, _, _ in problems(request, SHARDS)] == [
        "node",
        "pending_jobs[0]",
        "ended_attempts[0]",
        "final_jobs[0]",
        "watched_jobs[1]",
        "pending_jobs[1].handler_id",
        "pending_jobs[1].priority",
        "pending_jobs[1].due_at_us",
        "pending_jobs[2].handler_id",
        "pending_jobs[2].priority",
        "pending_jobs[2].due_at_us",
        "schedules[0].shard",
        "schedules[1].shard",
        "schedules[1].next_fire_at_us",
        "freed_keys[0].shard",
        "cancels[0].reason",
    ]
    assert list(problems(pb.TellRequest(node="node-a"), SHARDS)) == []
