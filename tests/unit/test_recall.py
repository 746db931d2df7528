"""Recall storage: everything said is found again, in an order that holds, with totals that are true."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localmem.kernel.messages import Message
from localmem.memory.recall import Recall
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)


@pytest.fixture
def database():
    with Database(":memory:") as opened:
        AgentStore(opened).create("ana", model="", now=NOW)
        AgentStore(opened).create("bea", model="", now=NOW)
        yield opened


@pytest.fixture(params=[None, HashEmbedder()], ids=["words", "words and meaning"])
def recall(request, database):
    return Recall(database, 1, request.param, None)


def message(text, *, at=NOW, kind="user_message", role="user"):
    return Message(role, kind, text, f"[12:00] {text}", at)


def say(recall, *texts):
    return [recall.insert(message(text, at=NOW + timedelta(seconds=i))).id for i, text in enumerate(texts)]


def texts(page):
    return [found.text for found in page.items]


def test_a_message_comes_back_as_it_was(recall):
    given_message = replace(message("hello é 😀"), tokens=12, token_ids=(0, 151_645, 2**31 - 1))

    stored = recall.insert(given_message)

    assert stored == replace(given_message, id=1)
    assert recall.get([1]) == [stored]


def test_get_keeps_the_order_asked_for(recall, database):
    first, second, third = say(recall, "a", "b", "c")
    other = Recall(database, 2, None, None).insert(message("bea's")).id

    assert [found.id for found in recall.get([third, first, 999, other, second])] == [third, first, second]


def test_counts(recall):
    say(recall, "a", "b")
    recall.insert(message("core memory", kind="result", role="function"))

    assert (recall.count(), recall.spoken_count()) == (3, 2)


def test_total_counts_all_hits_and_not_the_page(recall):  # D1
    say(recall, *[f"dog number {chr(97 + i)}" for i in range(23)])

    page = recall.search("dog", page=1, page_size=5)

    assert (len(page.items), page.page, page.pages, page.total) == (5, 1, 5, 23)
    assert recall.search("dog", page=4, page_size=5).total == 23
    assert len(recall.search("dog", page=4, page_size=5).items) == 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["dog", "dog cat", "cat dog dog", "a dog", "fish"]), max_size=30))
def test_pages_never_overlap_and_miss_nothing(said):  # D5
    with Database(":memory:") as database:
        AgentStore(database).create("ana", model="", now=NOW)
        recall = Recall(database, 1, HashEmbedder(), None)
        say(recall, *said)
        pages = [recall.search("dog", page=page, page_size=4) for page in range(9)]

    ids = [found.id for page in pages for found in page.items]
    assert len(ids) == len(set(ids)) == pages[0].total
    assert {i + 1 for i, text in enumerate(said) if "dog" in text} <= set(ids)


def test_the_order_is_the_same_every_time(recall):  # D5
    say(recall, *["the dog barks"] * 20)

    orders = {tuple(found.id for found in recall.search("dog", page_size=20).items) for _ in range(5)}

    assert orders == {tuple(range(1, 21))}


def test_the_last_day_is_included_to_its_last_moment_in_local_time(recall):  # D6
    day = date(2024, 1, 20)
    first = datetime(2024, 1, 20).astimezone()
    last = datetime(2024, 1, 20, 23, 59, 59, 999_999).astimezone()
    for at in (first - timedelta(microseconds=1), first, last, last + timedelta(microseconds=1)):
        recall.insert(message("dog", at=at))

    assert [found.id for found in recall.search("dog", since=day, until=day).items] == [2, 3]
    assert [found.id for found in recall.search("", since=day, until=day).items] == [2, 3]
    assert recall.search("dog", since=day).total == 3
    assert recall.search("dog", until=day).total == 3
    assert recall.search("dog", since=date(2024, 2, 1), until=day).total == 0


def test_the_local_day_is_not_the_utc_day(recall, set_zone):
    set_zone("Pacific/Auckland")  # 13 hours ahead in January
    recall.insert(message("dog", at=datetime(2024, 1, 19, 12, tzinfo=UTC)))

    assert recall.between(date(2024, 1, 20), date(2024, 1, 20)).total == 1
    assert recall.between(date(2024, 1, 19), date(2024, 1, 19)).total == 0


@pytest.fixture
def set_zone(monkeypatch):
    import time

    def change(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


def test_a_blank_query_lists_the_days_in_time_order(recall):
    for hours in (5, 1, 3):
        recall.insert(message(f"at {hours}", at=NOW + timedelta(hours=hours, days=40)))
    say(recall, "earlier")
    day = (NOW + timedelta(days=40)).date()

    page = recall.search("  ", since=day - timedelta(days=1), until=day + timedelta(days=1), page_size=2)

    assert texts(page) == ["at 1", "at 3"]
    assert (page.total, page.pages) == (3, 2)
    assert texts(recall.between(day, None, 1, 2)) == ["at 5"]
    assert recall.search("").total == 4


def test_moments_are_those_of_the_insertion(recall):  # D7
    say(recall, "my dog")

    assert recall.search("dog").items[0].created_at == NOW


def test_an_insertion_after_a_search_is_seen_by_the_same_search(recall):  # D8
    say(recall, "my dog")
    assert recall.search("dog").total == 1

    recall.insert(message("another dog"))

    assert recall.search("dog").total == 2


def test_what_the_agent_said_is_found_and_results_and_the_question_are_not(recall):  # row 28
    said = recall.insert(message("I recommended the Louvre", kind="reply", role="assistant")).id
    recall.insert(message("found: Louvre, Louvre", kind="result", role="function"))
    recall.insert(message("search Louvre", kind="call", role="assistant"))
    question = recall.insert(message("What did you say of the Louvre?")).id

    page = recall.search("Louvre", exclude=[question])

    assert [found.id for found in page.items] == [said]
    assert page.total == 1
    assert recall.search("", exclude=[question]).total == 1


def test_searches_of_an_empty_store_find_nothing(recall):  # row 30
    page = recall.search("dog")

    assert (page.items, page.page, page.pages, page.total) == ((), 0, 0, 0)
    assert recall.between(None, None).total == 0
    assert recall.neighbours(1) == []


def test_agents_do_not_hear_each_other(recall, database):
    Recall(database, 2, HashEmbedder(), None).insert(message("bea's dog"))

    assert recall.search("dog").total == 0
    assert recall.search("").total == 0


def test_unspaced_scripts_are_found_by_a_part(recall):
    say(recall, "私は東京に住んでいます", "大阪が好きです", "我喜欢喝茶", "서울에서 살아요")

    assert texts(recall.search("東京")) == ["私は東京に住んでいます"]
    assert texts(recall.search("喝茶")) == ["我喜欢喝茶"]
    assert texts(recall.search("서울")) == ["서울에서 살아요"]


def test_diacritics_and_endings_do_not_matter(recall):
    say(recall, "Dvořák wrote symphonies")

    assert recall.search("dvorak symphony").total == 1


def test_odd_texts_are_kept(recall):
    stored = recall.insert(message("a\0dog \ud83d\ude00 \udc00"))
    huge = recall.insert(message("needle " + "hay " * 250_000))

    assert stored.text == "a\ufffddog 😀 \ufffd"
    assert recall.get([stored.id, huge.id]) == [stored, huge]
    assert {found.id for found in recall.search("dog").items} == {stored.id}
    assert {found.id for found in recall.search("needle").items} == {huge.id}
    assert recall.search('"\0 \udc00* NEAR(').total >= 0


def test_neighbours_are_what_was_said_around(recall):
    ids = say(recall, "a", "b", "c")
    recall.insert(message("working", kind="call", role="assistant"))
    ids += say(recall, "d", "e")

    assert [found.text for found in recall.neighbours(ids[2])] == ["b", "d"]
    assert [found.text for found in recall.neighbours(ids[2], 5)] == ["a", "b", "d", "e"]


def test_meaning_finds_what_words_alone_would_rank_lower(database):
    recall = Recall(database, 1, HashEmbedder(), None)
    say(recall, "dog " + "weather report " * 30, "my dog")

    assert texts(recall.search("dogs"))[0] == "my dog"


def test_vectors_are_made_once_in_batches_and_for_what_was_said(database):
    recall = Recall(database, 1, HashEmbedder(), None)
    say(recall, *[f"message {i}" for i in range(150)])
    recall.insert(message("result", kind="result", role="function"))

    assert recall.embed_pending() == 150
    assert recall.embed_pending() == 0
    assert database.scalar("SELECT COUNT(*) FROM embedding") == 150
    assert Recall(database, 1, HashEmbedder(), None).embed_pending() == 0
    assert Recall(database, 1, HashEmbedder(32), None).embed_pending() == 150


def test_an_undone_search_leaves_no_wrong_vector(database):
    recall = Recall(database, 1, HashEmbedder(), None)

    def fail():
        with database.transaction():
            say(recall, "weather")
            recall.search("weather")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    say(recall, "my dog")

    assert recall.embed_pending() == 1
    assert recall.search("weather").total == 0
    assert recall.search("dog").total == 1


def test_dates_hold_for_meaning_too(database):
    recall = Recall(database, 1, HashEmbedder(), None)
    recall.insert(message("the dog", at=NOW - timedelta(days=9)))
    recall.insert(message("the dog", at=NOW))

    assert [found.id for found in recall.search("dogs", since=NOW.date() - timedelta(days=2)).items] == [2]


def test_a_killed_session_is_found_by_the_next(tmp_path):
    with Database(tmp_path / "a.db") as database:
        AgentStore(database).create("ana", model="", now=NOW)
        say(Recall(database, 1, HashEmbedder(), tmp_path / "index"), "my dog")
    with Database(tmp_path / "a.db") as database:
        assert texts(Recall(database, 1, HashEmbedder(), tmp_path / "index").search("dog")) == ["my dog"]
