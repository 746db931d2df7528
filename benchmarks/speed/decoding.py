"""Writing a function call: our constrained loop, the same loop without a constraint, and llama-cpp-python's grammar.

python -m benchmarks.speed.decoding [--model NAME] [--json]

The calls are what the model itself writes, at temperature 0, on a dozen messages an agent with some memory gets; every
arm writes with the prompt already read, so that only writing is timed, and speed is characters of call text a second.

- constrained: `LlamaBackend.complete` with the grammar of the step.
- free: the same loop without a constraint. To write the same calls its choice is overruled with the token the
  constrained arm wrote; it decodes and samples each of them, as a free loop must.
- llama: `Llama.create_completion(grammar=...)` of llama-cpp-python with the same grammar as GBNF (`calls/gbnf.py`), its
  own sampler, the same number of threads. It may write other calls; its characters are its own. It runs in a process of
  its own, for a grammar it dislikes ends the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from tqdm import tqdm

from benchmarks.common import part_parser, show, temporary_settings
from localmem.backend.base import Sampling
from localmem.backend.constraint import Logits
from localmem.backend.decode_loop import DecodeLoop
from localmem.backend.llama import LlamaBackend, SequenceProcessor
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.kernel.agent import Agent
from localmem.kernel.events import UserMessage
from localmem.runtime import load_backend
from localmem.runtime import open as open_agent

REPEATS = 3
MAX_TOKENS = 160
MESSAGES = (
    "My sister Ines was born on the 4th of May.",
    "Actually my dog is called Bo, not Rex.",
    "What did I tell you about my car?",
    "Keep this recipe: two eggs, a cup of flour and a little milk, fried thin.",
    "What is the code of the key box in the cabin guide?",
    "I moved to Porto last week.",
    "Thank you, that was kind.",
    "Which wood may be burned in the stove of the cabin?",
    "I'm allergic to walnuts.",
    "What did we talk about on the 2nd of November?",
    "How do I keep basil alive on a window sill?",
    "My boss is Mrs. Ramos and she works on Mondays only.",
)


@dataclass
class Case:
    """One call to write: after which prompt, and in which grammar."""

    prompt: Prompt
    grammar: CallGrammar
    ids: tuple[int, ...] = ()
    text: str = ""


@dataclass
class Timed:
    """A processor that counts the seconds inside `feed`; with `script` it makes the loop write just that."""

    inner: SequenceProcessor
    script: Sequence[int] = ()
    feed_seconds: float = 0.0
    _written: int = field(default=0, init=False)

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.inner.end_tokens

    @property
    def closers(self) -> tuple[int, ...]:
        return self.inner.closers

    def feed(self, ids: Sequence[int]) -> None:
        started = time.perf_counter()
        self.inner.feed(ids)
        self.feed_seconds += time.perf_counter() - started

    def logits(self) -> Logits:
        logits = self.inner.logits()
        if self.script:
            logits[self.script[self._written]] = np.inf
            self._written += 1
        return logits

    def text_of(self, ids: Sequence[int]) -> bytes:
        return self.inner.text_of(ids)


def main() -> None:
    arguments = part_parser(__doc__).parse_args()
    show(figures(arguments.model), as_json=arguments.json)


def figures(model: str, *, messages: Iterable[str] = MESSAGES, repeats: int = REPEATS) -> dict[str, float]:
    """Characters a second of each arm, their ratios, and what the loop costs beside decoding."""
    with temporary_settings(model, snapshots_mb=0) as settings:
        backend = load_backend(settings)
        with open_agent("speed", settings=settings, backend=backend) as agent:
            cases = _cases(agent, list(messages))
        constrained, free, loop_ms, forced = _our_arms(backend, cases, repeats)
        threads = backend.threads.writing
        path, window = backend.path, backend.window
        backend.close()
        llama = _llama_arm(path, window, threads, cases, repeats, settings.home)
    return {
        "constrained_chars_s": round(constrained, 1),
        "free_chars_s": round(free, 1),
        "constrained_over_free": round(constrained / free, 2),
        **({} if llama is None else _against_llama(constrained, llama)),
        "mask_ms_per_token": round(loop_ms, 3),
        "forced_share": round(forced, 3),
        "threads": threads,
    }


def _against_llama(constrained: float, llama: float) -> dict[str, float]:
    return {"llama_grammar_chars_s": round(llama, 1), "constrained_over_llama_gbnf": round(constrained / llama, 2)}


def _cases(agent: Agent, messages: list[str]) -> list[Case]:
    """Each message behind the same memory and a short conversation, and the grammar of its first step."""
    agent.set_block(
        "human", "The user's name is Marta.\nHas a dog called Rex.\nLives in Coimbra.\nDrives a green Fiat."
    )
    agent.upload("cabin_guide.md", ["The code of the key box is 7319.", "Burn only oak in the stove."])
    cases: list[Case] = []
    for message in messages:
        agent.note(UserMessage(message))
        cases.append(Case(agent.main_context.prompt(), agent.grammar()))
        last = len(agent.main_context.queue)
        agent.queue_manager.main_context.evict(last - 1, last)
    return cases


def _our_arms(backend: LlamaBackend, cases: list[Case], repeats: int) -> tuple[float, float, float, float]:
    """Characters a second of the two arms, side by side; ms a token beside decoding; share of forced tokens."""
    speeds: dict[str, list[float]] = {"constrained": [], "free": []}
    beside, tokens, sampled = 0.0, 0, 0
    for case in tqdm(cases, desc="reading", unit="call", file=sys.stderr):
        case.text = backend.complete(case.prompt, grammar=case.grammar, sampling=Sampling(), max_tokens=MAX_TOKENS).text
    for _ in tqdm(range(repeats), desc="writing", unit="round", file=sys.stderr):
        characters, constrained, free = 0, 0.0, 0.0
        for case in cases:
            _read(backend, case)
            took, processor, loop = _write(backend, case, constrained=True)
            case.ids, case.text = tuple(loop.ids), loop.text
            constrained += took
            beside += took - processor.feed_seconds
            tokens, sampled = tokens + len(case.ids), sampled + processor.sampled
            free += _write(backend, case, constrained=False)[0]
            characters += len(case.text)
        speeds["constrained"].append(characters / constrained)
        speeds["free"].append(characters / free)
    return median(speeds["constrained"]), median(speeds["free"]), beside / tokens * 1000, 1 - sampled / tokens


def _read(backend: LlamaBackend, case: Case) -> None:
    """Have the case's prompt in the cache, whichever was there before."""
    backend.complete(case.prompt, grammar=None, sampling=Sampling(), max_tokens=1)


class _Counting(Timed):
    """Counts the tokens that were sampled."""

    sampled: int = 0

    def logits(self) -> Logits:
        self.sampled += 1
        return super().logits()


def _write(backend: LlamaBackend, case: Case, *, constrained: bool) -> tuple[float, _Counting, DecodeLoop]:
    """Seconds to write a call behind the case's prompt, which has been read but for its last token. The free arm writes
    the call the constrained one wrote before it."""
    backend.cache.begin(case.prompt.ids, "main")
    processor = _Counting(SequenceProcessor(backend, "main"), script=() if constrained else case.ids)
    started = time.perf_counter()
    constraint = backend.constraint(case.grammar) if constrained else None
    loop = DecodeLoop(processor, constraint, Sampling(), MAX_TOKENS if constrained else len(case.ids))
    processor.feed([case.prompt.ids[-1], *loop.head])
    loop.run()
    took = time.perf_counter() - started
    assert constrained or tuple(loop.ids) == case.ids, "the free arm writes what it is told to"
    return took, processor, loop


def _llama_arm(path: Path, window: int, threads: int, cases: list[Case], repeats: int, folder: Path) -> float | None:
    """Characters a second of llama-cpp-python with a GBNF grammar; None when it did not survive."""
    task = folder / "llama.json"
    task.write_text(
        json.dumps(
            {
                "path": str(path),
                "window": window,
                "threads": threads,
                "repeats": repeats,
                "max_tokens": MAX_TOKENS,
                "cases": [
                    {
                        "ids": case.prompt.ids,
                        "frame": [case.grammar.frame.before, case.grammar.frame.between, case.grammar.frame.after],
                        "functions": {choice.name: choice.parameters for choice in case.grammar.choices},
                    }
                    for case in cases
                ],
            }
        ),
        encoding="utf-8",
    )
    run = [sys.executable, "-m", "benchmarks.speed.llama_grammar", str(task)]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"llama-cpp-python's grammar ended with {done.returncode}", file=sys.stderr)
        return None
    return float(json.loads(done.stdout)["chars_s"])


if __name__ == "__main__":
    main()
