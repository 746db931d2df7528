"""The llama.cpp backend: a GGUF in process, its KV cache, and how a prompt is read.

Token ids in, token ids out. A prompt is read from where the KV cache stops agreeing with it, what a snapshot on disk
holds included; then the decode loop writes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localmem.backend.base import Completion, OnText, Sampling
from localmem.backend.constraint import Constraint, GuidanceEngine, Logits
from localmem.backend.decode_loop import DecodeLoop, closing_tokens
from localmem.backend.kv_cache import KVCache
from localmem.backend.kv_cache import Sequence as CacheSequence
from localmem.backend.llama_library import DecodeAborted, LlamaContext, LlamaModel, NoRoom
from localmem.backend.tokenizer import Attribute, build_tokenizer
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.errors import BackendError
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.messages import Usage

logger = logging.getLogger(__name__)

_SIDE_TOKENS = 2048
"""KV cells beside the window: for a fork, and for a window that is read ahead."""

_AHEAD_MARGIN = 512  # cells a turn may need while a window is read ahead
_READ_CHUNK = 128
"""Tokens read at once. llama.cpp looks at the cancellation between two operations of its graph; a chunk this small
keeps the longest of them under a tenth of a second for a model of a few billion weights."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """How llama.cpp is run; the values are those of the settings of the same names."""

    threads: int = 0  # 0: a probe of a few tokens chooses
    gpu_layers: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: str = "auto"
    kv_shift: bool = False


class LlamaBackend:
    """A GGUF in process.

    With `counting_only` the weights are not read: it can count and render, in under a second, but not complete.
    Raises ModelCorrupt or BackendError.
    """

    def __init__(
        self,
        path: Path,
        *,
        window: int,
        options: LlamaOptions | None = None,
        chat_template: str | None = None,
        counting_only: bool = False,
    ) -> None:
        self.options = options or LlamaOptions()
        self._model = LlamaModel(path, gpu_layers=self.options.gpu_layers, vocabulary_only=counting_only)
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
        self.end_tokens = vocabulary.end_of_generation
        self._spells_by_ids = vocabulary.kind == "gpt2"  # byte-level: no two tokens read the same
        self.control_tokens = np.array(
            [t for t, a in enumerate(vocabulary.attributes) if a & Attribute.CONTROL and t not in self.end_tokens]
        )
        self.closers = closing_tokens(self.tokenizer.encode)
        self.cache = KVCache()
        self._context: LlamaContext | None = None
        self._engine: GuidanceEngine | None = None
        self.threads = self.options.threads
        if not counting_only:
            self._prepare(len(vocabulary.texts))

    def _prepare(self, vocabulary_size: int) -> None:
        """What generating needs beyond counting: the constraint engine, the KV cache, threads."""
        self._engine = GuidanceEngine(self._model.vocabulary_handle, vocabulary_size)
        self._context = LlamaContext(
            self._model,
            n_ctx=self.window + _SIDE_TOKENS,
            sequences=3,
            type_k=self.options.type_k,
            type_v=self.options.type_v,
            flash_attention=self.options.flash_attention,
        )
        self.cache = KVCache(self._context, can_cut=self._model.keeps_every_token)
        self.threads = self.threads or self._probe_threads(self._context)
        self._context.set_threads(self.threads, self.threads)

    def complete(
        self,
        prompt: Prompt,
        *,
        grammar: CallGrammar | None,
        sampling: Sampling,
        max_tokens: int,
        sequence: CacheSequence = "main",
        owner: str = "",
        on_text: OnText | None = None,
        cancellation: Cancellation | None = None,
    ) -> Completion:
        with self._lock, self._watching(cancellation):
            self._check_room(prompt, max_tokens, sequence)
            constraint = None if grammar is None else self._constraint(grammar)
            run = _Run(self, sequence)
            loop = DecodeLoop(run, constraint, sampling, max_tokens, on_text=on_text, cancellation=cancellation)
            started = time.perf_counter()
            reused, read = 0, started
            try:
                reused = self.cache.begin(prompt.ids, sequence)
                self._read((*prompt.ids, *loop.head), sequence)
                read = time.perf_counter()
                reason = loop.run()
            except DecodeAborted:
                reason = "cancelled"
            finally:
                if sequence == "side":
                    self.cache.drop("side")
            written = time.perf_counter()
        usage = Usage(
            prompt_tokens=prompt.tokens,
            reused_tokens=reused,
            evaluated_tokens=prompt.tokens - reused,
            generated_tokens=len(loop.ids),
            read_seconds=read - started,
            write_seconds=written - read,
        )
        return Completion(loop.text, tuple(loop.ids), reason, usage)

    def reusable(self, prompt: Prompt, *, sequence: CacheSequence = "main") -> int:
        with self._lock:
            return self.cache.reusable(prompt.ids, sequence)

    def read_ahead(self, prompt: Prompt, *, owner: str = "", cancellation: Cancellation | None = None) -> bool:
        with self._lock, self._watching(cancellation):
            new = prompt.tokens - self.cache.reusable(prompt.ids, "main")
            if new <= 1:
                return True
            if self.cache.length("main") + new + _AHEAD_MARGIN > self._llama.n_ctx:
                return False
            try:
                self.cache.begin(prompt.ids, "ahead")
                self._read(prompt.ids, "ahead")
            except (DecodeAborted, NoRoom):
                return False
            return True

    def keep(self, *, owner: str, prefix: int = 0) -> None: ...

    def close(self) -> None:
        with self._lock:
            if self._context is not None:
                self._context.close()
            self._context = self._engine = None
            self.cache = KVCache()
            self._model.close()

    def write_grammar(self, grammar: CallGrammar) -> str:
        """The grammar as llguidance gets it for this vocabulary."""
        return grammar.lark(self._encode_template, by_ids=self._spells_by_ids)

    @property
    def _llama(self) -> LlamaContext:
        if self._context is None:
            raise _not_open()
        return self._context

    def _check_room(self, prompt: Prompt, max_tokens: int, sequence: CacheSequence) -> None:
        room = self.window
        if sequence == "side":
            room = min(self._llama.n_ctx, self.side_window + self.cache.reusable(prompt.ids, "side"))
        if not prompt.ids or prompt.tokens + max_tokens > room:
            raise BackendError(
                f"a prompt of {prompt.tokens} tokens and {max_tokens} to write do not fit {room}",
                "This is a defect of localmem: the queue manager must keep prompts inside the window.",
            )

    def _constraint(self, grammar: CallGrammar) -> Constraint:
        if self._engine is None:
            raise _not_open()
        return self._engine.start(self.write_grammar(grammar))

    def _encode_template(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=True)

    @contextmanager
    def _watching(self, cancellation: Cancellation | None) -> Generator[None]:
        """Have llama.cpp stop in the middle of a decode when the flag is raised."""
        self._llama.watch(cancellation)
        try:
            yield
        finally:
            if self._context is not None:
                self._context.watch(None)

    def _read(self, ids: Sequence[int], sequence: CacheSequence) -> None:
        """Read what a sequence does not hold of `ids`, which begin as it does."""
        for start in range(self.cache.length(sequence), len(ids), _READ_CHUNK):
            self.feed(ids[start : start + _READ_CHUNK], sequence)

    def feed(self, ids: Sequence[int], sequence: CacheSequence) -> None:
        """Read `ids` at the end of a sequence. Raises DecodeAborted when cancelled; then none of them was read."""
        length = self.cache.length(sequence)
        try:
            try:
                self._llama.decode(ids, position=length, sequence=self.cache.place(sequence))
            except NoRoom:
                if sequence == "ahead" or not self.cache.length("ahead"):
                    raise
                self.cache.truncate(sequence, length)
                self.cache.drop("ahead")  # what was read in advance makes way
                self._llama.decode(ids, position=length, sequence=self.cache.place(sequence))
        except BaseException:  # Ctrl-C too: what is half read must not be taken for read
            self.cache.truncate(sequence, length)
            raise
        self.cache.extend(sequence, ids)

    def logits(self) -> Logits:
        """The logits after the last token fed, every control token masked: text never holds one."""
        logits = self._llama.logits()
        if len(self.control_tokens):
            logits[self.control_tokens] = -np.inf
        return logits

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


@dataclass(frozen=True, slots=True)
class _Run:
    """The decode loop's view of the backend: one sequence of it."""

    backend: LlamaBackend
    sequence: CacheSequence

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.backend.end_tokens

    @property
    def closers(self) -> tuple[int, ...]:
        return self.backend.closers

    def feed(self, ids: Sequence[int]) -> None:
        self.backend.feed(ids, self.sequence)

    def logits(self) -> Logits:
        return self.backend.logits()

    def text_of(self, ids: Sequence[int]) -> bytes:
        return self.backend.tokenizer.decode_bytes(ids)


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


def _token_text(texts: tuple[Any, ...], token: int | None) -> str:
    return "" if token is None or token < 0 else texts[token].decode("utf-8", "replace")
