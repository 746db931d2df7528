"""The beginning of a prompt: instructions and functions, whatever the family."""

from __future__ import annotations

from localmem.backend.scripted import ScriptedBackend
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.prefix import Opening, opening
from localmem.calls.spec import FunctionSpec

TELLS_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if loop.first and tools %}\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}}
WEATHER = FunctionSpec("weather", "Tells the weather.", PARAMETERS, lambda city: city)


def text(start: Opening, backend: ScriptedBackend) -> str:
    return backend.tokenizer.decode_bytes(start.ids, special=True).decode()


def test_template_without_functions_has_them_in_the_instructions():
    backend = ScriptedBackend()
    start = opening(backend, [WEATHER], " Be kind. ")
    assert "Be kind.\n\nYour functions:\nweather(city): Tells the weather." in text(start, backend)
    assert BARE.write("NAME", '{"ARGUMENT": VALUE, ...}') in text(start, backend)
    assert start.frame == BARE


def test_each_function_is_described_as_asked():
    backend = ScriptedBackend()
    start = opening(backend, [WEATHER], "", describe=lambda spec: f"* {spec.name}")
    assert "* weather" in text(start, backend)
    assert "weather(city)" not in text(start, backend)


def test_template_that_prints_functions_gets_them_compact_or_whole():
    backend = ScriptedBackend()
    backend.chat_template = TELLS_TOOLS
    assert '"parameters": {"city":' in text(opening(backend, [WEATHER], ""), backend)
    assert '"parameters": {"type": "object"' in text(opening(backend, [WEATHER], "", compact=False), backend)


def test_chosen_frame_is_used_and_the_beginning_of_sequence_stands_first():
    backend = ScriptedBackend()
    backend.adds_bos, backend.bos_text = True, "<|im_start|>"
    frame = Frame("[", "](", ")")
    start = opening(backend, [WEATHER], "Hello", frame=frame)
    assert start.frame is frame
    assert text(start, backend).startswith("<|im_start|>")
    assert "[NAME](" in text(start, backend)
