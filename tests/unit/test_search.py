"""Queries that never fail, fusion that never wavers, pages that tell the truth."""

import sqlite3
from datetime import date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localmem.memory.search import (
    STOP_WORDS,
    Scope,
    exact_query,
    fuse,
    fused_search,
    indexed_parts,
    local_days,
    paginate,
    parts,
    place,
    telling_words,
    words_query,
)
from localmem.storage.database import storable

ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=60)


@pytest.fixture(scope="module")
def table():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, text TEXT)")
    connection.execute("CREATE VIRTUAL TABLE message_fts USING fts5(text, content='', tokenize='porter unicode61')")
    connection.execute("CREATE VIRTUAL TABLE message_parts USING fts5(text, content='', tokenize='ascii', detail=none)")
    texts = ["my dog Rex", "the key is 3f2a-77b1-90", "3f2a something 90", "東京に住んでいます", "cake 🎉"]
    connection.executemany("INSERT INTO message VALUES (?, ?)", enumerate(texts, start=1))
    connection.create_function("indexed_parts", 1, indexed_parts)
    connection.create_function("place", 1, lambda item_id: place(1, item_id))
    connection.execute("INSERT INTO message_fts (rowid, text) SELECT place(id), text FROM message")
    connection.execute("INSERT INTO message_parts (rowid, text) SELECT place(id), indexed_parts(text) FROM message")
    return connection


def found(table, query, where=None):
    def run(statement):
        sql, params = statement
        return [row[0] for row in table.execute(sql, [storable(p) if isinstance(p, str) else p for p in params])]

    scope = Scope("message", place(1, 1), place(1, 99), where or "TRUE", (), narrowed=where is not None)
    return [item_id for item_id, _ in fused_search(query, scope, run=run, nearest=None).ranked]


@given(ANY_TEXT)
@example('"')
@example('" OR *')
@example("-")
@example("a* NEAR(b c) ^d text:e")
@example("\0")
@example("a1\0b")
@example("\udc00")
@example("1\udc00")
@example("🎉")
@example("")
@example("AND OR NOT")
@example("9" * 20_000)
def test_no_text_breaks_a_search(table, text):
    assert set(found(table, text)) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("Where are the dogs?", [1]),
        ("dog, cat", [1]),
        ("dog/cat", [1]),
        ('"dog" AND NOT rex*', [1]),
        ("3f2a-77b1-90", [2]),
        ("東京", [4]),
        ("東京に行く", [4]),
        ("🎉", [5]),
        ("the", [2]),
        ("the Rex", [1]),
        ("!?", []),
    ],
)
def test_what_a_query_finds(table, query, hits):
    assert found(table, query) == hits


def test_an_identifier_inside_a_question_comes_first(table):
    assert found(table, "something about 3f2a-77b1-90")[0] == 2


def test_scope_limits_every_route(table):
    assert found(table, "dog 3f2a-77b1-90 東京", where="t.id = 3") == []


def test_only_stop_words_are_searched_as_they_are():
    assert words_query(telling_words("to be or not to be")) == '"to" OR "be" OR "or" OR "not"'
    assert words_query(telling_words("the dog")) == '"dog"'
    assert {"the", "t", "you"} <= STOP_WORDS


def test_a_long_query_is_cut():
    assert len(telling_words(" ".join(f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(500)))) == 64
    assert len(parts("".join(chr(0x4E00 + i) for i in range(500)))) == 24


def test_one_plain_word_is_no_phrase():
    assert exact_query("dog") == ""
    assert exact_query("good dog") == '"good dog"'


def test_a_long_question_is_no_phrase_but_has_its_identifiers():
    assert exact_query("what did they say of the good old dog with tag B7-01") == '"B7-01"'


def test_fusion_prefers_what_both_rankings_have():
    assert [item for item, _ in fuse([([1, 2, 3], 1.0), ([9, 2], 1.0)])] == [2, 1, 9, 3]
    assert fuse([([5], 1.0), ([5], 1.0)]) == [(5, pytest.approx(2 / 61))]


def test_weight_outranks():
    assert fuse([([7], 3.0), ([1], 1.0), ([1], 1.0)])[0][0] == 7


@given(st.lists(st.lists(st.integers(0, 20), unique=True), max_size=4))
def test_fusion_keeps_every_id_once(rankings):
    fused = fuse([(ids, 1.0) for ids in rankings])

    ids = [item_id for item_id, _ in fused]
    assert sorted(ids) == sorted({item for ranking in rankings for item in ranking})
    assert fused == sorted(fused, key=lambda scored: (-scored[1], scored[0]))


@given(st.lists(st.integers()), st.integers(1, 7))
def test_pages_together_are_everything_once(items, page_size):
    first = paginate(items, 0, page_size)
    pages = [paginate(items, page, page_size) for page in range(first.pages)]

    assert [item for page in pages for item in page.items] == items
    assert {page.total for page in [first, *pages]} == {len(items)}


def test_a_page_past_the_end_is_empty_and_tells_the_total():
    past = paginate("abc", 9, 2)

    assert (past.items, past.pages, past.total) == ((), 2, 3)
    assert paginate("abc", -1, 2).items == ("a", "b")


def test_a_page_of_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="page_size"):
        paginate("abc", 0, 0)


def test_local_days_hold_the_whole_last_day():
    start, end = local_days(date(2024, 1, 20), date(2024, 1, 20))

    assert start == datetime(2024, 1, 20).astimezone()
    assert end == datetime(2024, 1, 21).astimezone()
    assert start.utcoffset() is not None
    assert local_days(None, None) == (None, None)


def test_a_moment_is_taken_for_its_day():
    _, end = local_days(None, datetime(2024, 1, 20, 15, 30))

    assert end == datetime(2024, 1, 21).astimezone()


@pytest.mark.parametrize("day", [date.min, date.max])
def test_the_ends_of_the_calendar_are_days_too(day):
    start, end = local_days(day, day)

    assert end - start >= timedelta(hours=23)
