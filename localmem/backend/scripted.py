"""A backend that replays completions: the processor of our tests, and of users' own.

It counts in bytes (`ByteTokenizer`), refuses a prompt that does not fit as the real one does, and keeps every prompt
and grammar it was handed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from localmem.backend.base import Completion, FinishReason, OnText, Sampling
from localmem.backend.kv_cache import KVCache
from localmem.backend.kv_cache import Sequence as CacheSequence
from localmem.calls.calibration import Guidance
from localmem.calls.chat_format import BARE
from localmem.calls.frame import HEARTBEAT
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.errors import BackendError
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.messages import FunctionCall, Usage
from localmem.kernel.tokens import Tokenizer

_CONTROL = ("<|im_start|>", "<|im_end|>")
_LITERAL_BYTES = [*(bytes([token]) for token in range(256)), b"", b""]
_BYTES = [*_LITERAL_BYTES[:256], *(control.encode() for control in _CONTROL)]
_CONTROL_TEXT = re.compile(f"({'|'.join(map(re.escape, _CONTROL))})")


class ByteTokenizer:
    """One token a byte of UTF-8, and two control tokens, 256 and 257.

    >>> ByteTokenizer().encode("é")
    [195, 169]
    """

    name = "bytes"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        pieces = _CONTROL_TEXT.split(text) if special else [text]
        ids: list[int] = []
        for piece in pieces:
            ids += [256 + _CONTROL.index(piece)] if special and piece in _CONTROL else piece.encode("utf-8", "replace")
        return ids

    def decode_bytes(self, ids: Sequence[int], *, special: bool = False) -> bytes:
        return b"".join(map((_BYTES if special else _LITERAL_BYTES).__getitem__, ids))


class ScriptedBackend:
    """Replays `script`: calls, or texts as a model might write them; then `send_message` for ever.

    Side inferences (summaries) are answered with `summary`.
    """

    def __init__(
        self,
        script: Iterable[FunctionCall | str] = (),
        *,
        window: int = 16_384,
        summary: str = "They talked.",
        otherwise: str = "All right.",
    ) -> None:
        self.window = window
        self.side_window = 8_192
        self.tokenizer: Tokenizer = ByteTokenizer()
        self.chat_template: str | None = None
        self.bos_text = ""
        self.eos_text = "<|im_end|>"
        self.adds_bos = False
        self.script: list[FunctionCall | str] = list(script)
        self.prompts: list[Prompt] = []
        self.side_prompts: list[Prompt] = []
        self.grammars: list[CallGrammar | None] = []
        self._summary = summary
        self._otherwise = otherwise
        self.cache = KVCache()
        self.ahead_prompts: list[Prompt] = []
        self.kept: list[tuple[str, Prompt]] = []

    def complete(
        self,
        prompt: Prompt,
        *,
        grammar: CallGrammar | None,
        sampling: Sampling,
        max_tokens: int,
        guidance: Guidance | None = None,
        sequence: CacheSequence = "main",
        owner: str = "",
        on_text: OnText | None = None,
        cancellation: Cancellation | None = None,
    ) -> Completion:
        shared = self.cache.reusable(prompt.ids, "side") if sequence == "side" else 0
        room = self.window if sequence == "main" else self.side_window + shared
        if not prompt.ids or prompt.tokens + max_tokens > room:
            raise BackendError(f"a prompt of {prompt.tokens} tokens and {max_tokens} to write do not fit {room}")
        (self.prompts if sequence == "main" else self.side_prompts).append(prompt)
        if sequence == "main":
            self.grammars.append(grammar)
        text = self._next(grammar) if sequence == "main" else self._aside(grammar)
        ids: list[int] = []
        reason: FinishReason = "stop"
        for character in text:
            piece = self.tokenizer.encode(character)
            if cancellation is not None and cancellation.cancelled:
                reason = "cancelled"
                break
            if len(ids) + len(piece) > max_tokens:
                reason = "length"
                break
            ids += piece
            if on_text is not None:
                on_text(self.tokenizer.decode_bytes(piece).decode())
        written = self.tokenizer.decode_bytes(ids).decode()
        return Completion(written, tuple(ids), reason, self._usage(prompt, tuple(ids), sequence))

    def reusable(self, prompt: Prompt, *, sequence: CacheSequence = "main") -> int:
        return self.cache.reusable(prompt.ids, sequence)

    def read_ahead(self, prompt: Prompt, *, owner: str = "", cancellation: Cancellation | None = None) -> bool:
        if cancellation is not None and cancellation.cancelled:
            return False
        self.ahead_prompts.append(prompt)
        self.cache.begin(prompt.ids, "ahead")
        self.cache.extend("ahead", prompt.ids[self.cache.length("ahead") :])
        return True

    def take_over(self, window: Prompt, *, owner: str = "") -> None:
        self.cache.begin((*window.ids, -1), "main")

    def keep(self, window: Prompt, *, owner: str, static_tokens: int = 0) -> None:
        self.kept.append((owner, window))

    def write_grammar(self, grammar: CallGrammar) -> str:
        return grammar.lark(lambda text: self.tokenizer.encode(text, special=True))

    def close(self) -> None:
        """Nothing to close."""

    def _next(self, grammar: CallGrammar | None) -> str:
        item = self.script.pop(0) if self.script else FunctionCall("send_message", {"message": self._otherwise})
        if isinstance(item, str):
            return item
        frame = BARE if grammar is None else grammar.frame
        heartbeat = {HEARTBEAT: True} if item.request_heartbeat else {}
        return frame.write(item.name, json.dumps({**item.arguments, **heartbeat}, ensure_ascii=False))

    def _aside(self, grammar: CallGrammar | None) -> str:
        """The summary as it is, or as the one fact of the list that is asked for."""
        if grammar is None or not self._summary.strip():
            return self._summary
        (choice,) = grammar.choices
        (listed,) = choice.parameters["properties"]
        return grammar.frame.write(choice.name, json.dumps({listed: [self._summary]}, ensure_ascii=False))

    def _usage(self, prompt: Prompt, ids: tuple[int, ...], sequence: CacheSequence) -> Usage:
        reused = self.cache.begin(prompt.ids, sequence)
        self.cache.extend(sequence, [*prompt.ids[reused:], *ids])
        if sequence == "side":
            self.cache.drop("side")
        return Usage(prompt.tokens, reused, prompt.tokens - reused, len(ids))
