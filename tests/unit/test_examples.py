"""The example conversation that stands before the real one."""

from __future__ import annotations

import pytest
from support import prompt_text, scripted_agent

from localmem.backend.scripted import ByteTokenizer
from localmem.calls.chat_format import BARE, probe
from localmem.calls.examples import ExampleExchange, encode_examples, read_examples
from localmem.calls.frame import Frame
from localmem.calls.prompt import TurnEncoder
from localmem.kernel.events import UserMessage
from localmem.kernel.executor import execute
from localmem.kernel.messages import FunctionCall
from localmem.runtime import _prompt

EXCHANGE = ExampleExchange(
    "Hi, I'm Tom.", ((FunctionCall("say", {"text": "größer"}), "Done."), (FunctionCall("f"), ""))
)


@pytest.mark.parametrize("frame", [BARE, Frame("<call>", "|", "</call>")], ids=["bare", "tagged"])
def test_examples_are_turns_in_the_models_own_frame(frame: Frame):
    encoder = TurnEncoder(ByteTokenizer(), probe(None, bos="", eos="", tools=[]))
    text = encoder.tokenizer.decode_bytes(encode_examples([EXCHANGE], encoder, frame), special=True).decode()
    first, second = frame.write("say", '{"text": "größer"}'), frame.write("f", "{}")
    assert text == (
        "<|im_start|>user\nHi, I'm Tom.<|im_end|>\n"
        f"<|im_start|>assistant\n{first}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nDone.\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n{second}<|im_end|>\n"
    )


def test_examples_stand_between_core_memory_and_what_was_said():
    agent = scripted_agent(examples=(EXCHANGE,))
    agent.note(UserMessage("Good morning."))
    shown = prompt_text(agent)
    assert shown.index("[human]") < shown.index("Hi, I'm Tom.") < shown.index("Good morning.")


def test_shipped_examples_are_calls_that_would_be_carried_out():
    agent = scripted_agent()
    specs = agent._memory_functions.specs
    calls = [call for exchange in read_examples(_prompt("examples.toml")) for call, _ in exchange.calls]
    assert calls
    assert {call.name for call in calls} <= set(specs)
    refused = [execute(call, specs, allowed=list(specs)).text for call in calls]
    assert not [text for text in refused if "it takes" in text or "no function" in text]


def test_each_shipped_example_ends_with_an_answer():
    exchanges = read_examples(_prompt("examples.toml"))
    assert {exchange.calls[-1][0].name for exchange in exchanges} == {"send_message"}
