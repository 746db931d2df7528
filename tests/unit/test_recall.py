"""Recall storage: everything said is found again, in an order that holds, with totals that are true."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localmem.kernel.messages import Message
from localmem.memory.recall import Recall
from localmem.memory.search import CANDIDATES
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
    assert Recall(recall._database, 2, None, None).count() == 0


def test_counts_follow_deletions(recall, database):
    say(recall, "a", "b", "c")
    recall.insert(message("core memory", kind="result", role="function"))

    database.execute("DELETE FROM message WHERE text IN ('a', 'core memory')")

    assert (recall.count(), recall.spoken_count(), recall.between(None, None).total) == (2, 2, 2)


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


def say_often(recall, *repeated, times=CANDIDATES + 100):
    """More rows than a ranking reads, all in one transaction."""
    with recall._database.transaction():
        return say(recall, *repeated * times)


@pytest.fixture
def wordy(database):
    return Recall(database, 1, None, None)


def test_a_total_that_is_not_exact_says_so(wordy):
    say_often(wordy, "the dog barks")

    common, exact = wordy.search("dog"), wordy.search("")

    assert (common.total, common.more) == (CANDIDATES, True)
    assert (exact.total, exact.more) == (CANDIDATES + 100, False)
    assert len(wordy.search("dog", page=common.pages - 1).items) == 5
    assert wordy.search("dog", page=common.pages).items == ()


def test_a_total_that_is_exact_does_not_say_otherwise(wordy):
    say_often(wordy, "the dog barks", times=CANDIDATES)

    assert (wordy.search("dog").total, wordy.search("dog").more) == (CANDIDATES, False)


def test_an_old_phrase_comes_before_a_thousand_newer_words(wordy):
    first = say(wordy, "we saw the brown dog of Ana")[0]
    say_often(wordy, "the dog was brown", "a brown cat")

    assert wordy.search("brown dog of Ana").items[0].id == first


def test_a_rare_word_brings_its_rows_however_old_and_common_the_others_are(wordy):
    old = say(wordy, "the dog at the lighthouse", "a lighthouse")
    say_often(wordy, "the dog barks")

    page = wordy.search("was the dog near a lighthouse")

    assert {found.id for found in page.items[:2]} == set(old)  # and not one of them beside a newer dog
    assert page.more
    assert page.total > 2


def test_common_words_together_are_found_however_old(wordy):
    old = say(wordy, "the cat and our dog, said bea, are friends")[0]
    say_often(wordy, "the dog barks", "the cat sleeps")

    assert wordy.search("dog cat").items[0].id == old


def test_pages_of_common_words_do_not_overlap(wordy):
    say(wordy, "a dog at the lighthouse")
    say_often(wordy, "the dog barks", "the cat sleeps")

    first = wordy.search("dog cat lighthouse", page_size=50)
    pages = [first, *(wordy.search("dog cat lighthouse", page=page, page_size=50) for page in range(1, first.pages))]

    ids = [found.id for page in pages for found in page.items]
    assert len(ids) == len(set(ids)) == first.total
    assert {page.total for page in pages} == {first.total}


def test_stop_words_of_a_thousand_rows_are_found_newest_first(wordy):
    last = say_often(wordy, "how are you")[-1]

    page = wordy.search("how are you")

    assert (page.items[0].id, page.more) == (last, True)


def test_the_excluded_take_no_room_from_the_others(wordy):
    ids = say_often(wordy, "the dog barks")

    page = wordy.search("dog", exclude=ids[:100])

    assert (page.total, page.more) == (CANDIDATES, False)
    assert not {found.id for found in wordy.search("dog", page_size=CANDIDATES, exclude=ids[:100]).items} & set(
        ids[:100]
    )


def test_what_others_said_makes_no_word_common(wordy, database):
    own = say(wordy, "my dog")
    say_often(Recall(database, 2, None, None), "the dog barks")

    page = wordy.search("dog")

    assert ([found.id for found in page.items], page.total, page.more) == (own, 1, False)


def test_common_words_are_found_within_dates(wordy):
    wordy.insert(message("a dog long ago", at=NOW - timedelta(days=400)))
    say_often(wordy, "the dog barks")
    wordy.insert(message("a dog told of late", at=NOW - timedelta(days=399)))

    page = wordy.search("dog", until=NOW.date() - timedelta(days=300))

    assert sorted(texts(page)) == ["a dog long ago", "a dog told of late"]
    assert (page.total, page.more) == (2, False)


def test_old_parts_of_unspaced_scripts_are_found_behind_a_common_one(wordy):
    first, second = say(wordy, "我喜欢喝茶", "他喝茶")
    say_often(wordy, "我喜欢")

    page = wordy.search("我喜欢喝茶")

    assert [found.id for found in page.items[:1]] == [first]
    assert page.more
    assert second not in {found.id for found in wordy.search("喜欢", page_size=2_000).items}


def test_single_characters_and_symbols_are_found(recall):
    say(recall, "我喜欢喝茶", "cake 🎉🎂", "I ❤️ tea")

    assert texts(recall.search("茶")) == ["我喜欢喝茶"]
    assert texts(recall.search("🎂")) == ["cake 🎉🎂"]
    assert texts(recall.search("❤️")) == ["I ❤️ tea"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-80, 80), max_size=20), st.integers(-4, 4), st.integers(-4, 4))
def test_totals_of_days_are_the_truth(hours, since, until):
    with Database(":memory:") as database:
        AgentStore(database).create("ana", model="", now=NOW)
        recall = Recall(database, 1, None, None)
        moments = [recall.insert(message("dog", at=NOW + timedelta(hours=hour))).created_at for hour in hours]
        first, last = NOW.date() + timedelta(days=since), NOW.date() + timedelta(days=until)
        page = recall.between(first, last, 0, 99)
        with_words = recall.search("dog", since=first, until=last, page_size=99)

    inside = sorted(moment for moment in moments if first <= moment.astimezone().date() <= last)
    assert [found.created_at for found in page.items] == inside
    assert page.total == with_words.total == len(inside)
    assert recall_ids(page) == recall_ids(with_words)


def recall_ids(page):
    return sorted(found.id for found in page.items)


def test_deletion_leaves_nothing_in_any_index(recall, database):
    say(recall, "my dog", "我喜欢喝茶 🎉")
    recall.insert(message("dog: 喝茶", kind="result", role="function"))
    recall.search("dog")

    database.execute("DELETE FROM message")

    assert (recall.spoken_count(), recall.search("dog").total, recall.search("喝茶").total) == (0, 0, 0)
    assert recall.between(None, None).total == 0
    assert database.scalar("SELECT COUNT(*) FROM embedding") == 0
    assert database.scalar("SELECT COUNT(*) FROM message_fts WHERE message_fts MATCH 'dog OR 我喜欢喝茶'") == 0
    assert database.scalar("SELECT COUNT(*) FROM message_parts WHERE message_parts MATCH '喝茶 OR 🎉'") == 0


def test_a_changed_text_is_found_by_its_new_words_only(recall, database):
    say(recall, "my dog 喝茶")

    database.execute("UPDATE message SET text = 'a cat 東京'")

    assert [recall.search(query).total for query in ("dog", "喝茶", "cat", "東京")] == [0, 0, 1, 1]


def test_meaning_keeps_to_wide_dates_too(database):
    recall = Recall(database, 1, HashEmbedder(16), None)
    with database.transaction():
        say(recall, *["weather"] * 2_100)
        old = recall.insert(message("dogs", at=NOW - timedelta(days=9)))

    page = recall.search("dog's weather", since=NOW.date(), page_size=3_000)

    assert old.id not in recall_ids(page)
    assert page.total >= CANDIDATES
