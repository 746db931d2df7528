"""What every backend promises: the same tests for the scripted one and for llama.cpp."""

from __future__ import annotations

import pytest

from localmem.backend.base import Backend, Completion, Sampling
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.chat_format import BARE, probe
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.prompt import Prompt, TurnEncoder
from localmem.errors import BackendError
from localmem.kernel.cancellation import Cancellation

MESSAGE = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1, "maxLength": 60}},
    "required": ["message"],
    "additionalProperties": False,
}
GRAMMAR = CallGrammar(BARE, (FunctionChoice("send_message", MESSAGE),))


@pytest.fixture(params=["scripted", pytest.param("llama", marks=pytest.mark.model)])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "scripted":
        return ScriptedBackend(window=2048, summary="They talked about the weather, at some length. " * 9)
    return request.getfixturevalue("smollm")


def prompt_of(backend: Backend, text: str) -> Prompt:
    chat_format = probe(backend.chat_template, bos=backend.bos_text, eos=backend.eos_text, tools=[])
    return TurnEncoder(backend.tokenizer, chat_format).side_prompt("You are brief.", text)


def call(backend: Backend, prompt: Prompt, **more: object) -> Completion:
    options: dict[str, object] = {"grammar": GRAMMAR, "sampling": Sampling(), "max_tokens": 96} | more
    return backend.complete(prompt, **options)  # type: ignore[arg-type]


def write(backend: Backend, prompt: Prompt, **more: object) -> Completion:
    """A completion without a grammar, on the side."""
    options: dict[str, object] = {"grammar": None, "sampling": Sampling(), "max_tokens": 24, "sequence": "side"} | more
    return backend.complete(prompt, **options)  # type: ignore[arg-type]


def test_constrained_completion_is_a_call_of_the_grammar(backend: Backend):
    completion = call(backend, prompt_of(backend, "Hello!"))
    assert completion.finish_reason == "stop"
    parsed = BARE.parse(completion.text)
    assert parsed.name == "send_message"
    assert 1 <= len(parsed.arguments["message"]) <= 60


def test_ids_are_the_text(backend: Backend):
    completion = call(backend, prompt_of(backend, "Hello!"))
    assert backend.tokenizer.decode_bytes(completion.ids).decode("utf-8", "replace") == completion.text


def test_usage_adds_up(backend: Backend):
    prompt = prompt_of(backend, "Count for me.")
    completion = call(backend, prompt)
    usage = completion.usage
    assert usage.prompt_tokens == prompt.tokens == usage.reused_tokens + usage.evaluated_tokens
    assert usage.generated_tokens == len(completion.ids)


def test_completion_stops_at_its_budget_and_says_so(backend: Backend):
    completion = write(backend, prompt_of(backend, "Tell a long story about a bear."), max_tokens=20)
    assert completion.finish_reason == "length"
    assert 0 < len(completion.ids) <= 20


def test_text_is_handed_on_as_it_is_written(backend: Backend):
    heard: list[str] = []
    completion = call(backend, prompt_of(backend, "Say é and 😀."), on_text=heard.append)
    assert "".join(heard) == completion.text
    assert len(heard) > 3


def test_cancelled_before_it_began_writes_nothing(backend: Backend):
    cancellation = Cancellation()
    cancellation.cancel()
    completion = call(backend, prompt_of(backend, "Hello?"), cancellation=cancellation)
    assert (completion.finish_reason, completion.text, completion.ids) == ("cancelled", "", ())


def test_cancelled_on_the_way_keeps_what_was_written(backend: Backend):
    prompt = prompt_of(backend, "Tell me of the sea.")
    cancellation, heard = Cancellation(), list[str]()

    def hear(piece: str) -> None:
        heard.append(piece)
        if len("".join(heard)) > 40:
            cancellation.cancel()

    cut_off = call(backend, prompt, on_text=hear, cancellation=cancellation)
    whole = call(backend, prompt)
    assert cut_off.finish_reason == "cancelled"
    assert len(cut_off.text) > 40
    assert whole.text.startswith(cut_off.text)
    assert len(cut_off.text) < len(whole.text)


@pytest.mark.parametrize("sequence", ["main", "side"])
def test_prompt_that_does_not_fit_is_refused(backend: Backend, sequence: str):
    room = backend.window if sequence == "main" else backend.side_window
    token = backend.tokenizer.encode("a")[0]
    with pytest.raises(BackendError, match=str(room)):
        call(backend, Prompt((token,) * (room - 50)), max_tokens=51, sequence=sequence)


def test_empty_prompt_is_refused(backend: Backend):
    with pytest.raises(BackendError):
        call(backend, Prompt(()))


def test_same_prompt_again_is_read_no_further_than_its_last_token(backend: Backend):
    prompt = prompt_of(backend, "Where is Oslo?")
    call(backend, prompt)
    assert call(backend, prompt).usage.evaluated_tokens == 1


def test_longer_prompt_reads_only_what_is_new(backend: Backend):
    prompt = prompt_of(backend, "What is an owl?")
    call(backend, prompt)
    more = tuple(backend.tokenizer.encode(" Tell me more."))
    usage = call(backend, Prompt((*prompt.ids, *more))).usage
    assert usage.reused_tokens >= prompt.tokens - 1
    assert usage.evaluated_tokens <= len(more) + 1


def test_side_sequence_leaves_the_main_one_as_it_was(backend: Backend):
    prompt = prompt_of(backend, "What is a fox?")
    first = call(backend, prompt)
    write(backend, prompt_of(backend, "Something else."))
    again = call(backend, prompt)
    assert again.usage.evaluated_tokens == 1
    assert again.ids == first.ids


def test_greedy_completion_is_the_same_each_time(backend: Backend):
    prompt = prompt_of(backend, "Name a colour.")
    first = call(backend, prompt)
    call(backend, prompt_of(backend, "Another prompt."))
    assert call(backend, prompt).ids == first.ids
