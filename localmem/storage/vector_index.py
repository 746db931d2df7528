"""Nearness in meaning: the vectors of one store of one agent by one embedder, and the search among them.

The vectors' truth is SQLite's `embedding` table. `VectorIndex` is a cache over it: exact while there are few,
an HNSW graph (hnswlib, in a file of its own) when there are many. `MeaningIndex` is what recall and archival
storage use: it embeds texts, writes the vectors and keeps the cache in step. The only file that knows
hnswlib.

Vectors are float32, shape (n, dimension), unit length; similarity is their cosine, higher is nearer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localmem.memory.search import FEW, MEANING_FLOOR, MEANING_LIMIT, Store, Within
from localmem.storage.database import Database
from localmem.storage.embedder import Embedder
from localmem.storage.private import make_private_folder, open_private, write_private

if TYPE_CHECKING:
    import hnswlib

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
_Owner = tuple[Store, int, str]  # store, agent, embedder
_Changes = tuple[int, int]  # vectors added, vectors removed or replaced, since ever
_OWNED = "store = ? AND agent_id = ? AND embedder = ?"
_LAST = (1 << 63) - 1  # the highest id SQLite can hold
_READ_BATCH = 1_000

EXACT_LIMIT = FEW
"""Up to here one product of a matrix and a vector is under a millisecond, and nothing is missed."""

# Measured by benchmarks/speed/storage.py's mixtures, 100,000 of 384 dimensions: recall@10 0.997 at 1 ms a query, 0.987
# with half the ef, 0.999 with three times; 0.5 ms to add one. 20,700 embeddings of real texts: 0.9998 at 0.3 ms.
LEAST_EF = 200
NEIGHBOURS = 16  # hnswlib's M
BUILD_EF = 100
SAVE_EVERY = 1_000
SAVE_SHARE = 0.1
"""The graph is written again when as many vectors are new, and as large a share of it: writing 100,000 takes half a
second, adding one half a millisecond.
"""


class VectorIndex:
    """The nearest of many vectors. Not thread-safe: its users hold the database's lock.

    `path` is the graph's file (None: nothing is kept on disk); `path` + ".json" beside it says what it holds.
    Below `exact_limit` vectors there is no graph and no file, for the blobs load as fast.
    """

    def __init__(self, path: Path | None, dimension: int, embedder: str, *, exact_limit: int = EXACT_LIMIT) -> None:
        self._path = path
        self._dimension = dimension
        self._embedder = embedder
        self._exact_limit = exact_limit
        self._loaded = False
        self._rollbacks = 0
        self._is_unsettled = False  # something was read that a rollback could still undo
        self._clear()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def is_exact(self) -> bool:
        return self._graph is None

    def sync(self, database: Database, store: Store, agent_id: int) -> None:
        """Hold just the vectors that the database has. Cheap when nothing has changed.

        The first time, the file is loaded when its note agrees with the database, and only what is missing is
        added; a file that is missing, damaged or stale is built anew from the blobs.
        """
        if self._rollbacks != database.rollbacks and self._is_unsettled:
            # An id we read inside a transaction that was undone may by now belong to another text.
            self._clear()
            self._loaded = False
        if not self._loaded:
            self._load(database, store, agent_id)
        owner = (store, agent_id, self._embedder)
        changes = _changes(database, owner)
        if changes != self._changes:
            self._catch_up(database, owner, changes)
        self._is_unsettled = database.in_transaction and (self._is_unsettled or changes != self._changes)
        self._loaded, self._rollbacks, self._changes = True, database.rollbacks, changes
        if not database.in_transaction and self._unsaved >= max(SAVE_EVERY, SAVE_SHARE * len(self)):
            self.save()

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add or replace. Raises ValueError on a shape other than (len(ids), dimension)."""
        if vectors.shape != (len(ids), self._dimension):
            raise ValueError(f"expected vectors of shape {(len(ids), self._dimension)}, got {vectors.shape}")
        if not ids:
            return
        last = max(range(len(ids)), key=ids.__getitem__)
        if ids[last] >= self._newest[0]:
            self._newest = (ids[last], hashlib.sha256(to_blob(vectors[last])).hexdigest())
        self._ids.update(ids)
        self._unsaved += len(ids)
        if self._graph is None:
            self._rows.update(zip(ids, vectors, strict=True))
            self._matrix = None
            if len(self._rows) > self._exact_limit:
                self._grow_graph()
        else:
            self._add_to_graph(ids, vectors)

    def remove(self, item_id: int) -> None:
        """Forget one; an unknown id is no error."""
        if item_id not in self._ids:
            return
        self._ids.discard(item_id)
        self._unsaved += 1
        if self._graph is None:
            del self._rows[item_id]
            self._matrix = None
        else:
            self._graph.mark_deleted(item_id)

    def search(
        self,
        vector: Vectors,
        k: int,
        *,
        allowed: Collection[int] | None = None,
        within: Within | None = None,
        exclude: Collection[int] = (),
    ) -> list[tuple[int, float]]:
        """The `k` nearest (id, cosine similarity), nearest first, equal ones by id.

        `allowed` are the only ids looked at, one by one. `within` picks from the nearest, of which a graph gives
        EXACT_LIMIT at most: then there may be fewer than `k`.
        """
        excluded = self._ids.intersection(exclude)
        if allowed is not None or self._graph is None:
            found = self._exact(vector, self._ids if allowed is None else self._ids.intersection(allowed))
            return _picked([pair for pair in found if pair[0] not in excluded], k, within)
        wanted = min(k, EXACT_LIMIT) if within is None else EXACT_LIMIT
        found = self._approximate(vector, min(wanted + len(excluded), len(self._ids)))
        return _picked([pair for pair in found if pair[0] not in excluded], k, within)

    def save(self, *, at_least: int = 1) -> None:
        """Write the graph, if there is one, beside its file and rename: a kill leaves the old file or the
        new. Not while fewer than `at_least` vectors are missing from the file.

        A cache may fail to be written: that is logged, and it is built again the next time.
        """
        if self._path is None or self._graph is None or self._unsaved < at_least:
            return
        part = self._path.with_name(self._path.name + ".part")
        try:
            make_private_folder(self._path.parent)
            part.unlink(missing_ok=True)
            open_private(part, "xb").close()  # hnswlib writes into a file that is there
            self._graph.save_index(str(part))
            note = self._note(len(self._ids), *self._newest, file_sha256=_file_sha256(part))
            part.replace(self._path)
            write_private(part, json.dumps(note))
            part.replace(_note_path(self._path))
            self._unsaved = 0
        except (OSError, RuntimeError) as error:  # RuntimeError: hnswlib cannot open or write the file
            logger.warning("cannot save the vector index %s: %s", self._path, error)

    def clear(self) -> None:
        """Forget everything; the next `sync` reads the blobs."""
        self._clear()
        self._loaded = True  # the file is as old as what was forgotten

    def _clear(self) -> None:
        self._ids: set[int] = set()
        self._rows: dict[int, Vectors] = {}
        self._matrix: tuple[NDArray[np.int64], Vectors] | None = None
        self._graph: hnswlib.Index | None = None
        self._newest = (0, "")  # the highest id and the SHA-256 of its vector
        self._changes: _Changes | None = None  # how the database stood when it was last read
        self._unsaved = 0

    def _catch_up(self, database: Database, owner: _Owner, changes: _Changes) -> None:
        if not self._append(database, owner, changes):
            self._compare(database, owner)

    def _append(self, database: Database, owner: _Owner, changes: _Changes) -> bool:
        """Add what stands behind the newest; False when that is not all that has changed, or a lot."""
        if self._changes is None or changes[1] != self._changes[1] or changes[0] - self._changes[0] > _READ_BATCH:
            return False
        rows = database.rows(
            f"SELECT item_id, vector FROM embedding WHERE {_OWNED} AND item_id > ?", (*owner, self._newest[0])
        )
        if len(rows) != changes[0] - self._changes[0]:
            return False
        self._add_rows(rows)
        return True

    def _compare(self, database: Database, owner: _Owner) -> None:
        held = self._held(database, owner)
        for item_id in self._ids - held:
            self.remove(item_id)
        missing = sorted(held - self._ids)
        for start in range(0, len(missing), _READ_BATCH):
            part = missing[start : start + _READ_BATCH]
            rows = database.rows(
                f"SELECT item_id, vector FROM embedding WHERE {_OWNED} AND item_id BETWEEN ? AND ?",
                (*owner, part[0], part[-1]),
            )
            self._add_rows([row for row in rows if row["item_id"] not in self._ids])

    def _held(self, database: Database, owner: _Owner, last: int = _LAST) -> set[int]:
        rows = database.rows(
            f"SELECT item_id FROM embedding WHERE {_OWNED} AND length(vector) = ? AND item_id <= ?",
            (*owner, self._dimension * 4, last),
        )
        return {row["item_id"] for row in rows}

    def _add_rows(self, rows: Sequence[sqlite3.Row]) -> None:
        # A vector of another length is no vector of this embedder, whatever the row says.
        new = {row["item_id"]: row["vector"] for row in rows if len(row["vector"]) == self._dimension * 4}
        self.add(list(new), from_blobs(list(new.values()), self._dimension))

    def _exact(self, vector: Vectors, wanted: Collection[int]) -> list[tuple[int, float]]:
        ids, matrix = self._all_rows() if len(wanted) == len(self._ids) else self._some_rows(sorted(wanted))
        scores = matrix @ vector
        order = np.lexsort((ids, -scores))
        return [(int(ids[i]), float(scores[i])) for i in order]

    def _all_rows(self) -> tuple[NDArray[np.int64], Vectors]:
        if self._graph is not None:
            return self._some_rows(sorted(self._ids))
        if self._matrix is None:
            self._matrix = self._some_rows(list(self._rows))
        return self._matrix

    def _some_rows(self, ids: Sequence[int]) -> tuple[NDArray[np.int64], Vectors]:
        rows = [self._rows[i] for i in ids] if self._graph is None else self._graph.get_items(ids)
        return np.asarray(ids, np.int64), np.asarray(rows, np.float32).reshape(len(ids), self._dimension)

    def _approximate(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        assert self._graph is not None, "only called with a graph"
        if k == 0:
            return []
        self._graph.set_ef(max(2 * k, LEAST_EF))
        try:
            labels, distances = self._graph.knn_query(vector, k=k, num_threads=1)
        except RuntimeError:  # hnswlib reached fewer than k, past what is deleted
            return self._exact(vector, self._ids)
        found = [(int(label), 1.0 - float(gap)) for label, gap in zip(labels[0], distances[0], strict=True)]
        return sorted(found, key=lambda scored: (-scored[1], scored[0]))

    def _grow_graph(self) -> None:
        rows = self._rows
        self._graph = self._new_graph()
        self._graph.init_index(max_elements=2 * len(rows), ef_construction=BUILD_EF, M=NEIGHBOURS, random_seed=0)
        self._rows, self._matrix = {}, None
        self._add_to_graph(list(rows), np.stack(list(rows.values())))

    def _add_to_graph(self, ids: Sequence[int], vectors: Vectors) -> None:
        assert self._graph is not None, "only called with a graph"
        room = self._graph.get_max_elements()
        needed = self._graph.get_current_count() + len(ids)
        if needed > room:
            self._graph.resize_index(max(needed, 2 * room))
        self._graph.add_items(vectors, ids, num_threads=1)  # 1: more make another graph on every run

    def _new_graph(self) -> hnswlib.Index:
        import hnswlib

        return hnswlib.Index(space="cosine", dim=self._dimension)

    def _load(self, database: Database, store: Store, agent_id: int) -> None:
        if self._path is None or not self._path.exists():
            return
        note = _read_note(_note_path(self._path))
        last, newest_sha256 = note.get("max_item_id"), note.get("max_item_sha256")
        if not isinstance(last, int) or not isinstance(newest_sha256, str):
            return
        owner = (store, agent_id, self._embedder)
        ids = self._held(database, owner, last)
        newest: bytes | None = database.scalar(
            f"SELECT vector FROM embedding WHERE {_OWNED} AND item_id = ?", (*owner, last)
        )
        expected = self._note(
            len(ids), last, hashlib.sha256(newest or b"").hexdigest(), file_sha256=_file_sha256(self._path)
        )
        if note != expected or not self._load_graph(self._path, ids):
            logger.info("the vector index %s is stale or damaged; building it again", self._path)
            return
        self._ids, self._newest = ids, (last, newest_sha256)

    def _load_graph(self, path: Path, ids: set[int]) -> bool:
        graph = self._new_graph()
        try:
            graph.load_index(str(path))
        except RuntimeError:  # hnswlib's only word for everything it finds wrong with a file
            return False
        if not ids.issubset(graph.get_ids_list()):  # the graph's own list has deleted ones too
            return False
        self._graph = graph
        return True

    def _note(self, count: int, max_item_id: int, max_item_sha256: str, *, file_sha256: str) -> dict[str, str | int]:
        """What must agree between the file and the database for the file to be used."""
        return {
            "embedder": self._embedder,
            "dimension": self._dimension,
            "count": count,
            "max_item_id": max_item_id,
            "max_item_sha256": max_item_sha256,
            "file_sha256": file_sha256,
        }


class MeaningIndex:
    """What recall and archival storage know of meaning: one store of one agent, seen by one embedder.

    `folder` is where the index files lie, one a store, agent and embedder; None keeps them in memory alone.
    """

    def __init__(
        self, database: Database, store: Store, agent_id: int, embedder: Embedder, folder: Path | None
    ) -> None:
        self._database = database
        self._store: Store = store
        self._agent_id = agent_id
        self._embedder = embedder
        self._folder = folder
        self._index: VectorIndex | None = None

    @property
    def embedder_name(self) -> str:
        return self._embedder.name

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of `texts`, shape (len(texts), dimension)."""
        return self._embedder.embed(list(texts))

    def write(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Put vectors into the database; the next search takes them from there."""
        self._database.execute_many(
            "INSERT INTO embedding (store, item_id, agent_id, embedder, vector) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET vector = excluded.vector",
            [
                (self._store, item_id, self._agent_id, self.embedder_name, to_blob(vector))
                for item_id, vector in zip(ids, vectors, strict=True)
            ],
        )

    def write_texts(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Embed and write."""
        self.write(ids, self.embed(texts))

    def reset(self) -> None:
        """Vectors that stood in the database were replaced: read them all again."""
        with self._database.lock:
            self._current_index().clear()

    def nearest(
        self,
        text: str,
        *,
        limit: int = MEANING_LIMIT,
        floor: float = MEANING_FLOOR,
        allowed: Collection[int] | None = None,
        within: Within | None = None,
        exclude: Collection[int] = (),
    ) -> list[tuple[int, float]]:
        """(id, cosine similarity) of the nearest to `text`, nearest first, none below `floor`; see
        `VectorIndex.search`.
        """
        if not self._database.scalar(
            "SELECT EXISTS (SELECT 1 FROM embedding WHERE agent_id = ? AND store = ? AND embedder = ?)",
            (self._agent_id, self._store, self.embedder_name),
        ):
            return []  # and no embedder is loaded for an empty store
        vector = self.embed([text])[0]
        with self._database.lock:
            index = self._current_index()
            index.sync(self._database, self._store, self._agent_id)
            found = index.search(vector, limit, allowed=allowed, within=within, exclude=exclude)
        return [(item_id, score) for item_id, score in found if score >= floor]

    def save(self, *, at_least: int = 1) -> None:
        """Write the index file, when there is enough for one and `at_least` so many vectors are not in it."""
        with self._database.lock:
            if self._index is not None and not self._database.in_transaction:
                self._index.save(at_least=at_least)

    def _current_index(self) -> VectorIndex:
        if self._index is None:  # late: the dimension is known when the embedder has been loaded
            name, dimension = self.embedder_name, self._embedder.dimension
            safe = re.sub(r"[^A-Za-z0-9.-]+", "_", name)[-60:]
            file = f"{self._store}-{self._agent_id}-{safe}-{dimension}.hnsw"
            path = None if self._folder is None else self._folder / file
            self._index = VectorIndex(path, dimension, name)
        return self._index


def to_blob(vector: Vectors) -> bytes:
    """A vector as the database keeps it: float32, little endian."""
    return vector.astype("<f4").tobytes()


def from_blobs(blobs: Sequence[bytes], dimension: int) -> Vectors:
    """The vectors of `blobs`, shape (len(blobs), dimension)."""
    return np.frombuffer(b"".join(blobs), "<f4").astype(np.float32).reshape(len(blobs), dimension)


def _changes(database: Database, owner: _Owner) -> _Changes:
    row = database.row(f"SELECT added, removed FROM embedding_changes WHERE {_OWNED}", owner)
    return (0, 0) if row is None else (row["added"], row["removed"])


def _picked(found: Sequence[tuple[int, float]], k: int, within: Within | None) -> list[tuple[int, float]]:
    """The first `k` that `within` lets through."""
    if within is not None:
        allowed = set(within([item_id for item_id, _ in found]))
        found = [pair for pair in found if pair[0] in allowed]
    return list(found[:k])


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _read_note(path: Path) -> dict[str, Any]:  # Any: JSON that may have been damaged
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
