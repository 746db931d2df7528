"""The scripted backend: the double of our tests, and of users' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.base import Sampling
from localmem.backend.scripted import ByteTokenizer, ScriptedBackend
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.kernel.messages import FunctionCall

PROMPT = Prompt((1, 2, 3))


def completed(backend: ScriptedBackend, grammar: CallGrammar | None = None, max_tokens: int = 500) -> str:
    return backend.complete(PROMPT, grammar=grammar, sampling=Sampling(), max_tokens=max_tokens).text


def test_script_is_replayed_and_then_it_answers_for_ever():
    backend = ScriptedBackend([FunctionCall("f", {"x": 1}), "as it stands"], otherwise="Yes.")
    assert BARE.parse(completed(backend)) == FunctionCall("f", {"x": 1})
    assert completed(backend) == "as it stands"
    assert [BARE.parse(completed(backend)).arguments for _ in range(2)] == [{"message": "Yes."}] * 2


def test_call_is_written_in_the_frame_of_the_grammar():
    frame = Frame("<call>", "|", "</call>")
    backend = ScriptedBackend([FunctionCall("f", {}, request_heartbeat=True)])
    assert completed(backend, CallGrammar(frame, ())) == '<call>f|{"request_heartbeat": true}</call>'


def test_prompts_and_grammars_are_kept():
    backend = ScriptedBackend()
    grammar = CallGrammar(BARE, ())
    completed(backend, grammar)
    backend.complete(PROMPT, grammar=None, sampling=Sampling(), max_tokens=9, sequence="side")
    assert (backend.prompts, backend.side_prompts, backend.grammars) == ([PROMPT], [PROMPT], [grammar])


def test_side_inferences_are_summaries_and_leave_the_script_alone():
    backend = ScriptedBackend(["first"], summary="short")
    side = backend.complete(PROMPT, grammar=None, sampling=Sampling(), max_tokens=99, sequence="side")
    assert side.text == "short"
    assert completed(backend) == "first"


def test_completion_is_cut_at_a_whole_character():
    assert completed(ScriptedBackend(["aé"]), max_tokens=2) == "a"


@given(text=st.text(max_size=30))
def test_byte_tokenizer_gives_the_text_back(text: str):
    tokenizer = ByteTokenizer()
    assert tokenizer.decode_bytes(tokenizer.encode(text)).decode() == text


@given(text=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "é", "x"]), max_size=8).map("".join))
def test_byte_tokenizer_reads_control_tokens_only_when_asked(text: str):
    tokenizer = ByteTokenizer()
    assert max(tokenizer.encode(text), default=0) < 256
    special = tokenizer.encode(text, special=True)
    assert special.count(256) == text.count("<|im_start|>")
    assert special.count(257) == text.count("<|im_end|>")
    assert tokenizer.decode_bytes(special, special=True).decode() == text


def test_long_text_of_control_tokens_is_encoded():
    assert len(ByteTokenizer().encode("<|im_end|>" * 5_000, special=True)) == 5_000


@pytest.mark.parametrize("tokens", [0, 20_000])
def test_window_is_what_it_was_made_with(tokens: int):
    assert ScriptedBackend(window=tokens).window == tokens
