"""Signs: what the runtime itself sees of a decision, as numbers for the calibration. Pure.

A small model reads that a search found nothing, or that a fact stands in core memory already, and makes little of it;
the runtime knows it for certain. Each sign is between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np

from localmem.kernel.messages import FAILURE, Message
from localmem.memory.search import parts, telling_words

SIGNS = (
    "a timed event",
    "memory pressure",
    "a search found something",
    "a search found nothing",
    "there are more pages",
    "searched before, times",
    "something was saved",
    "a call failed",
    "ends with a question",
    "several sentences",
    "length",
    "several lines",
    "digits",
    "code or quotes",
    "words of it in core memory, share",
    "words of it in core memory, number",
    "words of it in persona, share",
    "words of it in the visible conversation, share",
    "words of it in the best passage, share",
    "words of it in the best passage, number",
    "words of it in the best older message, share",
    "words of it in the best older message, number",
    "archival memory holds something",
    "older messages have left",
    "words of it in one line of core memory, share",
    "words of it in one line of core memory, number",
    "statements nobody has saved, number",
    "words of them in the best line of core memory, share",
    "words of it in the best row of the results, share",
    "words of it in the best row of the results, number",
)

Vector = np.ndarray[Any, np.dtype[np.float32]]

_STEM = 5  # characters: "moved" and "moves", "hermana" and "hermano" agree
_MOST_HITS = 3
_LONG = 80  # words
_LAST_PAGE = re.compile(r"Results .* page (\d+) of (\d+):")


def signs(
    chain: Sequence[Message],
    earlier: Sequence[Message],
    *,
    core_memory: str,
    persona: str,
    passage: str | None,
    older: str | None,
    unsaved: Sequence[str] = (),
) -> Vector:
    """The signs of the next decision, float32, shape (len(SIGNS),).

    `chain` is the event and what came of it so far, `earlier` the queue before it. `passage` and `older` are the best
    finds for the event's text in archival storage and among messages that have left the window: "" for none, None
    where there is nothing to search. `unsaved` is what the user stated and core memory lacks, under memory pressure.
    """
    event = chain[0]
    words = terms(event.text)
    results = [message for message in chain if message.kind == "result"]
    last = chain[-1].text if results and chain[-1].kind == "result" else ""
    page = _LAST_PAGE.search(last)
    text = event.text.strip()
    in_memory, in_passage, in_older = (words & terms(t or "") for t in (core_memory, passage, older))
    lines = [terms(line) for line in core_memory.splitlines()]
    best = max((words & line for line in lines), key=len, default=frozenset[str]())
    answer = max((words & terms(row) for row in last.splitlines()[1:]), key=len, default=frozenset[str]())
    lacking = terms(" ".join(unsaved))
    spoken = [message.text for message in earlier if message.kind in ("user_message", "reply")]
    size = max(1, len(words))
    values = (
        event.kind == "timer",
        event.kind == "memory_pressure",
        page is not None,
        last.startswith(("Nothing found", "No messages from")),
        page is not None and int(page[1]) < int(page[2]),
        min(2, sum(message.text.startswith(("Results", "Nothing found", "No messages")) for message in results)) / 2,
        last.startswith(("Saved", "Stored", "Deleted")),
        last.startswith(FAILURE),
        text.endswith(("?", "？", "؟")),
        min(4, len(re.findall(r"[.!?。！？]", text))) / 4,
        min(_LONG, len(telling_words(text)) + len(parts(text))) / _LONG,
        "\n" in text,
        any(character.isdigit() for character in text),
        any(mark in text for mark in ('"', "`", "“", "«", "「")),
        len(in_memory) / size,
        min(_MOST_HITS, len(in_memory)) / _MOST_HITS,
        len(words & terms(persona)) / size,
        len(words & terms(" ".join(spoken))) / size,
        len(in_passage) / size,
        min(_MOST_HITS, len(in_passage)) / _MOST_HITS,
        len(in_older) / size,
        min(_MOST_HITS, len(in_older)) / _MOST_HITS,
        passage is not None,
        older is not None,
        len(best) / size,
        min(_MOST_HITS, len(best)) / _MOST_HITS,
        min(_MOST_HITS, len(unsaved)) / _MOST_HITS,
        max((len(lacking & line) for line in lines), default=0) / max(1, len(lacking)),
        len(answer) / size,
        min(_MOST_HITS, len(answer)) / _MOST_HITS,
    )
    return np.array(values, np.float32)


def line_weights(text: str, lines: Sequence[str]) -> dict[str, float]:
    """How much each line has to do with a text: a sum over the words they share, rare ones more.

    >>> weights = line_weights("Bo is three now", ["Her dog Bo is two.", "Lives in Faro."])
    >>> weights["Her dog Bo is two."] > weights["Lives in Faro."] == 0
    True
    """
    words = terms(text)
    held = {line: words & terms(line) for line in lines}
    number = {word: sum(word in other for other in held.values()) for word in words}
    return {line: sum(log(1 + len(held) / number[word]) for word in shared) for line, shared in held.items()}


def terms(text: str) -> frozenset[str]:
    """What two texts are compared by: the beginnings of their telling words, and pairs of unspaced characters."""
    words = {word.casefold()[:_STEM] for word in telling_words(text) if len(word) > 1}
    return frozenset(words) | frozenset(part for part in parts(text) if len(part) > 1)
