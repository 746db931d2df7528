"""The llama.cpp backend: our decode loop.

Token ids in, token ids out. A prompt is read from where the KV cache stops agreeing with it; then, until the call is
whole: forced tokens go through the model in one batch, any other token is sampled first and tested after, and the
whole vocabulary is masked only when that one token is refused. As the token budget ends only closing tokens are
chosen, so that no call is ever cut off.
"""

from __future__ import annotations

import codecs
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from localmem.backend.base import Completion, FinishReason, OnText, Sampling, Sequence
from localmem.backend.constraint import Constraint, GuidanceEngine, Logits
from localmem.backend.kv_cache import CachedSequence
from localmem.backend.llama_library import LlamaContext, LlamaModel
from localmem.backend.tokenizer import Attribute, build_tokenizer
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.errors import BackendError
from localmem.kernel.messages import Usage

logger = logging.getLogger(__name__)

_SEQUENCE_IDS: dict[Sequence, int] = {"main": 0, "side": 1}
_SIDE_TOKENS = 2048
"""KV cells kept for the side sequence beside the window."""

_CLOSING_TOKENS = 48
"""With this many tokens left of a completion's budget only closing tokens are chosen: enough for the rest of a call
whose every string is ended at once."""

_READ_CHUNK = 256  # tokens read between two looks at `cancelled`


class LlamaBackend:
    """A GGUF in process, on the CPU unless `gpu_layers` says otherwise.

    `threads` 0 lets a probe of a few tokens choose. With `counting_only` the weights are not read: it can count and
    render, in under a second, but not complete. Raises ModelCorrupt or BackendError.
    """

    def __init__(
        self,
        path: Path,
        *,
        window: int,
        threads: int = 0,
        gpu_layers: int = 0,
        chat_template: str | None = None,
        counting_only: bool = False,
    ) -> None:
        self._model = LlamaModel(path, gpu_layers=gpu_layers, vocabulary_only=counting_only)
        self._lock = threading.RLock()
        vocabulary = self._model.vocabulary()
        metadata = self._model.metadata()
        self.window = window
        self.side_window = _SIDE_TOKENS
        self.path = path
        self.chat_template = chat_template or metadata.get("tokenizer.chat_template")
        self.tokenizer = build_tokenizer(
            vocabulary, lambda text, special: self._model.tokenize(text, special=special), self._model.piece
        )
        self.bos_text = _token_text(vocabulary.texts, vocabulary.bos)
        self.eos_text = _token_text(vocabulary.texts, vocabulary.eos)
        self.adds_bos = self._model.adds_bos()
        self._end = vocabulary.end_of_generation
        self._spells_by_ids = vocabulary.kind == "gpt2"  # byte-level: no two tokens read the same
        self._control = np.array(
            [t for t, a in enumerate(vocabulary.attributes) if a & Attribute.CONTROL and t not in self._end]
        )
        self._closers = _closing_tokens(self.tokenizer.encode)
        self._cached: dict[Sequence, CachedSequence] = {"main": CachedSequence(), "side": CachedSequence()}
        self._context: LlamaContext | None = None
        self._engine: GuidanceEngine | None = None
        self.threads = threads
        if not counting_only:
            self._prepare(len(vocabulary.texts))

    def _prepare(self, vocabulary_size: int) -> None:
        """What generating needs beyond counting: the constraint engine, the KV cache, threads."""
        self._engine = GuidanceEngine(self._model.vocabulary_handle, vocabulary_size)
        self._context = LlamaContext(self._model, n_ctx=self.window + _SIDE_TOKENS, sequences=2)
        self.threads = self.threads or self._probe_threads(self._context)
        self._context.set_threads(self.threads, self.threads)

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
        room = self.window if sequence == "main" else self.side_window
        if not prompt.ids or prompt.tokens + max_tokens > room:
            raise BackendError(
                f"a prompt of {prompt.tokens} tokens and {max_tokens} to write do not fit {room}",
                "This is a defect of localmem: the queue manager must keep prompts inside the window.",
            )
        with self._lock:
            constraint = None if grammar is None else self._constraint(grammar)
            started = time.perf_counter()
            reused = self._read(prompt, sequence, cancelled)
            read = time.perf_counter()
            run = _Run(self, sequence, constraint, sampling, max_tokens, on_text, cancelled)
            reason = run.finish_reason if reused < 0 else run.generate()
        written = time.perf_counter()
        usage = Usage(
            prompt_tokens=prompt.tokens,
            reused_tokens=max(0, reused),
            evaluated_tokens=prompt.tokens - max(0, reused),
            generated_tokens=len(run.ids),
            read_seconds=read - started,
            write_seconds=written - read,
        )
        return Completion(run.text, tuple(run.ids), reason, usage)

    def close(self) -> None:
        with self._lock:
            if self._context is not None:
                self._context.close()
            self._context = self._engine = None
            self._model.close()

    @property
    def _llama(self) -> LlamaContext:
        if self._context is None:
            raise _not_open()
        return self._context

    def _constraint(self, grammar: CallGrammar) -> Constraint:
        if self._engine is None:
            raise _not_open()
        return self._engine.start(self.write_grammar(grammar))

    def write_grammar(self, grammar: CallGrammar) -> str:
        """The grammar as llguidance gets it for this vocabulary."""
        return grammar.lark(self._encode_template, by_ids=self._spells_by_ids)

    def _encode_template(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=True)

    def _read(self, prompt: Prompt, sequence: Sequence, cancelled: Callable[[], bool] | None) -> int:
        """Bring the KV cache to hold the prompt; returns the reused tokens, or -1 when cancelled on the way."""
        cached = self._cached[sequence]
        reused = cached.reusable(prompt.ids)
        if reused < len(cached) and not self._llama.truncate(_SEQUENCE_IDS[sequence], reused):
            reused = 0  # a recurrent model cannot forget its end: read everything again
            self._llama.truncate(_SEQUENCE_IDS[sequence], 0)
        cached.truncate(reused)
        for start in range(reused, prompt.tokens, _READ_CHUNK):
            if cancelled is not None and cancelled():
                return -1
            self.feed(prompt.ids[start : start + _READ_CHUNK], sequence)
        return reused

    def feed(self, ids: tuple[int, ...] | list[int], sequence: Sequence) -> None:
        """Read `ids` at the end of a sequence."""
        cached = self._cached[sequence]
        try:
            self._llama.decode(ids, position=len(cached), sequence=_SEQUENCE_IDS[sequence])
        except BaseException:  # Ctrl-C too: what is half read must not be taken for read
            self._llama.truncate(_SEQUENCE_IDS[sequence], len(cached))
            raise
        cached.extend(ids)

    def logits(self) -> Logits:
        """The logits after the last token fed, every control token masked: text never holds one."""
        logits = self._llama.logits()
        if len(self._control):
            logits[self._control] = -np.inf
        return logits

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end

    @property
    def closers(self) -> tuple[int, ...]:
        return self._closers

    def _probe_threads(self, context: LlamaContext) -> int:
        """One thread or all of them, whichever decodes faster now: ggml's workers spin, so that on a busy machine more
        threads can be 200 times slower."""
        most = max(1, os.cpu_count() or 1)
        if most == 1:
            return 1
        token = self.tokenizer.encode("the")[0]
        seconds = {count: _time_tokens(context, count, token) for count in (1, most)}
        logger.info("threads: %s", {count: f"{s * 1000:.1f} ms" for count, s in seconds.items()})
        return min(seconds, key=lambda count: seconds[count])


def _not_open() -> BackendError:
    return BackendError(
        "this backend cannot write: it was opened for counting only, or is closed",
        "Open the agent with its model to talk to it.",
    )


def _time_tokens(context: LlamaContext, threads: int, token: int) -> float:
    """Seconds a token takes: the median of three, after one that touches cold memory."""
    context.set_threads(threads, threads)
    times: list[float] = []
    for position in range(4):
        started = time.perf_counter()
        context.decode([token], position=position, sequence=0)
        times.append(time.perf_counter() - started)
    context.truncate(0, 0)
    return sorted(times[1:])[1]


class _Run:
    """One completion in the making."""

    def __init__(
        self,
        backend: LlamaBackend,
        sequence: Sequence,
        constraint: Constraint | None,
        sampling: Sampling,
        max_tokens: int,
        on_text: OnText | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self._backend = backend
        self._sequence: Sequence = sequence
        self._constraint = constraint
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._max_tokens = max_tokens
        self._on_text = on_text
        self._cancelled = cancelled
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason = "cancelled"

    def generate(self) -> FinishReason:
        while len(self.ids) < self._max_tokens:
            if self._cancelled is not None and self._cancelled():
                return "cancelled"
            tokens = self._next()
            if not tokens:
                break
            self._emit(tokens)
            if self._constraint is not None and self._constraint.finished:
                self._flush()
                return "stop"
            if len(self.ids) < self._max_tokens:
                self._backend.feed(tokens, self._sequence)
        else:
            self._flush()
            return "length"
        self._flush()
        return "stop"

    def _next(self) -> list[int]:
        """The next tokens: the forced ones, or one sampled; empty at the end of the turn."""
        if self._constraint is None:
            token = self._sample(self._backend.logits())
            return [] if token in self._backend.end_tokens else [token]
        forced = self._constraint.forced()[: self._max_tokens - len(self.ids)]
        if forced:
            self._constraint.accept(forced)
            return forced
        token = self._choose(self._constraint)
        if token in self._backend.end_tokens:
            return []
        self._constraint.accept([token])
        return [token]

    def _choose(self, constraint: Constraint) -> int:
        if self._max_tokens - len(self.ids) <= _CLOSING_TOKENS:
            closer = next((t for t in self._backend.closers if constraint.allows(t)), None)
            if closer is not None:
                return closer
        logits = self._backend.logits()
        token = self._sample(logits)
        if constraint.allows(token):
            return token
        constraint.mask(logits)
        return self._sample(logits)

    def _sample(self, logits: Logits) -> int:
        if self._sampling.temperature <= 0:
            return int(logits.argmax())
        return _draw(logits, self._sampling, self._random)

    def _emit(self, tokens: list[int]) -> None:
        self.ids.extend(tokens)
        self._add(self._decoder.decode(self._backend.tokenizer.decode_bytes(tokens)))

    def _flush(self) -> None:
        self._add(self._decoder.decode(b"", final=True))

    def _add(self, piece: str) -> None:
        self.text += piece
        if piece and self._on_text is not None:
            self._on_text(piece)


def _draw(logits: Logits, sampling: Sampling, random: np.random.Generator) -> int:
    """One token by temperature, then min_p, then top_p."""
    scaled = (logits - logits.max()) / sampling.temperature
    order = np.argsort(-scaled)[:1000]  # the tail beyond a thousand never survives top_p
    weights = np.exp(scaled[order])
    weights[weights < sampling.min_p * weights[0]] = 0.0
    weights /= weights.sum()
    inside = np.concatenate(([True], np.cumsum(weights)[:-1] < sampling.top_p))
    weights = np.where(inside, weights, 0.0)
    return int(random.choice(order, p=weights / weights.sum()))


def _closing_tokens(encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """Single tokens that end something, the most final first."""
    texts = ('"}}\n', '"}}', '"}', '"', "}}\n", "}}", "}", "]", " false", "false", " 0", "0")
    found = [ids[0] for ids in map(encode, texts) if len(ids) == 1]
    return tuple(dict.fromkeys(found))


def _token_text(texts: tuple[Any, ...], token: int | None) -> str:
    return "" if token is None or token < 0 else texts[token].decode("utf-8", "replace")
