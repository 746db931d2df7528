"""The processor as the rest of the system sees it: token ids in, a completion out.

Two implementations: `LlamaBackend` (llama.cpp) and `ScriptedBackend` (replays completions, for tests and users).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from localmem.backend.kv_cache import Sequence
from localmem.calls.calibration import Guidance
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.messages import Usage
from localmem.kernel.tokens import Tokenizer

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
    """Tokens a prompt of the side sequence and its completion may take, beyond those it shares with main."""
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
        guidance: Guidance | None = None,
        sequence: Sequence = "main",
        owner: str = "",
        on_text: OnText | None = None,
        cancellation: Cancellation | None = None,
    ) -> Completion:
        """Complete `prompt`, within `grammar` when there is one, in at most `max_tokens` tokens.

        `guidance` has its say where the grammar leaves a choice between calls.
        `sequence` is main, or side: a fork of main where that begins alike, and gone when it is done. `owner` says
        whose window it is: when another's comes, this one's is kept on disk. Raises BackendError when prompt and
        max_tokens do not fit the window, or decoding fails.
        """
        ...

    def reusable(self, prompt: Prompt, *, sequence: Sequence = "main") -> int:
        """How many tokens of the prompt would not have to be read."""
        ...

    def read_ahead(self, prompt: Prompt, *, owner: str = "", cancellation: Cancellation | None = None) -> bool:
        """Read a window that may become main, beside main; False when it was cancelled or there is no room for it.

        What is read stays: the next call goes on from there, and a completion whose prompt begins so takes it over.
        """
        ...

    def take_over(self, window: Prompt, *, owner: str = "") -> None:
        """Make main what has been read ahead of `owner`'s window, where that is more than main holds of it."""
        ...

    def keep(self, window: Prompt, *, owner: str, static_tokens: int = 0) -> None:
        """Write to disk what has been read of `owner`'s window, and its first `static_tokens` for every agent.

        Nothing that is there already is written again; nothing without an owner.
        """
        ...

    def write_grammar(self, grammar: CallGrammar) -> str:
        """The grammar as completions are held to it in this vocabulary: Lark, or GBNF for llama.cpp's own sampler.

        Raises LocalmemError for what it cannot say.
        """
        ...

    def close(self) -> None: ...
