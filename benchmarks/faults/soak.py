"""Soak: a real model, a 4,096-token window, thousands of turns, hostile texts among them: does anything break or grow?

python -m benchmarks.faults.soak [-m MODEL] [--turns N] [--json]

An eighth of what comes is made to break things: messages, documents, timers. Every so often the agent is closed and
opened again. Counted are exceptions that reach the caller, prompts over the window's limit, and by how much resident
memory grows after turn 200.
"""

from __future__ import annotations

import argparse
import json
import random
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tqdm import tqdm

import localmem
from benchmarks.common import HERE, RESULTS, save, show, temporary_settings
from benchmarks.faults.hostile import TEXTS
from localmem.backend.base import Backend, Completion
from localmem.bench.arms import Delegate
from localmem.calls.prompt import Prompt
from localmem.config import Settings
from localmem.kernel.agent import Agent
from localmem.kernel.events import SystemMessage, UserMessage
from localmem.kernel.messages import Step
from localmem.runtime import load_backend

MODEL = "smollm2-135m-instruct"
_WINDOW = 4_096
_HOSTILE_SHARE = 0.125
_LONGEST_SAID = 160  # characters: what is long is hostile here
_SETTLED_TURN = 200  # by then every cache has been used once
_REOPENED_EVERY = 250
_LOOKED_AT_EVERY = 10
# A small model calls and says one thing over and over: thousands of turns are to be had, not of steps.
_SHORT = {"max_tokens_per_event": 96, "max_steps": 2, "summary_tokens": 64}
_START = datetime(2026, 1, 1, 8, tzinfo=UTC)


@dataclass(slots=True)
class Soak:
    """What came of it. Memory is in bytes, by turn."""

    turns: int = 0
    hostile: int = 0
    steps: int = 0
    flushes: int = 0
    longest_prompt: int = 0
    overflows: int = 0
    exceptions: list[str] = field(default_factory=list[str])
    resident: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def growth(self) -> float | None:
        """How much larger the process was at its largest after it had settled, as a share; None of a short run."""
        settled = [size for turn, size in self.resident.items() if turn <= _SETTLED_TURN]
        later = [size for turn, size in self.resident.items() if turn > _SETTLED_TURN]
        return max(later) / settled[-1] - 1 if later else None


class WatchedBackend(Delegate):
    """A backend that counts prompts over the limit."""

    def __init__(self, backend: Backend, limit: int, found: Soak) -> None:
        super().__init__(backend)
        self._limit = limit
        self._found = found

    def complete(self, prompt: Prompt, **more: Any) -> Completion:
        if more.get("sequence", "main") == "main":
            self._found.longest_prompt = max(self._found.longest_prompt, prompt.tokens)
            self._found.overflows += prompt.tokens > self._limit
        return self._backend.complete(prompt, **more)


class _Clock:
    """Half an hour a turn: days pass, timers come due."""

    def __init__(self) -> None:
        self.now = _START

    def __call__(self) -> datetime:
        return self.now


def soak(backend: Backend, settings: Settings, turns: int, *, seed: int = 0, quiet: bool = True) -> Soak:
    """Hold a conversation of that many turns."""
    found, chance, clock = Soak(), random.Random(seed), _Clock()
    said = _said()
    watched = WatchedBackend(backend, settings.window - settings.reserve, found)
    with ExitStack() as held, tqdm(total=turns, desc="soak", unit="turn", disable=quiet) as bar:
        agent = held.enter_context(_open(watched, settings, clock))
        agent.schedule("water", "every 6h", TEXTS[9])
        for turn in range(1, turns + 1):
            clock.now += timedelta(minutes=30)
            is_hostile = chance.random() < _HOSTILE_SHARE
            text = chance.choice(TEXTS) if is_hostile else chance.choice(said)
            try:
                found.steps += sum(1 for _ in _turn(agent, text, chance if is_hostile else None))
                if turn % _REOPENED_EVERY == 0:
                    agent.close()
                    agent = held.enter_context(_open(watched, settings, clock))
            except Exception:  # noqa: BLE001  # whatever it is, it is what is looked for
                found.exceptions.append(f"turn {turn}, {text[:60]!r}: {traceback.format_exc()}")
            found.turns, found.hostile = turn, found.hostile + is_hostile
            if turn % _LOOKED_AT_EVERY == 0:
                found.resident[turn] = resident_bytes()
            bar.update()
        found.flushes = len(agent.summaries())
    return found


def _open(backend: Backend, settings: Settings, clock: _Clock) -> Agent:
    return localmem.open("soak", settings=settings, backend=backend, now=clock)


def _turn(agent: Agent, text: str, chance: random.Random | None) -> Iterator[Step]:
    """What comes in, and the steps it leads to; with `chance` in one of the ways in there are."""
    way = "message" if chance is None else chance.choice(("message", "message", "document", "system"))
    match way:
        case "document":
            agent.archival.insert_many([text], source=text[:40])
            yield from agent.send(f"Look up in the document: {text[:200]}")
        case "system":
            yield from agent.handle(SystemMessage(text))
        case _:
            yield from agent.handle(UserMessage(text))
    yield from agent.run_timers()


def _said() -> list[str]:
    """What people say, in four languages: the messages of the development cases."""
    lines = (HERE / "cases" / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    said = {str(json.loads(line).get("user") or "") for line in lines}
    return sorted(text for text in said if 0 < len(text) <= _LONGEST_SAID)


def resident_bytes() -> int:
    """Resident memory of this process, weights and all."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.faults.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-m", "--model", default=MODEL)
    parser.add_argument("--turns", type=int, default=2_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="0 lets a probe choose")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the result file goes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    arguments = parser.parse_args()
    with temporary_settings(
        arguments.model, window=_WINDOW, threads=arguments.threads, idle=False, **_SHORT
    ) as settings:
        backend = load_backend(settings)
        try:
            found = soak(backend, settings, arguments.turns, seed=arguments.seed, quiet=arguments.json)
        finally:
            backend.close()
    figures: dict[str, object] = {
        "soak_turns": found.turns,
        "soak_hostile": found.hostile,
        "soak_steps": found.steps,
        "soak_flushes": found.flushes,
        "soak_longest_prompt": found.longest_prompt,
        "soak_exceptions": len(found.exceptions),
        "soak_overflows": found.overflows,
        "soak_rss_growth": None if found.growth is None else round(found.growth, 4),
    }
    resident = {turn: round(size / 1e6, 1) for turn, size in found.resident.items()}
    more = {"seed": arguments.seed, "exceptions": found.exceptions, "resident_mb": resident}
    save("faults", arguments.model, figures, folder=arguments.out, **more)
    show(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
