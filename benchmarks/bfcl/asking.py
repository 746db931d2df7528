"""One question put to a model, arm by arm. The prompt is the family's own and the same in every arm.

free    no constraint; what is written is searched for a call, as tolerantly as can be
schema  a grammar of all the functions: exactly one call, and no way to say no
reply   a grammar that leaves both open: words, and then a call or none, in whichever frame the model begins
gate    a call in whichever frame the model begins, when what it holds in front of its answer says that one is due
        (`gate.py`); else words
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.bfcl.checker import Call
from benchmarks.bfcl.data import Document
from benchmarks.bfcl.functions import choice_of, spec_of, written_out
from localmem.backend.base import Backend, Sampling
from localmem.bench.arms import call_in
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.prefix import opening
from localmem.calls.prompt import Prompt, join
from localmem.kernel.messages import Role

Arm = Literal["free", "schema", "reply", "gate"]
ARMS: tuple[Arm, ...] = ("free", "schema", "reply", "gate")

INSTRUCTIONS = (
    "You are a helpful assistant. When one of the functions does what the user asks, call it, and leave out what is "
    "optional unless the user speaks of it. When none does, or something it needs is missing, say so in a sentence."
)
FENCED = Frame('```json\n{"name": "', '", "arguments": ', "}\n```")

ANSWER_TOKENS = 400
_RULE = "You call one so, and write nothing else then:"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the model gets it."""

    prompt: Prompt
    frame: Frame
    choices: tuple[FunctionChoice, ...]

    @property
    def grammar(self) -> CallGrammar:
        return CallGrammar(self.frame, self.choices)

    @property
    def any_frame(self) -> AnyFrame:
        return AnyFrame(self.frame, self.choices)

    @property
    def open_grammar(self) -> OpenGrammar:
        return OpenGrammar(self.frame, self.choices)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it: a call, or None for words; `text` as it was written. Seconds are those of writing."""

    call: Call | None
    text: str
    tokens: int
    seconds: float

    @property
    def written(self) -> str:
        """The call as people read it, or the words."""
        if self.call is None:
            return self.text
        return f"{self.call[0]}({json.dumps(dict(self.call[1]), ensure_ascii=False)})"


Decide = Callable[[Asked], tuple[bool, float]]
"""Whether a call is due, and the seconds it took to see."""


@dataclass(frozen=True, slots=True)
class AnyFrame(CallGrammar):
    """One call in whichever frame the model begins: its family's own, a fenced block, or bare."""

    def lark(self, encode: Callable[[str], list[int]], *, by_ids: bool = True) -> str:
        frames = tuple(dict.fromkeys((self.frame, FENCED, BARE)))
        calls = [f"call_{choice}_{frame}" for choice in range(len(self.choices)) for frame in range(len(frames))]
        rules = [*self._start(), f"call: {' | '.join(calls)}"]
        for number, frame in enumerate(frames):
            for line in CallGrammar(frame, self.choices).lark(encode, by_ids=by_ids).splitlines():
                name, _, body = line.partition(": ")
                if name == "tail":
                    rules.append(f"tail_{number}: {body}")
                elif name.startswith("call_"):
                    rules.append(f"{name}_{number}: {body}_{number}")
                elif name != "start" and number == 0:  # what the frames share
                    rules.append(line)
        return "\n".join(rules) + "\n"

    def _start(self) -> list[str]:
        return ["start: call"]


@dataclass(frozen=True, slots=True)
class OpenGrammar(AnyFrame):
    """Words, a call, or both: the model chooses, and a call is held to the functions."""

    def _start(self) -> list[str]:
        # No brace, tag or fence in them: with one of these a call begins.
        return ["start: prose | preface? call", f"prose: {_words(400)}", f"preface: {_words(200)}"]


def _words(characters: int) -> str:
    return rf"/[^\s{{<`\[][^{{<`]{{0,{characters - 1}}}/"


def ask(backend: Backend, turns: Sequence[tuple[str, str]], functions: Sequence[Document]) -> Asked:
    """The prompt of a conversation that ends with the user. A system turn that it begins with follows our own."""
    instructions = INSTRUCTIONS
    if turns[0][0] == "system":
        instructions += "\n" + turns[0][1]
        turns = turns[1:]
    specs = [spec_of(document) for document in functions]
    start = opening(backend, specs, instructions, compact=False, describe=written_out, rule=_RULE)
    said = [token for role, text in turns for token in start.encoder.turn(_ROLES.get(role, "user"), text)]
    prompt = join([("system", start.ids), ("queue", said), ("answer", start.encoder.answer())])
    return Asked(prompt, start.frame, tuple(choice_of(document) for document in functions))


def fits(backend: Backend, asked: Asked) -> bool:
    """Whether the window holds the prompt and an answer."""
    return asked.prompt.tokens + ANSWER_TOKENS <= backend.window


def answer(backend: Backend, asked: Asked, arm: Arm, *, decide: Decide | None = None) -> Answer:
    """The answer of one arm; `decide` is the gate, and only asked in its arm."""
    waited = 0.0
    if arm == "gate":
        assert decide is not None
        due, waited = decide(asked)
        if not due:
            return Answer(None, "", 0, waited)  # words it would be; which ones is nobody's question here
    grammar = {"free": None, "schema": asked.grammar, "reply": asked.open_grammar, "gate": asked.any_frame}[arm]
    done = backend.complete(asked.prompt, grammar=grammar, sampling=Sampling(), max_tokens=ANSWER_TOKENS)
    seconds = round(done.usage.write_seconds + waited, 4)
    return Answer(call_of(done.text, asked.frame), done.text, done.usage.generated_tokens, seconds)


def call_of(text: str, frame: Frame) -> Call | None:
    """The call in a text, wherever in it; None for words, and for what cannot be made out.

    >>> call_of('Here: {"name": "f", "arguments": {}}', BARE)
    ('f', {})
    >>> call_of("I cannot do that.", BARE)
    """
    found = call_in(text, frame)
    words = ("send_message", {"message": text.strip()})  # what is no call is handed back as a reply
    return None if found == words else found
