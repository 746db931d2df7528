"""Probing chat templates: what each family's own template puts round a turn, and what falls back."""

from __future__ import annotations

import pytest

from localmem.calls.chat_format import BARE, ChatFormat, probe, with_bos
from localmem.calls.frame import Frame

TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Tell it.", "parameters": {"type": "object", "properties": {}}},
    }
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As SmolLM2's: a system message of its own where the conversation brings none.
CHATML_WITH_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are SmolLM.<|im_end|>\n{% endif %}" + CHATML
)

# As Qwen2.5's and Hermes': functions in the first system turn, calls and results in tags.
HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer in <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
           or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

ONE_SYSTEM_MESSAGE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "<start_of_turn>{{ role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# As Gemma 3's: the system message is folded into the first user turn.
GEMMA_FOLDED = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set prefix = messages[0].content + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set prefix = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ (prefix if loop.first else '') + m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)

# As Mistral v0.3's: the system text moves to the last user turn, so a longer conversation rewrites what came before.
SYSTEM_IN_THE_LAST_TURN = (
    "{% set system = messages[0].content %}{% for m in messages[1:] %}"
    "{% if m.role == 'user' %}[INST] {% if loop.last or loop.revindex == 2 %}{{ system }} {% endif %}{{ m.content }} "
    "[/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


def probed(source: str | None, *, tools: list[dict[str, object]] | None = None) -> ChatFormat:
    return probe(source, bos="<s>", eos="</s>", tools=TOOLS if tools is None else tools)


def rendered(chat_format: ChatFormat) -> str:
    """A conversation as we join it: instructions, question, answer, and the next answer's beginning."""
    turns = ((chat_format.first, "SYS"), (chat_format.user, "ASK"), (chat_format.assistant, "TOLD"))
    return "".join(before + text + after for (before, after), text in turns) + chat_format.assistant[0]


def test_beginning_of_sequence_stands_before_the_first_turn_once():
    chat_format = probe(None, bos="<s>", eos="</s>", tools=[])
    once = with_bos(chat_format, "<s>")
    assert once.first[0] == "<s>" + chat_format.first[0]
    assert with_bos(once, "<s>") == once


def test_chatml_turns_are_read_off():
    chat_format = probed(CHATML)
    assert chat_format.first == chat_format.system == ("<|im_start|>system\n", "<|im_end|>\n")
    assert chat_format.user == ("<|im_start|>user\n", "<|im_end|>\n")
    assert chat_format.assistant == ("<|im_start|>assistant\n", "<|im_end|>\n")
    assert chat_format.notes == ()


def test_template_without_functions_gets_results_in_tags_and_the_bare_frame():
    chat_format = probed(CHATML)
    assert not chat_format.native_functions
    assert chat_format.function == (
        "<|im_start|>user\n<tool_response>\n",
        "\n</tool_response><|im_end|>\n",
    )
    assert chat_format.frame == BARE


def test_default_system_message_of_a_template_does_not_get_into_the_turns():
    chat_format = probed(CHATML_WITH_DEFAULT_SYSTEM)
    assert "SmolLM" not in rendered(chat_format)
    assert chat_format.notes == ()


def test_hermes_functions_stand_in_the_first_turn_only():
    chat_format = probed(HERMES)
    assert chat_format.native_functions
    assert chat_format.first[0] == "<|im_start|>system\n"
    assert '"name": "weather"' in chat_format.first[1]
    assert chat_format.system == ("<|im_start|>system\n", "<|im_end|>\n")
    assert chat_format.notes == ()


def test_hermes_call_frame_and_result_turn_are_read_off():
    chat_format = probed(HERMES)
    assert chat_format.frame == Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
    assert chat_format.function == ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n")


def test_hermes_without_functions_is_plain_chatml():
    chat_format = probed(HERMES, tools=[])
    assert not chat_format.native_functions
    assert chat_format.first == ("<|im_start|>system\n", "<|im_end|>\n")


def test_functions_keep_their_characters():
    tool = {"type": "function", "function": {"name": "f", "description": "größer als 'null' <b>", "parameters": {}}}
    assert "größer als 'null' <b>" in probed(HERMES, tools=[tool]).first[1]


def test_refused_second_system_message_becomes_a_marked_user_turn():
    chat_format = probed(ONE_SYSTEM_MESSAGE)
    assert chat_format.system == ("<|im_start|>user\n[system] ", "<|im_end|>\n")
    assert chat_format.first == ("<|im_start|>system\n", "<|im_end|>\n")
    assert any("not first" in note for note in chat_format.notes)


def test_template_without_any_system_message_gets_instructions_in_a_user_turn():
    chat_format = probed(GEMMA)
    assert chat_format.first == ("<s><start_of_turn>user\n", "<end_of_turn>\n")
    assert chat_format.user == ("<start_of_turn>user\n", "<end_of_turn>\n")
    assert chat_format.assistant == ("<start_of_turn>model\n", "<end_of_turn>\n")
    assert any("no system message" in note for note in chat_format.notes)


def test_folded_system_message_gets_a_turn_of_its_own():
    chat_format = probed(GEMMA_FOLDED)
    assert rendered(chat_format) == (
        "<s><start_of_turn>user\nSYS<end_of_turn>\n<start_of_turn>user\nASK<end_of_turn>\n"
        "<start_of_turn>model\nTOLD<end_of_turn>\n<start_of_turn>model\n"
    )


def test_llama3_headers_are_read_off():
    chat_format = probed(LLAMA3)
    assert chat_format.first == ("<s><|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>")
    assert chat_format.user == ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>")
    assert chat_format.assistant == ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")
    assert chat_format.notes == ()


def test_beginning_of_text_stands_once():
    assert rendered(probed(LLAMA3)).count("<s>") == 1


def test_mistral_instructions_are_read_off():
    chat_format = probed(MISTRAL)
    assert chat_format.first == ("<s>[INST] ", " [/INST]")
    assert chat_format.user == ("[INST] ", " [/INST]")
    assert chat_format.assistant == (" ", "</s>")


@pytest.mark.parametrize(
    "source",
    [CHATML, CHATML_WITH_DEFAULT_SYSTEM, HERMES, ONE_SYSTEM_MESSAGE, GEMMA, GEMMA_FOLDED, LLAMA3, MISTRAL],
)
def test_no_placeholder_is_left_in_a_turn(source: str):
    chat_format = probed(source)
    turns = (chat_format.first, chat_format.user, chat_format.assistant, chat_format.system, chat_format.function)
    text = "".join(half for turn in turns for half in turn) + chat_format.frame.write("", "")
    assert "qz" not in text.lower()


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('never') }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages[17].content.text }}",
        "{{ undefined_function() }}",
        "{{ messages.append(1) }}",
        "{% include 'passwd' %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages[0].content | nothing }}",
        "{{ ''.__class__.__mro__ }}",
        "always the same",
        "",
        SYSTEM_IN_THE_LAST_TURN,
    ],
)
def test_unusable_template_is_replaced_by_chatml_and_says_so(source: str):
    chat_format = probed(source)
    assert chat_format.user == ("<|im_start|>user\n", "<|im_end|>\n")
    assert "ChatML instead" in chat_format.notes[0]


def test_template_that_prints_tools_as_they_are_is_given_compact_ones():
    compact = [{"name": "weather", "parameters": {"city": "string"}}]
    chat_format = probe(HERMES, bos="", eos="", tools=TOOLS, compact_tools=compact)
    assert chat_format.native_functions
    assert '<tools>\n{"name": "weather", "parameters": {"city": "string"}}' in chat_format.first[1]


def test_template_that_takes_tools_apart_is_given_whole_ones():
    source = (
        "{% for tool in tools or [] %}<tool>{{ tool.function.name }}: {{ tool.function.description }}</tool>"
        "{% endfor %}" + CHATML
    )
    compact = [{"name": "weather", "description": "Tell it."}]
    chat_format = probe(source, bos="", eos="", tools=TOOLS, compact_tools=compact)
    assert chat_format.first[0] == "<tool>weather: Tell it.</tool><|im_start|>system\n"


def test_missing_template_is_chatml_and_says_so():
    assert "no chat template" in probed(None).notes[0]


def test_template_that_cannot_render_functions_says_so():
    source = "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}" + CHATML
    chat_format = probed(source)
    assert not chat_format.native_functions
    assert any("no tools here" in note for note in chat_format.notes)


def test_date_of_a_template_does_not_change_the_prefix():
    assert "today" in probed("{{ strftime_now('%d %b %Y') }}" + CHATML).first[0]
