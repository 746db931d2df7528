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
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from localmem.backend.base import Completion, OnText, Sampling
from localmem.backend.constraint import Constraint, GbnfEngine, GuidanceEngine, Logits
from localmem.backend.decode_loop import CLOSING_TOKENS, DecodeLoop, closing_tokens
from localmem.backend.guide import Guide, best_towards, log_probabilities
from localmem.backend.kv_cache import KVCache
from localmem.backend.kv_cache import Sequence as CacheSequence
from localmem.backend.llama_library import DecodeAborted, LlamaContext, LlamaModel, NoRoom, gpu_free_bytes
from localmem.backend.placement import ALL_LAYERS, layers_on_gpu
from localmem.backend.snapshots import SnapshotStore
from localmem.backend.text_room import TextRoom
from localmem.backend.threads import LEAST_BATCH, Kind, ThreadGovernor, candidates
from localmem.backend.tokenizer import Attribute, Vocabulary, build_tokenizer
from localmem.calls.calibration import NO_CALIBRATION, Guidance, Outlook, Vector
from localmem.calls.gbnf import write_gbnf
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.errors import BackendError
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.messages import Usage

logger = logging.getLogger(__name__)

_SIDE_TOKENS = 2048
"""KV cells beside the window: for a fork, and for a window that is read ahead."""

_LEAST_SNAPSHOT = 128  # tokens: fewer are read as fast as a file
_STATIC_OWNER = "static prefix"
_NEVER_READ = -1  # behind a window whose every token may be reused: a prompt's last one never is
_PROBED_BATCH = 16  # tokens; more would make every start wait for seconds
_GPU_BUFFER_BYTES = 500_000_000  # KV cache and compute buffers of a small model at 4,096 tokens, generously
_AHEAD_MARGIN = 512  # cells a turn may need while a window is read ahead
READ_CHUNK = 128
"""Tokens read at once. llama.cpp looks at the cancellation between two operations of its graph; a chunk this small
keeps the longest of them under a tenth of a second for a model of a few billion weights."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """How llama.cpp is run; the values are those of the settings of the same names."""

    threads: int = 0  # 0: a probe of a few tokens chooses
    gpu_layers: int = ALL_LAYERS
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: str = "auto"
    constraint: str = "llguidance"  # or gbnf: llama.cpp's own sampler, where llguidance cannot be had
    kv_shift: bool = False
    snapshots: Path | None = None
    snapshot_bytes: int = 0


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
        layers = 0 if counting_only else _gpu_layers(self.options.gpu_layers, path)
        self._flash_attention = flash_attention_for(self.options, layers)
        self._model = LlamaModel(path, gpu_layers=layers, vocabulary_only=counting_only)
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
        self._engine: GuidanceEngine | GbnfEngine | None = None
        self._shifts = False
        self._snapshots: SnapshotStore | None = None
        self._owner = ""
        self.decode_seconds = 0.0
        """Spent inside llama.cpp's decode since the model was loaded."""
        self.threads = ThreadGovernor(reading=1, writing=1)
        if not counting_only:
            self._prepare(vocabulary)

    def _prepare(self, vocabulary: Vocabulary) -> None:
        """What generating needs beyond counting: the constraint engine, the KV cache, its snapshots, threads."""
        if self.options.constraint == "gbnf":
            self._engine = GbnfEngine(self._model, vocabulary)
        else:
            self._engine = GuidanceEngine(self._model.vocabulary_handle, len(vocabulary.texts))
        self._context = make_context(self._model, self.window, self.options, flash_attention=self._flash_attention)
        self.cache = KVCache(self._context, can_cut=self._model.keeps_every_token)
        self._shifts = self.options.kv_shift and self._context.can_shift
        if self.options.kv_shift and not self._shifts:
            logger.warning("kv_shift is on, but this model's cache cannot be shifted; it is read again instead")
        self._snapshots = self._open_snapshots(self._context.n_ctx)
        self.threads = self._probe_threads(self._context)
        self._set_threads()

    def _open_snapshots(self, n_ctx: int) -> SnapshotStore | None:
        """None where none are wanted, and with a KV shift: what is only nearly the window must not be kept as it."""
        if self.options.snapshots is None or self._shifts:
            return None
        parameters = {
            "n_ctx": n_ctx,
            "type_k": self.options.type_k,
            "type_v": self.options.type_v,
            "flash_attention": self._flash_attention,
            "llama_cpp": version("llama-cpp-python"),
        }
        return SnapshotStore(
            self.options.snapshots,
            model=self.path,
            parameters=parameters,
            limit_bytes=self.options.snapshot_bytes,
        )

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
        with self._lock, self._watching(cancellation):
            self._check_room(prompt, max_tokens, sequence)
            constraint = None if grammar is None else self.constraint(grammar)
            guide = None
            if (
                guidance is not None
                and grammar is not None
                and self._can_look
                and guidance.fits(2 * self._llama.n_embd)
            ):
                guide = self._guide(guidance, grammar)
            loop = DecodeLoop(
                SequenceProcessor(self, sequence),
                constraint,
                sampling,
                max_tokens,
                guide=guide,
                room=None if grammar is None else TextRoom(grammar, self.tokenizer),
                on_text=on_text,
                cancellation=cancellation,
            )
            started = time.perf_counter()
            reused, read = 0, started
            try:
                if sequence == "main":
                    self._open_window(prompt, owner)
                reused = self._begin(prompt, sequence)
                if guide is None:
                    self._read((*prompt.ids, *loop.head), sequence)
                else:
                    guide.see(self._read_and_look(prompt, loop.head, sequence))
                    reused = min(reused, prompt.tokens - _looked_at(prompt))
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
            self._open_window(prompt, owner)
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

    def take_over(self, window: Prompt, *, owner: str = "") -> None:
        with self._lock:
            if owner == self._owner:
                self.cache.begin((*window.ids, _NEVER_READ), "main")

    def keep(self, window: Prompt, *, owner: str, static_tokens: int = 0) -> None:
        with self._lock:
            if not owner or owner != self._owner:
                return
            self.take_over(window, owner=owner)
            self._save(owner, "main")
            if self.cache.length("main") >= static_tokens > 0:
                self.cache.begin((*self.cache.ids("main")[:static_tokens], _NEVER_READ), "side")
                self._save(_STATIC_OWNER, "side")
                self.cache.drop("side")

    def _save(self, owner: str, sequence: CacheSequence) -> None:
        ids = self.cache.ids(sequence)
        if self._snapshots is not None and len(ids) >= _LEAST_SNAPSHOT:
            place = self.cache.place(sequence)
            self._snapshots.save(owner, ids, lambda path: self._llama.save_sequence(path, place, ids))

    def _open_window(self, prompt: Prompt, owner: str) -> None:
        """Make main `owner`'s: save another's window first, and look on disk for what is not in the cache."""
        if owner != self._owner:
            if self._owner:
                self._save(self._owner, "main")
            self._owner = owner
        if self._snapshots is None:
            return
        held = self.cache.reusable(prompt.ids, "main")
        if prompt.tokens - held < _LEAST_SNAPSHOT:
            return
        snapshot = self._snapshots.best(prompt.ids, least=held + _LEAST_SNAPSHOT)
        if snapshot is not None:
            # What main holds agrees with less of the prompt than this, and llama.cpp needs the cells.
            for sequence in ("main", "ahead", "side"):
                self.cache.drop(sequence)
            place = self.cache.place("main")
            ids = self._snapshots.load(snapshot, lambda path: self._llama.load_sequence(path, place))
            self.cache.loaded("main", ids)
            if not ids:
                self.cache.drop("main")

    def close(self) -> None:
        with self._lock:
            if self._context is not None:
                self._context.close()
            self._context = self._engine = None
            self.cache = KVCache()
            self._model.close()

    def write_grammar(self, grammar: CallGrammar) -> str:
        """The grammar as the engine gets it for this vocabulary: Lark, or GBNF. Raises LocalmemError for what GBNF
        cannot say."""
        if self.options.constraint == "gbnf":
            return write_gbnf(grammar)
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

    def constraint(self, grammar: CallGrammar) -> Constraint:
        """A fresh matcher for one completion. Raises BackendError for a grammar that is not valid."""
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

    def _begin(self, prompt: Prompt, sequence: CacheSequence) -> int:
        """Leave in a sequence the longest beginning of the prompt there is; gives the tokens that need no reading."""
        moved = self.cache.set_aside(prompt.ids) if sequence == "main" and self._shifts else None
        reused = self.cache.begin(prompt.ids, sequence)
        if moved is None:
            return reused
        self._read(prompt.ids[: moved.at], sequence)
        self.cache.attach(moved)
        return reused + len(moved.ids)

    def _read(self, ids: Sequence[int], sequence: CacheSequence) -> None:
        """Read what a sequence does not hold of `ids`, which begin as it does."""
        for start in range(self.cache.length(sequence), len(ids), READ_CHUNK):
            self.feed(ids[start : start + READ_CHUNK], sequence)

    def _read_and_look(self, prompt: Prompt, head: Sequence[int], sequence: CacheSequence) -> Vector:
        """Read, and give what a calibration goes by: the hidden states at the end of the window and at the end of
        `head`, one behind the other. The first is about what was said, the second about what comes."""
        ids = (*prompt.ids, *head)
        start = prompt.tokens - _looked_at(prompt)
        if self.cache.length(sequence) > start:
            self.cache.truncate(sequence, start)  # a token that is cached has no hidden state any more
        self._read(ids[:start], sequence)
        with self._llama.keeping_hidden():
            self.feed(ids[start:], sequence)
        return np.concatenate((self._llama.hidden(0), self._llama.hidden(-1)))

    def look(self, prompt: Prompt, grammar: CallGrammar, *, owner: str = "") -> Outlook:
        """Read a prompt as for a completion, and give what the model holds of the choice that comes; nothing is
        written. Raises as `complete` does."""
        with self._lock:
            constraint = self.constraint(grammar)
            guide = self._guide(Guidance(NO_CALIBRATION, np.zeros(0, np.float32)), grammar)
            loop = DecodeLoop(SequenceProcessor(self, "main"), constraint, Sampling(), CLOSING_TOKENS)
            self._check_room(prompt, len(loop.head), "main")
            self._open_window(prompt, owner)
            self._begin(prompt, "main")
            hidden = self._read_and_look(prompt, loop.head, "main")
            logits = self.logits()
            constraint.mask(logits)
            written = self.tokenizer.decode_bytes(loop.head)
            if not written and grammar.frame.plain:
                return Outlook(hidden, guide.outlook(logits))
            model = log_probabilities(logits)
            leads = {token: guide.follow(written + self.tokenizer.decode_bytes([token])) for token in model}
        return Outlook(hidden, best_towards(leads, model))

    @property
    def _can_look(self) -> bool:
        """Hidden states are read by going back some tokens, which a recurrent model cannot."""
        return self._model.keeps_every_token

    def _guide(self, guidance: Guidance, grammar: CallGrammar) -> Guide:
        opening = self._encode_template(grammar.frame.before) if self._spells_by_ids else ()
        return Guide(guidance, grammar, self.tokenizer.decode_bytes, opening)

    def feed(self, ids: Sequence[int], sequence: CacheSequence) -> None:
        """Read `ids` at the end of a sequence. Raises DecodeAborted when cancelled; then none of them was read."""
        length = self.cache.length(sequence)
        started = time.perf_counter()
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
        self._watch_pace(len(ids), time.perf_counter() - started)

    def _watch_pace(self, tokens: int, seconds: float) -> None:
        self.decode_seconds += seconds
        if tokens == 1 or tokens >= LEAST_BATCH:
            kind: Kind = "writing" if tokens == 1 else "reading"
            if self.threads.record(kind, seconds / tokens) is not None:
                self._set_threads()

    def _set_threads(self) -> None:
        self._llama.set_threads(self.threads.reading, self.threads.writing)

    def logits(self) -> Logits:
        """The logits after the last token fed, every control token masked: text never holds one."""
        logits = self._llama.logits()
        if len(self.control_tokens):
            logits[self.control_tokens] = -np.inf
        return logits

    def _probe_threads(self, context: LlamaContext) -> ThreadGovernor:
        """The thread counts that read and write fastest now, unless the options name one: ggml's workers spin, so that
        on a busy machine more threads can be 200 times slower."""
        if self.options.threads:
            return ThreadGovernor(reading=self.options.threads, writing=self.options.threads)
        counts = candidates(os.cpu_count() or 1)
        if len(counts) == 1:
            return ThreadGovernor(reading=1, writing=1)
        token = self.tokenizer.encode("the")[0]
        writing = {count: _seconds(context, count, [token], times=4) for count in counts}
        reading = {count: _seconds(context, count, [token] * _PROBED_BATCH, times=1) for count in counts}
        logger.info("threads, seconds: reading %s, writing %s", reading, writing)
        return ThreadGovernor(
            reading=min(reading, key=lambda count: reading[count]),
            writing=min(writing, key=lambda count: writing[count]),
        )


@dataclass(frozen=True, slots=True)
class SequenceProcessor:
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


def _looked_at(prompt: Prompt) -> int:
    """The last tokens of a prompt, from the end of the window on, which are read anew for their hidden states."""
    return min(prompt.tokens, prompt.parts.get("answer", 0) + 1)


def _not_open() -> BackendError:
    return BackendError(
        "this backend cannot write: it was opened for counting only, or is closed",
        "Open the agent with its model to talk to it.",
    )


def _seconds(context: LlamaContext, threads: int, tokens: list[int], *, times: int) -> float:
    """Seconds a decode of `tokens` takes: the median of some, so that the first, in cold memory, does not count."""
    context.set_threads(threads, threads)
    seconds: list[float] = []
    for turn in range(times):
        started = time.perf_counter()
        context.decode(tokens, position=turn * len(tokens), sequence=0)
        seconds.append(time.perf_counter() - started)
    context.truncate(0, 0)
    return median(seconds)


def make_context(model: LlamaModel, window: int, options: LlamaOptions, *, flash_attention: str) -> LlamaContext:
    """The context a window of that many tokens is run on: cells for main, for what is read ahead, and for a fork."""
    return LlamaContext(
        model,
        n_ctx=window + _SIDE_TOKENS,
        sequences=3,
        type_k=options.type_k,
        type_v=options.type_v,
        flash_attention=flash_attention,
    )


def flash_attention_for(options: LlamaOptions, gpu_layers: int) -> str:
    """`auto` is off on a CPU: there it makes batches of a few tokens, such as forced ones, a fifth slower, and small
    and large batches differ. A quantised cache of values needs it."""
    if options.flash_attention != "auto":
        return options.flash_attention
    return "on" if gpu_layers or options.type_v not in ("f16", "f32", "bf16") else "off"


def _gpu_layers(setting: int, path: Path) -> int:
    free = gpu_free_bytes()
    needed = path.stat().st_size + _GPU_BUFFER_BYTES if path.is_file() else 0
    return layers_on_gpu(setting, offload=free is not None, free_bytes=free or 0, needed_bytes=needed)


def _token_text(texts: tuple[Any, ...], token: int | None) -> str:
    return "" if token is None or token < 0 else texts[token].decode("utf-8", "replace")
