"""The protections that are taken out, one at a time, and which tests notice.

A mutation replaces text of one module before it is imported. Texts have to be found exactly `times` times, so that a
protection that is rewritten takes its mutation along.
"""

from dataclasses import dataclass
from typing import Final

_STORE: Final = "tests/integration/store"
_MODELS: Final = "tests/model/test_store.py::test_real_statements_do_what_the_models_say"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One protection less. `replaced` are pairs of old and new text of `module`; `caught_by` are ids of tests."""

    name: str
    module: str
    replaced: tuple[tuple[str, str], ...]
    caught_by: tuple[str, ...]
    times: int = 1

    def apply(self, source: str) -> str:
        """Return the module's source without the protection. Raises `ValueError` if it is not there."""
        for old, new in self.replaced:
            if source.count(old) != self.times:
                raise ValueError(f"{self.name}: {self.module} has {source.count(old)} times, not {self.times}: {old!r}")
            source = source.replace(old, new)
        return source


MUTATIONS: Final = (
    Mutation(
        name="for share",
        module="server.store.fence",
        replaced=(("ORDER BY s.shard FOR SHARE OF s)", "ORDER BY s.shard)"),),
        caught_by=(
            f"{_STORE}/test_fence.py::test_fence_in_waits_for_a_fenced_statement_and_then_wins",
            f"{_STORE}/test_fence.py::test_bump_waits_for_a_claim_under_way",
        ),
    ),
    Mutation(
        name="conditional fence-in",
        module="server.store.shards",
        replaced=(("WHERE (s.generation, s.token) < (w.generation, w.token)", "WHERE true"),),
        caught_by=(f"{_STORE}/test_fence.py::test_fence_in_raises_the_epoch_for_a_newer_token_only", _MODELS),
    ),
    Mutation(
        name="generation of a lease",
        module="server.store.shards",
        replaced=(("WHERE (s.generation, s.token) < (w.generation, w.token)", "WHERE s.token < w.token"),),
        caught_by=(f"{_STORE}/test_fence.py::test_fence_in_raises_the_epoch_for_a_newer_token_only",),
    ),
    Mutation(
        name="epoch gate of the worker",
        module="worker_sdk.ledger",
        replaced=(("if epoch < known:", "if epoch < known and known < 0:"),),
        caught_by=(
            "tests/integration/worker_sdk/test_session.py"
            "::test_assignments_below_the_highest_epoch_of_the_shard_are_refused",
        ),
    ),
    # Against workers that send the same result twice: the SDK drops it by itself.
    Mutation(
        name="open claim in a finish",
        module="server.store.finish",
        replaced=(("j.open_claim = w.claim", "j.claim = w.claim"),),
        times=3,
        caught_by=(
            f"{_STORE}/test_interleavings.py::test_a_failure_whose_ack_was_lost_counts_once",
            f"{_STORE}/test_finish.py::test_a_failure_that_is_sent_again_counts_once",
            _MODELS,
        ),
    ),
    Mutation(
        name="older epochs only in a take-over",
        module="server.engine.adoption",
        replaced=(
            (
                "for ref in question.refs:",
                "for ref in [entry.ref for entry in self._registry.of_worker(session.worker_id)]:",
            ),
            ("if entry is None or entry.session_id is not None:", "if entry is None:"),
        ),
        caught_by=(f"{_STORE}/test_interleavings.py::test_a_report_that_crosses_a_claim_takes_nothing_back",),
    ),
    Mutation(
        name="re-check of the lease in the reaper's statement",
        module="server.store.finish",
        replaced=(("FROM workers k WHERE k.id = j.worker_id", "FROM workers k WHERE true OR k.id = j.worker_id"),),
        caught_by=(f"{_STORE}/test_finish.py::test_recheck_lets_a_worker_live_that_came_back",),
    ),
    Mutation(
        name="re-check of who is heard in the reaper",
        module="server.engine.reaper",
        replaced=(
            ("dead = [worker for worker in dead if not self._slots.heard(worker)]", "dead = list(dead)"),
            ("found = [one for one in found if not self._slots.heard(one.worker_id)]", "found = list(found)"),
        ),
        caught_by=(
            "tests/integration/engine/test_liveness.py"
            "::test_a_worker_that_comes_back_during_a_reap_keeps_what_it_is_given_meanwhile",
        ),
    ),
    Mutation(
        name="grace of a timeout",
        module="server.store.finish",
        replaced=(("j.timeout_at <= now() - %s::int8 * interval '1 millisecond'", "%s::int8 IS NOT NULL"),),
        caught_by=(f"{_STORE}/test_finish.py::test_recheck_lets_an_attempt_run_until_its_grace_is_over",),
    ),
    Mutation(
        name="a cancel stops a retry",
        module="server.store.finish",
        replaced=(("WHERE NOT j.cancel_requested <recheck>", "WHERE true <recheck>"),),
        caught_by=(f"{_STORE}/test_finish.py::test_a_cancel_between_a_failure_and_its_retry_is_not_lost",),
    ),
    Mutation(
        name="rank within a concurrency key",
        module="server.store.claim",
        replaced=(("<= f.concurrency_limit END AS take", "<= 1000000 END AS take"),),
        caught_by=(f"{_STORE}/test_interleavings.py::test_one_claim_takes_one_job_of_a_key_with_limit_one",),
    ),
    Mutation(
        name="a firing compares the next time",
        module="server.store.schedule_firing",
        replaced=(("s.next_fire_at = w.expected AND ", ""),),
        caught_by=(
            "tests/integration/schedules/test_firing.py::test_an_order_is_applied_once_however_often_it_is_sent",
        ),
    ),
    Mutation(
        name="a firing compares version and pause",
        module="server.store.schedule_firing",
        replaced=(("s.version = w.version AND NOT s.paused\n", "true\n"),),
        caught_by=(
            "tests/integration/schedules/test_firing.py::test_nothing_is_fired_that_was_paused_between_read_and_commit",
        ),
    ),
    Mutation(
        name="a slot is given away only when it was let go",
        module="worker_sdk.credit",
        replaced=(("headroom = limit - sum(possible.values())", "headroom = limit"),),
        caught_by=(
            "tests/unit/worker_sdk/test_credit.py::test_a_slot_is_given_to_a_node_only_when_another_has_let_it_go",
        ),
    ),
    Mutation(
        name="few moves at a time",
        module="shard_manager.leader",
        replaced=(("self._max_moves if pace.voluntary else 0", "None if pace.voluntary else 0"),),
        caught_by=("tests/simulation/test_simulation.py::test_no_schedule_of_faults_breaks_anything[0]",),
    ),
    Mutation(
        name="a lease is given up only when nothing runs",
        module="shard_manager.lease",
        replaced=(
            (
                "return Stopping(state.lease, graceful=True), (Stop(graceful=True),)",
                "return Releasing(state.lease), (Stop(graceful=True), Release(state.lease))",
            ),
        ),
        caught_by=("tests/simulation/test_simulation.py::test_no_schedule_of_faults_breaks_anything[0]",),
    ),
)
