"""The example conversation that stands before the real one, as data (`prompts/examples.toml`)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from localmem.calls.frame import Frame
from localmem.calls.prompt import TurnEncoder
from localmem.kernel.messages import FunctionCall


@dataclass(frozen=True, slots=True)
class ExampleExchange:
    """A user's words, and the calls that deal with them, each with its result (empty: none is shown)."""

    user: str
    calls: tuple[tuple[FunctionCall, str], ...]


def read_examples(toml: str) -> tuple[ExampleExchange, ...]:
    """The exchanges of an examples file, in order."""
    return tuple(
        ExampleExchange(
            exchange["user"],
            tuple((FunctionCall(call["name"], call["arguments"]), call.get("result", "")) for call in exchange["call"]),
        )
        for exchange in tomllib.loads(toml)["exchange"]
    )


def encode_examples(examples: Sequence[ExampleExchange], encoder: TurnEncoder, frame: Frame) -> tuple[int, ...]:
    """The examples as turns, in the model's own frame."""
    ids: list[int] = []
    for exchange in examples:
        ids += encoder.turn("user", exchange.user)
        for call, result in exchange.calls:
            written = frame.write(call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            ids += encoder.turn("assistant", written) if call.name == frame.plain else encoder.call(written)
            ids += encoder.turn("function", result) if result else ()
    return tuple(ids)
