"""Times in arguments and in the texts of errors."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from omq.broker.start_time import MAX_TIME_S, StartTime, describe_time, overrun_since, start_time


def test_times_in_any_zone() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for zone in (UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9))):
        assert start_time("t", noon.astimezone(zone)) == StartTime(1_772_366_400_000_000)
    assert start_time("t", noon.timestamp()) == start_time("t", 1_772_366_400) == start_time("t", noon)
    assert start_time("t", 0) == start_time("t", datetime(1970, 1, 1, tzinfo=UTC)) == StartTime(0)
    assert start_time("t", datetime.max.replace(tzinfo=UTC)).microseconds == MAX_TIME_S * 1_000_000 - 1


@given(st.integers(0, 4_000_000_000_000_000))
def test_the_timestamp_of_a_message_is_exact(microseconds: int) -> None:
    # `Message.timestamp` is the quotient.
    assert start_time("t", microseconds / 1e6) == StartTime(microseconds)


@given(st.integers(0, MAX_TIME_S * 1_000_000 - 1), st.integers(-14, 14))
def test_a_datetime_is_exact(microseconds: int, hours: int) -> None:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    if time.year < 9999:
        time = time.astimezone(timezone(timedelta(hours=hours)))
    assert start_time("t", time) == StartTime(microseconds)


def test_descriptions() -> None:
    assert describe_time(0) == "1970-01-01T00:00:00Z"
    assert describe_time(1_772_366_400_000_001) == "2026-03-01T12:00:00.000001Z"
    assert describe_time(-1) == "1969-12-31T23:59:59.999999Z"
    assert describe_time(2**64 - 1) == "1.84467e+13 seconds since 1970"
    assert describe_time(10**123) == "1e+117 seconds since 1970"


def test_an_overrun_names_the_oldest_message_and_its_time() -> None:
    error = overrun_since("t", StartTime(1_000_000), 7, 2_000_000)
    assert str(error) == (
        "messages of topic 't' since 1970-01-01T00:00:01Z may no longer be kept; the oldest is 7, stored at"
        " 1970-01-01T00:00:02Z"
    )
    assert error.first == 7
    assert str(overrun_since("t", StartTime(0), 7, 0)).endswith("the oldest is 7")
