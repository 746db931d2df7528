"""The grammar of one step, in its written forms."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from localmem.backend.constraint import GuidanceEngine
from localmem.backend.llama import LlamaBackend
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.errors import BackendError

HERMES = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")


def choice(name: str, **properties: object) -> FunctionChoice:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return FunctionChoice(name, schema)


SAY = choice("say", text={"type": "string", "minLength": 1, "maxLength": 20})
WAIT = choice("wait", minutes={"type": "integer", "minimum": 1, "maximum": 360})


def accepted(engine: GuidanceEngine, backend: LlamaBackend, grammar: CallGrammar, text: str) -> bool:
    """Whether the grammar lets `text` be written, and ends there."""
    encode = backend.tokenizer.encode
    constraint = engine.start(grammar.lark(lambda part: encode(part, special=True)))
    name = text.removeprefix(grammar.frame.before).split('"')[0]
    head = grammar.frame.before + name + grammar.frame.between.rstrip()  # the part the grammar spells as ids
    ids = [*encode(head, special=True), *encode(text.removeprefix(head), special=True)]
    for token in ids:
        if not constraint.allows(token):
            return False
        constraint.accept([token])
    return constraint.finished


@pytest.mark.parametrize("frame", [BARE, HERMES], ids=["bare", "hermes"])
@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("say", '{"text": "Hello."}', True),
        ("say", '{"text": "Grüße 😀 \\"x\\" \\n"}', True),
        ("say", '{"text": ""}', False),
        ("say", '{"text": "' + "x" * 21 + '"}', False),
        ("say", '{"text":"Hello."}', False),
        ("say", '{ "text": "Hello."}', False),
        ("say", "{}", False),
        ("say", '{"text": "x", "more": 1}', False),
        ("wait", '{"minutes": 360}', True),
        ("wait", '{"minutes": 361}', False),
        ("wait", '{"minutes": 0}', False),
        ("wait", '{"minutes": 1.0}', False),
        ("wait", '{"text": "Hello."}', False),
        ("shout", '{"text": "Hello."}', False),
    ],
)
def test_only_calls_that_fit_can_be_written(
    guidance: GuidanceEngine, smollm_counting: LlamaBackend, frame: Frame, name: str, arguments: str, valid: bool
):
    grammar = CallGrammar(frame, (SAY, WAIT))
    assert accepted(guidance, smollm_counting, grammar, frame.write(name, arguments)) == valid


@pytest.mark.parametrize(("name", "valid"), [("say", True), ("shout", False)])
def test_head_spelled_as_text_holds_to_the_same_calls(
    guidance: GuidanceEngine, smollm_counting: LlamaBackend, name: str, valid: bool
):
    encode = smollm_counting.tokenizer.encode
    constraint = guidance.start(CallGrammar(BARE, (SAY, WAIT)).lark(encode, by_ids=False))
    tokens = encode(BARE.write(name, '{"text": "Hello."}'))
    allowed = 0
    while allowed < len(tokens) and constraint.allows(tokens[allowed]):
        constraint.accept(tokens[allowed : allowed + 1])
        allowed += 1
    assert (allowed == len(tokens)) == valid


def test_call_ends_where_it_is_whole(guidance: GuidanceEngine, smollm_counting: LlamaBackend):
    text = BARE.write("wait", '{"minutes": 5}')
    grammar = CallGrammar(BARE, (SAY, WAIT))
    assert not accepted(guidance, smollm_counting, grammar, text[:-1])
    assert not accepted(guidance, smollm_counting, grammar, text + " And then.")


def test_no_control_token_may_be_written_inside_a_string(guidance: GuidanceEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = guidance.start(CallGrammar(BARE, (SAY,)).lark(lambda part: encode(part, special=True)))
    constraint.accept(constraint.forced())
    constraint.accept(encode(' "Hello'))
    assert not any(constraint.allows(encode(text, special=True)[0]) for text in ("<|im_end|>", "<|im_start|>"))


def test_forced_text_needs_no_sampling(guidance: GuidanceEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = guidance.start(CallGrammar(BARE, (WAIT,)).lark(lambda part: encode(part, special=True)))
    forced = smollm_counting.tokenizer.decode_bytes(constraint.forced()).decode()
    assert forced.startswith('{"name": "wait", "arguments": {"minutes"')


def test_mask_and_allows_agree(guidance: GuidanceEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = guidance.start(CallGrammar(BARE, (SAY, WAIT)).lark(lambda part: encode(part, special=True)))
    constraint.accept(encode(BARE.before, special=True))
    logits = np.zeros(guidance.size, np.float32)
    constraint.mask(logits)
    masked = {int(token) for token in np.flatnonzero(np.isfinite(logits))}
    assert masked == {token for token in range(guidance.size) if constraint.allows(token)}
    assert 0 < len(masked) < 10


def test_refused_token_raises_and_says_so(guidance: GuidanceEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = guidance.start(CallGrammar(BARE, (SAY,)).lark(lambda part: encode(part, special=True)))
    with pytest.raises(BackendError, match="refused"):
        constraint.accept(encode("Hello"))


@pytest.mark.parametrize("lark", ["", "start: nowhere", 'start: %json {"type": "nonsense"}', "\0"])
def test_grammar_that_is_none_is_refused_with_a_reason(guidance: GuidanceEngine, lark: str):
    with pytest.raises(BackendError, match="the grammar was refused"):
        guidance.start(lark)


def test_json_schema_holds_every_call_and_no_other():
    schema = CallGrammar(BARE, (SAY, WAIT)).json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "say", "arguments": {"text": "x"}})
    assert not validator.is_valid({"name": "say", "arguments": {"minutes": 1}})
    assert not validator.is_valid({"name": "shout", "arguments": {"text": "x"}})


def test_schema_of_one_call_is_plain():
    assert "anyOf" not in CallGrammar(BARE, (SAY,)).json_schema()


def test_json_schema_of_a_function_with_definitions_of_its_own_still_finds_them():
    parameters = {
        "$defs": {"Place": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "required": ["place"],
        "additionalProperties": False,
    }
    schema = CallGrammar(BARE, (SAY, FunctionChoice("go", parameters))).json_schema()
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))
    assert validator.is_valid({"name": "go", "arguments": {"place": {"name": "x"}}})
    assert not validator.is_valid({"name": "go", "arguments": {"place": {}}})
