"""The grammar, the parser and the executor agree: what may be written can be run, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AnyUrl, HttpUrl, TypeAdapter
from support import make_agent

from localmem.backend.base import Sampling
from localmem.backend.constraint import GuidanceEngine
from localmem.backend.decode_loop import CLOSING_TOKENS, DecodeLoop
from localmem.backend.llama import LlamaBackend
from localmem.backend.scripted import ScriptedBackend
from localmem.backend.text_room import TextRoom
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame, Thought
from localmem.calls.gbnf import written
from localmem.calls.grammar import NOT_BLANK, URI, URI_CHARACTERS, CallGrammar
from localmem.calls.names import Names
from localmem.kernel.agent import Agent
from localmem.kernel.events import UserMessage
from localmem.kernel.executor import execute
from localmem.kernel.messages import FunctionCall
from localmem.memory.working_context import Block

HERMES = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
WHOLE = len("conversation_search_date") + 2 * len("2026-11-02")
PLAIN = replace(HERMES, plain="send_message")
NAMED = replace(BARE, names=Names({"send_message": "say", "core_memory_append": "remember"}))
frames = st.sampled_from([BARE, HERMES, NAMED])
thoughts = st.sampled_from(get_args(Thought))
facts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=25).filter(str.strip)


class Dice:
    """A processor without a model: every token is as likely as every other."""

    def __init__(self, backend: LlamaBackend, size: int, seed: int) -> None:
        self._backend = backend
        self._size = size
        self._random = np.random.default_rng(seed)
        self.end_tokens = backend.end_tokens
        self.closers = backend.closers

    def feed(self, ids: object) -> None:
        del ids

    def logits(self) -> np.ndarray[Any, Any]:
        logits = self._random.normal(size=self._size).astype(np.float32)
        logits[self._backend.control_tokens] = -np.inf
        return logits

    def text_of(self, ids: Sequence[int]) -> bytes:
        return self._backend.tokenizer.decode_bytes(ids)


def remembering(backend: LlamaBackend, facts: list[str], *, thought: Thought, history: int) -> Agent:
    """An agent with facts, evicted messages, notes and a timer, so that every function is offered."""
    scripted = ScriptedBackend(window=8_192)
    scripted.tokenizer = backend.tokenizer
    agent = make_agent(scripted, human_limit=600, thought=thought)
    agent.set_block("human", "\n".join(facts))
    agent.add_block(Block("rules", "", "Be kind.", read_only=True))
    for number in range(history):
        agent.note(UserMessage(f"story {number}"))
    agent.queue_manager.flush()
    if history:
        agent.archival.insert("A note of the sea.")
        agent.schedule("tea", "every 5m", "Tea.")
    agent.recount(FunctionCall("conversation_search", {"query": "x", "page": 1}), "Results 1-5 of 13, page 1 of 3:\nx")
    return agent


def functions_of(agent: Agent) -> dict[str, Any]:
    return {**agent._memory_functions.specs, **agent._own_functions}


@given(
    known=st.lists(facts, max_size=4),
    frame=frames | st.just(PLAIN),
    thought=thoughts,
    history=st.sampled_from([0, 9]),
    phase=st.sampled_from(["all", "edits", "promised", "last"]),
    seed=st.integers(0, 2**32),
    free=st.sampled_from([0, 8, 40]),
)
@example(known=["From \U0001f3f4\U000e0067."], frame=BARE, thought="none", history=0, phase="all", seed=1, free=0)
def test_what_the_grammar_lets_through_parses_and_runs(
    guidance: GuidanceEngine,
    smollm_counting: LlamaBackend,
    known: list[str],
    frame: Frame,
    thought: Thought,
    history: int,
    phase: Any,
    seed: int,
    free: int,
):
    agent = remembering(smollm_counting, known, thought=thought, history=history)
    grammar = CallGrammar(frame, agent.grammar(phase).choices)
    constraint = guidance.start(smollm_counting.write_grammar(grammar))
    dice, room = Dice(smollm_counting, guidance.size, seed), TextRoom(grammar, smollm_counting.tokenizer)
    # What is to be written whole comes first, by dice byte by byte: a name, two dates, a line that is replaced.
    line = max(len(line.encode()) for block in agent.working_context.blocks for line in block.lines)
    loop = DecodeLoop(dice, constraint, Sampling(), WHOLE + line + CLOSING_TOKENS + free, room=room)
    assert loop.run() == "stop"
    call = frame.parse(loop.text)
    names = [choice.name for choice in grammar.choices]
    assert call.name in names
    result = execute(call, functions_of(agent), allowed=names)
    assert result.could_run, f"{loop.text} -> {result.text}"


def arguments_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of the schemas that memory functions are narrowed to."""
    if "anyOf" in schema:
        return st.one_of([arguments_of(alternative) for alternative in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        properties = {name: arguments_of(inner) for name, inner in schema["properties"].items()}
        return st.fixed_dictionaries(properties).map(lambda drawn: {name: drawn[name] for name in properties})
    if kind == "integer":
        return st.integers(schema["minimum"], schema["maximum"])
    if kind == "boolean":
        return st.booleans()
    if schema.get("pattern", NOT_BLANK) != NOT_BLANK:
        return st.from_regex(schema["pattern"], fullmatch=True)
    longest = schema["maxLength"]
    characters = st.characters(exclude_categories=["Cs"])
    texts = st.text(characters, min_size=schema.get("minLength", 0), max_size=min(longest, 60))
    return texts.filter(lambda text: "pattern" not in schema or re.match(NOT_BLANK, text)) | st.just("x" * longest)


@given(data=st.data(), known=st.lists(facts, max_size=3), frame=frames, thought=thoughts)
def test_every_valid_call_may_be_written(
    guidance: GuidanceEngine,
    smollm_counting: LlamaBackend,
    data: st.DataObject,
    known: list[str],
    frame: Frame,
    thought: Thought,
):
    agent = remembering(smollm_counting, known, thought=thought, history=9)
    grammar = CallGrammar(frame, agent.grammar().choices)
    choice = data.draw(st.sampled_from(grammar.choices))
    arguments = written(data.draw(arguments_of(dict(choice.parameters))))  # a DEL has to be escaped
    encode = smollm_counting.tokenizer.encode
    head = frame.head(choice.name).rstrip()
    rest = frame.write(choice.name, arguments).removeprefix(head)
    if smollm_counting.tokenizer.decode_bytes(encode(rest)) != rest.encode():
        return  # SmolLM2 lacks 21 bytes, so that it cannot write this text at all
    constraint = guidance.start(grammar.lark(lambda text: encode(text, special=True)))
    constraint.accept([*encode(head, special=True), *encode(rest, special=True)])
    assert constraint.finished


@given(address=st.from_regex(URI, fullmatch=True))
def test_every_address_a_grammar_writes_is_one_to_pydantic(address: str):
    assert len(address) <= URI_CHARACTERS
    assert TypeAdapter(HttpUrl).validate_python(address)
    assert TypeAdapter(AnyUrl).validate_python(address)
