"""What a user's text says, told without a model: what it states, whether it only asks, whether it hands a text over.

Pure.
"""

from __future__ import annotations

import re

QUESTION_MARKS = ("?", "？", "؟")

_EXCLAMATIONS = ("!", "！")

_SENTENCE_END = re.compile(r"(?<=[.!?؟])\s+|(?<=[？。！])\s*|\n+")
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_LEAST_WORDS = 3  # "Good evening!" states nothing
_LEAST_KEPT = 24  # columns: what is shorter is a name for something said before ("that recipe")
_LONGEST_ASKED = 200  # columns
_LONG_MESSAGE = 120  # columns
_LONGEST_REQUEST = 30  # words before what is to be kept
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_QUOTED = re.compile(r"“(.+?)”|«(.+?)»|「(.+?)」|『(.+?)』|\"(.+?)\"", re.DOTALL)
_COLON = re.compile(r":\s|：\s*")


def statements(text: str) -> list[str]:
    """The sentences of a text that state something: not its questions, not a word or two.

    >>> statements("Hi! I moved to Porto. Isn't that nice?")
    ['I moved to Porto.']
    >>> statements("你好！我这个月考下驾照了。")
    ['我这个月考下驾照了。']
    """
    return [s for s in _sentences(text) if not s.endswith(QUESTION_MARKS) and _words(s) >= _LEAST_WORDS]


def told(text: str, longest: int) -> list[str]:
    """What a message tells, word for word: all of it in one where that has at most `longest` characters, else its
    statements that have. Questions and an exclamation before it ("Hi there!") are no part of it.

    >>> told("Hi! Bo moved to Mr. Adeyemi. He likes it. Isn't that nice?", 80)
    ['Bo moved to Mr. Adeyemi. He likes it.']
    >>> told("Bo has moved to my aunt's. He likes it.", 20)
    ['He likes it.']
    """
    parts = [s for s in _sentences(text) if not s.endswith(QUESTION_MARKS)]
    while parts and parts[0].endswith(_EXCLAMATIONS) and _words(parts[0]) < _LEAST_WORDS:
        del parts[0]
    whole = "".join(s if _SPACELESS.search(s[-2:]) else f"{s} " for s in parts).strip()
    if len(whole) <= longest:
        return [whole] if whole else []
    return list(dict.fromkeys(s for s in statements(text) if len(s) <= longest))


def _words(sentence: str) -> int:
    """How many words, roughly: scripts without spaces have about one in two characters."""
    return len(sentence.split()) + len(_SPACELESS.findall(sentence)) // 2


def is_question(text: str) -> bool:
    """Whether a text asks and states nothing: then there is nothing in it to save."""
    return text.strip().endswith(QUESTION_MARKS) and not statements(text)


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def asked_in(text: str) -> str:
    """What a message asks, or wants, short enough to be said once more; "" where it is too long for that.

    >>> asked_in("I moved to Lisbon. Which bakery did I like?")
    'Which bakery did I like?'
    >>> asked_in("Tell me again where I parked.")
    'Tell me again where I parked.'
    """
    sentences = _sentences(text)
    questions = [sentence for sentence in sentences if sentence.endswith(QUESTION_MARKS)]
    asked = questions[-1] if questions else " ".join(sentences)
    return asked if _columns(asked) <= _LONGEST_ASKED else ""


def hands_over(text: str) -> bool:
    """Whether a message holds a text of its own, which to keep means word for word: behind a colon or a first line, in
    quotes, or as long as a text.

    >>> hands_over("Keep this for me: 2 eggs, 100 g flour, a pinch of salt"), hands_over("Please keep that recipe.")
    (True, False)
    """
    parts = [*_FENCE.findall(text), *_after_request(text), *map("".join, _QUOTED.findall(text))]
    return any(_columns(part.strip()) >= _LEAST_KEPT for part in parts) or _columns(text.strip()) >= _LONG_MESSAGE


def _after_request(text: str) -> list[str]:
    """What stands behind a request of one line, or of some words and a colon."""
    first, _, rest = text.strip().partition("\n")
    found = [rest] if _words(first) <= _LONGEST_REQUEST else []
    colon = _COLON.search(text)
    if colon is not None and _words(text[: colon.start()]) <= _LONGEST_REQUEST:
        found.append(text[colon.end() :])
    return found


def _columns(text: str) -> int:
    """How long a text is, a sign of a script without spaces counted as two and a half."""
    return len(text) + len(_SPACELESS.findall(text)) * 3 // 2
