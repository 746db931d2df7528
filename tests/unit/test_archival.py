"""Archival storage: what is put away is found, once, with its source, and under a changed embedder too."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localmem.memory.archival import Archival, split_text
from localmem.memory.search import CANDIDATES
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import HashEmbedder

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
ON = Attribution("user", NOW)


@pytest.fixture
def database():
    with Database(":memory:") as opened:
        AgentStore(opened).create("ana", model="", now=NOW)
        AgentStore(opened).create("bea", model="", now=NOW)
        yield opened


@pytest.fixture(params=[None, HashEmbedder()], ids=["words", "words and meaning"])
def archival(request, database):
    return Archival(database, 1, request.param, None)


@pytest.fixture
def meaningful(database):
    return Archival(database, 1, HashEmbedder(), None)


def texts(page):
    return [found.text for found in page.items]


def test_an_inserted_passage_is_found(archival):
    stored = archival.insert("Rex is a dog", source="notes.md", tags=["pets", "ana's"], by=ON)

    (found,) = archival.search("dog").items
    assert (found.id, found.text, found.source, found.tags) == (
        stored.id,
        "Rex is a dog",
        "notes.md",
        ("pets", "ana's"),
    )
    assert found.score > 0


def test_total_counts_all_hits_and_not_the_page(archival):  # D1
    archival.insert_many([f"dog {chr(97 + i)}" for i in range(23)], by=ON)

    page = archival.search("dog", page=4, page_size=5)

    assert (len(page.items), page.page, page.pages, page.total) == (3, 4, 5, 23)
    ids = [found.id for i in range(5) for found in archival.search("dog", page=i).items]
    assert sorted(ids) == list(range(1, 24))  # D5


def test_moments_are_those_of_the_insertion(archival):  # D7
    archival.insert("my dog", by=ON)
    archival.insert("a dog", by=Attribution("user", NOW + timedelta(days=1)))

    moments = {found.text: found.created_at for found in archival.search("dog").items}
    assert moments == {"my dog": NOW, "a dog": NOW + timedelta(days=1)}


def test_insertion_and_deletion_are_seen_by_the_same_search(archival):  # D8
    first = archival.insert("my dog", by=ON)
    assert archival.search("dog").total == 1
    archival.insert("a dog", by=ON)
    assert archival.search("dog").total == 2

    assert archival.delete([first.id])
    assert not archival.delete([first.id])
    assert texts(archival.search("dog")) == ["a dog"]


def test_an_empty_store_is_no_error(archival):  # row 30
    page = archival.search("dog")

    assert (page.items, page.pages, page.total) == ((), 0, 0)
    assert (archival.count(), archival.sources(), archival.stale_count()) == (0, [], 0)
    assert archival.list().total == 0
    assert archival.near_duplicate("dog") is None
    assert archival.reindex() == 0


def test_a_search_keeps_to_one_source_and_all_tags(archival):  # row 31
    archival.insert("dog one", source="a.md", tags=["x", "y"], by=ON)
    archival.insert("dog two", source="b.md", tags=["x"], by=ON)
    archival.insert("dog three", by=ON)

    assert texts(archival.search("dog", source="b.md")) == ["dog two"]
    assert archival.search("dog", source="b.md").total == 1
    assert archival.search("dog", tags=["x"]).total == 2
    assert texts(archival.search("dog", tags=["y", "x"])) == ["dog one"]
    assert archival.search("dog", tags=['x" OR 1']).total == 0
    assert texts(archival.search("", source="a.md")) == ["dog one"]
    assert texts(archival.list(source="a.md")) == ["dog one"]
    assert archival.sources() == [(None, 1), ("a.md", 1), ("b.md", 1)]


def test_an_equal_passage_is_a_duplicate(archival):  # row 33
    stored = archival.insert("Ana is allergic to peanuts." * 9, by=ON)
    archival.insert("Ana is allergic to peanuts." * 8, by=ON)

    found = archival.near_duplicate("Ana is allergic to peanuts." * 9)

    assert (found.id, found.score) == (stored.id, 1.0)
    assert archival.near_duplicate("Ana likes tea") is None


def test_nearly_the_same_is_a_duplicate_by_meaning(meaningful):  # row 33
    stored = meaningful.insert("Ana is allergic to peanuts", by=ON)

    found = meaningful.near_duplicate("ana is ALLERGIC to the peanuts!")

    assert found.id == stored.id
    assert found.score >= 0.97
    assert meaningful.near_duplicate("Ana is allergic to cats") is None


def test_duplicates_are_each_agents_own(archival, database):
    Archival(database, 2, HashEmbedder(), None).insert("my dog", by=ON)

    assert archival.near_duplicate("my dog") is None
    assert archival.search("dog").total == 0
    assert not archival.delete([1])


def test_an_identifier_hits_first(archival):
    keys = [str(uuid.UUID(int=0x1234_5678_0000 + i)) for i in range(60)]
    archival.insert_many([f"key {key}: value {uuid.UUID(int=i)}" for i, key in enumerate(keys)], by=ON)

    found = [archival.search(query).items[0].text for query in (keys[41], f"what is the value of key {keys[41]}?")]

    assert found == [f"key {keys[41]}: value {uuid.UUID(int=41)}"] * 2


def test_a_phrase_hits_before_its_words(archival):
    archival.insert_many(["York new bridge new York bridge"] * 5 + ["I saw New York once, " + "x " * 60], by=ON)

    assert archival.search("saw new york").items[0].id == 6


def test_passage_and_vector_are_written_together_or_not_at_all(meaningful, database):
    def fail():
        with database.transaction():
            meaningful.insert("my dog", by=ON)
            assert meaningful.search("dog").total == 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert database.scalar("SELECT COUNT(*) FROM passage") == 0
    assert database.scalar("SELECT COUNT(*) FROM embedding") == 0
    meaningful.insert("the weather", by=ON)
    assert meaningful.search("dog").total == 0
    assert meaningful.near_duplicate("my dog") is None


def test_deletion_takes_the_vector_along(meaningful, database):
    stored = meaningful.insert("my dog", by=ON)

    meaningful.delete([stored.id])

    assert database.scalar("SELECT COUNT(*) FROM embedding") == 0
    assert meaningful.near_duplicate("my dogs") is None


def test_insert_many_tells_its_progress(archival):
    seen = []

    stored = archival.insert_many((f"passage {i}" for i in range(150)), source="a.md", by=ON, progress=seen.append)

    assert seen == [64, 128, 150]
    assert [passage.text for passage in stored] == [f"passage {i}" for i in range(150)]
    assert archival.count() == 150


def test_another_embedders_passages_are_found_by_words_until_reindexed(database):  # row 32
    Archival(database, 1, HashEmbedder(32), None).insert_many(["my dog", "the weather"], by=ON)
    changed = Archival(database, 1, HashEmbedder(64), None)
    assert changed.stale_count() == 2
    assert texts(changed.search("dog")) == ["my dog"]
    assert changed.near_duplicate("my dogs") is None

    seen = []
    assert changed.reindex(seen.append) == 2

    assert seen == [2]
    assert changed.stale_count() == 0
    assert changed.near_duplicate("my dogs").text == "my dog"
    assert database.scalar("SELECT COUNT(*) FROM embedding WHERE embedder != ?", (HashEmbedder().name,)) == 0


def test_reindex_reads_replaced_vectors_again(meaningful, database):
    stored = meaningful.insert("my dog", by=ON)
    database.execute("UPDATE passage SET text = 'the weather' WHERE id = ?", (stored.id,))
    assert meaningful.near_duplicate("a dog") is not None

    meaningful.reindex()

    assert meaningful.near_duplicate("a dog") is None
    assert meaningful.near_duplicate("weather") is not None
    assert meaningful.search("dog").total == 0


def test_odd_texts_are_kept(archival):
    stored = archival.insert("a\0dog \udc00", source="\ud800.md", tags=["\udc00"], by=ON)

    assert (stored.text, stored.source, stored.tags) == ("a\ufffddog \ufffd", "\ufffd.md", ("\ufffd",))
    assert archival.search("dog", source="\ud800.md", tags=["\udc00"]).total == 1
    assert archival.near_duplicate("a\0dog \udc00").id == stored.id
    assert archival.search('\0\udc00"*').total >= 0


def test_an_index_file_is_written_and_used(database, tmp_path):
    embedder = HashEmbedder()
    first = Archival(database, 1, embedder, tmp_path)
    first.insert_many([f"passage about topic{i}" for i in range(2_100)], by=ON)
    first.search("topic7")
    first.save_index()

    again = Archival(database, 1, embedder, tmp_path)

    assert [file.suffix for file in sorted(tmp_path.iterdir())] == [".hnsw", ".json"]
    assert again.search("topic2050").items[0].id == 2_051
    assert again.near_duplicate("topic2050 passages") is not None


@given(st.text(st.sampled_from("ab .!?\n#。"), max_size=200), st.integers(1, 40))
@example("", 1)
@example("\n\n\n", 1)
def test_splitting_loses_nothing_and_keeps_the_limit(text, max_chars):
    pieces = split_text(text, max_chars=max_chars)

    assert "".join(pieces) == text
    assert all(0 < len(piece) <= max_chars for piece in pieces)


def test_splitting_keeps_sentences_paragraphs_and_headings_whole():
    text = "# One\n\nFirst sentence here. Second sentence here.\n\nShort.\n\n## Two\n\nThird."

    assert split_text(text, max_chars=50) == [
        "# One\n\n",
        "First sentence here. Second sentence here.\n\n",
        "Short.\n\n",
        "## Two\n\nThird.",
    ]
    assert split_text("One two. Three four. Five six.", max_chars=21) == [
        "One two. Three four. ",
        "Five six.",
    ]
    assert split_text("x" * 25, max_chars=10) == ["x" * 10, "x" * 10, "x" * 5]


def test_splitting_into_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="max_chars"):
        split_text("a", max_chars=0)


def test_deletion_leaves_nothing_in_any_index(archival, database):
    stored = archival.insert("my dog 喝茶 🎉", by=ON)
    assert archival.search("喝茶").total == 1

    archival.delete([stored.id])

    assert [archival.search(query).total for query in ("dog", "喝茶", "🎉")] == [0, 0, 0]
    assert database.scalar("SELECT COUNT(*) FROM passage_fts WHERE passage_fts MATCH 'dog'") == 0
    assert database.scalar("SELECT COUNT(*) FROM passage_parts WHERE passage_parts MATCH '喝茶'") == 0


def test_many_passages_of_a_word_say_that_there_are_more(database):
    archival = Archival(database, 1, None, None)
    first = archival.insert("the dog of the lighthouse", by=ON)
    with database.transaction():
        archival.insert_many(["a dog"] * (CANDIDATES + 1), source="a.md", by=ON)

    page = archival.search("dog lighthouse")

    assert (page.items[0].id, page.more) == (first.id, True)
    assert archival.search("dog", source="a.md").more
    assert archival.search("lighthouse", source="a.md").total == 0
