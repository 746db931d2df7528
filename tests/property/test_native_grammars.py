"""llama.cpp's own sampler, fed what it would die of: the check keeps it out, and what the check lets in runs.

Broken grammars are made out of good ones, a character or a line at a time. Those that the check lets through are run
in a process of their own, so that a crash of the library is a failed test and no more.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import scripted_agent

from localmem.backend.constraint import Constraint, GbnfEngine
from localmem.backend.llama import LlamaBackend
from localmem.backend.llama_library import GrammarSampler, LlamaModel
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.gbnf import write_gbnf
from localmem.calls.gbnf_check import check_gbnf
from localmem.calls.grammar import NOT_BLANK, CallGrammar, FunctionChoice
from localmem.errors import BackendError
from localmem.memory.functions import days_of

SIZES = {"minLength": 2, "maxLength": 40}
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", **SIZES},
        "b": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 5},
        "c": {"type": "number", "minimum": -2, "maximum": 7},
        "d": {"enum": ['q"q', "n\nl", "é😀"]},
    },
    "required": ["b", "c", "d"],
    "additionalProperties": False,
    "$defs": {"b": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2}]}},
}
GOOD = write_gbnf(CallGrammar(BARE, (FunctionChoice("f", SCHEMA), FunctionChoice("g", {"const": 1}))))
PIECES = (
    '"',
    "\\",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "{3}",
    "{0,1998}",
    "*",
    "+",
    "?",
    "|",
    "-",
    "^",
    " ",
    "\n",
    "root",
    "a",
    "\0",
    "é",
)

RUN = """
import json, sys
from pathlib import Path
import numpy as np
from localmem.backend.llama_library import GrammarSampler, LlamaModel
model = LlamaModel(Path(sys.argv[1]), vocabulary_only=True)
tokens = np.arange(len(model.vocabulary().texts), dtype=np.int32)
for text in json.loads(Path(sys.argv[2]).read_text()):
    sampler = GrammarSampler(model, text)
    for step in range(3):
        logits = np.zeros(len(tokens), np.float32)
        sampler.mask(logits, tokens)
        allowed = np.flatnonzero(np.isfinite(logits))
        if not len(allowed):
            break
        sampler.accept(int(allowed[len(allowed) * step // 3]))
    print(".", end="", flush=True)
"""


def broken(seed: int) -> str:
    """A good grammar with one to three mistakes in it."""
    source = random.Random(seed)
    text = GOOD
    for _ in range(source.randint(1, 3)):
        place = source.randrange(len(text))
        text = source.choice(
            [
                text[:place] + text[place + 1 :],
                text[:place] + source.choice(PIECES) + text[place:],
                text[:place] + source.choice(PIECES) + text[place + 1 :],
                "\n".join(line for line in text.splitlines() if source.random() > 0.05),
                text.replace(source.choice(["-1", "-2", "-3", "-4"]), source.choice(["-1", "-5", "-6"]), 1),
            ]
        )
    return text


def passes(text: str) -> bool:
    try:
        check_gbnf(text)
    except BackendError:
        return False
    return True


def test_broken_grammar_that_passes_the_check_does_not_end_the_process(smollm_path: Path, tmp_path: Path):
    made = {broken(seed) for seed in range(800)}
    passed = sorted(text for text in made if passes(text))
    assert 50 < len(passed) < len(made) - 50, "both kinds must be there"
    file = tmp_path / "grammars.json"
    file.write_text(json.dumps(passed[:200]))
    run = [sys.executable, "-c", RUN, str(smollm_path), str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"after {len(done.stdout)} grammars: {done.stderr[-500:]}"
    assert len(done.stdout) == len(passed[:200])


@pytest.mark.parametrize("text", ["root ::= nowhere", 'root ::= "a', 'root ::= "a"{2000}', "root ::= root"])
def test_unsafe_gbnf_never_reaches_the_library(smollm_vocabulary: LlamaModel, text: str):
    with pytest.raises(BackendError, match="refused"):
        GrammarSampler(smollm_vocabulary, text)


@pytest.fixture(scope="module")
def native(smollm_vocabulary: LlamaModel) -> GbnfEngine:
    return GbnfEngine(smollm_vocabulary, smollm_vocabulary.vocabulary())


def test_refused_token_raises_and_the_process_lives(native: GbnfEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = native.start(GOOD)
    with pytest.raises(BackendError, match="refused"):
        constraint.accept(encode("Hello"))
    constraint.accept(encode('{"name": "g", "arguments": 1}'))
    assert constraint.finished


def test_no_control_token_may_be_written_inside_a_string(native: GbnfEngine, smollm_counting: LlamaBackend):
    encode = smollm_counting.tokenizer.encode
    constraint = native.start(GOOD)
    constraint.accept(encode('{"name": "f", "arguments": {"a": "Hello'))
    control = [encode(text, special=True)[0] for text in ("<|im_end|>", "<|im_start|>")]
    assert not any(constraint.allows(token) for token in control)
    with pytest.raises(BackendError, match="control token"):
        constraint.accept(control[1:])


def test_mask_and_allows_agree(native: GbnfEngine, smollm_vocabulary: LlamaModel, smollm_counting: LlamaBackend):
    constraint = native.start(GOOD)
    constraint.accept(smollm_counting.tokenizer.encode('{"name": "'))
    logits = np.zeros(len(smollm_vocabulary.vocabulary().texts), np.float32)
    constraint.mask(logits)
    masked = {int(token) for token in np.flatnonzero(np.isfinite(logits))}
    assert masked == {token for token in range(len(logits)) if constraint.allows(token)}
    assert 0 < len(masked) < 10


def test_call_of_the_built_in_functions_is_written_in_any_frame(native: GbnfEngine, smollm_counting: LlamaBackend):
    frame = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
    constraint = native.start(write_gbnf(CallGrammar(frame, scripted_agent().grammar().choices)))
    arguments: dict[str, Any] = {"message": 'Grüße "x"\n😀'}
    text = frame.write("send_message", json.dumps(arguments, ensure_ascii=False))
    constraint.accept(smollm_counting.tokenizer.encode(text))
    assert constraint.finished


BARRED = ["", "ab", "abc", "b", "é\n", "x" * 6, "too long to fit"]


@given(text=st.sampled_from([*BARRED, "a", "abcd", "x" * 5]) | st.text(st.sampled_from('abcé"\\\nx'), max_size=7))
def test_text_that_is_barred_cannot_be_written_and_every_other_can(
    native: GbnfEngine, smollm_counting: LlamaBackend, text: str
):
    """llguidance's JSON knows no `not`, so that Python is the judge here."""
    schema = {"type": "string", "minLength": 1, "maxLength": 6, "not": {"enum": BARRED}}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    constraint = native.start(write_gbnf(CallGrammar(BARE, (FunctionChoice("f", parameters),))))
    ids = smollm_counting.tokenizer.encode(BARE.write("f", json.dumps({"x": text}, ensure_ascii=False)))
    assert writes(constraint, ids) == (1 <= len(text) <= 6 and text not in BARRED)


@given(text=st.sampled_from(["boat", "boa", "boats", " boat", "", "x"]) | st.text(st.sampled_from("boat "), max_size=6))
def test_a_query_that_was_asked_cannot_be_written_again(native: GbnfEngine, smollm_counting: LlamaBackend, text: str):
    schema = {"type": "string", "minLength": 1, "maxLength": 6, "pattern": NOT_BLANK, "not": {"enum": ["boat"]}}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    constraint = native.start(write_gbnf(CallGrammar(BARE, (FunctionChoice("f", parameters),))))
    ids = smollm_counting.tokenizer.encode(BARE.write("f", json.dumps({"x": text})))
    assert writes(constraint, ids) == (text != "boat" and text[:1] not in ("", " "))


def test_a_day_that_was_read_cannot_be_written_again(native: GbnfEngine, smollm_counting: LlamaBackend):
    schema = {"type": "string", "pattern": days_of(2024, 2026), "not": {"enum": ["2025-03-02"]}}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    constraint = write_gbnf(CallGrammar(BARE, (FunctionChoice("f", parameters),)))
    days = ("2025-03-02", "2025-03-03", "2024-02-29", "2025-02-29", "2026-12-31")
    written = [smollm_counting.tokenizer.encode(BARE.write("f", json.dumps({"x": day}))) for day in days]
    assert [writes(native.start(constraint), ids) for ids in written] == [False, True, True, False, True]


def test_other_spelling_of_a_barred_text_cannot_be_written_either(native: GbnfEngine, smollm_counting: LlamaBackend):
    schema = {"type": "string", "maxLength": 6, "not": {"enum": ["a\nb"]}}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    gbnf = write_gbnf(CallGrammar(BARE, (FunctionChoice("f", parameters),)))
    encode = smollm_counting.tokenizer.encode
    spelled = [encode(BARE.write("f", f'{{"x": "a{escape}b"}}')) for escape in ("\\n", "\\u000a", "\\u000A", "\\t")]
    assert [writes(native.start(gbnf), ids) for ids in spelled] == [False, False, False, True]


def writes(constraint: Constraint, ids: list[int]) -> bool:
    """Whether the constraint lets `ids` be written, and ends there."""
    for token in ids:
        if not constraint.allows(token):
            return False
        constraint.accept([token])
    return constraint.finished
