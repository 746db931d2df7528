"""Reopening an agent: its window from a snapshot on disk, against reading it again.

python -m benchmarks.speed.restore [--model NAME] [--json]

Time to first token, from the moment the model is loaded: a window of about 3,000 tokens is read in one process-fresh
backend and kept; another backend finds it on disk. Each is opened anew for every round, so nothing is in its cache.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from statistics import median

from tqdm import tqdm

from benchmarks.common import part_parser, show, temporary_settings
from localmem.backend.base import Sampling
from localmem.backend.llama import LlamaBackend
from localmem.calls.prompt import Prompt
from localmem.config import Settings
from localmem.kernel.events import UserMessage
from localmem.runtime import load_backend
from localmem.runtime import open as open_agent

TOKENS = 3_000
ROUNDS = 3


def main() -> None:
    arguments = part_parser(__doc__).parse_args()
    show(figures(arguments.model), as_json=arguments.json)


def figures(model: str, *, tokens: int = TOKENS, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds to the first token, cold and restored, and their ratio."""
    with temporary_settings(model) as settings:
        window = _window(settings, tokens)
        cold, restored = [], []
        for _ in tqdm(range(rounds), desc="reopenings", file=sys.stderr):
            cold.append(_first_token(replace(settings, snapshots_mb=0), window, keep=False))
            _first_token(settings, window, keep=True)
            restored.append(_first_token(settings, window, keep=False))
        size = sum(path.stat().st_size for path in (settings.home / "snapshots").iterdir())
    return {
        "window_tokens": window.tokens,
        "cold_s": round(median(cold), 3),
        "restored_s": round(median(restored), 3),
        "restore_over_cold": round(median(restored) / median(cold), 4),
        "snapshot_mb": round(size / 1e6, 1),
    }


def _window(settings: Settings, tokens: int) -> Prompt:
    """An agent's window of that many tokens."""
    backend = load_backend(settings, counting_only=True)
    with open_agent("speed", settings=settings, backend=backend) as agent:
        number = 0
        while agent.main_context.tokens < tokens:
            agent.note(UserMessage(f"On day {number} we sailed from one harbour to the next, and the wind was kind."))
            number += 1
        prompt = agent.main_context.prompt()
    backend.close()
    return prompt


def _first_token(settings: Settings, window: Prompt, *, keep: bool) -> float:
    backend: LlamaBackend = load_backend(settings)
    started = time.perf_counter()
    backend.complete(window, grammar=None, sampling=Sampling(), max_tokens=1, owner="speed")
    took = time.perf_counter() - started
    if keep:
        backend.keep(window, owner="speed")
    backend.close()
    return took


if __name__ == "__main__":
    main()
