"""The model family's chat format, read off its own chat template by probing it.

A template is a program over a whole conversation: it may raise on a system message that is not first, group messages,
or know no tools. We run it a few times on probe conversations with placeholders, and keep what it puts before and
after each kind of turn. Turns are then joined by us, so that a prompt only ever grows at its end and counts add up
exactly; and content is tokenized apart from the template's text, so that no text can speak as the system.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localmem.calls.frame import Frame

Turn = tuple[str, str]
"""Template text before and after a turn's content."""

BARE = Frame('{"name": "', '", "arguments": ', "}")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For models that carry no template and whose card has none."""

# Placeholders no template contains; plain ASCII, so that no filter changes them.
_SYSTEM, _USER, _ASSISTANT, _SECOND, _RESULT = "QZSYSTEMZQ", "QZUSERZQ", "QZASSISTANTZQ", "QZSECONDZQ", "QZRESULTZQ"
_NAME, _VALUE = "qzfunctionzq", "QZVALUEZQ"

# A template is a program by a stranger: what it may raise beside jinja2's own errors.
_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What stands round each kind of turn, and which fallbacks had to be taken (`notes`)."""

    first: Turn
    """The system instructions; its second half holds the family's rendering of the functions, if it has one."""
    user: Turn
    assistant: Turn
    system: Turn
    """A system turn after the first: working context, summary, events."""
    function: Turn
    """The result of a call."""
    frame: Frame
    native_functions: bool
    """The template renders function schemas itself."""
    notes: tuple[str, ...] = field(default=())


class ChatTemplate:
    """A Jinja chat template, run in a sandbox."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(
            source, globals={"raise_exception": _raise, "strftime_now": _fixed_date}
        )
        self._special = {"bos_token": bos, "eos_token": eos}

    def render(self, messages: Sequence[dict[str, Any]], *, tools: object = None, generate: bool = False) -> str:
        """The conversation as text. Raises jinja2.TemplateError where the template refuses."""
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=generate, **self._special
            )
        except _TEMPLATE_FAULTS as error:
            raise jinja2.TemplateError(str(error)) from error


def probe(
    source: str | None,
    *,
    bos: str,
    eos: str,
    tools: Sequence[dict[str, Any]],
    compact_tools: Sequence[dict[str, Any]] = (),
) -> ChatFormat:
    """The chat format of a template, `tools` rendered into its first turn.

    A template that prints each tool as JSON, as it is, is given `compact_tools`: a quarter of the tokens.

    A template that raises on everything, or gives nothing usable, is replaced by ChatML, and `notes` says so.
    """
    if source is not None:
        try:
            return _Probe(ChatTemplate(source, bos=bos, eos=eos), list(tools), list(compact_tools)).chat_format()
        except (jinja2.TemplateError, _Unusable) as error:
            note = f"the model's chat template cannot be used ({error}); ChatML instead"
            return _with_note(_chatml(bos, eos), note)
    return _with_note(_chatml(bos, eos), "the model has no chat template; ChatML instead")


def with_bos(chat_format: ChatFormat, bos: str) -> ChatFormat:
    """The format with the beginning-of-sequence token before its first turn, once."""
    before, after = chat_format.first
    return chat_format if before.startswith(bos) else replace(chat_format, first=(bos + before, after))


class _Unusable(Exception):
    """The template's output cannot be taken apart."""


class _Probe:
    def __init__(
        self, template: ChatTemplate, tools: list[dict[str, Any]], compact_tools: list[dict[str, Any]]
    ) -> None:
        self._compact_tools = compact_tools
        self._template = template
        self._tools = tools
        self._notes: list[str] = []
        self._opening = [_message("system", _SYSTEM), _message("user", _USER)]
        self._exchange = [*self._opening, _message("assistant", _ASSISTANT)]

    def chat_format(self) -> ChatFormat:
        opening, exchange = self._render_base()
        second = self._render([*self._exchange[: len(exchange)], _message("user", _SECOND)])
        user = _around(_rest(second, exchange[-1]), _SECOND)
        assistant = _around(_rest(exchange[-1], opening), _ASSISTANT)
        generated = self._template.render(self._exchange[:-1], generate=True)
        if generated.startswith(opening) and len(generated) > len(opening):
            assistant = (generated[len(opening) :], assistant[1])
        first, native = self._first(opening, user)
        return ChatFormat(
            first=first,
            user=user,
            assistant=assistant,
            system=self._later_system(exchange[-1], user),
            function=self._function_turn(user) if native else _tagged_result(user),
            frame=self._frame(assistant) if native else BARE,
            native_functions=native,
            notes=tuple(self._notes),
        )

    def _render_base(self) -> tuple[str, list[str]]:
        """The opening, and the exchange it begins; without a system message if the template refuses one."""
        try:
            opening = self._render(self._exchange[:2])
            if _SYSTEM not in opening:
                raise jinja2.TemplateError("the system message is dropped")
        except jinja2.TemplateError:
            self._notes.append("the template takes no system message; instructions stand in a user turn")
            self._exchange = self._exchange[1:]
            opening = self._render(self._exchange[:1])
            return opening, [opening, self._render(self._exchange)]
        return opening, [opening, self._render(self._exchange[:2]), self._render(self._exchange)]

    def _first(self, opening: str, user: Turn) -> tuple[Turn, bool]:
        """The system instructions' turn, and whether the template renders functions."""
        user_turn = user[0] + _USER + user[1]
        if _SYSTEM not in opening or not opening.endswith(user_turn):
            start = opening.index(user[0]) if user[0] in opening else 0
            return (opening[:start] + user[0], user[1]), False
        with_tools = opening
        if self._tools:
            try:
                with_tools = self._template.render(self._exchange[:2], tools=self._tools)
                if self._compact_tools and all(_to_json(tool) in with_tools for tool in self._tools):
                    with_tools = self._template.render(self._exchange[:2], tools=self._compact_tools)
            except jinja2.TemplateError as error:
                self._notes.append(f"the template cannot render functions ({error})")
        native = with_tools != opening and with_tools.endswith(user_turn) and _SYSTEM in with_tools
        text = with_tools if native else opening
        return _around(text[: -len(user_turn)], _SYSTEM), native

    def _later_system(self, exchange: str, user: Turn) -> Turn:
        try:
            text = self._render([*self._exchange, _message("system", _SECOND)])
            return _around(_rest(text, exchange), _SECOND)
        except (jinja2.TemplateError, _Unusable):
            self._notes.append("the template refuses a system message that is not first; events are user turns")
            return user[0] + "[system] ", user[1]

    def _function_turn(self, user: Turn) -> Turn:
        call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": {"k": _VALUE}}}
        before = [*self._exchange[:-1], {"role": "assistant", "content": "", "tool_calls": [call]}]
        result = {"role": "tool", "name": _NAME, "tool_call_id": "call00001", "content": _RESULT}
        try:
            return _around(_rest(self._render([*before, result]), self._render(before)), _RESULT)
        except (jinja2.TemplateError, _Unusable):
            return _tagged_result(user)

    def _frame(self, assistant: Turn) -> Frame:
        """The family's own call frame, read off how the template writes a past call."""
        function = {"name": _NAME, "arguments": {"k": _VALUE}}
        call = {"id": "call00001", "type": "function", "function": function}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = self._render(self._exchange[:-1])
            turn = _rest(self._render([*self._exchange[:-1], message]), before)
            name, arguments = turn.index(_NAME), turn.index('{"k"')
            end = turn.index("}", arguments) + 1
        except (jinja2.TemplateError, _Unusable, ValueError):
            self._notes.append("the template writes no calls; bare JSON instead")
            return BARE
        opening = assistant[0].rstrip()
        head = turn[:name].removeprefix(assistant[0])
        if head == turn[:name]:
            head = turn[:name].removeprefix(opening).lstrip()
        return Frame(head, turn[name + len(_NAME) : arguments], turn[end:].removesuffix(assistant[1]).rstrip())

    def _render(self, messages: Sequence[dict[str, Any]]) -> str:
        return self._template.render(messages)


def _tagged_result(user: Turn) -> Turn:
    """For a template that does not know functions: a result stands in a user turn, in tags."""
    return user[0] + "<tool_response>\n", "\n</tool_response>" + user[1]


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _rest(longer: str, shorter: str) -> str:
    if not longer.startswith(shorter):
        raise _Unusable("a longer conversation does not begin as the shorter one")
    return longer[len(shorter) :]


def _around(text: str, placeholder: str) -> Turn:
    before, found, after = text.partition(placeholder)
    if not found:
        raise _Unusable("a message is missing from the rendered conversation")
    return before, after


def _chatml(bos: str, eos: str) -> ChatFormat:
    return _Probe(ChatTemplate(CHATML, bos=bos, eos=eos), [], []).chat_format()


def _with_note(chat_format: ChatFormat, note: str) -> ChatFormat:
    return replace(chat_format, notes=(note, *chat_format.notes))


def _to_json(value: object, **_options: object) -> str:
    """JSON as the Hugging Face templates expect it: no HTML escapes, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False)


def _fixed_date(_pattern: str) -> str:
    # A date in the system turn would change the prefix every day; ours is told by the login event.
    return "today"


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)
