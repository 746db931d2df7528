"""How events read, and whose voice they have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from localmem.kernel.events import (
    DocumentUploaded,
    Event,
    Login,
    MemoryPressure,
    SystemMessage,
    TimerFired,
    UserMessage,
    duration,
)

NOW = datetime(2026, 3, 2, 9, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "event",
    [
        SystemMessage("x"),
        Login(NOW, None),
        DocumentUploaded("a.md", 3),
        TimerFired("t", "note", NOW),
        MemoryPressure(1, 2),
    ],
    ids=lambda event: event.kind,
)
def test_only_the_user_speaks_as_the_user(event: Event):
    assert event.role == "system"
    assert UserMessage("x").role == "user"


def test_first_login_says_so():
    assert Login(NOW, None).text == "The user logged in for the first time. It is Monday 2026-03-02 09:05."


def test_later_login_says_how_long_it_was():
    assert "after 3 days." in Login(NOW, NOW - timedelta(days=3, hours=5)).text


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(seconds=59), "a moment"),
        (timedelta(seconds=-5), "a moment"),
        (timedelta(minutes=1), "1 minute"),
        (timedelta(minutes=59), "59 minutes"),
        (timedelta(hours=1, minutes=59), "1 hour"),
        (timedelta(days=400), "400 days"),
    ],
)
def test_span_is_said_in_its_largest_unit(span: timedelta, words: str):
    assert duration(span) == words


def test_timer_says_how_often_it_was_missed():
    assert "3 more times" in TimerFired("tea", "drink", NOW, missed=3).text
    assert "more times" not in TimerFired("tea", "drink", NOW).text


def test_upload_names_the_document_and_its_passages():
    text = DocumentUploaded("guide.md", 12).text
    assert "'guide.md'" in text
    assert "12 passages" in text
