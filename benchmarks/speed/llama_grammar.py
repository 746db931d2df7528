"""The arm of `decoding` that is not ours: llama-cpp-python's own `Llama(grammar=...)`, in a process of its own.

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
from llama_cpp.llama_grammar import json_schema_to_gbnf
from tqdm import tqdm


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


_BOUNDS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "pattern")


def unbounded(schema: Any) -> Any:
    """A schema without the bounds that make its GBNF thousands of nested rules, or more than llama.cpp takes: a longer
    maxLength ends the process. That is in this arm's favour."""
    if isinstance(schema, list):
        return [unbounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: unbounded(value) for key, value in schema.items() if key not in _BOUNDS}


def gbnf(frame: list[str], functions: dict[str, Any]) -> str:
    """One call out of `functions` in the frame, as GBNF: each function's rules under names of their own."""
    before, between, after = frame
    rules: list[str] = []
    for index, (name, parameters) in enumerate(functions.items()):
        found = json_schema_to_gbnf(
            json.dumps(unbounded(parameters)), prop_order=list(parameters.get("properties", {}))
        )
        names = [line.split(" ::= ")[0] for line in found.splitlines() if " ::= " in line]
        for rule in sorted(names, key=len, reverse=True):
            found = _renamed(found, rule, f"f{index}-{rule}")
        rules.append(found)
        head = json.dumps(before + name + between, ensure_ascii=False)
        rules.append(f"call{index} ::= {head} f{index}-root {json.dumps(after, ensure_ascii=False)}")
    calls = " | ".join(f"call{index}" for index in range(len(functions)))
    return "\n".join([f"root ::= {calls}", *rules]) + "\n"


def _renamed(text: str, rule: str, name: str) -> str:
    """`text` with a rule's name changed, outside of literals and character classes."""
    out: list[str] = []
    for line in text.splitlines():
        left, sep, right = line.partition(" ::= ")
        out.append((name if left == rule else left) + sep + _renamed_tokens(right, rule, name))
    return "\n".join(out)


def _renamed_tokens(text: str, rule: str, name: str) -> str:
    result, word, quote, i = "", "", "", 0

    def flush() -> None:
        nonlocal result, word
        result += name if word == rule else word
        word = ""

    while i < len(text):
        character = text[i]
        if quote:
            result += character
            if character == "\\":
                i += 1
                result += text[i]
            elif character == quote:
                quote = ""
        elif character in '"[':
            flush()
            quote = '"' if character == '"' else "]"
            result += character
        elif character.isalnum() or character == "-":
            word += character
        else:
            flush()
            result += character
        i += 1
    flush()
    return result


def _complete(llama: Llama, ids: list[int], grammar: str, max_tokens: int) -> str:
    parsed = LlamaGrammar.from_string(grammar, verbose=False)
    completion: Any = llama.create_completion(
        ids, max_tokens=max_tokens, temperature=0.0, repeat_penalty=1.0, grammar=parsed
    )
    return completion["choices"][0]["text"]


if __name__ == "__main__":
    main()
