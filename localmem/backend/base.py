"""The processor as the rest of the system sees it: token ids in, a completion out.

Two implementations: `LlamaBackend` (llama.cpp) and `ScriptedBackend` (replays completions, for tests and users).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.kernel.messages import Usage
from localmem.kernel.tokens import Tokenizer

Sequence = Literal["main", "side"]
"""`main` holds the agent's window; `side` is for work that must leave it in the KV cache, such as a summary."""

FinishReason = Literal["stop", "length", "cancelled"]

OnText = Callable[[str], None]
"""Called with each new piece of generated text, whole characters only."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. temperature 0 is greedy; the others act only above it."""

    temperature: float = 0.0
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote. `ids` are exactly as generated, without the end-of-turn token."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage


class Backend(Protocol):
    """A model that completes prompts. One caller at a time; implementations lock."""

    window: int
    side_window: int
    """Tokens a prompt of the side sequence and its completion may take."""
    tokenizer: Tokenizer
    chat_template: str | None
    bos_text: str
    eos_text: str
    adds_bos: bool
    """The model expects `bos_text` before everything, whether or not its template writes it."""

    def complete(
        self,
        prompt: Prompt,
        *,
        grammar: CallGrammar | None,
        sampling: Sampling,
        max_tokens: int,
        sequence: Sequence = "main",
        on_text: OnText | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Completion:
        """Complete `prompt`, within `grammar` when there is one, in at most `max_tokens` tokens.

        Raises BackendError when prompt and max_tokens do not fit the window, or decoding fails.
        """
        ...

    def write_grammar(self, grammar: CallGrammar) -> str:
        """The grammar in Lark, as completions are held to it in this vocabulary."""
        ...

    def close(self) -> None: ...
