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

from localmem.kernel.messages import FAILURE, SAVING, Message
from localmem.memory.search import parts, telling_words
from localmem.memory.user_text import QUESTION_MARKS

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
    "asks something",
    "statements, number",
    "something was saved before, times",
    "words of it in what was saved, share",
    "statements of which nothing saved holds much, number",
    "likeness of a statement and a line of core memory",
)

_NUMBER = re.compile(r"\d[\d.,:]*\d|\d")
# In the languages of the benchmark.
_NAMES = {
    "weekday": re.compile(
        r"""\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?
        |lunes|martes|mi[eé]rcoles|jueves|viernes|s[aá]bados?|domingos?
        |(?:lun|mar|mercre|jeu|vendre|same)dis?|dimanches?)\b
        |(?:周|星期|礼拜)[一二三四五六日天]""",
        re.IGNORECASE | re.VERBOSE,
    ),
    "month": re.compile(
        r"""\b(?:january|february|march|april|may|june|july|august|september|october|november|december
        |enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre
        |janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|décembre)\b
        |(?:\d|[一二三四五六七八九十])月""",
        re.IGNORECASE | re.VERBOSE,
    ),
}

Vector = np.ndarray[Any, np.dtype[np.float32]]

_STEM = 5  # characters: "moved" and "moves", "hermana" and "hermano" agree
_MOST_HITS = 3
_MOST_STATEMENTS = 4
_MOST_EDITS = 3
_HOLDS_MUCH = 0.34  # of a statement's words
_LONG = 80  # words
_HELD, _ALIKE = 0.6, 0.4  # of a line's words, of the words of both
_LINE_TRUST = 2.0  # beside the model's log-probability of a line: the best of 0.5 to 3 on the development cases
_LAST_PAGE = re.compile(r"Results .* page (\d+) of (\d+):")


def signs(
    chain: Sequence[Message],
    earlier: Sequence[Message],
    *,
    core_memory: str,
    persona: str,
    passage: str | None,
    older: str | None,
    stated: Sequence[str] = (),
    unsaved: Sequence[str] = (),
) -> Vector:
    """The signs of the next decision, float32, shape (len(SIGNS),).

    `chain` is the event and what came of it so far, `earlier` the queue before it. `passage` and `older` are the best
    finds for the event's text in archival storage and among messages that have left the window: "" for none, None
    where there is nothing to search. `stated` are the statements of the event's text; `unsaved` is what the user stated
    and core memory lacks, under memory pressure.
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
    edits = [message.text for message in chain if message.kind == "call" and message.text.startswith(SAVING)]
    saved = terms(" ".join(edits))
    told = [terms(statement) for statement in stated]
    untold = [one for one in told if len(one & saved) < _HOLDS_MUCH * len(one)] if edits else []
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
        text.endswith(QUESTION_MARKS),
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
        any(mark in text for mark in QUESTION_MARKS),
        min(_MOST_STATEMENTS, len(told)) / _MOST_STATEMENTS,
        min(_MOST_EDITS, len(edits)) / _MOST_EDITS,
        len(words & saved) / size,
        min(_MOST_STATEMENTS, len(untold)) / _MOST_STATEMENTS,
        max((_likeness(one, line) for one in told for line in lines), default=0),
    )
    return np.array(values, np.float32)


def line_weights(text: str, lines: Sequence[str]) -> dict[str, float]:
    """How much each line has to do with a text: a sum over the words and kinds of things they share, rare ones more.

    >>> weights = line_weights("Bo is three now", ["Her dog Bo is two.", "Lives in Faro."])
    >>> weights["Her dog Bo is two."] > weights["Lives in Faro."] == 0
    True
    """
    words = terms(text) | kinds(text)
    held = {line: words & (terms(line) | kinds(line)) for line in lines}
    number = {word: sum(word in other for other in held.values()) for word in words}
    return {
        line: _LINE_TRUST * sum(log(1 + len(held) / number[word]) for word in shared) for line, shared in held.items()
    }


def says_anew(line: str, statement: str) -> bool:
    """Whether a statement says what a line says, as it is now: it holds most of the line, and little beside it.

    >>> says_anew("Her dog Bo is two.", "My dog Bo is three."), says_anew("Her dog Bo is a beagle.", "Bo is three.")
    (True, False)
    """
    old, new = terms(line), terms(statement)
    return len(old & new) >= _HELD * len(old) and _likeness(old, new) >= _ALIKE


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Of the words of two texts, the share that both hold."""
    return len(one & other) / max(1, len(one | other))


def kinds(text: str) -> frozenset[str]:
    """Of which kinds a text has something: a weekday, a month, numbers by their form. What changes keeps its kind: a
    Tuesday becomes a Thursday, 27:40 becomes 26:58.

    >>> sorted(kinds("Runs 5Ks, best time 27:40, on Mondays")), sorted(kinds("26:58!"))
    (['0', '00:00', 'weekday'], ['00:00'])
    """
    numbers = {re.sub(r"\d", "0", number) for number in _NUMBER.findall(text)}
    return frozenset(numbers | {kind for kind, names in _NAMES.items() if names.search(text)})


def terms(text: str) -> frozenset[str]:
    """What two texts are compared by: the beginnings of their telling words, and pairs of unspaced characters."""
    words = {word.casefold()[:_STEM] for word in telling_words(text) if len(word) > 1}
    return frozenset(words) | frozenset(part for part in parts(text) if len(part) > 1)
