"""Layers of policies."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from server.domain.policies import (
    NO_POLICIES,
    SERVER_DEFAULTS,
    Policies,
    from_document,
    overlay,
    resolve,
    to_document,
)
from server.domain.retry import DELAY_LIMIT

SECOND = timedelta(seconds=1)
spans = st.none() | st.integers(0, 10**10).map(lambda ms: timedelta(milliseconds=ms))


@st.composite
def layers(draw: st.DrawFn) -> Policies:
    """One layer, consistent in itself as the edge guarantees."""
    initial, maximum = draw(spans), draw(spans)
    if initial is not None and maximum is not None and initial > maximum:
        initial, maximum = maximum, initial
    return Policies(
        max_attempts=draw(st.none() | st.integers(1, 1000)),
        initial=initial,
        multiplier=draw(st.none() | st.floats(1, 100)),
        maximum=maximum,
        non_retryable=draw(st.none() | st.lists(st.text(min_size=1), max_size=3).map(tuple)),
        start=draw(spans),
        attempt=draw(spans),
        total=draw(spans),
    )


def test_each_field_comes_from_the_first_layer_that_has_it() -> None:
    backoff, limits = resolve(
        Policies(max_attempts=2),
        Policies(max_attempts=9, attempt=3 * SECOND),
        Policies(attempt=5 * SECOND, total=60 * SECOND, non_retryable=("ValueError",)),
    )
    assert (backoff.max_attempts, backoff.initial, backoff.multiplier) == (2, SECOND, 2.0)
    assert (backoff.maximum, backoff.non_retryable) == (timedelta(hours=1), ("ValueError",))
    assert (limits.start, limits.attempt, limits.total) == (None, 3 * SECOND, 60 * SECOND)


def test_an_empty_list_of_error_types_is_a_value() -> None:
    backoff, _ = resolve(NO_POLICIES, Policies(non_retryable=()), Policies(non_retryable=("ValueError",)))
    assert backoff.non_retryable == ()


def test_the_more_specific_of_two_contradicting_delays_holds() -> None:
    raised, _ = resolve(Policies(initial=timedelta(hours=2)), NO_POLICIES, NO_POLICIES)
    assert (raised.initial, raised.maximum) == (timedelta(hours=2), timedelta(hours=2))
    lowered, _ = resolve(Policies(maximum=timedelta(milliseconds=10)), NO_POLICIES, NO_POLICIES)
    assert (lowered.initial, lowered.maximum) == (timedelta(milliseconds=10), timedelta(milliseconds=10))


@given(layers(), layers(), layers())
def test_whatever_the_layers_the_result_is_a_policy_that_can_be_carried_out(
    request: Policies, handler: Policies, namespace: Policies
) -> None:
    backoff, limits = resolve(request, handler, namespace)
    assert timedelta(0) <= backoff.initial <= backoff.maximum <= DELAY_LIMIT
    given_limits = (request.attempt, handler.attempt, namespace.attempt)
    assert limits.attempt == next((limit for limit in given_limits if limit is not None), None)


@given(layers())
def test_documents_keep_everything(policies: Policies) -> None:
    assert from_document(to_document(policies)) == policies


@given(layers())
def test_nothing_changes_a_layer(policies: Policies) -> None:
    assert overlay(policies, NO_POLICIES) == policies
    assert overlay(NO_POLICIES, policies) == policies
    assert overlay(policies, policies) == policies


def test_empty_documents_are_shared() -> None:
    assert from_document(b"{}") is NO_POLICIES
    assert from_document(b'{"from_the_future": 1}') is NO_POLICIES
    assert from_document(to_document(SERVER_DEFAULTS)) == SERVER_DEFAULTS
