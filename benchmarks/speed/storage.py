"""How quick the two storages are at size: searches of recall and archival storage, as an agent calls them.

    python -m benchmarks.speed.storage [--messages N] [--passages N] [--json]

Every figure in milliseconds is the 95th percentile of the wall time of a few hundred searches through
`Recall.search` and `Archival.search`, with the page size and the excluded ids of `memory.functions`, on a database in a
file. Before each search of recall one message is inserted and committed, as in a conversation, so nothing profits from
a database that stands still.

**recall_search_ms: words only.** One agent has the million messages and three others a twentieth of that each, in the
same file and in turns. Seven of ten were said (half by the user), three are calls and their results. The words are made
(see `Talk`): English stop words first, made words behind them, with frequencies after Zipf and Mandelbrot; each session
has a subject whose words recur, and there are names, set phrases, identifiers, dates, Chinese, Japanese and emoji.
Without vectors, because a million of 384 dimensions are 1.5 GB in memory and as much on disk, and hours of embedding
on the machines this is for.

**recall_meaning_search_ms: words and meaning** over 60,000 messages with vectors; the query's embedding is prepared, so
what is measured is the search.

**archival_search_ms** over 100,000 passages with vectors, likewise. `archival_exact_ms` is brute force beside it: one
product of all vectors with the query's and the ten best; `archival_recall_at_10` is how many of those ten are
among the first ten that the index gives. `archival_build_s` is the time to build the index, passages and vectors being
there, and `archival_rss_mb` what a process grows by when it opens the saved one.

**Where 100,000 vectors come from.** Embedding so many texts would take half an hour. 6,000 real paragraphs, those
of the documentation strings in Python's standard library, are embedded with all-MiniLM-L6-v2, and a passage is two of
them: the texts joined, the vectors added and scaled to length one, which is nearly what the model makes of joined
texts. Random unit vectors would not do: they have no neighbours to find. To the held-out queries the nearest of 100,000
mixtures has a cosine of 0.67 and the tenth 0.59; of 5,700 real paragraphs 0.67 and 0.50, of 9,700 utterances of a chat
corpus 0.78 and 0.63. The local intrinsic dimension (maximum likelihood over 50 neighbours) is 25, against 13 to 20
among real texts: the mixtures are the harder ones to tell apart. Queries are other real paragraphs, none of them in
any passage.
"""

from __future__ import annotations

import argparse
import ast
import gc
import itertools
import json
import os
import random
import re
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from localmem.kernel.messages import Kind, Message, Role
from localmem.memory.archival import Archival
from localmem.memory.functions import PAGE_SIZE
from localmem.memory.recall import Recall
from localmem.memory.search import MEANING_LIMIT, STOP_WORDS
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import HashEmbedder, SentenceTransformerEmbedder
from localmem.storage.vector_index import MeaningIndex, Vectors

MEANING_MESSAGES = 60_000
BASE_TEXTS = 6_000
SEARCHES = 300
WARM_UP = 20
_VISIBLE = 40  # messages in a queue, which a search leaves out
_BATCH = 1_000
_START = datetime(2022, 1, 1, tzinfo=UTC)

Ask = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One search, and which kind of query it was; `cpu_milliseconds` are what is left on a machine with other work."""

    kind: str
    milliseconds: float
    cpu_milliseconds: float


def figures(*, messages: int = 1_000_000, passages: int = 100_000, quick: bool = False) -> dict[str, float]:
    """The figures of the file's docstring; `quick` puts hashes in place of the embedding model, for tests."""
    return {
        "recall_search_ms": _p95(recall_timings(messages)),
        **meaning_figures(min(messages, MEANING_MESSAGES), passages, quick=quick),
    }


def meaning_figures(messages: int, passages: int, *, quick: bool = False) -> dict[str, float]:
    """What is searched with vectors: recall of `messages`, archival storage of `passages`."""
    mixture = Mixture.of_hashes(200) if quick else Mixture.of_documentation(BASE_TEXTS)
    return {
        "recall_meaning_search_ms": _p95(recall_meaning_timings(messages, mixture)),
        **archival_figures(passages, mixture),
    }


# -- recall, by words ---------------------------------------------------------------------------------------------


def recall_timings(messages: int, *, searches: int = SEARCHES, seed: int = 0) -> list[Timing]:
    """Searches of a recall storage of `messages` by words, of every kind of query in turn; inserts too, as the kind
    "insert"."""
    talk = Talk(seed)
    with _database() as (database, _):
        recall, visible = _fill(database, talk, messages)
        asks = _asks(recall, talk, visible, days=max(1, messages // talk.messages_a_day))
        kinds = itertools.cycle(asks)
        timings: list[Timing] = []
        for number in range(WARM_UP + searches):
            kind = next(kinds)
            ask = asks[kind]()
            inserted = _timed("insert", lambda n=number: recall.insert(talk.message(messages + n, "user_message")))
            found = _timed(kind, ask)
            timings += [inserted, found] if number >= WARM_UP else []
    return timings


def _fill(database: Database, talk: Talk, messages: int) -> tuple[Recall, list[int]]:
    """The recall storage of the agent with all the messages, and the ids of its newest ones."""
    store = AgentStore(database)
    names = ("busy", "ana", "bea", "cleo")
    recalls = [Recall(database, store.create(name, model="", now=_START).id, None, None) for name in names]
    for start in tqdm(range(0, messages, _BATCH), desc="messages", unit="k"):
        count = min(_BATCH, messages - start)
        with database.transaction():
            for recall, share in zip(recalls, (1.0, 0.05, 0.05, 0.05), strict=True):
                for number in range(start, start + int(count * share)):
                    recall.insert(talk.message(number, talk.kind()))
    last = recalls[0].between(None, None, 0, 1).total
    newest = recalls[0].between(None, None, max(0, last // _VISIBLE - 1), _VISIBLE)
    return recalls[0], [message.id for message in newest.items if message.id is not None]


def _asks(recall: Recall, talk: Talk, visible: Sequence[int], *, days: int) -> dict[str, Callable[[], Ask]]:
    """Kind of query -> makes one, ready to be asked."""

    def search(query: Callable[[], str], page: int = 0) -> Callable[[], Ask]:
        def make() -> Ask:
            text = query()
            return lambda: recall.search(text, page=page, page_size=PAGE_SIZE, exclude=visible)

        return make

    def dated(query: Callable[[], str], length_days: int) -> Callable[[], Ask]:
        def make() -> Ask:
            text, since = query(), (_START + timedelta(days=talk.random.randrange(days))).date()
            until = since + timedelta(days=length_days)
            return lambda: recall.search(text, since=since, until=until, page_size=PAGE_SIZE)

        return make

    return {
        "a rare word": search(lambda: talk.word(20_000, 60_000)),
        "a name": search(talk.name),
        "a common word": search(lambda: talk.word(100, 400)),
        "two common words": search(lambda: f"{talk.word(100, 400)} {talk.word(100, 400)}"),
        "three common words": search(lambda: f"{talk.word(100, 300)} {talk.word(100, 300)} {talk.word(100, 300)}"),
        "a common and a rare word": search(lambda: f"{talk.word(100, 300)} {talk.word(10_000, 40_000)}"),
        "a question": search(talk.question),
        "stop words": search(lambda: " ".join(talk.stop_word() for _ in range(4))),
        "an identifier": search(talk.identifier),
        "a date": search(talk.date),
        "a phrase": search(talk.phrase),
        "Chinese": search(lambda: talk.unspaced("zh", 3)),
        "Japanese": search(lambda: talk.unspaced("ja", 3)),
        "an emoji": search(lambda: "🎉"),
        "no hits": search(lambda: "xylophonquartzing zzyzx"),
        "the fourth page": search(lambda: f"{talk.word(100, 400)} {talk.word(400, 2_000)}", page=3),
        "a question within a week": dated(talk.question, 7),
        "common words within a year": dated(lambda: f"{talk.word(100, 400)} {talk.word(100, 400)}", 365),
        "everything of a day": dated(lambda: "", 0),
        "everything of a year": dated(lambda: "", 365),
    }


class Talk:
    """Made conversation: the same for the same seed.

    Word r of the vocabulary has the frequency 1 / (r + 2.7) ** 1.05 (Zipf-Mandelbrot): the English stop words
    come first, as in English, then 120,000 made words of two or three syllables. Twenty messages have a subject of
    forty words, to which one word in eight belongs.
    """

    messages_a_day = 1_000  # a million are three years of a busy agent

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._words = [*sorted(STOP_WORDS, key=lambda word: (len(word), word)), *self._made_words(120_000)]
        ranks = np.arange(len(self._words))
        frequency = 1 / (ranks + 2.7) ** 1.05
        self._cumulative = np.cumsum(frequency / frequency.sum())
        self._subjects = [[self.word(300, 6_000) for _ in range(40)] for _ in range(500)]
        self._phrases = [f"{self.word(100, 900)} {self.stop_word()} {self.word(100, 900)}" for _ in range(300)]
        han = [chr(code) for code in range(0x4E00, 0x4E00 + 2_500)]
        kana = [chr(code) for code in range(0x3042, 0x3094)]
        self._han = ["".join(self.random.choices(han, k=2)) for _ in range(3_000)]
        self._kana = kana
        self._drawn: Iterator[str] = iter(())

    def kind(self) -> Kind:
        kinds: tuple[Kind, ...] = ("user_message", "reply", "call", "result")
        return self.random.choices(kinds, weights=(35, 35, 15, 15))[0]

    def message(self, number: int, kind: Kind) -> Message:
        """A message of the kind; `number` gives its moment and its subject."""
        median = {"user_message": 10, "reply": 20}.get(kind, 30)
        words = self._sentence(median, self._subjects[number // 20 % len(self._subjects)])
        text = self._seasoned(words)
        role: Role = "user" if kind == "user_message" else "function" if kind == "result" else "assistant"
        at = _START + timedelta(days=number / self.messages_a_day)
        return Message(role, kind, text, text, at, tokens=len(words) + 8)

    def word(self, first: int, last: int) -> str:
        """A word by its rank."""
        return self._words[self.random.randrange(first, last)]

    def stop_word(self) -> str:
        return self._words[self.random.randrange(len(STOP_WORDS))]

    def name(self) -> str:
        """A made word of middling rank, as names are."""
        return self.word(2_000, 5_000).capitalize()

    def question(self) -> str:
        """Eight to twelve words, more than half of them stop words, the others of one subject and one common."""
        subject = self.random.choice(self._subjects)
        telling = [*self.random.sample(subject, self.random.randrange(2, 4)), self.word(100, 400)]
        words = [*telling, *(self.stop_word() for _ in range(self.random.randrange(5, 8)))]
        self.random.shuffle(words)
        return " ".join(words) + "?"

    def phrase(self) -> str:
        return self.random.choice(self._phrases)

    def identifier(self) -> str:
        return f"B{self.random.randrange(10, 99)}-{self.random.randrange(1_000, 9_999)}"

    def date(self) -> str:
        return f"2024-{self.random.randrange(1, 13):02}-{self.random.randrange(1, 29):02}"

    def unspaced(self, language: str, words: int) -> str:
        """Words of two Chinese characters, some far more frequent than others; in Japanese with a particle each."""
        picked = [self._han[min(int(self.random.paretovariate(0.6)) - 1, 2_999)] for _ in range(words)]
        return "".join(word + (self._kana[len(word) * 7 % 80] if language == "ja" else "") for word in picked)

    def _sentence(self, median: int, subject: Sequence[str]) -> list[str]:
        length = min(max(2, int(self.random.lognormvariate(0, 0.6) * median)), 200)
        return [
            subject[min(int(self.random.paretovariate(0.5)) - 1, 39)] if self.random.random() < 0.125 else self._next()
            for _ in range(length)
        ]

    def _next(self) -> str:
        word = next(self._drawn, None)
        if word is None:
            ranks = np.searchsorted(self._cumulative, self._numbers.random(100_000))
            self._drawn = iter([self._words[rank] for rank in ranks])
            return next(self._drawn)
        return word

    def _seasoned(self, words: list[str]) -> str:
        chance, text = self.random.random(), " ".join(words)
        if chance < 0.03:
            return self.unspaced("zh" if chance < 0.015 else "ja", max(3, len(words) // 2))
        extras = (
            (0.04, self.identifier),
            (0.05, self.date),
            (0.15, self.phrase),
            (0.16, lambda: "🎉"),
            (0.20, self.name),
        )
        extra = next((make for limit, make in extras if chance < limit), None)
        return text if extra is None else f"{text} {extra()}"

    def _made_words(self, count: int) -> list[str]:
        starts = [*"bcdfghklmnprstvw", "ch", "sh", "th", "st", "tr", "pl", "gr"]
        vowels, ends = [*"aeiou", "ea", "ou", "ai"], [*"dklmnrst", "", "", ""]
        made: dict[str, None] = {}
        while len(made) < count:
            syllables = self.random.choices((2, 3), weights=(1, 2))[0]
            pairs = (self.random.choice(starts) + self.random.choice(vowels) for _ in range(syllables))
            made["".join(pairs) + self.random.choice(ends)] = None
        return list(made)


# -- with vectors -------------------------------------------------------------------------------------------------


class Prepared:
    """An embedder that knows its texts already: so the time to embed is not measured."""

    name = "prepared"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._vectors: dict[str, Vectors] = {}

    def load_in_background(self) -> None:
        """There is nothing to load."""

    def learn(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._vectors.update(zip(texts, vectors, strict=True))

    def embed(self, texts: list[str]) -> Vectors:
        """Unit rows, shape (n, dimension). Raises KeyError for a text it was not told of."""
        return np.stack([self._vectors[text] for text in texts])


@dataclass(frozen=True, slots=True)
class Mixture:
    """Passages of two texts each, of which the vectors are known; and queries from texts in no passage.

    `vectors` are unit rows, float32, shape (texts, dimension); likewise `query_vectors`.
    """

    texts: Sequence[str]
    vectors: Vectors
    queries: Sequence[str]
    query_vectors: Vectors

    @classmethod
    def of_documentation(cls, count: int) -> Mixture:
        """Of `count` real paragraphs, embedded with all-MiniLM-L6-v2: some minutes on one core."""
        paragraphs = documentation_paragraphs()[: count + SEARCHES]
        texts, queries = paragraphs[SEARCHES:], [text[:80] for text in paragraphs[:SEARCHES]]
        embedder = SentenceTransformerEmbedder()
        batches = tqdm(range(0, len(texts), _BATCH), desc="embedding", unit="k")  # large: texts of a length go together
        vectors = np.concatenate([embedder.embed(texts[start : start + _BATCH]) for start in batches])
        return cls(texts, vectors, queries, embedder.embed(queries))

    @classmethod
    def of_hashes(cls, count: int) -> Mixture:
        """Of `count` made texts and hashed vectors: for a test that all of this runs."""
        talk, embedder = Talk(1), HashEmbedder()
        texts = [talk.message(number, "reply").text for number in range(count + 20)]
        return cls(texts[20:], embedder.embed(texts[20:]), texts[:20], embedder.embed(texts[:20]))

    def passages(self, count: int, embedder: Prepared) -> Iterator[str]:
        """`count` different texts, of which `embedder` is told the vectors."""
        numbers = np.random.default_rng(2)
        seen: set[tuple[int, int]] = set()
        while len(seen) < count:
            first, second = (int(i) for i in numbers.integers(0, len(self.texts), 2))
            if first == second or (first, second) in seen:
                continue
            seen.add((first, second))
            text, mixed = f"{self.texts[first]} {self.texts[second]}", self.vectors[first] + self.vectors[second]
            embedder.learn([text], (mixed / np.linalg.norm(mixed))[None])
            yield text


def documentation_paragraphs() -> list[str]:
    """The paragraphs of 60 to 400 characters in the standard library's documentation strings, shuffled."""
    found: dict[str, None] = {}
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in tqdm(sorted(folder.rglob("*.py")), desc="reading", unit="file"):
        if not {"site-packages", "dist-packages", "test", "tests"} & set(path.parts):
            found.update(dict.fromkeys(_paragraphs(path)))
    shuffled = sorted(found)
    random.Random(0).shuffle(shuffled)
    return shuffled


def _paragraphs(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # the library has samples of bad syntax
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                text = " ".join(paragraph.split())
                if 60 <= len(text) <= 400 and ">>>" not in text:
                    yield text


def recall_meaning_timings(messages: int, mixture: Mixture) -> list[Timing]:
    """Searches of a recall storage of `messages` by words and meaning."""
    embedder = _prepared(mixture)
    with _database() as (database, folder):
        recall = Recall(database, AgentStore(database).create("ana", model="", now=_START).id, embedder, folder)
        texts = mixture.passages(messages, embedder)
        for start in tqdm(range(0, messages, _BATCH), desc="messages with vectors", unit="k"):
            with database.transaction():
                for number, text in enumerate(itertools.islice(texts, _BATCH), start):
                    at = _START + timedelta(minutes=number)
                    recall.insert(Message("user", "user_message", text, text, at))
            recall.search(mixture.queries[0])  # embeds them and adds them to the index
        visible = [message.id for message in recall.search("", page_size=_VISIBLE).items]
        return _timings(mixture, lambda query: recall.search(query, page_size=PAGE_SIZE, exclude=visible))


def archival_figures(passages: int, mixture: Mixture) -> dict[str, float]:
    """The figures of an archival storage of `passages`."""
    embedder = _prepared(mixture)
    with _database() as (database, folder):
        agent_id = AgentStore(database).create("ana", model="", now=_START).id
        archival = Archival(database, agent_id, embedder, folder)
        texts, build_s = mixture.passages(passages, embedder), 0.0
        for _ in tqdm(range(0, passages, _BATCH), desc="passages", unit="k"):
            archival.insert_many(itertools.islice(texts, _BATCH), by=Attribution("user", _START))
            build_s += _seconds(lambda: archival.near_duplicate(mixture.queries[0]))  # adds them to the index
        build_s += _seconds(archival.save_index)
        timings = _timings(mixture, lambda query: archival.search(query, page_size=PAGE_SIZE))
        before_mb = _resident_mb()
        index = MeaningIndex(database, "passage", agent_id, embedder, folder)
        index.nearest(mixture.queries[0])
        grown_mb = _resident_mb() - before_mb
        exact_ms, found = _compare(database, index, mixture)
    return {
        "archival_search_ms": _p95(timings),
        "archival_exact_ms": exact_ms,
        "archival_recall_at_10": found,
        "archival_build_s": build_s,
        "archival_rss_mb": grown_mb,
    }


def _compare(database: Database, index: MeaningIndex, mixture: Mixture) -> tuple[float, float]:
    """The time of brute force, and the share of its ten nearest that the index has among its first ten."""
    rows = database.rows("SELECT item_id, vector FROM embedding ORDER BY item_id")
    ids = np.array([row["item_id"] for row in rows])
    matrix = np.frombuffer(b"".join(row["vector"] for row in rows), "<f4").reshape(len(rows), -1)
    timings: list[Timing] = []
    shares: list[float] = []
    for query, vector in zip(mixture.queries, mixture.query_vectors, strict=True):
        best: list[int] = []
        timings.append(_timed("exact", lambda v=vector, b=best: b.extend(ids[_ten_best(matrix, v)].tolist())))
        near = index.nearest(query, limit=MEANING_LIMIT, floor=-1.0)[:10]
        shares.append(len({item_id for item_id, _ in near} & set(best)) / len(best))
    return _p95(timings), float(np.mean(shares))


def _ten_best(matrix: Vectors, vector: Vectors) -> NDArray[np.intp]:
    scores = matrix @ vector
    return np.argpartition(-scores, min(10, len(scores) - 1))[:10]


# -- measuring ----------------------------------------------------------------------------------------------------


def _prepared(mixture: Mixture) -> Prepared:
    embedder = Prepared(mixture.vectors.shape[1])
    embedder.learn(mixture.queries, mixture.query_vectors)
    return embedder


@contextmanager
def _database() -> Generator[tuple[Database, Path]]:
    """A database in a file of a temporary folder, and a folder for indexes beside it."""
    with (
        tempfile.TemporaryDirectory(prefix="localmem-speed-") as folder,
        Database(Path(folder) / "localmem.db") as database,
    ):
        yield database, Path(folder) / "index"


def _timings(mixture: Mixture, search: Callable[[str], object]) -> list[Timing]:
    for query in mixture.queries[:WARM_UP]:
        search(query)
    return [_timed("meaning", lambda q=query: search(q)) for query in mixture.queries]


def _timed(kind: str, action: Callable[[], object]) -> Timing:
    cpu_s = time.thread_time()
    wall_s = _seconds(action)
    return Timing(kind, wall_s * 1_000, (time.thread_time() - cpu_s) * 1_000)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _p95(timings: Sequence[Timing]) -> float:
    return _percentile([timing.milliseconds for timing in timings if timing.kind != "insert"], 95)


def _percentile(milliseconds: Sequence[float], percent: float) -> float:
    return float(np.percentile(milliseconds, percent))


def _resident_mb() -> float:
    """What this process has in memory now; nan where there is no /proc."""
    gc.collect()
    status = Path("/proc/self/statm")
    if not status.exists():
        return float("nan")
    return int(status.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _print_kinds(timings: Sequence[Timing]) -> None:
    searches = [timing for timing in timings if timing.kind != "insert"]
    kinds = {kind: [t for t in timings if t.kind == kind] for kind in dict.fromkeys(t.kind for t in timings)}
    print(f"{'recall, by words':32}{'median ms':>12}{'95 % ms':>12}{'most ms':>12}{'95 % CPU ms':>12}")
    for kind, of_kind in {**kinds, "every search": searches}.items():
        walls = [timing.milliseconds for timing in of_kind]
        cpu = _percentile([timing.cpu_milliseconds for timing in of_kind], 95)
        columns = (_percentile(walls, 50), _percentile(walls, 95), max(walls), cpu)
        print(f"{kind:32}" + "".join(f"{column:12.2f}" for column in columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="How quick the storages are at size.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    arguments = parser.parse_args()
    timings = recall_timings(arguments.messages)
    if not arguments.json:
        _print_kinds(timings)
    by_meaning = meaning_figures(min(arguments.messages, MEANING_MESSAGES), arguments.passages)
    measured = {"recall_search_ms": _p95(timings), **by_meaning}
    if arguments.json:
        print(json.dumps(measured))
    else:
        print("\n".join(f"{name:32}{value:12.3f}" for name, value in measured.items()))


if __name__ == "__main__":
    main()
