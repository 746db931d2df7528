"""Archival storage: passages the agent or the user put away, of any length and number (MemGPT, section 2.1).

Passages are searched like messages in recall, by words and by meaning; a passage keeps the moment it was
inserted. Vectors are written with the passage, under the embedder's name: those of another embedder are found
by words only, until `reindex`.
"""

from __future__ import annotations

import builtins  # `list` is a method here, so annotations inside the class need the full name
import itertools
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from localmem.memory.search import PLACE_BITS, Found, Page, Scope, Statement, fused_search, page_of, paginate, place
from localmem.storage.database import Database, storable, utc_moment, utc_text
from localmem.storage.edit_log import Attribution, EditLog, State
from localmem.storage.embedder import Embedder
from localmem.storage.vector_index import MeaningIndex, Vectors

NEAR_DUPLICATE = 0.97
"""Cosine similarity from which two passages say the same: a changed word in a sentence is below it."""

_BATCH = 64

Progress = Callable[[int], None]
"""Called with the number done so far."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text in archival storage. `score` is that of the search or comparison that found it, otherwise 0."""

    id: int
    text: str
    source: str | None
    tags: tuple[str, ...]
    created_at: datetime
    score: float = 0.0
    owner: str = ""
    """The agent it is another's of, where it was found in an attached archive."""


class Archival:
    """The passages of one agent. `index_path` is the folder of the vector index; without an `embedder`
    searches go by words alone. Of the archives `attached` to it everything can be found, and nothing else be done."""

    def __init__(self, database: Database, agent_id: int, embedder: Embedder | None, index_path: Path | None) -> None:
        self._database = database
        self._log = EditLog(database)
        self._agent_id = agent_id
        self._embedder = embedder
        self._index_path = index_path
        self._owner = ""
        self.attached: tuple[Archival, ...] = ()
        self._meaning = None if embedder is None else MeaningIndex(database, "passage", agent_id, embedder, index_path)

    def attach(self, owners: Iterable[tuple[str, int]]) -> None:
        """Have the archives of these agents, by name and id, and of no others, attached."""
        known = {(archive._owner, archive._agent_id): archive for archive in self.attached}
        self.attached = tuple(known.get(owner) or self._of(*owner) for owner in owners)

    def _of(self, owner: str, agent_id: int) -> Archival:
        archive = Archival(self._database, agent_id, self._embedder, self._index_path)
        archive._owner = owner
        return archive

    def insert(
        self, text: str, *, source: str | None = None, tags: Iterable[str] = (), by: Attribution | None = None
    ) -> Passage:
        """The passage as it is stored; by the user, now, unless `by` says else. Look at `near_duplicate` first: nothing
        is refused here."""
        vectors = None if self._meaning is None else self._meaning.embed([text])
        return self._insert_batch([text], vectors, source, tuple(tags), by or _user_now())[0]

    def insert_many(
        self,
        texts: Iterable[str],
        *,
        source: str | None = None,
        tags: Iterable[str] = (),
        by: Attribution | None = None,
        progress: Progress | None = None,
    ) -> builtins.list[Passage]:
        """The passages as they are stored, in order. Each batch is kept as it is done; within a transaction
        of the caller it is all or nothing. Their edits have one moment, by which they are undone together."""
        passages: builtins.list[Passage] = []
        tags, by = tuple(tags), by or _user_now()
        for batch in _batches(texts):
            # Embedded before the transaction: it takes a second, and would keep every other writer waiting.
            vectors = None if self._meaning is None else self._meaning.embed(batch)
            passages += self._insert_batch(batch, vectors, source, tags, by)
            if progress is not None:
                progress(len(passages))
        return passages

    def near_duplicate(self, text: str) -> Passage | None:
        """A passage that says the same: an equal text, or else the nearest one from NEAR_DUPLICATE on."""
        row = self._database.row(
            "SELECT * FROM passage "
            "WHERE agent_id = ?1 AND substr(text, 1, 64) = substr(?2, 1, 64) AND text = ?2 "
            "ORDER BY id LIMIT 1",
            (self._agent_id, text),
        )
        if row is not None:
            return _passage(row, score=1.0)
        if self._meaning is None:
            return None
        near = self._meaning.nearest(text, limit=1, floor=NEAR_DUPLICATE)
        return next(iter(self._get(near)), None)

    def search(
        self,
        query: str,
        *,
        page: int = 0,
        page_size: int = 5,
        source: str | None = None,
        tags: Iterable[str] = (),
        by_words_only: bool = False,
    ) -> Page[Passage]:
        """The passages about `query`, best first, of one source and with all of `tags` when given; `by_words_only`
        leaves vectors out.

        `total` counts all hits; a query of words that thousands of passages have is ranked in part, and then
        `more` is true. A blank query finds everything of the agent's own, in the order of insertion.
        """
        tags = tuple(tags)
        if not query.strip():
            return self._in_order(self._scope(source, tags), page, page_size)
        archives = (self, *self.attached)
        found = [archive._find(query, source, tags, by_words_only=by_words_only) for archive in archives]
        ranked = [(number, hit) for number, one in enumerate(found) for hit in one.ranked]
        ranked.sort(key=lambda each: -each[1][1])  # its own first, where they are alike
        hits = paginate(ranked, page, page_size, more=any(one.more for one in found))
        got = {
            (number, passage.id): passage
            for number, archive in enumerate(archives)
            for passage in archive._get([hit for where, hit in hits.items if where == number])
        }
        shown = [got[key] for where, hit in hits.items if (key := (where, hit[0])) in got]
        return Page(tuple(shown), hits.page, hits.pages, hits.total, hits.more)

    def _find(self, query: str, source: str | None, tags: tuple[str, ...], *, by_words_only: bool) -> Found:
        meaning = None if by_words_only else self._meaning
        nearest = None if meaning is None else meaning.nearest
        return fused_search(query, self._scope(source, tags), run=self._ids, nearest=nearest)

    def sources(self) -> builtins.list[tuple[str | None, int]]:
        """Every source and the number of its passages; None is what the agent itself inserted."""
        rows = self._database.rows(
            "SELECT source, COUNT(*) AS passages FROM passage WHERE agent_id = ? GROUP BY source ORDER BY source",
            (self._agent_id,),
        )
        return [(row["source"], row["passages"]) for row in rows]

    def list(self, page: int = 0, page_size: int = 5, source: str | None = None) -> Page[Passage]:
        """In the order of insertion."""
        return self._in_order(self._scope(source, ()), page, page_size)

    def delete(self, ids: Iterable[int], by: Attribution | None = None, *, reverts: int | None = None) -> int:
        """How many of them there were. They are no longer found or counted, and kept for `restore` until `purge`."""
        with self._database.transaction():
            passages = self._rows("passage", ids)
            if passages:
                self._move(passages, "passage", "deleted_passage")
                self._record(_state(passages), None, by or _user_now(), reverts)
        return len(passages)

    def restore(self, ids: Iterable[int], by: Attribution | None = None, *, reverts: int | None = None) -> int:
        """Bring deleted passages back, under their ids; how many of them there were."""
        ids = tuple(ids)
        found = self._rows("deleted_passage", ids)
        vectors = None if self._meaning is None else self._meaning.embed([row["text"] for row in found])
        with self._database.transaction():
            deleted = self._rows("deleted_passage", ids)
            if [row["id"] for row in deleted] != [row["id"] for row in found]:
                return self.restore(ids, by, reverts=reverts)  # another process was quicker
            if deleted:
                self._move(deleted, "deleted_passage", "passage")
                if self._meaning is not None and vectors is not None:
                    self._meaning.write([row["id"] for row in deleted], vectors)
                self._record(None, _state(deleted), by or _user_now(), reverts)
        return len(deleted)

    def deleted_count(self) -> int:
        """How many deleted passages can still be brought back."""
        return self._database.scalar("SELECT COUNT(*) FROM deleted_passage WHERE agent_id = ?", (self._agent_id,))

    def purge(self) -> int:
        """Forget for good what was deleted; how many passages that were. Their deletion can no longer be undone."""
        return self._database.execute("DELETE FROM deleted_passage WHERE agent_id = ?", (self._agent_id,)).rowcount

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be found, in what is attached either."""
        own = self._database.scalar("SELECT EXISTS (SELECT 1 FROM passage WHERE agent_id = ?)", (self._agent_id,))
        return not own and all(archive.is_empty for archive in self.attached)

    def found_in(self) -> int:
        """How many passages a search goes through."""
        return self.count() + sum(archive.count() for archive in self.attached)

    def count(self) -> int:
        """The agent's own."""
        return self._database.scalar("SELECT COUNT(*) FROM passage WHERE agent_id = ?", (self._agent_id,))

    def stale_count(self) -> int:
        """How many passages have no vector of the present embedder, and are found by words only."""
        if self._meaning is None:
            return 0
        return self._database.scalar(
            "SELECT COUNT(*) FROM passage t WHERE t.agent_id = ? AND NOT EXISTS (SELECT 1 FROM embedding e "
            "WHERE e.store = 'passage' AND e.item_id = t.id AND e.embedder = ?)",
            (self._agent_id, self._meaning.embedder_name),
        )

    def reindex(self, progress: Progress | None = None) -> int:
        """Embed every passage with the present embedder and drop all other vectors; returns how many were
        embedded.

        Does nothing without an embedder. Stopped half-way it leaves a store that works, with some still
        stale.
        """
        if self._meaning is None:
            return 0
        done = last = 0
        while rows := self._database.rows(
            "SELECT id, text FROM passage WHERE agent_id = ? AND id > ? ORDER BY id LIMIT ?",
            (self._agent_id, last, _BATCH),
        ):
            self._meaning.write_texts([row["id"] for row in rows], [row["text"] for row in rows])
            done, last = done + len(rows), rows[-1]["id"]
            if progress is not None:
                progress(done)
        self._database.execute(
            "DELETE FROM embedding WHERE store = 'passage' AND agent_id = ? AND embedder != ?",
            (self._agent_id, self._meaning.embedder_name),
        )
        self._meaning.reset()
        return done

    def save_index(self, *, at_least: int = 1) -> None:
        """Write the vector index to its file, for a quicker start."""
        if self._meaning is not None:
            self._meaning.save(at_least=at_least)

    def _insert_batch(
        self,
        texts: Sequence[str],
        vectors: Vectors | None,
        source: str | None,
        tags: tuple[str, ...],
        by: Attribution,
    ) -> builtins.list[Passage]:
        with self._database.transaction():
            rows = [self._insert_row(text, source, tags, by.moment) for text in texts]
            if self._meaning is not None and vectors is not None:
                self._meaning.write([row["id"] for row in rows], vectors)
            self._record(None, _state(rows), by, None)
        return [_passage(row) for row in rows]

    def _insert_row(self, text: str, source: str | None, tags: tuple[str, ...], moment: datetime) -> sqlite3.Row:
        row = self._database.row(
            "INSERT INTO passage (agent_id, text, source, tags, created_at) VALUES (?, ?, ?, ?, ?) RETURNING *",
            (self._agent_id, text, source, json.dumps([storable(tag) for tag in tags]), utc_text(moment)),
        )
        assert row is not None, "RETURNING gives the row that was written"
        return row

    def _record(self, before: State | None, after: State | None, by: Attribution, reverts: int | None) -> None:
        self._log.record(self._agent_id, "passages", "", before, after, by, reverts=reverts)

    def _move(self, rows: Sequence[sqlite3.Row], source: _Table, target: _Table) -> None:
        """Take rows out of one table and put them into the other, as they are."""
        given = (json.dumps([row["id"] for row in rows]),)
        these = "WHERE id IN (SELECT value FROM json_each(?))"
        self._database.execute(f"INSERT INTO {target} ({_COLUMNS}) SELECT {_COLUMNS} FROM {source} {these}", given)
        self._database.execute(f"DELETE FROM {source} {these}", given)

    def _rows(self, table: _Table, ids: Iterable[int]) -> builtins.list[sqlite3.Row]:
        """Those of the agent's with one of the ids, by id."""
        return self._database.rows(
            f"SELECT * FROM {table} WHERE agent_id = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY id",
            (self._agent_id, json.dumps(list(ids))),
        )

    def _get(self, scored: Sequence[tuple[int, float]]) -> builtins.list[Passage]:
        rows = self._database.rows(
            "SELECT t.* FROM json_each(?) ids CROSS JOIN passage t ON t.id = ids.value WHERE t.agent_id = ?",
            (json.dumps([passage_id for passage_id, _ in scored]), self._agent_id),
        )
        by_id = {row["id"]: row for row in rows}
        found = [(by_id[passage_id], score) for passage_id, score in scored if passage_id in by_id]
        return [_passage(row, score=score, owner=self._owner) for row, score in found]

    def _scope(self, source: str | None, tags: tuple[str, ...]) -> Scope:
        terms: builtins.list[str] = ["t.agent_id = ?"]
        params: builtins.list[object] = [self._agent_id]
        if source is not None:
            terms.append("t.source = ?")
            params.append(source)
        for tag in tags:
            terms.append("EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value = ?)")
            params.append(tag)
        return Scope(
            "passage",
            place(self._agent_id, 1),
            place(self._agent_id, (1 << PLACE_BITS) - 1),
            " AND ".join(terms),
            tuple(params),
            narrowed=len(terms) > 1,
        )

    def _in_order(self, scope: Scope, page: int, page_size: int) -> Page[Passage]:
        page = max(page, 0)
        total = self._database.scalar(f"SELECT COUNT(*) FROM passage t WHERE {scope.where}", scope.params)
        rows = self._database.rows(
            f"SELECT * FROM passage t WHERE {scope.where} ORDER BY t.id LIMIT ? OFFSET ?",
            (*scope.params, page_size, page * page_size),
        )
        return page_of([_passage(row) for row in rows], page, page_size, total=total)

    def _ids(self, statement: Statement) -> builtins.list[int]:
        return [row[0] for row in self._database.rows(*statement)]


_COLUMNS = "id, agent_id, text, source, tags, created_at"
_Table = Literal["passage", "deleted_passage"]


def _user_now() -> Attribution:
    return Attribution("user", datetime.now(UTC))


def _state(rows: Sequence[sqlite3.Row]) -> State:
    """Passages as the edit log keeps them: the ranges of their ids, and their source where all have the same."""
    ranges: list[list[int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row["id"] - 1:
            ranges[-1][1] = row["id"]
        else:
            ranges.append([row["id"], row["id"]])
    sources = {row["source"] for row in rows}
    return {"ids": ranges, "source": sources.pop() if len(sources) == 1 else None}


def ids_of(state: State) -> list[int]:
    """The ids of the passages that a state in the edit log describes."""
    return [passage_id for first, last in state["ids"] for passage_id in range(first, last + 1)]


def split_text(text: str, *, max_chars: int = 1000) -> list[str]:
    """`text` in pieces of at most `max_chars`, cut at headings and paragraphs, else at lines, sentences,
    words.

    Nothing is lost: the pieces joined are the text, its blank lines included. Raises ValueError when
    `max_chars` is not positive.

    >>> split_text("# A\\n\\nOne. Two.\\n\\n# B\\n\\nThree.", max_chars=20)
    ['# A\\n\\nOne. Two.\\n\\n', '# B\\n\\nThree.']
    """
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    pieces = [piece for section in _HEADING.split(text) for piece in _split(section, 0, max_chars)]
    return _without_blank(pieces, max_chars)


_HEADING = re.compile(r"^(?=#{1,6} )", re.MULTILINE)

# Where to cut, the best place first; each pattern matches the empty place after a separator.
_CUTS = (
    re.compile(r"(?<=\n\n)(?!\n)"),
    re.compile(r"(?<=\n)"),
    re.compile(r"(?<=[.!?] )|(?<=[。！？])"),
    re.compile(r"(?<= )"),
)


def _split(text: str, level: int, max_chars: int) -> list[str]:
    if len(text) <= max_chars:
        return [text] if text else []
    if level == len(_CUTS):
        return [text[i : i + max_chars] for i in range(0, len(text), max_chars)]
    pieces: list[str] = []
    joined = ""
    for part in _CUTS[level].split(text):
        if len(joined) + len(part) <= max_chars:
            joined += part
            continue
        if joined:
            pieces.append(joined)
        *whole, joined = _split(part, level + 1, max_chars) or [""]
        pieces += whole
    return [*pieces, joined] if joined else pieces


def _without_blank(pieces: Sequence[str], max_chars: int) -> list[str]:
    """No piece of white space alone where it fits on the piece before it."""
    kept: list[str] = []
    for piece in pieces:
        if kept and not piece.strip() and len(kept[-1]) + len(piece) <= max_chars:
            kept[-1] += piece
        else:
            kept.append(piece)
    return kept


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        yield batch


def _passage(row: sqlite3.Row, *, score: float = 0.0, owner: str = "") -> Passage:
    return Passage(
        id=row["id"],
        text=row["text"],
        source=row["source"],
        tags=tuple(json.loads(row["tags"])),
        created_at=utc_moment(row["created_at"]),
        score=score,
        owner=owner,
    )
