"""When timed events are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.errors import LocalmemError
from localmem.kernel.scheduler import missed_until, next_due

NOW = datetime(2026, 3, 2, 9, 5, tzinfo=UTC)  # a Monday


@pytest.mark.parametrize(
    ("schedule", "step"),
    [
        ("every 90s", timedelta(seconds=90)),
        ("every 5 minutes", timedelta(minutes=5)),
        ("EVERY 2h", timedelta(hours=2)),
        (" every 3 days ", timedelta(days=3)),
    ],
)
def test_interval_counts_from_now(schedule: str, step: timedelta):
    assert next_due(schedule, NOW) == NOW + step


def test_cron_expression_is_local_time():
    due = next_due("30 17 * * *", NOW).astimezone()
    assert (due.hour, due.minute) == (17, 30)
    assert NOW < due <= NOW + timedelta(days=1)


def test_due_moment_knows_its_zone():
    assert next_due("@daily", NOW).tzinfo is not None


@given(
    schedule=st.sampled_from(["every 7m", "every 1d", "@hourly", "0 9 * * mon-fri", "*/5 * * * *", "0 0 29 2 *"]),
    minutes=st.integers(0, 3_000_000),
)
def test_next_time_is_always_later(schedule: str, minutes: int):
    moment = NOW + timedelta(minutes=minutes)
    assert next_due(schedule, moment) > moment


@pytest.mark.parametrize(
    "schedule",
    ["", "tomorrow", "every", "every 0m", "every -5m", "every 5 fortnights", "61 * * * *", "* * *", "@never", "\0"],
)
def test_what_is_no_schedule_is_refused_with_examples(schedule: str):
    with pytest.raises(LocalmemError) as caught:
        next_due(schedule, NOW)
    assert "every 90m" in caught.value.hint


@pytest.mark.parametrize("schedule", ["every 99999999999999d", "every 999999999d", "0 0 30 2 *"])
def test_schedule_that_never_comes_is_refused(schedule: str):
    with pytest.raises(LocalmemError):
        next_due(schedule, NOW)


@pytest.mark.parametrize(
    ("away", "missed"),
    [(timedelta(0), 0), (timedelta(minutes=59), 0), (timedelta(hours=1), 1), (timedelta(hours=3), 3)],
)
def test_missed_times_are_counted(away: timedelta, missed: int):
    assert missed_until("every 60m", NOW, NOW + away) == missed


def test_counting_missed_times_stops_at_a_thousand():
    assert missed_until("every 1s", NOW, NOW + timedelta(days=365)) == 1_000
