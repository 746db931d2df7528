"""The index is a cache: whatever happens to its file, a search finds what the database has."""

import json
import shutil

import numpy as np
import pytest

from localmem.storage.database import Database
from localmem.storage.vector_index import VectorIndex, to_blob

DIMENSION = 16
LIMIT = 50  # so that a graph is built from 51 on


def vectors_of(count, *, seed=0, dimension=DIMENSION):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(40, dimension))
    rows = centres[random.integers(0, 40, count)] + random.normal(size=(count, dimension)) * 0.5
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "localmem.db") as opened:
        for name in "ab":
            opened.execute("INSERT INTO agent (name, model, created_at) VALUES (?, '', '')", (name,))
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "indexes" / "passage.hnsw"


def put(database, vectors, *, first=1, agent_id=1, embedder="hash"):
    database.execute_many(
        "INSERT INTO embedding (store, item_id, agent_id, embedder, vector) VALUES ('passage', ?, ?, ?, ?)",
        [(first + i, agent_id, embedder, to_blob(vector)) for i, vector in enumerate(vectors)],
    )


def opened(path, database, *, embedder="hash", dimension=DIMENSION):
    index = VectorIndex(path, dimension, embedder, exact_limit=LIMIT)
    index.sync(database, "passage", 1)
    return index


def ids(found):
    return [item_id for item_id, _ in found]


def test_few_vectors_are_searched_exactly(path, database):
    vectors = vectors_of(LIMIT)
    put(database, vectors)
    index = opened(path, database)

    found = index.search(vectors[7], 5)

    assert index.is_exact
    assert found[0] == (8, pytest.approx(1.0))
    assert ids(found) == (np.argsort(-(vectors @ vectors[7]), kind="stable")[:5] + 1).tolist()
    index.save()
    assert not path.exists()


def test_many_vectors_are_found_by_the_graph():
    vectors = vectors_of(5_000, dimension=64)
    index = VectorIndex(None, 64, "hash")
    index.add(range(5_000), vectors)
    queries = vectors_of(50, seed=1, dimension=64)

    hits = [set(ids(index.search(query, 10))) & set(np.argsort(-(vectors @ query))[:10]) for query in queries]

    assert not index.is_exact
    assert np.mean([len(hit) / 10 for hit in hits]) >= 0.95


def test_the_graph_grows():
    vectors = vectors_of(400)
    index = VectorIndex(None, DIMENSION, "hash", exact_limit=LIMIT)
    [index.add([i], vectors[i : i + 1]) for i in range(400)]

    assert len(index) == 400
    assert [ids(index.search(vectors[i], 1)) for i in range(0, 400, 40)] == [[i] for i in range(0, 400, 40)]


@pytest.mark.parametrize("count", [20, 200])
def test_removed_and_excluded_are_not_found(count):
    vectors = vectors_of(count)
    index = VectorIndex(None, DIMENSION, "hash", exact_limit=LIMIT)
    index.add(range(count), vectors)
    index.remove(3)
    index.remove(3)
    index.remove(9_999)

    assert len(index) == count - 1
    assert 3 not in ids(index.search(vectors[3], count))
    assert len(index.search(vectors[3], count)) == count - 1
    assert ids(index.search(vectors[4], 1, exclude=[4])) != [4]
    assert len(index.search(vectors[4], count, exclude=[4, 5, 77_777])) == count - 3


@pytest.mark.parametrize("count", [20, 200])
def test_allowed_ids_are_ranked_and_no_others(count):
    vectors = vectors_of(count)
    index = VectorIndex(None, DIMENSION, "hash", exact_limit=LIMIT)
    index.add(range(count), vectors)

    allowed = {2, 5, 11, 17, 99_999}

    assert set(ids(index.search(vectors[0], 10, allowed=allowed))) == {2, 5, 11, 17}
    assert index.search(vectors[0], 10, allowed=[]) == []


@pytest.mark.parametrize("count", [20, 4_000])
def test_what_is_within_is_picked_from_the_nearest(count):
    vectors = vectors_of(count)
    index = VectorIndex(None, DIMENSION, "hash", exact_limit=LIMIT)
    index.add(range(count), vectors)

    found = ids(index.search(vectors[10], 5, within=lambda near: [i for i in near if i % 2 == 0], exclude=[10]))

    assert len(found) == 5
    assert all(item_id % 2 == 0 and item_id != 10 for item_id in found)
    assert index.search(vectors[10], 5, within=lambda _: []) == []


def test_an_empty_index_finds_nothing(path, database):
    assert opened(path, database).search(vectors_of(1)[0], 5) == []


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="shape"):
        VectorIndex(None, DIMENSION, "hash").add([1], np.zeros((1, 3), np.float32))


def test_only_its_own_vectors_are_read(path, database):
    put(database, vectors_of(3))
    put(database, vectors_of(3), first=10, agent_id=2)
    put(database, vectors_of(3), first=20, embedder="other")
    put(database, vectors_of(3, dimension=8), first=30)

    assert len(opened(path, database)) == 3


def test_sync_follows_the_database(path, database):
    vectors = vectors_of(200)
    put(database, vectors[:100])
    index = opened(path, database)
    put(database, vectors[100:], first=101)
    database.execute("DELETE FROM embedding WHERE item_id = 5")

    index.sync(database, "passage", 1)

    assert len(index) == 199
    assert ids(index.search(vectors[150], 1)) == [151]
    assert 5 not in ids(index.search(vectors[4], 10))


def test_an_id_used_again_after_a_rollback_has_its_new_vector(path, database):
    vectors = vectors_of(2)
    index = opened(path, database)

    def fail():
        with database.transaction():
            put(database, vectors[:1])
            index.sync(database, "passage", 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    put(database, vectors[1:])

    index.sync(database, "passage", 1)

    assert index.search(vectors[1], 1) == [(1, pytest.approx(1.0))]


def test_an_undone_transaction_it_did_not_read_costs_it_nothing(database, path):
    vectors = vectors_of(4)
    put(database, vectors[:2])
    index = opened(path, database)

    def fail():
        with database.transaction():
            put(database, vectors[2:3], first=3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    put(database, vectors[3:], first=3)
    index.sync(database, "passage", 1)

    assert index.search(vectors[3], 1) == [(3, pytest.approx(1.0))]
    assert len(index) == 3


def test_sync_finds_what_was_added_below_the_newest(database, path):
    vectors = vectors_of(3)
    put(database, vectors[:1], first=9)
    index = opened(path, database)
    put(database, vectors[1:], first=1)

    index.sync(database, "passage", 1)

    assert ids(index.search(vectors[2], 1)) == [2]


@pytest.fixture
def saved(path, database):
    """200 vectors in the database, and a saved file of them."""
    vectors = vectors_of(200)
    put(database, vectors)
    opened(path, database).save()
    return vectors


def test_saved_file_is_loaded_and_only_what_is_missing_added(path, database, saved, caplog):
    caplog.set_level("INFO")
    more = vectors_of(5, seed=9)
    put(database, more, first=201)

    index = opened(path, database)

    assert "building it again" not in caplog.text
    assert len(index) == 205
    assert ids(index.search(more[2], 1)) == [203]
    assert ids(index.search(saved[42], 1)) == [43]


def truncated(file, note):
    file.write_bytes(file.read_bytes()[:1_000])


def flipped(file, note):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def empty(file, note):
    file.write_bytes(b"")


def no_note(file, note):
    note.unlink()


def broken_note(file, note):
    note.write_text("{")


def odd_note(file, note):
    note.write_text("[1, 2]")


def wrong_count(file, note):
    note.write_text(json.dumps(json.loads(note.read_text()) | {"count": 199}))


def no_file(file, note):
    file.unlink()


@pytest.mark.parametrize("damage", [truncated, flipped, empty, no_note, broken_note, odd_note, wrong_count, no_file])
def test_a_damaged_file_is_built_again(path, database, saved, damage):
    damage(path, path.with_name(path.name + ".json"))

    index = opened(path, database)

    assert len(index) == 200
    assert ids(index.search(saved[42], 1)) == [43]
    index.save()
    assert len(opened(path, database)) == 200


def test_a_file_of_another_database_is_built_again(path, database, saved, caplog):
    caplog.set_level("INFO", logger="localmem")
    database.execute("DELETE FROM embedding")
    others = vectors_of(200, seed=5)
    put(database, others)

    index = opened(path, database)

    assert "stale" in caplog.text
    assert index.search(others[42], 1) == [(43, pytest.approx(1.0, abs=1e-5))]


def test_a_file_of_another_embedder_is_not_used(path, database, saved):
    other = vectors_of(60, seed=3)
    put(database, other, embedder="other")

    index = opened(path, database, embedder="other")

    assert len(index) == 60
    assert index.search(other[1], 1) == [(2, pytest.approx(1.0, abs=1e-5))]


def test_a_deletion_since_the_save_is_seen(path, database, saved):
    database.execute("DELETE FROM embedding WHERE item_id IN (43, 200)")

    index = opened(path, database)

    assert len(index) == 198
    assert 43 not in ids(index.search(saved[42], 198))


def test_a_removal_before_the_save_is_kept(path, database, saved):
    index = opened(path, database)
    database.execute("DELETE FROM embedding WHERE item_id = 43")
    index.sync(database, "passage", 1)
    index.save()

    assert len(opened(path, database)) == 199
    assert 43 not in ids(opened(path, database).search(saved[42], 199))


def test_what_the_file_holds_already_is_not_written_again(path, database, saved):
    index = opened(path, database)
    shutil.rmtree(path.parent)

    index.save()
    index.remove(7)
    index.save(at_least=2)

    assert not path.exists()
    index.save()
    assert path.exists()


def test_saving_where_it_cannot_be_is_no_error(path, database, saved, caplog):
    index = opened(path, database)
    index.remove(7)
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")

    index.save()

    assert "cannot save" in caplog.text
    assert ids(index.search(saved[42], 1)) == [43]
