"""Growth: what turn 10,000 costs over turn 10, in tokens the model reads and in seconds beside the model.

python -m benchmarks.speed.growth [--turns N] [--json]

An old agent is brought to `turns` turns. Its last turns and the first ones of a young agent are then run in turns, one
of each, so that whatever else the machine does meets both alike. Both are agents as `localmem.open` makes them: real
file databases, real commits, hash embeddings; only the model is a script. Every group of ten turns holds the same
mix: talk, facts saved, changed and deleted, passages stored, all three searches. The answers of memory-pressure
warnings are part of it.

"Turn 10" and "turn 10,000" are windows of turns, cut to whole flush periods: a flush costs as much as dozens of
turns, and a window with one more of them would look slower. A turn's tokens are the mean of its window (they are
exact); its seconds are the median of the flush periods' means, so that a single hiccup of the machine is no growth;
the slowest turn is given beside them. Seconds do not count the backend's, but do count writing the step's grammar,
as every real backend has to. On a busy machine most of them are waits for the disk, which grow with nothing and hide
what does: so the same figures are given in seconds of the processor too.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common import part_parser, show
from localmem.backend.base import Completion
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.prompt import Prompt
from localmem.config import load_settings
from localmem.kernel.agent import Agent
from localmem.kernel.messages import FunctionCall
from localmem.memory.functions import NOTHING
from localmem.runtime import open as open_agent
from localmem.storage.embedder import HashEmbedder

FIRST = 10  # the young agent's window begins here: before it, Python and SQLite are still warming up
WINDOW = 600  # turns of each window: nearly fifty flush periods
MIX = 10  # turns after which the mix begins again
WINDOW_BYTES = 16_384  # the scripted backend counts bytes: about the text of 4,096 tokens
RESERVE_BYTES = 1_024

_SYLLABLES = (
    "an",
    "bel",
    "cor",
    "da",
    "el",
    "fin",
    "gra",
    "hol",
    "is",
    "jo",
    "ka",
    "lin",
    "mo",
    "nor",
    "ol",
    "pi",
    "ra",
    "sa",
    "tor",
    "u",
    "ven",
    "wil",
    "xa",
    "zo",
)
_VERBS = ("saw", "bought", "mended", "painted", "lost", "found", "sold", "built", "cleaned", "borrowed")
_ADJECTIVES = ("old", "red", "quiet", "broken", "wooden", "cheap", "tall", "noisy", "new", "strange")
_NOUNS = (
    "boat",
    "house",
    "bike",
    "piano",
    "garden",
    "map",
    "kettle",
    "letter",
    "bridge",
    "lamp",
    "coat",
    "radio",
    "ladder",
    "window",
    "basket",
    "clock",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn cost, seconds without the backend's; `flushed` says that the queue was flushed in it."""

    evaluated_tokens: int
    seconds: float
    cpu_seconds: float
    flushed: bool


class TimedBackend(ScriptedBackend):
    """A scripted backend that says how long it took, and keeps no prompts: ten thousand turns of them are gigabytes."""

    def __init__(self) -> None:
        super().__init__(window=WINDOW_BYTES, summary="They talked about people, places and plans. " * 6)
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.evaluated_tokens = 0

    def complete(self, prompt: Prompt, **options: Any) -> Completion:  # Any: whatever the protocol has
        grammar = options["grammar"]
        if grammar is not None:
            self.write_grammar(grammar)
            if options.get("sequence", "main") == "main":  # a summary is none of the script's calls
                self._keep_what_may_be_called([choice.name for choice in grammar.choices])
        started, cpu_started = time.perf_counter(), time.process_time()
        completion = super().complete(prompt, **options)
        self.prompts.clear()
        self.grammars.clear()
        self.evaluated_tokens += completion.usage.evaluated_tokens
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started
        return completion

    def _keep_what_may_be_called(self, names: list[str]) -> None:
        """A memory-pressure step is answered, and a search of what was never evicted left out, as a model would."""
        if NOTHING in names:
            self.script.insert(0, FunctionCall(NOTHING))
        while self.script and isinstance(self.script[0], FunctionCall) and self.script[0].name not in names:
            del self.script[0]


_STANDING = "Keeps bees, and sails on Sundays."  # else an edit empties the block, which takes two calls


class Conversation:
    """One agent and its user, turn after turn. `seed` makes the talk, the same again with the same seed."""

    def __init__(self, home: Path, *, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = datetime(2026, 1, 1, 8, tzinfo=UTC)
        self._names: list[str] = []
        self._fact = ""
        self._number = 0
        self.backend = TimedBackend()
        flags = {"home": home, "window": WINDOW_BYTES, "reserve": RESERVE_BYTES, "embedder": "hash"}
        self.settings = load_settings(flags=flags)
        self.agent: Agent = open_agent(
            "growth", settings=self.settings, backend=self.backend, embedder=HashEmbedder(), now=lambda: self._now
        )
        self.agent.set_block("human", _STANDING)

    def turn(self) -> Turn:
        """One turn of the conversation."""
        self._now += timedelta(seconds=90)
        said, calls = self._next()
        reply = FunctionCall("send_message", {"message": f"Good to know. {self._sentence()}"})
        self.backend.script[:] = [*calls, reply]
        backend = self.backend
        backend.seconds, backend.cpu_seconds, backend.evaluated_tokens = 0.0, 0.0, 0
        started, cpu_started = time.perf_counter(), time.process_time()
        failed = [step for step in self.agent.send(said) if not step.result.ok]
        seconds = time.perf_counter() - started - backend.seconds
        cpu_seconds = time.process_time() - cpu_started - backend.cpu_seconds
        if failed:
            raise RuntimeError(f"a call of turn {self._number} failed: {failed[0].result.text}")
        flushed = bool(backend.side_prompts)
        backend.side_prompts.clear()
        return Turn(backend.evaluated_tokens, seconds, cpu_seconds, flushed)

    def database_bytes(self) -> int:
        """The database with its write-ahead log."""
        path = self.settings.database
        return sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())

    def _next(self) -> tuple[str, list[FunctionCall]]:
        """What the user says, and the calls the model makes before it replies."""
        place = self._number % MIX
        self._number += 1
        told = self._sentence()
        if place == 1:
            self._fact = f"Met {self._name()}."
            return told, [_call("core_memory_append", label="human", content=self._fact)]
        if place == 3:
            return f"What did I say of {self._known()}?", [_search("conversation_search", query=self._query())]
        if place == 4:
            day = f"{self._now - timedelta(days=1):%Y-%m-%d}"
            return "What was yesterday?", [_search("conversation_search_date", start_date=day, end_date=day)]
        if place == 5:
            old, self._fact = self._fact, f"Met {self._name()} twice."
            return told, [_call("core_memory_replace", label="human", old_content=old, new_content=self._fact)]
        if place == 6:
            return told, [_call("archival_memory_insert", content=f"{told} {self._sentence()}")]
        if place == 8:
            return f"Who is {self._known()}?", [_search("archival_memory_search", query=self._query())]
        if place == 9:
            return told, [_call("core_memory_replace", label="human", old_content=self._fact, new_content="")]
        return told, []

    def _sentence(self) -> str:
        pick = self._random.choice
        return (
            f"{self._name()} {pick(_VERBS)} the {pick(_ADJECTIVES)} {pick(_NOUNS)} near {self._name()}, "
            f"and {pick(_VERBS)} a {pick(_NOUNS)} for {self._random.randint(2, 99)} {pick(_NOUNS)}s."
        )

    def _name(self) -> str:
        """A name, half of the time one that was said before: real talk comes back to its subjects."""
        if self._names and self._random.random() < 0.5:
            return self._known()
        self._names.append("".join(self._random.choice(_SYLLABLES) for _ in range(3)).capitalize())
        return self._names[-1]

    def _known(self) -> str:
        return self._random.choice(self._names)

    def _query(self) -> str:
        return f"{self._known()} {self._random.choice(_NOUNS)}"


def _call(name: str, **arguments: str) -> FunctionCall:
    return FunctionCall(name, arguments)


def _search(name: str, **arguments: str) -> FunctionCall:
    return FunctionCall(name, {**arguments, "page": 1})


def figures(*, turns: int = 10_000) -> dict[str, float]:
    """Ratios of late to early turns (`growth` is the worse one), and what they are made of.

    Milliseconds are without the backend's; bytes are of the database, a turn. A run of few turns says little: give
    it some hundreds.
    """
    with ExitStack() as held:
        young, old = (_conversation(held, seed=seed) for seed in (1, 2))
        early, late = _side_by_side(young, old, turns=turns)
        bytes_per_turn = old.database_bytes() / turns
    tokens, seconds = _tokens(late) / _tokens(early), _seconds(late) / _seconds(early)
    return {
        "growth": round(max(tokens, seconds), 3),
        "growth_tokens": round(tokens, 3),
        "growth_seconds": round(seconds, 3),
        "growth_cpu": round(_cpu_seconds(late) / _cpu_seconds(early), 3),
        "early_ms_per_turn": round(_seconds(early) * 1e3, 2),
        "late_ms_per_turn": round(_seconds(late) * 1e3, 2),
        "early_cpu_ms_per_turn": round(_cpu_seconds(early) * 1e3, 2),
        "late_cpu_ms_per_turn": round(_cpu_seconds(late) * 1e3, 2),
        "early_worst_ms": round(max(turn.seconds for period in early for turn in period) * 1e3, 1),
        "late_worst_ms": round(max(turn.seconds for period in late for turn in period) * 1e3, 1),
        "early_tokens_per_turn": round(_tokens(early), 1),
        "late_tokens_per_turn": round(_tokens(late), 1),
        "flushes_per_turn": round(len(late) / sum(map(len, late)), 4),
        "database_bytes_per_turn": round(bytes_per_turn),
        "growth_turns": turns,
    }


Periods = list[list[Turn]]
"""Turns of a window, in flush periods: the last turn of each is the one with the flush."""


def _conversation(held: ExitStack, *, seed: int) -> Conversation:
    home = Path(held.enter_context(tempfile.TemporaryDirectory()))
    conversation = Conversation(home, seed=seed)
    held.callback(conversation.agent.close)
    return conversation


def _side_by_side(young: Conversation, old: Conversation, *, turns: int) -> tuple[Periods, Periods]:
    """The windows of a young agent and of one at its last turns, run one turn of each at a time."""
    window = min(WINDOW, turns // 2)
    with tqdm(total=turns + FIRST + window, desc="growth", unit="turn", file=sys.stderr) as progress:

        def run(conversation: Conversation) -> Turn:
            progress.update()
            return conversation.turn()

        for _ in range(turns - window):
            run(old)
        for _ in range(FIRST):
            run(young)
        both = [(run(young), run(old)) for _ in range(window)]
    return _periods([turn for turn, _ in both]), _periods([turn for _, turn in both])


def _periods(turns: list[Turn]) -> Periods:
    """Whole flush periods, from the first flush on; a window too short to hold one is one period."""
    ends = [number + 1 for number, turn in enumerate(turns) if turn.flushed]
    return [turns[start:stop] for start, stop in pairwise(ends)] or [turns]


def _tokens(periods: Periods) -> float:
    """Evaluated tokens a turn."""
    return statistics.fmean(turn.evaluated_tokens for period in periods for turn in period)


def _seconds(periods: Periods) -> float:
    """Seconds a turn, without the backend's."""
    return statistics.median(statistics.fmean(turn.seconds for turn in period) for period in periods)


def _cpu_seconds(periods: Periods) -> float:
    """The same of the processor's."""
    return statistics.median(statistics.fmean(turn.cpu_seconds for turn in period) for period in periods)


def main() -> None:
    parser = part_parser(__doc__, model=False)
    parser.add_argument("--turns", type=int, default=10_000)
    arguments = parser.parse_args()
    found = figures(turns=arguments.turns)
    show(found, as_json=arguments.json)


if __name__ == "__main__":
    main()
