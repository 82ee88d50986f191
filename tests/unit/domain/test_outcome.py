"""What follows from the end of an attempt: every outcome, at every stage of a job."""

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.domain.job import AttemptOutcome, AttemptRef, Backoff, JobState
from server.domain.outcome import (
    MAX_ERROR_MESSAGE_CHARS,
    MAX_ERROR_TYPE_CHARS,
    AttemptFacts,
    CancelConfirmed,
    Committed,
    Completed,
    Failed,
    Finish,
    Interrupted,
    Outcome,
    Requeue,
    Snoozed,
    TimedOut,
    Undelivered,
    WorkerLost,
    clean,
    completed,
    decide,
    needs_facts,
)

NOW = datetime(2026, 7, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
REF = AttemptRef(7, 3)
BACKOFF = Backoff(max_attempts=3, initial=8 * SECOND, multiplier=2.0, maximum=20 * SECOND, non_retryable=("Fatal",))

FAILED = Failed("E", "m")
EVERY: list[Outcome] = [
    Completed(b"r", "t"), FAILED, Snoozed(5 * SECOND), TimedOut(), CancelConfirmed(), Interrupted(), Undelivered(),
    WorkerLost(), Committed(),
]  # fmt: skip
UNTRIED: list[Outcome] = [Interrupted(), Undelivered(), CancelConfirmed()]
BURNING = (Failed, TimedOut, Committed, WorkerLost)


def facts(attempt: int = 1, *, deadline: timedelta | None = None, cancelled: bool = False) -> AttemptFacts:
    deadline_at = None if deadline is None else NOW + deadline
    return AttemptFacts(
        ref=REF, handler_id=1, attempt=attempt, backoff=BACKOFF, deadline_at=deadline_at, cancel_requested=cancelled
    )  # fmt: skip


def ends(outcome: Outcome, known: AttemptFacts, draw: float = 0.5) -> Finish | Requeue:
    return decide(outcome, known, NOW, lambda: draw)


@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
@pytest.mark.parametrize("deadline", [None, -SECOND, 0 * SECOND, SECOND])
@pytest.mark.parametrize("cancelled", [False, True])
def test_table_of_all_outcomes(attempt: int, deadline: timedelta | None, cancelled: bool) -> None:
    """Completed always wins; a cancel wins over everything else; then the last try and the deadline."""
    over = deadline is not None and deadline <= 0 * SECOND
    for outcome in EVERY:
        # A retry has to wait for four seconds at least; a lost worker is replaced at once.
        last = attempt >= 3 or over or (deadline is not None and not isinstance(outcome, WorkerLost))
        decision = ends(outcome, facts(attempt, deadline=deadline, cancelled=cancelled))
        assert decision.ref == REF
        if isinstance(outcome, Completed):
            assert decision == Finish(ref=REF, state=JobState.COMPLETED, result=b"r", content_type="t")
        elif cancelled:
            assert isinstance(decision, Finish)
            assert (decision.state, decision.outcome) == (JobState.CANCELLED, AttemptOutcome.CANCELLED)
            assert decision.error_type == "cancelled"
        elif isinstance(outcome, BURNING) and last:
            assert isinstance(decision, Finish)
            assert decision.state is JobState.FAILED
        else:
            assert isinstance(decision, Requeue)
            assert decision.burn == isinstance(outcome, BURNING)
            assert decision.keep_open == isinstance(outcome, WorkerLost)
            assert (decision.outcome is not None) == isinstance(outcome, BURNING)


@pytest.mark.parametrize(
    ("outcome", "kind", "error_type"),
    [
        (FAILED, AttemptOutcome.FAILED, "E"),
        (TimedOut(), AttemptOutcome.TIMED_OUT, "timeout"),
        (WorkerLost(), AttemptOutcome.WORKER_LOST, "worker_lost"),
        (Committed(), AttemptOutcome.FAILED, "uncommitted"),
    ],
)
def test_the_reason_is_kept_with_the_try_and_with_the_job(
    outcome: Outcome, kind: AttemptOutcome, error_type: str
) -> None:
    for attempt in (1, 3):
        decision = ends(outcome, facts(attempt))
        assert (decision.outcome, decision.error_type) == (kind, error_type)
        assert decision.message


def test_the_two_reasons_of_the_reaper_have_texts_of_their_own() -> None:
    texts = {ends(outcome, facts()).message for outcome in (WorkerLost(), TimedOut())}
    assert len(texts) == 2


def test_an_attempt_that_is_over_the_total_time_says_so() -> None:
    decision = ends(TimedOut(), facts(deadline=0 * SECOND))
    assert (decision.error_type, decision.message) == ("total_timeout", "the job's total time is over")
    # Whatever else ended it keeps its own reason.
    assert ends(FAILED, facts(deadline=0 * SECOND)).error_type == "E"
    assert ends(TimedOut(), facts(3)).error_type == "timeout"


@pytest.mark.parametrize(("attempt", "bound"), [(1, 8), (2, 16)])
def test_delay_of_a_retry_is_drawn_from_zero_to_its_bound(attempt: int, bound: int) -> None:
    for draw in (0.0, 0.25, 0.999):
        for outcome in (FAILED, TimedOut(), Committed()):
            decision = ends(outcome, facts(attempt), draw)
            assert isinstance(decision, Requeue)
            assert decision.delay == bound * draw * SECOND


def test_no_retry_is_waited_for_that_could_start_only_after_the_deadline() -> None:
    assert isinstance(ends(FAILED, facts(deadline=5 * SECOND)), Requeue)
    assert isinstance(ends(FAILED, facts(deadline=4 * SECOND)), Finish)
    assert isinstance(ends(Failed("E", "m", retry_after=6 * SECOND), facts(deadline=5 * SECOND)), Finish)


def test_retry_after_is_the_least_delay() -> None:
    for after, expected in [(None, 4), (SECOND, 4), (6 * SECOND, 6), (timedelta(days=3), 259_200)]:
        decision = ends(Failed("E", "m", retry_after=after), facts())
        assert isinstance(decision, Requeue)
        assert decision.delay == expected * SECOND


@pytest.mark.parametrize("outcome", [Failed("E", "m", retryable=False), Failed("Fatal", "m")])
def test_what_is_not_retryable_fails_at_the_first_try(outcome: Failed) -> None:
    decision = ends(outcome, facts())
    assert decision == Finish(
        ref=REF, state=JobState.FAILED, error_type=outcome.error_type, message="m", outcome=AttemptOutcome.FAILED
    )  # fmt: skip


def test_a_lost_worker_is_replaced_at_once_and_its_claim_stays_open() -> None:
    decision = ends(WorkerLost(), facts())
    assert isinstance(decision, Requeue)
    assert (decision.delay, decision.keep_open, decision.burn) == (timedelta(0), True, True)


@pytest.mark.parametrize("attempt", [1, 3, 9])
def test_what_burns_no_try_is_not_counted_even_on_the_last_one(attempt: int) -> None:
    assert ends(Snoozed(5 * SECOND), facts(attempt)) == Requeue(ref=REF, delay=5 * SECOND, burn=False)
    # A stop that nobody asked for is an interruption. Only what was not delivered has surely not started.
    for outcome in UNTRIED:
        started = not isinstance(outcome, Undelivered)
        assert ends(outcome, facts(attempt)) == Requeue(ref=REF, delay=None, burn=False, started=started)


def test_only_a_completion_needs_no_facts() -> None:
    assert [needs_facts(outcome) for outcome in EVERY] == [False] + [True] * (len(EVERY) - 1)
    assert completed(REF, Completed(b"r", "t")) == ends(Completed(b"r", "t"), facts())


def test_errors_are_cleaned_and_cut() -> None:
    decision = ends(Failed("T\0" * 1000, "m\ud800" * 100_000), facts(3))
    assert decision.error_type is not None
    assert decision.message is not None
    assert len(decision.error_type) <= MAX_ERROR_TYPE_CHARS
    assert len(decision.message) <= MAX_ERROR_MESSAGE_CHARS
    assert "\0" not in decision.error_type
    decision.message.encode()


@example(text="x" * 50, limit=20)
@given(text=st.text(st.characters(), max_size=400), limit=st.integers(20, 300))
def test_cleaned_text_can_be_stored_and_shown(text: str, limit: int) -> None:
    cleaned = clean(text, limit)
    assert len(cleaned) <= limit
    cleaned.encode()
    controls = [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not controls
    # Cleaning again changes nothing, and clean text is left alone.
    assert clean(cleaned, limit) == cleaned


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t"), max_size=100))
def test_clean_text_is_left_alone(text: str) -> None:
    assert clean(text, 100) == text


def test_both_ends_of_a_long_text_are_kept() -> None:
    text = "start " + "x" * 1_000_000 + " end"
    cleaned = clean(text, 200)
    assert cleaned.startswith("start xxx")
    assert cleaned.endswith("xxx end")
    assert "[… cut …]" in cleaned
    assert len(cleaned) > 180


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\0b", "a�b"),
        ("\x1b[31m", "�[31m"),
        ("\x9b31m", "�31m"),
        ("\x7f", "�"),
        ("a\ud800b", "a?b"),
        ("☃\U0001d11e", "☃\U0001d11e"),
        ("", ""),
    ],
)
def test_what_becomes_of_characters(text: str, expected: str) -> None:
    assert clean(text, 100) == expected


def test_no_outcome_is_left_out_of_the_table() -> None:
    assert {type(outcome) for outcome in EVERY} == set(get_args(Outcome))
