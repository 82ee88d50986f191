"""What the cron dialect accepts, what it means, and what it refuses."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.cron import CronExpression, parse_cron
from server.domain.cron_fields import LAST_WEEKDAY
from server.domain.cron_text import describe
from server.domain.errors import InvalidInput
from tests.support.thoroughness import examples


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  5   4\t* * *  ", "5 4 * * *"),
        ("00 020 * * *", "0 20 * * *"),
        ("0 * * * * *", "* * * * *"),
        ("30 0 0 * * *", "30 0 0 * * *"),
        ("0,15,30,45 * * * *", "0,15,30,45 * * * *"),
        ("*/15 * * * *", "*/15 * * * *"),
        ("*/1 */1 * * *", "* * * * *"),
        ("0-59 1 * * *", "* 1 * * *"),
        ("10-50/10 * * * *", "10-50/10 * * * *"),
        ("50/4 * * * *", "50,54,58 * * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("5-5 * * * *", "5 * * * *"),
        ("5,3,4,3 * * * *", "3-5 * * * *"),
        ("*/30,45 1 * * *", "*/60,30,45 1 * * *"),
        ("0 22-2 * * *", "0 0-2,22,23 * * *"),
        ("0 0 1 JAN,jul,12 *", "0 0 1 1,7,12 *"),
        ("0 0 1 NOV-FEB *", "0 0 1 1,2,11,12 *"),
        ("0 0 * Mar-MAR Mon-FRI", "0 0 * 3 1-5"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * FRI-SUN", "0 0 * * 0,5,6"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * * MON-SUN/2", "0 0 * * 0,1,3,5"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 l,15 * *", "0 0 15,L * *"),
        ("0 0 * * MON#1,fri#3", "0 0 * * 1#1,5#3"),
        ("0 0 * * 5L", "0 0 * * 5L"),
        ("0 0 * * L5", "0 0 * * 5L"),
        ("0 0 * * 7#2", "0 0 * * 0#2"),
        ("0 0 */2 * *", "0 0 */2 * *"),
        ("0 0 */100,1-7 * MON", "0 0 */31,2-7 * 1"),
        ("0 0 1-31 * 3", "0 0 * * *"),
        ("0 0 13 * 0-6", "0 0 * * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@Weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @HOURLY ", "0 * * * *"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    expression = parse_cron(text)
    assert (expression.canonical, expression.dialect) == (canonical, 1)
    assert expression == parse_cron(canonical)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * * * * *", "has 7 fields"),
        ("@every 5m", "use an interval schedule"),
        ("@reboot", "names no time"),
        ("@fortnightly", "known are @yearly"),
        ("0 24 * * *", "hour: 24 is outside 0-23"),
        ("0 0 0 * *", "day-of-month: 0 is outside 1-31"),
        ("0 0 32 * *", "day-of-month: 32 is outside 1-31"),
        ("0 0 1 0 *", "month: 0 is outside 1-12"),
        ("0 0 1 13 *", "month: 13 is outside 1-12"),
        ("0 0 * * 8", "day-of-week: 8 is outside 0-7"),
        ("60 * * * * *", "second: 60 is outside 0-59"),
        ("0 0 1 FOO *", "month: 'FOO' is not a number or one of JAN"),
        ("JAN * * * *", "minute: 'JAN' is not a number"),
        ("0 0 1 JANUARY *", "month: cannot read 'JANUARY'"),
        ("0 0 ? * MON", "day-of-month: ? is Quartz syntax"),
        ("0 0 15W * *", "day-of-month: '15W' is not supported"),
        ("0 0 LW * *", "day-of-month: 'LW' is not supported"),
        ("0 0 L-3 * *", "day-of-month: 'L-3' is not supported"),
        ("0 0 * * L", "day-of-week: L needs a weekday"),
        ("0 0 * * 1#6", "day-of-week: #6 is outside #1-#5"),
        ("0 0 * * 1#0", "day-of-week: #0 is outside #1-#5"),
        ("0 0 * * 1#1,3", "cannot be mixed"),
        ("0 0 * * *,5L", "cannot be mixed"),
        ("R * * * *", "minute: cannot read 'R'"),
        ("* R(0-3) * * *", "hour: cannot read 'R(0-3)'"),
        ("H * * * *", "minute: H needs the name of a schedule"),
        ("5-50/0 * * * *", "minute: a step must be at least 1"),
        ("50-10/5 * * * *", "minute: the range 50-10 runs backwards"),
        ("1-2-3 * * * *", "minute: cannot read '1-2-3'"),
        ("*/5/5 * * * *", "minute: cannot read '*/5/5'"),
        ("*5 * * * *", "minute: cannot read '*5'"),
        ("1.5 * * * *", "minute: cannot read '1.5'"),
        ("+1 * * * *", "minute: cannot read '+1'"),
        ("1_0 * * * *", "minute: cannot read '1_0'"),
        ("1000 * * * *", "minute: cannot read '1000'"),
        ("* * *\n* *", "control characters"),
        ("* * * * *\x00", "control characters"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_cron(text)
    assert refused.value.field == "cron"
    assert reason in refused.value.reason


FIELDS = {"minute": (0, 0, 59), "hour": (1, 0, 23), "month": (3, 1, 12), "day-of-week": (4, 0, 7)}


def values_of(expression: CronExpression, name: str) -> set[int]:
    fields = expression.fields
    return set(
        {"minute": fields.minutes, "hour": fields.hours, "month": fields.months, "day-of-week": fields.weekdays}[name]
    )


@pytest.mark.parametrize("name", FIELDS)
def test_every_range_and_step_expands_as_written(name: str) -> None:
    """Guards against a croniter release that reads a range or a step in another way."""
    position, low, high = FIELDS[name]
    stride = 7 if name == "minute" else 1
    for first, last in itertools.product(range(low, high + 1, stride), repeat=2):
        for step in (1, 2, 3, 5, 11):
            if first > last and step > 1:
                continue
            fields = ["0", "0", "*", "*", "*"]
            fields[position] = f"{first}-{last}/{step}" if step > 1 else f"{first}-{last}"
            if first <= last:
                expected = set(range(first, last + 1, step))
            else:
                expected = set(range(first, high + 1)) | set(range(low, last + 1))
            if name == "day-of-week":
                expected = {0, 1, 2, 3, 4, 5, 6} & {day % 7 for day in expected}
                if first == 7 and last < 7:
                    expected = set(range(last + 1))
            assert values_of(parse_cron(" ".join(fields)), name) == expected, fields


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, 40)
    item = st.one_of(
        number.map(str),
        spans,
        st.just("*"),
        steps.map(lambda step: f"*/{step}"),
        st.tuples(spans, steps).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.just("H"),
        steps.map(lambda step: f"H/{step}"),
    )
    return st.lists(item, min_size=1, max_size=3).map(",".join)


special_weekdays = st.lists(st.sampled_from(["1#1", "5#5", "0#2", "SUN#3", "5L", "L3"]), min_size=1, max_size=3).map(
    ",".join
)
expressions = st.tuples(
    numbers(0, 59),
    numbers(0, 59),
    numbers(0, 23),
    st.one_of(numbers(1, 31), st.just("L"), st.just("L,*/3")),
    numbers(1, 12),
    st.one_of(numbers(0, 7), special_weekdays),
).map(" ".join)


def parsed_or_refused(text: str, hash_key: str) -> CronExpression | InvalidInput:
    try:
        return parse_cron(text, hash_key=hash_key)
    except InvalidInput as refused:
        return refused


@settings(max_examples=examples(100), deadline=None)
@given(expressions, st.text(min_size=1, max_size=20))
def test_the_canonical_text_means_the_same(text: str, hash_key: str) -> None:
    expression = parsed_or_refused(text, hash_key)
    if isinstance(expression, InvalidInput):
        assert "never occurs" in expression.reason or "too many single values" in expression.reason
        return
    again = parse_cron(expression.canonical)
    assert again.canonical == expression.canonical
    assert again.table == expression.table
    assert describe(expression.canonical) != expression.canonical


@settings(max_examples=examples(200), deadline=None)
@given(st.one_of(st.text(max_size=300), st.text("0123456789*/,-#LWHR?@() JANMON", max_size=40)))
def test_any_text_is_read_or_refused(text: str) -> None:
    outcome = parsed_or_refused(text, "k")
    assert isinstance(outcome, CronExpression) or outcome.field == "cron"


def test_hashed_values_are_stable_and_spread() -> None:
    assert parse_cron("H H * * *", hash_key="reports").canonical == "39 17 * * *"
    assert parse_cron("H/15 * * * *", hash_key="reports").canonical == "9,24,39,54 * * * *"
    drawn = [parse_cron("H H H * *", hash_key=f"job-{n}").fields for n in range(1000)]
    for values, size in (([f.minutes for f in drawn], 60), ([f.hours for f in drawn], 24)):
        counts = [values.count((value,)) for value in range(size)]
        assert max(counts) < 3 * 1000 / size
        assert min(counts) > 0
    pairs = {(fields.minutes, fields.hours) for fields in drawn}
    assert len(pairs) > 600
    assert {fields.month_days[0] for fields in drawn} == set(range(1, 29))


@pytest.mark.parametrize("text", ["H(10-20) * * * *", "H(10-20)/3 * * * *", "H(10-20)/50 * * * *"])
def test_hashed_values_stay_in_their_range(text: str) -> None:
    for n in range(100):
        assert set(parse_cron(text, hash_key=f"job-{n}").fields.minutes) <= set(range(10, 21))


def test_equality_is_that_of_the_canonical_text() -> None:
    assert parse_cron("@daily") == parse_cron("0 0 * * *") != parse_cron("0 1 * * *")
    assert parse_cron("0,30 1 * * *") != parse_cron("*/30 1 * * *")


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("* * * * *", []),
        ("0 0 * * 5", []),
        ("0 0 1-31 * 5", ["both restricted: a day matches if either does (POSIX), which is every day"]),
        ("0 0 13 * 5", ["day-of-month (13) and day-of-week (5) are both restricted: a day matches if either does"]),
        ("0 0 */2 * 3", ["a day must match both, for one of the fields contains *"]),
        ("0 0 31 * *", ["months without a day 31 are skipped; L is the last day of every month"]),
        ("0 0 31,L * *", []),
        ("*/90 * * * *", ["minute step 90 is longer than the field: only minute 0 matches"]),
        ("*/7 */5 * * *", ["minute step 7 starts anew with each hour", "hour step 5 starts anew with each day"]),
        ("H 0 * * THU", ["H stands for a stable value"]),
    ],
)
def test_notes(text: str, notes: list[str]) -> None:
    found = parse_cron(text, hash_key="k").notes
    assert len(found) == len(notes)
    for note, part in zip(found, notes, strict=True):
        assert part in note


def test_description() -> None:
    assert parse_cron("*/5 * * * *").description == "Every 5 minutes"
    assert parse_cron("30 14 * * 1-5").description == "At 14:30, Monday through Friday"
    assert parse_cron("@monthly").description == "At 00:00, on day 1 of the month"


def test_nth_and_last_weekdays() -> None:
    assert parse_cron("0 0 * * 5#2,1#5,3L").fields.nth_weekdays == ((1, 5), (3, LAST_WEEKDAY), (5, 2))
