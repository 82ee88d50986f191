"""The registry's three views of the same attempts."""

from hypothesis import given
from hypothesis import strategies as st

from server.domain.job import AttemptRef
from server.engine.registry import Registry, RunningEntry


def entry(job_id: int, *, claim: int = 1, worker: int = 1, shard: int = 0, session: int | None = 1) -> RunningEntry:
    return RunningEntry(
        ref=AttemptRef(job_id, claim), shard=shard, handler_id=1, worker_id=worker, claim_epoch=1, timeout_at=None,
        session_id=session,
    )  # fmt: skip


def test_an_attempt_is_found_by_name_worker_and_shard() -> None:
    registry = Registry()
    one, two = entry(1, worker=5, shard=3), entry(2, worker=6, shard=3)
    registry.add(one)
    registry.add(two)
    assert registry.get(AttemptRef(1, 1)) is one
    assert registry.get(AttemptRef(1, 2)) is None
    assert (registry.of_worker(5), registry.of_worker(7)) == ([one], [])
    assert sorted(found.ref for found in registry.of_shard(3)) == [one.ref, two.ref]
    assert registry.shards_of_workers([5, 6, 7]) == {3}
    assert sorted(registry.workers()) == [5, 6]


def test_adding_again_replaces_what_was_known() -> None:
    registry = Registry()
    registry.add(entry(1, worker=5, shard=3))
    moved = entry(1, worker=6, shard=3, session=None)
    registry.add(moved)
    assert (len(registry), registry.of_worker(5), registry.of_worker(6)) == (1, [], [moved])


def test_removing_twice_is_harmless() -> None:
    registry = Registry()
    one = entry(1)
    registry.add(one)
    assert registry.remove(one.ref) is one
    assert registry.remove(one.ref) is None
    assert (len(registry), registry.workers(), registry.of_shard(0)) == (0, [], [])


def test_forgetting_a_shard_leaves_the_others() -> None:
    registry = Registry()
    kept = entry(3, worker=1, shard=1)
    for one in (entry(1), entry(2, worker=2), kept):
        registry.add(one)
    registry.forget_shard(0)
    registry.forget_shard(9)
    assert (len(registry), registry.workers(), registry.of_worker(1)) == (1, [1], [kept])
    assert kept.ref in registry


actions = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "forget"]), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2))
)


@given(actions=actions)
def test_views_always_agree(actions: list[tuple[str, int, int, int]]) -> None:
    registry, model = Registry(), dict[AttemptRef, RunningEntry]()
    for action, job_id, worker, shard in actions:
        match action:
            case "add":
                one = entry(job_id, worker=worker, shard=shard)
                registry.add(one)
                model[one.ref] = one
            case "remove":
                ref = AttemptRef(job_id, 1)
                assert registry.remove(ref) is model.pop(ref, None)
            case _:
                registry.forget_shard(shard)
                model = {ref: one for ref, one in model.items() if one.shard != shard}
        assert len(registry) == len(model)
        assert sorted(registry.workers()) == sorted({one.worker_id for one in model.values()})
        for number in range(4):
            of_worker = {one.ref for one in registry.of_worker(number)}
            assert of_worker == {ref for ref, one in model.items() if one.worker_id == number}
            of_shard = {one.ref for one in registry.of_shard(number)}
            assert of_shard == {ref for ref, one in model.items() if one.shard == number}
