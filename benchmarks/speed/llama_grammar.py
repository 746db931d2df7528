"""The arm of `decoding` that is not ours: llama-cpp-python's own `Llama(grammar=...)`, in a process of its own.

Its grammar is ours: the GBNF that says what the constrained arm's Lark says, bounds included.

python -m benchmarks.speed.llama_grammar TASK.json   (written by `benchmarks.speed.decoding`)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from llama_cpp import Llama, LlamaGrammar
from tqdm import tqdm

from localmem.calls.frame import Frame
from localmem.calls.gbnf import write_gbnf
from localmem.calls.grammar import CallGrammar, FunctionChoice


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llama = Llama(
        task["path"],
        n_ctx=task["window"],
        n_threads=task["threads"],
        n_threads_batch=task["threads"],
        verbose=False,
    )
    speeds: list[float] = []
    for _ in tqdm(range(task["repeats"]), desc="llama-cpp-python", unit="round", file=sys.stderr):
        characters, seconds = 0, 0.0
        for case in task["cases"]:
            grammar = gbnf(case["frame"], case["functions"])
            _complete(llama, case["ids"], grammar, 1)  # reads the prompt
            started = time.perf_counter()
            characters += len(_complete(llama, case["ids"], grammar, task["max_tokens"]))
            seconds += time.perf_counter() - started
        speeds.append(characters / seconds)
    print(json.dumps({"chars_s": median(speeds)}))


def gbnf(frame: list[str], functions: dict[str, Any]) -> str:
    """One call out of `functions` in the frame: the twin of the grammar the constrained arm is held to."""
    choices = tuple(FunctionChoice(name, parameters) for name, parameters in functions.items())
    return write_gbnf(CallGrammar(Frame(*frame), choices))


def _complete(llama: Llama, ids: list[int], grammar: str, max_tokens: int) -> str:
    parsed = LlamaGrammar.from_string(grammar, verbose=False)
    completion: Any = llama.create_completion(
        ids, max_tokens=max_tokens, temperature=0.0, repeat_penalty=1.0, grammar=parsed
    )
    return completion["choices"][0]["text"]


if __name__ == "__main__":
    main()
