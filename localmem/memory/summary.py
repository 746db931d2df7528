"""The recursive summary (MemGPT, section 2.2): old summary + evicted messages -> new summary.

What is to be evicted has been read already, so the summary is asked for as a continuation of the window, on a fork of
it: only the request is read. Where the window is not in the KV cache, a prompt of its own is read instead, which never
overflows: what was evicted is folded in pieces that fit, each piece into the summary of those before it.

A summary is a list of facts, asked for as a call, so that it has an end: left to write plain text behind a conversation
of calls, a 1.5B model ended its turn at once, spoke as the user, or wrote its last line over and over.

What the agent itself said is part of what is summarised. When a model writes nothing the old summary stays: a flush
always succeeds, and nothing is lost from recall storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from localmem.backend.base import Backend, Completion, Sampling
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.prompt import Prompt, TurnEncoder
from localmem.errors import ConfigError, Interrupted, InvalidArguments
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.messages import Message
from localmem.kernel.tokens import count, cut

_UNREAD_TOKENS = 128  # of the window, that a summary may read again before a prompt of its own is cheaper
_FACT_TOKENS = 12  # the shortest useful fact, with its quotes
_LEAST_PIECE = 128  # tokens of messages a side prompt must have room for

OnInference = Callable[[str, Completion], None]


class Summarizer:
    """Folds messages into a summary of at most `limit` tokens.

    `request` asks for it behind the window, `instructions` in a prompt of its own; `{words}` in both is the limit.
    """

    def __init__(
        self,
        backend: Backend,
        encoder: TurnEncoder,
        *,
        frame: Frame,
        instructions: str,
        request: str,
        limit: int,
        on_inference: OnInference,
    ) -> None:
        self._backend = backend
        self._encoder = encoder
        self._grammar = CallGrammar(frame, (FunctionChoice("keep_facts", _schema(limit)),))
        words = str(max(20, limit // 2))
        self._instructions = instructions.replace("{words}", words)
        self._request = request.replace("{words}", words)
        self.limit = limit
        self._on_inference = on_inference
        overhead = encoder.side_prompt(self._instructions, _own_prompt("", "")).tokens
        self._piece_tokens = backend.side_window - overhead - 2 * limit - 16  # the old summary in, the new one out
        if self._piece_tokens < _LEAST_PIECE:
            raise ConfigError(
                f"summary_tokens is {limit}: a summary that long does not fit a prompt of {backend.side_window} tokens",
                f"Use at most {(backend.side_window - overhead - 16 - _LEAST_PIECE) // 2}.",
            )

    def fold(
        self,
        summary: str,
        evicted: Iterable[Message],
        *,
        window: Sequence[int] = (),
        cancellation: Cancellation | None = None,
    ) -> str:
        """The new summary. `window` are the ids of the main context up to the last of `evicted`.

        Raises Interrupted when it is cancelled.
        """
        continued = self._continuation(window)
        if continued is not None:
            return self.shorten(self._complete(continued, cancellation) or summary)
        for piece in self._pieces(evicted):
            prompt = self._encoder.side_prompt(self._instructions, _own_prompt(summary, piece))
            summary = self._complete(prompt, cancellation) or summary
        return self.shorten(summary)

    def shorten(self, summary: str) -> str:
        """A summary within the limit, as this model counts: it may have been written by another."""
        return cut(self._encoder.tokenizer, summary, self.limit)

    def _pieces(self, messages: Iterable[Message]) -> Iterator[str]:
        """Transcript pieces of at most `_piece_tokens` each."""
        tokenizer = self._encoder.tokenizer
        lines: list[str] = []
        size = 0
        for line in map(transcript_line, messages):
            if not line:
                continue
            shown = cut(tokenizer, line, self._piece_tokens // 2)
            tokens = count(tokenizer, shown) + 1
            if size + tokens > self._piece_tokens and lines:
                yield "\n".join(lines)
                lines, size = [], 0
            lines.append(shown)
            size += tokens
        if lines:
            yield "\n".join(lines)

    def _continuation(self, window: Sequence[int]) -> Prompt | None:
        """The window and the request, where nearly all of it has been read already and the answer fits behind it."""
        ids = (*window, *self._encoder.turn("system", self._request), *self._encoder.answer())
        prompt = Prompt(ids, {"window": len(window), "side": len(ids) - len(window)})
        if not window or prompt.tokens + self.limit > self._backend.window:
            return None
        is_read = self._backend.reusable(prompt, sequence="side") >= len(window) - _UNREAD_TOKENS
        return prompt if is_read else None

    def _complete(self, prompt: Prompt, cancellation: Cancellation | None) -> str:
        completion = self._backend.complete(
            prompt,
            grammar=self._grammar,
            sampling=Sampling(),
            max_tokens=self.limit,
            sequence="side",
            cancellation=cancellation,
        )
        if completion.finish_reason == "cancelled":
            raise Interrupted
        self._on_inference("summary", completion)
        try:
            facts = self._grammar.frame.parse(completion.text).arguments.get("facts", [])
        except InvalidArguments:
            return ""
        return _lines(facts)


def _schema(limit: int) -> dict[str, object]:
    """At most so many facts that a summary of `limit` tokens holds them, none longer than a sentence or two."""
    fact = {"type": "string", "minLength": 3, "maxLength": 200}
    facts = {"type": "array", "items": fact, "minItems": 1, "maxItems": max(4, limit // _FACT_TOKENS)}
    return {
        "type": "object",
        "properties": {"facts": facts},
        "required": ["facts"],
        "additionalProperties": False,
    }


def _lines(facts: Iterable[str]) -> str:
    """Each fact once, one a line: a small model comes back to what it has listed."""
    once: dict[str, str] = {}
    for fact in facts:
        line = " ".join(fact.split()).removeprefix("- ")
        if line:
            once.setdefault(line.casefold(), line)
    return "\n".join(f"- {line}" for line in once.values())


def _own_prompt(summary: str, piece: str) -> str:
    return f"Summary so far:\n{summary or '(none)'}\n\nMessages that follow it:\n{piece}\n\nWrite the new list."


def transcript_line(message: Message) -> str:
    """A message as one line of a transcript; empty for what a summary has no use for."""
    when = message.created_at.strftime("%Y-%m-%d")
    if message.kind == "user_message":
        return f"[{when}] User: {message.text}"
    if message.kind == "reply":
        return f"[{when}] Assistant: {message.text}"
    if message.kind == "call" and message.text.startswith(("core_memory", "archival_memory_insert")):
        return f"[{when}] (Assistant saved: {message.text})"
    if message.kind in ("document", "timer", "system_message"):
        return f"[{when}] (Event: {message.text})"
    return ""
