"""What every prompt of a model begins with: instructions and functions, in the family's own chat format. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from localmem.calls.chat_format import probe, with_bos
from localmem.calls.frame import Frame
from localmem.calls.prompt import TurnEncoder
from localmem.calls.spec import FunctionSpec
from localmem.kernel.tokens import Tokenizer


class Reader(Protocol):
    """What is asked of a model here: its vocabulary and its template. Every backend is one."""

    tokenizer: Tokenizer
    chat_template: str | None
    bos_text: str
    eos_text: str
    adds_bos: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The first turn of a prompt as ids, what encodes the turns behind it, and the frame of a call."""

    encoder: TurnEncoder
    frame: Frame
    ids: tuple[int, ...]
    notes: tuple[str, ...]


def opening(
    reader: Reader,
    specs: Sequence[FunctionSpec],
    instructions: str,
    *,
    frame: Frame | None = None,
    compact: bool = True,
    describe: Callable[[FunctionSpec], str] = FunctionSpec.signature,
    rule: str = "You answer with one call and nothing else:",
) -> Opening:
    """Instructions and functions as the model's family has them; `frame` None takes the family's own.

    A template that prints each function as it is gets it `compact`. One that knows no functions has them told in the
    instructions, each as `describe` puts it, and `rule` above how a call is written.
    """
    chat_format = probe(
        reader.chat_template,
        bos=reader.bos_text,
        eos=reader.eos_text,
        tools=[spec.tool() for spec in specs],
        compact_tools=[spec.compact_tool() for spec in specs] if compact else [],
    )
    chosen = frame or chat_format.frame
    text = instructions.strip()
    if not chat_format.native_functions:
        example = chosen.write("NAME", '{"ARGUMENT": VALUE, ...}')
        lines = "\n".join(map(describe, specs))
        text += f"\n\nYour functions:\n{lines}\n{rule}\n{example}"
    if reader.adds_bos:
        chat_format = with_bos(chat_format, reader.bos_text)
    encoder = TurnEncoder(reader.tokenizer, chat_format)
    return Opening(encoder, chosen, encoder.first(text), chat_format.notes)
