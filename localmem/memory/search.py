"""Searching by words and by meaning, and putting the two orders together: shared by recall and archival
storage.

Pure: it makes queries and merges rankings; who runs a query, and what "near in meaning" is, are passed in.
Words are ranked by BM25 (SQLite's FTS5), meaning by cosine similarity, and the orders are fused by reciprocal
rank, because the two scores have no common scale.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Generic, Literal, Protocol, TypeVar

Item = TypeVar("Item")
Store = Literal["message", "passage"]

MEANING_FLOOR = 0.30
"""Cosine similarity under which two texts are taken as unrelated (all-MiniLM-L6-v2)."""

MEANING_LIMIT = 50
"""How many hits by meaning alone a search may add: everything is somewhat near to everything."""

RANK_CONSTANT = 60  # Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion", 2009
EXACT_WEIGHT = 3.0  # above the other two together: who asks for an identifier wants that one first

_QUERY_CHARS = 10_000
_QUERY_WORDS = 64
_NEEDLES = 24

STOP_WORDS = frozenset(
    """
    a about all am an and any are as at be been but by can could d did do does don for from had has
    have he her hers him his how i if in into is it its just ll m me my no not of on or our ours re
    s she so some t than that the their them then there these they this those to too up us ve was we
    were what when where which who whom why will with would you your yours
    """.split()  # noqa: SIM905  # a list of 90 strings would take two screens
)
"""English words that tell nothing; a query of nothing else is searched as it is."""

# Scripts that write no spaces (or, as Korean, glue particles on): FTS5 takes a whole run of them for one
# word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some of the results: page `page`, counted from 0, of `pages`; `total` counts the hits on all of
    them.
    """

    items: tuple[Item, ...]
    page: int
    pages: int
    total: int


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows a search may find: SQL over the alias `t`, ready to stand after WHERE.

    `narrowed` says that rows with a vector may be outside: the neighbours in meaning must be checked too.
    """

    store: Store
    where: str
    params: tuple[object, ...]
    narrowed: bool = False
    exclude: Collection[int] = field(default=())


Statement = tuple[str, tuple[object, ...]]
RunIds = Callable[[Statement], list[int]]


class Nearest(Protocol):
    """(id, similarity) of what is nearest in meaning to a text, nearest first; None `allowed` is
    everything.
    """

    def __call__(
        self, text: str, *, allowed: Collection[int] | None, exclude: Collection[int]
    ) -> list[tuple[int, float]]: ...


def paginate(items: Sequence[Item], page: int, page_size: int) -> Page[Item]:
    """One page of `items`; a page past the end is empty and still tells the total.

    >>> paginate("abcdefg", 1, 3)
    Page(items=('d', 'e', 'f'), page=1, pages=3, total=7)
    """
    page = max(page, 0)
    return page_of(items[page * page_size : (page + 1) * page_size], page, page_size, total=len(items))


def page_of(items: Sequence[Item], page: int, page_size: int, *, total: int) -> Page[Item]:
    """A page whose items have been picked already. Raises ValueError when `page_size` is not positive."""
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")
    return Page(tuple(items), page, -(-total // page_size), total)


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


def fused_search(query: str, scope: Scope, *, run: RunIds, nearest: Nearest | None) -> list[tuple[int, float]]:
    """(id, score) of every row of `scope` that `query` finds, best first. `nearest` is None without an
    embedder.
    """
    rankings = [
        (run(words_statement(scope, exact_query(query))), EXACT_WEIGHT),
        (run(words_statement(scope, words_query(query))), 1.0),
        (run(substrings_statement(scope, substrings(query))), 1.0),
    ]
    if nearest is not None:
        allowed = set(run(scope_statement(scope))) if scope.narrowed else None
        near = nearest(query, allowed=allowed, exclude=scope.exclude)
        rankings.append(([item_id for item_id, _ in near], 1.0))
    return fuse(rankings)


def words_query(text: str) -> str:
    """An FTS5 query for rows with any of the words of `text`; "" when it has none. Never a syntax error.

    >>> words_query('the "dog" - AND b7-01')
    '"dog" OR "b7-01"'
    """
    words = _words(text)
    telling = [word for word in words if word.lower() not in STOP_WORDS]
    return " OR ".join(_quoted(word) for word in telling or words)


def exact_query(text: str) -> str:
    """An FTS5 query for rows with the words of `text` in a row, or with one of its identifiers; "" when
    neither.

    >>> exact_query("what is 3f2a-77b1?")
    '"what is 3f2a-77b1" OR "3f2a-77b1"'
    """
    words = _words(text)
    phrases = [" ".join(words)] if len(words) > 1 else []
    phrases += [word for word in words if _is_identifier(word) and word not in phrases]
    return " OR ".join(_quoted(phrase) for phrase in phrases)


def substrings(text: str) -> tuple[str, ...]:
    """What to look for inside words: pairs of characters of unspaced scripts, and symbols FTS5 does not
    index.

    >>> substrings("東京都 dog 🎉")
    ('東京', '京都', '🎉')
    """
    text = text[:_QUERY_CHARS]
    needles = [pair for run in _UNSPACED.findall(text) for pair in _pairs(run)]
    needles += [chunk for chunk in text.split() if chunk and all(ord(c) > 0x2000 and not _in_word(c) for c in chunk)]
    return tuple(dict.fromkeys(needles))[:_NEEDLES]


def scope_statement(scope: Scope) -> Statement:
    """The ids of every row of `scope`."""
    return f"SELECT t.id FROM {scope.store} t WHERE {scope.where}", scope.params


def words_statement(scope: Scope, match: str) -> Statement:
    """The ids of the rows an FTS5 query finds, best first; none for an empty query."""
    if not match:
        return "SELECT 0 WHERE FALSE", ()
    index = f"{scope.store}_fts"
    return (
        f"SELECT t.id FROM {index} JOIN {scope.store} t ON t.id = {index}.rowid "
        f"WHERE {index} MATCH ? AND {scope.where} ORDER BY bm25({index}), t.id",
        (match, *scope.params),
    )


def substrings_statement(scope: Scope, needles: Sequence[str]) -> Statement:
    """The ids of the rows that hold at least half of `needles`, those with most first; none without
    needles.
    """
    if not needles:
        return "SELECT 0 WHERE FALSE", ()
    held = " + ".join("(instr(t.text, ?) > 0)" for _ in needles)
    return (
        f"SELECT id FROM (SELECT t.id, {held} AS held FROM {scope.store} t WHERE {scope.where}) "
        "WHERE held >= ? ORDER BY held DESC, id",
        (*needles, *scope.params, -(-len(needles) // 2)),
    )


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


def _pairs(run: str) -> list[str]:
    return [run] if len(run) <= 2 else [run[i : i + 2] for i in range(len(run) - 1)]


def _quoted(phrase: str) -> str:
    return '"' + phrase.replace('"', '""') + '"'
