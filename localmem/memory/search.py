"""Searching by words and by meaning, and putting the two orders together: shared by recall and archival
storage.

Pure: it makes queries and merges rankings; who runs a query, and what "near in meaning" is, are passed in.
Words are ranked by BM25 (SQLite's FTS5), meaning by cosine similarity, and the orders are fused by reciprocal
rank, because the two scores have no common scale.

What keeps it quick in a store of any size: counting a word's rows is cheap (30 ns a row), ranking them is not
(1.1 us a row, measured), so no ranking reads more than CANDIDATES rows. While a query finds no more than that, all
of it is ranked and the total is exact. Beyond, its rare words bring all their rows; the two rarest of the common ones
bring the rows with both; the newest with any follow. The page then says that there may be more.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from typing import Generic, Literal, Protocol, TypeVar

Item = TypeVar("Item")
Store = Literal["message", "passage"]

MEANING_FLOOR = 0.30
"""Cosine similarity under which two texts are taken as unrelated (all-MiniLM-L6-v2)."""

MEANING_LIMIT = 50
"""How many hits by meaning alone a search may add: everything is somewhat near to everything."""

CANDIDATES = 500
"""Rows that one ranking reads at most: half a millisecond of BM25, and a hundred pages of five."""

FEW = 2_000
"""Rows of a narrow scope that are compared in meaning one by one; of a wider one the nearest are looked through."""

PLACE_BITS = 40
"""A row stands in its full-text index at agent_id << PLACE_BITS | id: an agent's rows are a range, in the order of
their ids, so what other agents said costs a search nothing."""

RANK_CONSTANT = 60  # Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion", 2009
EXACT_WEIGHT = 3.0  # above the other two together: who asks for an identifier wants that one first
LATEST = 100  # rows with nothing but common words that follow those with rare ones: twenty pages
LATEST_WEIGHT = 0.05  # below all that a ranking of CANDIDATES rows gives: 0.05 / 61 < 1 / 560

_ID_MASK = (1 << PLACE_BITS) - 1
_QUERY_CHARS = 10_000
_QUERY_WORDS = 64
_NEEDLES = 24
_PHRASE_WORDS = 8  # a row with all the words of a longer text is first by BM25 as well, and cheaper to find
_COMMON = 3  # of the common words only the rarest tell rows apart

STOP_WORDS = frozenset(
    """
    a about all am an and any are as at be been but by can could d did do does don for from had has
    have he her hers him his how i if in into is it its just ll m me my no not of on or our ours re
    s she so some t than that the their them then there these they this those to too up us ve was we
    were what when where which who whom why will with would you your yours
    """.split()  # noqa: SIM905  # a list of 90 strings would take two screens
)
"""English words that tell nothing; a query of nothing else is searched as it is."""

# Scripts that write no spaces (or, as Korean, glue particles on), of which FTS5 takes a whole run for one word,
# and symbols, which it does not index at all.
_RUN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+|[\u20a0-\u20cf\u2100-\u2bff\U0001f000-\U0001fbff]+"
)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some of the results: page `page`, counted from 0, of `pages`; `total` counts the hits on all of them.

    `more` says that `total` is not exact: there are at least that many, and the pages show the best of them.
    """

    items: tuple[Item, ...]
    page: int
    pages: int
    total: int
    more: bool = False

    @property
    def counted(self) -> str:
        """The total as people read it: `23`, or `500+` when there are more."""
        return f"{self.total}+" if self.more else str(self.total)


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows a search may find: those at the places `first` to `last` of the index (see PLACE_BITS).

    `where` is SQL over the store's table as `t` that says the same and, when `narrowed`, more: then each row is
    looked up.
    """

    store: Store
    first: int
    last: int
    where: str
    params: tuple[object, ...]
    narrowed: bool = False
    exclude: Collection[int] = field(default=())


@dataclass(frozen=True, slots=True)
class Found:
    """(id, score) of what a search ranked, best first; `more` as in `Page`."""

    ranked: list[tuple[int, float]]
    more: bool


Statement = tuple[str, tuple[object, ...]]
RunIds = Callable[[Statement], list[int]]
Within = Callable[[Sequence[int]], Collection[int]]
"""Which of some ids a search may find."""


class Nearest(Protocol):
    """(id, similarity) of what is nearest in meaning to a text, nearest first. Of `allowed` alone when that is
    given, or of what `within` lets through.
    """

    def __call__(
        self, text: str, *, allowed: Collection[int] | None, within: Within | None, exclude: Collection[int]
    ) -> list[tuple[int, float]]: ...


def paginate(items: Sequence[Item], page: int, page_size: int, *, more: bool = False) -> Page[Item]:
    """One page of `items`; a page past the end is empty and still tells the total.

    >>> paginate("abcdefg", 1, 3)
    Page(items=('d', 'e', 'f'), page=1, pages=3, total=7, more=False)
    """
    page = max(page, 0)
    return page_of(items[page * page_size : (page + 1) * page_size], page, page_size, total=len(items), more=more)


def page_of(items: Sequence[Item], page: int, page_size: int, *, total: int, more: bool = False) -> Page[Item]:
    """A page whose items have been picked already. Raises ValueError when `page_size` is not positive."""
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")
    return Page(tuple(items), page, -(-total // page_size), total, more)


def place(agent_id: int, item_id: int) -> int:
    """Where a row stands in its full-text index."""
    return agent_id << PLACE_BITS | item_id


def fuse(rankings: Iterable[tuple[Sequence[int], float]]) -> list[tuple[int, float]]:
    """(id, score) of every id in any ranking, best first; each ranking comes with its weight.

    The score of an id is the sum of weight / (60 + rank), rank counted from 1. Equal scores: the lower id
    first, so that the order is the same on every page.

    >>> [id for id, _ in fuse([([1, 2, 3], 1.0), ([3, 4], 1.0)])]
    [3, 1, 2, 4]
    """
    scores: dict[int, float] = {}
    for ids, weight in rankings:
        for rank, item_id in enumerate(ids, start=1):
            scores[item_id] = scores.get(item_id, 0.0) + weight / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))


def fused_search(query: str, scope: Scope, *, run: RunIds, nearest: Nearest | None) -> Found:
    """What `query` finds in `scope`. `nearest` is None without an embedder."""
    words = _Index(f"{scope.store}_fts", scope, run)
    by_exact, more_exact = _by_exact_words(words, query)
    by_words, more_words = _by_words(words, telling_words(query))
    by_parts, more_parts = _by_parts(_Index(f"{scope.store}_parts", scope, run), parts(query))
    rankings = [(by_exact, EXACT_WEIGHT), *by_words, (by_parts, 1.0)]
    if nearest is not None:
        near = _near(query, scope, run, nearest)
        rankings.append(([item_id for item_id, _ in near], 1.0))
    return Found(fuse(rankings), more_exact or more_words or more_parts)


def telling_words(text: str) -> list[str]:
    """The distinct words of `text` without its stop words; those too when it has no others."""
    words = _words(text)
    return [word for word in words if word.lower() not in STOP_WORDS] or words


def words_query(words: Iterable[str]) -> str:
    """An FTS5 query for rows with any of the words; "" for none. Never a syntax error.

    >>> words_query(telling_words('the "dog" - AND b7-01'))
    '"dog" OR "b7-01"'
    """
    return " OR ".join(_quoted(word) for word in words)


def exact_query(text: str) -> str:
    """An FTS5 query for rows with the words of a short `text` in a row, or with one of its identifiers; "" when
    neither.

    >>> exact_query("what is 3f2a-77b1?")
    '"what is 3f2a-77b1" OR "3f2a-77b1"'
    """
    words = _words(text)
    phrases = [" ".join(words)] if 1 < len(words) <= _PHRASE_WORDS else []
    phrases += [word for word in words if _is_identifier(word) and word not in phrases]
    return " OR ".join(_quoted(phrase) for phrase in phrases)


def parts(text: str) -> tuple[str, ...]:
    """What to look for inside runs of unspaced scripts and of symbols: their pairs of characters, or the one there is.

    >>> parts("東京都 dog 🎉")
    ('東京', '京都', '🎉')
    """
    runs: list[str] = _RUN.findall(text[:_QUERY_CHARS])
    needles = [pair for run in runs for pair in (_pairs(run) or [run])]
    return tuple(dict.fromkeys(needles))[:_NEEDLES]


def indexed_parts(text: str) -> str | None:
    """What the index of parts holds of `text`: every character and pair of its runs, spaced; None when there is none.

    >>> indexed_parts("東京都 dog")
    '東 京 都 東京 京都'
    """
    if text.isascii():
        return None
    runs: list[str] = _RUN.findall(text)
    return " ".join(dict.fromkeys(part for run in runs for part in (*run, *_pairs(run)))) or None


def scope_statement(scope: Scope, limit: int) -> Statement:
    """The ids of the first `limit` rows of `scope`, in no order."""
    return f"SELECT t.id FROM {scope.store} t WHERE {scope.where} LIMIT ?", (*scope.params, limit)


def within_statement(scope: Scope, ids: Sequence[int]) -> Statement:
    """Those of `ids` that are in `scope`."""
    # CROSS JOIN is SQLite's way to say: look the ids up, do not read the whole scope.
    return (
        f"SELECT t.id FROM json_each(?) ids CROSS JOIN {scope.store} t ON t.id = ids.value WHERE {scope.where}",
        (json.dumps(list(ids)), *scope.params),
    )


@dataclass(frozen=True, slots=True)
class _Index:
    """A full-text index, read within a scope by FTS5 queries ("match")."""

    name: str
    scope: Scope
    run: RunIds

    def newest(self, match: str, limit: int = CANDIDATES + 1) -> list[int]:
        """Ids, newest first; one more than CANDIDATES shows that these are not all."""
        return self._select(match, self.scope.first, "ORDER BY {0}.rowid DESC LIMIT ?", limit)

    def best(self, match: str, since_id: int | None = None) -> list[int]:
        """Ids from `since_id` on, best first."""
        first = self.scope.first if since_id is None else self._place(since_id)
        return self._select(match, first, "ORDER BY {0}.rank, {0}.rowid LIMIT ?", CANDIDATES)

    def cut(self, match: str) -> int | None:
        """The id from which on CANDIDATES rows match; None when no more than that do."""
        ids = self._select(match, self.scope.first, "ORDER BY {0}.rowid DESC LIMIT 2 OFFSET ?", CANDIDATES - 1)
        return ids[0] if len(ids) == 2 else None

    def unfiltered(self) -> _Index:
        """The same from the first to the last place, without looking rows up: to see how common a word is."""
        return replace(self, scope=replace(self.scope, narrowed=False, exclude=()))

    def _place(self, item_id: int) -> int:
        return self.scope.last >> PLACE_BITS << PLACE_BITS | item_id

    def _select(self, match: str, first: int, order: str, limit: int) -> list[int]:
        return self.run(self._statement(f"{self.name}.rowid & {_ID_MASK}", match, first, order, limit))

    def _statement(self, column: str, match: str, first: int, order: str, limit: int) -> Statement:
        scope, name = self.scope, self.name
        item_id = f"{name}.rowid & {_ID_MASK}"
        tables, terms = name, [f"{name} MATCH ?", f"{name}.rowid BETWEEN ? AND ?"]
        params: list[object] = [match, first, scope.last]
        if scope.exclude:
            terms.append(f"{item_id} NOT IN (SELECT value FROM json_each(?))")
            params.append(json.dumps(list(scope.exclude)))
        if scope.narrowed:
            tables += f" CROSS JOIN {scope.store} t ON t.id = {item_id}"
            terms.append(scope.where)
            params += scope.params
        sql = f"SELECT {column} FROM {tables} WHERE {' AND '.join(terms)} {order.format(name)}"
        return sql, (*params, limit)


def _by_exact_words(index: _Index, query: str) -> tuple[list[int], bool]:
    """Ids of the rows with the query's words in a row or with one of its identifiers, best first."""
    match = exact_query(query)
    newest = index.newest(match) if match else []
    if not newest or _are_stop_words(_words(query)):
        return newest[:CANDIDATES], len(newest) > CANDIDATES
    return index.best(match, newest[:CANDIDATES][-1]), len(newest) > CANDIDATES


def _by_words(index: _Index, words: Sequence[str]) -> tuple[list[tuple[list[int], float]], bool]:
    """Rankings of the rows with any of the words, and their weights."""
    if not words:
        return [], False
    match = words_query(words)
    cut = index.cut(match)
    if cut is None:
        return [(index.best(match), 1.0)], False
    if _are_stop_words(words):  # what half of all rows have ranks nothing
        return [(index.newest(_all_of(words)), 1.0), (index.newest(match), LATEST_WEIGHT)], True
    rare, common = _rare_and_common(index, words)
    both = _all_of(common[:2]) if len(common) > 1 else ""
    if rare:
        return [
            (index.best(_ranked_by(words_query(rare), [*rare, *common[:_COMMON]])), 1.0),
            (index.newest(both, LATEST) if both else [], 1.0),
            (index.newest(words_query(common), LATEST), LATEST_WEIGHT),
        ], True
    either = words_query(common[:2])
    return [
        (index.best(_ranked_by(both, common[:_COMMON]), index.cut(both)) if both else [], 1.0),
        (index.best(either, index.cut(either)), 1.0),
    ], True


def _all_of(words: Iterable[str]) -> str:
    return " AND ".join(_quoted(word) for word in words)


def _ranked_by(needed: str, words: Iterable[str]) -> str:
    """A query for the rows that `needed` finds, ranked by all of `words`, of which it must have one."""
    # FTS5 has no optional words. What is needed counts twice, in every row alike.
    return f"({needed}) AND ({words_query(words)})"


def _rare_and_common(index: _Index, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rarest words, as many as have at most CANDIDATES rows together, and the others; both rarest first.

    A word that no row has is neither.
    """
    newest = {word: index.unfiltered().newest(_quoted(word)) for word in words}
    held = [word for word in words if newest[word]]
    # Of words with more rows than were read the rarer one reaches further back.
    held.sort(key=lambda word: (len(newest[word]), newest[word][-1]))
    sums = itertools.accumulate(len(newest[word]) for word in held)
    rare = sum(rows <= CANDIDATES for rows in sums)
    return held[:rare], held[rare:]


def _by_parts(index: _Index, needles: Sequence[str]) -> tuple[list[int], bool]:
    """Ids of the rows that hold at least half of `needles`, those with most first."""
    rows = {needle: set(index.newest(_quoted(needle))) for needle in needles}
    common = [needle for needle in needles if len(rows[needle]) > CANDIDATES]
    rare = [needle for needle in needles if rows[needle] and needle not in common]
    for needle in common:  # beside a rare one, or all together, they count in older rows too
        if rare:
            rows[needle].update(index.newest(f"({words_query(rare)}) AND {_quoted(needle)}"))
    together = index.newest(_all_of(common)) if len(common) > 1 else []
    held = Counter(
        item_id for needle in needles for item_id in rows[needle].union(together if needle in common else ())
    )
    least = -(-len(needles) // 2)
    found = [item_id for item_id, count in held.items() if count >= least]
    return sorted(found, key=lambda item_id: (-held[item_id], item_id)), bool(common)


def _near(query: str, scope: Scope, run: RunIds, nearest: Nearest) -> list[tuple[int, float]]:
    if not scope.narrowed:
        return nearest(query, allowed=None, within=None, exclude=scope.exclude)
    ids = run(scope_statement(scope, FEW + 1))
    if len(ids) <= FEW:
        return nearest(query, allowed=ids, within=None, exclude=scope.exclude)
    return nearest(query, allowed=None, within=lambda near: run(within_statement(scope, near)), exclude=scope.exclude)


def local_days(since: date | None, until: date | None) -> tuple[datetime | None, datetime | None]:
    """The first moment of day `since` and the first one after day `until`, in local time; None is no
    bound.
    """
    start = None if since is None else _midnight(_day(since))
    end = None if until is None else _midnight(_day(until) + timedelta(days=1))
    return start, end


def _day(moment: date) -> date:
    day = moment.date() if isinstance(moment, datetime) else moment
    # No message lies outside, and near the ends of the calendar a zone offset leaves what datetime can hold.
    return min(max(day, date(1970, 1, 2)), date(9998, 12, 30))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min).astimezone()


def _words(text: str) -> list[str]:
    """The distinct words in their order; a chunk such as a date, a version or a UUID stays whole."""
    words: list[str] = []
    for chunk in text[:_QUERY_CHARS].split():
        spaced = "".join(c if _in_word(c) else " " for c in chunk)
        trimmed = chunk[len(spaced) - len(spaced.lstrip()) : len(spaced.rstrip())]
        whole = any(c.isdigit() for c in trimmed) and trimmed.isprintable()
        words += [trimmed] if whole else spaced.split()
    return list(dict.fromkeys(words))[:_QUERY_WORDS]


def _in_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _is_identifier(word: str) -> bool:
    return len(word) >= 4 and any(c.isdigit() for c in word)


def _are_stop_words(words: Iterable[str]) -> bool:
    return all(word.lower() in STOP_WORDS for word in words)


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


def _quoted(phrase: str) -> str:
    return '"' + phrase.replace('"', '""') + '"'
