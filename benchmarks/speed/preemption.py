"""How soon idle work makes way: from raising the flag to the model being free, in the middle of reading and of writing.

python -m benchmarks.speed.preemption [--model NAME] [--json]

Another thread reads a long window ahead, or writes a summary's worth of text on the side; after a different while each
time it is told to stop. What is measured is how long it goes on, 95th percentile over all rounds. Target: 100 ms.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from benchmarks.common import part_parser, show, temporary_settings
from localmem.backend.base import Sampling
from localmem.backend.llama import LlamaBackend
from localmem.calls.prompt import Prompt
from localmem.kernel.cancellation import Cancellation
from localmem.runtime import load_backend

ROUNDS = 20
TOKENS = 1_500


def main() -> None:
    arguments = part_parser(__doc__).parse_args()
    show(figures(arguments.model), as_json=arguments.json)


def figures(model: str, *, rounds: int = ROUNDS, tokens: int = TOKENS) -> dict[str, float]:
    """Milliseconds from the flag to the end of the work, reading and writing."""
    with temporary_settings(model, snapshots_mb=0) as settings:
        backend = load_backend(settings)
        words = backend.tokenizer.encode("the wind was kind and the harbour was near, and so we sailed on. ")
        window = Prompt(tuple((words * (tokens // len(words) + 1))[:tokens]))
        reading = [_reading(backend, window, number) for number in tqdm(range(rounds), desc="reading", file=sys.stderr)]
        writing = [_writing(backend, window, number) for number in tqdm(range(rounds), desc="writing", file=sys.stderr)]
        backend.close()
    found = [round(1000 * seconds, 1) for seconds in reading + writing]
    return {
        "preempt_ms_p95": float(np.percentile(found, 95, method="higher")),
        "preempt_ms_median": float(np.median(found)),
        "preempt_ms_worst": max(found),
    }


def _reading(backend: LlamaBackend, window: Prompt, number: int) -> float:
    backend.cache.drop("ahead")
    return _stopped(lambda cancellation: backend.read_ahead(window, cancellation=cancellation), number)


def _writing(backend: LlamaBackend, window: Prompt, number: int) -> float:
    prompt = Prompt(window.ids[:40])

    def write(cancellation: Cancellation) -> None:
        backend.complete(
            prompt, grammar=None, sampling=Sampling(), max_tokens=300, sequence="side", cancellation=cancellation
        )

    return _stopped(write, number)


def _stopped(work: Callable[[Cancellation], object], number: int) -> float:
    """Seconds the work goes on after it was told to stop, a different while after it began each time."""
    cancellation = Cancellation()
    thread = threading.Thread(target=work, args=(cancellation,))
    thread.start()
    time.sleep(1.0 + 0.137 * number)
    started = time.perf_counter()
    cancellation.cancel()
    thread.join()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
