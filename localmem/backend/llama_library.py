"""llama.cpp through ctypes: a model, its vocabulary, a context. The only file that imports llama_cpp.

Token ids in, logits out. What is decoded, sampled, reused or constrained is decided in `backend/llama.py`; here every
failure path of the library becomes a `BackendError` or `ModelCorrupt`, with the library's own last words in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from localmem.backend.tokenizer import Attribute, Vocabulary
from localmem.calls.gbnf_check import check_gbnf
from localmem.errors import BackendError, ModelCorrupt
from localmem.kernel.cancellation import Cancellation

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
_CONTEXT_PADDING = 256  # llama.cpp pads n_ctx to this; asking for other sizes makes positions disagree


@cache
def _strlen() -> Any:  # Any: a ctypes function type built at run time
    """The C library's strlen as an abort callback: true while the string it is given is not empty."""
    standard = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
    return ctypes.cast(standard.strlen, _library().ggml_abort_callback)


class DecodeAborted(Exception):
    """The flag a context watches was raised while it decoded."""


class NoRoom(BackendError):
    """Every cell of the KV cache is taken."""


@cache
def _library() -> ModuleType:
    """The ctypes module, imported once, its log routed into `_Log`."""
    import llama_cpp.llama_cpp as library

    library.llama_log_set(_Log.callback(library), ctypes.c_void_p(0))
    library.llama_backend_init()
    return library


class _Log:
    """Keeps llama.cpp's last error lines, so that an error of ours can quote them; prints nothing."""

    lines: list[str] = []
    _keep_alive: Any = None  # Any: a ctypes function type built at run time; llama.cpp holds the pointer

    @classmethod
    def callback(cls, library: ModuleType) -> Any:  # Any: see above
        def log(level: int, text: bytes, _user_data: object) -> None:
            if level >= 4:  # GGML_LOG_LEVEL_ERROR
                cls.lines = [*cls.lines[-4:], text.decode("utf-8", "replace").strip()]

        cls._keep_alive = library.llama_log_callback(log)
        return cls._keep_alive

    @classmethod
    def last_words(cls) -> str:
        return "; ".join(line for line in cls.lines if line)


def gpu_free_bytes() -> int | None:
    """Free memory of the roomiest GPU llama.cpp can use; None when it was built without, or finds none."""
    if not _library().llama_supports_gpu_offload():
        return None
    free = [free for kind, free in _devices() if kind in _GPU_TYPES]
    return max(free, default=None)


def _devices() -> list[tuple[int, int]]:
    """(ggml's type, free bytes) of every device ggml computes on; the CPU is one of them."""
    from llama_cpp._ggml import libggml  # the only door llama-cpp-python has to ggml itself

    libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    size = ctypes.POINTER(ctypes.c_size_t)
    libggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size, size]
    devices: list[tuple[int, int]] = []
    for index in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        libggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        devices.append((int(libggml.ggml_backend_dev_type(device)), free.value))
    return devices


class LlamaModel:
    """A GGUF mapped into memory.

    Raises ModelCorrupt when llama.cpp refuses the file.
    """

    def __init__(self, path: Path, *, gpu_layers: int = 0, vocabulary_only: bool = False) -> None:
        library = _library()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        parameters.vocab_only = vocabulary_only
        _Log.lines = []
        self.path = path
        self._model = library.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self._model:
            raise ModelCorrupt(
                f"llama.cpp cannot load {path.name}: {_Log.last_words() or 'no reason given'}",
                "The file is damaged or not a model. `localmem models check NAME` compares it with its card; "
                "delete it and run `localmem models pull NAME` to fetch it again.",
            )
        self._vocabulary = library.llama_model_get_vocab(self._model)

    @property
    def handle(self) -> Any:  # Any: an opaque C pointer
        return self._model

    @property
    def vocabulary_handle(self) -> Any:  # Any: an opaque C pointer
        return self._vocabulary

    def metadata(self) -> dict[str, str]:
        """The GGUF key-value pairs; arrays are left out by llama.cpp."""
        library = _library()
        buffer = ctypes.create_string_buffer(1 << 20)
        pairs: dict[str, str] = {}
        for index in range(library.llama_model_meta_count(self._model)):
            library.llama_model_meta_key_by_index(self._model, index, buffer, len(buffer))
            key = buffer.value.decode("utf-8", "replace")
            library.llama_model_meta_val_str_by_index(self._model, index, buffer, len(buffer))
            pairs[key] = buffer.value.decode("utf-8", "replace")
        return pairs

    @property
    def keeps_every_token(self) -> bool:
        """Whether its cache can be cut and forked at any token; a recurrent state cannot."""
        library = _library()
        return not (library.llama_model_is_recurrent(self._model) or library.llama_model_is_hybrid(self._model))

    def adds_bos(self) -> bool:
        """Whether the model was trained with a beginning-of-sequence token before every text."""
        return bool(_library().llama_vocab_get_add_bos(self._vocabulary))

    def vocabulary(self) -> Vocabulary:
        """The whole vocabulary as data: bytes and attributes of every token (about 0.6 s for 152k)."""
        library = _library()
        vocab = self._vocabulary
        size = int(library.llama_vocab_n_tokens(vocab))
        texts = [library.llama_vocab_get_text(vocab, token) or b"" for token in range(size)]
        attributes = [int(library.llama_vocab_get_attr(vocab, token)) for token in range(size)]
        end = frozenset(t for t in range(size) if library.llama_vocab_is_eog(vocab, t))
        # In a byte-pair vocabulary `</s>` may be an ordinary HTML string that llama.cpp marks as end of generation.
        real_end = frozenset(t for t in end if not attributes[t] & Attribute.NORMAL) or end
        metadata = self.metadata()
        bos = int(library.llama_vocab_bos(vocab))
        return Vocabulary(
            texts=tuple(texts),
            attributes=tuple(attributes),
            kind=metadata.get("tokenizer.ggml.model", ""),
            pre=metadata.get("tokenizer.ggml.pre", ""),
            end_of_generation=real_end,
            bos=bos if bos >= 0 else None,
            eos=int(library.llama_vocab_eos(vocab)),
        )

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Token ids of UTF-8 `text`; with `special`, control tokens are read from it. No BOS is added."""
        library = _library()
        room = len(text) + 8
        tokens = (library.llama_token * room)()
        count = library.llama_tokenize(self._vocabulary, text, len(text), tokens, room, False, special)
        if count < 0:
            raise BackendError(f"llama.cpp cannot tokenize a text of {len(text)} bytes", "Shorten the text.")
        return list(tokens[:count])

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for, control tokens as their text."""
        library = _library()
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = int(library.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, True))
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def close(self) -> None:
        if self._model:
            _library().llama_model_free(self._model)
            self._model = None


class GrammarSampler:
    """llama.cpp's own grammar sampler over a model's vocabulary: which token may come next under a GBNF.

    Raises BackendError for a GBNF that is not safe or that llama.cpp refuses.
    """

    def __init__(self, model: LlamaModel, text: str) -> None:
        check_gbnf(text)  # a bad one ends the process
        library = _library()
        _Log.lines = []
        self._model = model  # keeps the vocabulary
        self._sampler = library.llama_sampler_init_grammar(model.vocabulary_handle, text.encode(), b"root")
        if not self._sampler:
            raise BackendError(f"llama.cpp refuses the GBNF: {_Log.last_words() or 'no reason given'}")
        weakref.finalize(self, library.llama_sampler_free, self._sampler)

    def allows(self, token: int) -> bool:
        logits = np.zeros(1, np.float32)
        self.mask(logits, np.array([token], np.int32))
        return bool(np.isfinite(logits[0]))

    def mask(self, logits: np.ndarray[Any, np.dtype[np.float32]], tokens: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Set to -inf the logit of each of `tokens` that may not come next, in place; both of shape (n,)."""
        library = _library()
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"], candidates["logit"] = tokens, logits
        pointer = candidates.ctypes.data_as(ctypes.POINTER(library.llama_token_data))
        array = library.llama_token_data_array(data=pointer, size=len(tokens), selected=-1, sorted=False)
        library.llama_sampler_apply(self._sampler, ctypes.byref(array))
        logits[np.isneginf(candidates["logit"])] = -np.inf

    def accept(self, token: int) -> None:
        """Move on past `token`. Raises BackendError if it is not allowed: llama.cpp would end the process."""
        if not self.allows(token):
            raise BackendError(f"the constraint refused token {token}")
        _library().llama_sampler_accept(self._sampler, token)


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class LlamaContext:
    """A KV cache and compute buffers on a model: decode tokens at positions of a sequence, read logits.

    One caller at a time. Raises BackendError when llama.cpp cannot make it or a decode fails.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int,
        sequences: int,
        batch_size: int = 512,
        threads: int = 1,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attention: str = "auto",
    ) -> None:
        library = _library()
        parameters = library.llama_context_default_params()
        parameters.type_k, parameters.type_v = (
            getattr(library, f"GGML_TYPE_{name.upper()}") for name in (type_k, type_v)
        )
        parameters.flash_attn_type = _FLASH_ATTENTION[flash_attention]
        parameters.n_ctx = -(-n_ctx // _CONTEXT_PADDING) * _CONTEXT_PADDING
        parameters.n_batch = batch_size
        parameters.n_ubatch = batch_size
        parameters.n_seq_max = sequences
        parameters.n_threads = threads
        parameters.n_threads_batch = threads
        parameters.kv_unified = True  # sequences share cells: a fork copies nothing
        parameters.swa_full = True  # without it a sliding-window model cannot drop the end of a sequence
        _Log.lines = []
        self._context = library.llama_init_from_model(model.handle, parameters)
        if not self._context:
            raise BackendError(
                f"llama.cpp cannot make a window of {n_ctx} tokens: {_Log.last_words() or 'no reason given'}",
                "Most often memory is short: use a smaller window (-o window 2048) or a smaller model.",
            )
        self._model = model  # keeps the weights mapped while the context lives
        self._memory = library.llama_get_memory(self._context)
        self._batch = library.llama_batch_init(batch_size, 0, 1)
        self._n_vocab = int(library.llama_vocab_n_tokens(model.vocabulary_handle))
        self.n_embd = int(library.llama_model_n_embd(model.handle))
        self.batch_size = batch_size
        self.n_ctx = int(library.llama_n_ctx(self._context))
        self._logits_address = 0
        self._logits = np.zeros(0, np.float32)
        self._watched: Any = None  # Any: a ctypes array over the flag llama.cpp looks at

    def watch(self, cancellation: Cancellation | None) -> None:
        """Have every decode look at this flag while it computes, and stop with `DecodeAborted` when it is raised."""
        library = _library()
        if cancellation is None:
            library.llama_set_abort_callback(self._context, library.ggml_abort_callback(), None)
            self._watched = None
            return
        # The flag is a C string and the question "is it raised?" is libc's strlen: a Python callback would have to
        # take the interpreter's lock a thousand times a token.
        self._watched = (ctypes.c_char * len(cancellation.flag)).from_buffer(cancellation.flag)
        library.llama_set_abort_callback(self._context, _strlen(), ctypes.addressof(self._watched))

    def decode(self, tokens: Sequence[int], *, position: int, sequence: int) -> None:
        """Read `tokens` (at most batch_size) at `position`; the last one's logits are kept.

        Raises DecodeAborted when the watched flag is raised, NoRoom when the KV cache is full: what was decoded until
        then must be truncated by the caller.
        """
        library = _library()
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = False
        batch.logits[len(tokens) - 1] = True
        _Log.lines = []
        code = int(library.llama_decode(self._context, batch))
        if code == 2:
            raise DecodeAborted
        if code != 0:
            problem = f"llama.cpp could not read {len(tokens)} tokens (code {code})"
            if code == 1:
                raise NoRoom(f"{problem}: no room left in the KV cache")
            raise BackendError(f"{problem}: {_Log.last_words()}")

    def logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits of the last token read, float32, shape (n_vocab,): a copy."""
        pointer = _library().llama_get_logits_ith(self._context, -1)
        if not pointer:
            raise BackendError("llama.cpp has no logits for the last token")
        address = ctypes.addressof(pointer.contents)
        if address != self._logits_address:  # a view is dear to make, and llama.cpp keeps its buffer
            self._logits_address = address
            self._logits = np.ctypeslib.as_array((ctypes.c_float * self._n_vocab).from_address(address))
        return self._logits.copy()

    @contextlib.contextmanager
    def keeping_hidden(self) -> Generator[None]:
        """Decodes in here keep the last token's hidden state. Every token's logits are computed then: decode few."""
        library = _library()
        library.llama_set_embeddings(self._context, True)
        try:
            yield
        finally:
            library.llama_set_embeddings(self._context, False)

    def hidden(self, index: int = -1) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The last layer's output, normalised, of a token last read in `keeping_hidden`: float32, (n_embd,)."""
        pointer = _library().llama_get_embeddings_ith(self._context, index)
        if not pointer:
            raise BackendError("llama.cpp kept no hidden state")
        address = ctypes.addressof(pointer.contents)
        return np.ctypeslib.as_array((ctypes.c_float * self.n_embd).from_address(address)).copy()

    def truncate(self, sequence: int, length: int) -> bool:
        """Drop everything of `sequence` from position `length` on; False when the model cannot."""
        return bool(_library().llama_memory_seq_rm(self._memory, sequence, length, -1))

    def fork(self, source: int, target: int, length: int) -> None:
        """Let `target`, which must be empty, begin with the first `length` tokens of `source`; no cell is copied."""
        _library().llama_memory_seq_cp(self._memory, source, target, 0, length)

    def shift(self, source: int, target: int, *, start: int, stop: int, by: int) -> None:
        """Move tokens `start` to `stop` (exclusive) out of `source` and into `target`, `by` positions on.

        Approximate where `by` is not 0: they were computed behind other text. No third sequence may share the cells.
        """
        library = _library()
        library.llama_memory_seq_add(self._memory, source, start, stop, by)
        library.llama_memory_seq_cp(self._memory, source, target, start + by, stop + by)
        library.llama_memory_seq_rm(self._memory, source, start + by, stop + by)

    @property
    def can_shift(self) -> bool:
        """Whether cells can be moved to other positions; with some rotary embeddings they cannot."""
        return bool(_library().llama_memory_can_shift(self._memory))

    def compact(self, sequence: int) -> bool:
        """Move a sequence's cells to the first free ones; False when that failed, and then the sequence is empty.

        Without flash attention a decode computes over every cell up to the last one in use, whoever's it is.
        """
        library = _library()
        size = int(library.llama_state_seq_get_size(self._context, sequence))
        state = (ctypes.c_uint8 * size)()
        written = int(library.llama_state_seq_get_data(self._context, state, size, sequence))
        self.truncate(sequence, 0)
        if written and library.llama_state_seq_set_data(self._context, state, written, sequence) == written:
            return True
        self.truncate(sequence, 0)
        return False

    def save_sequence(self, path: Path, sequence: int, ids: Sequence[int]) -> int:
        """Write a sequence's KV cells with the ids they stand for into llama.cpp's own file; gives its bytes, 0 when
        it could not be written."""
        library = _library()
        if library.llama_memory_seq_pos_max(self._memory, sequence) != len(ids) - 1:
            return 0  # llama.cpp would believe the ids
        tokens = (library.llama_token * len(ids))(*ids)
        return int(library.llama_state_seq_save_file(self._context, os.fsencode(path), sequence, tokens, len(ids)))

    def load_sequence(self, path: Path, sequence: int) -> list[int]:
        """Read such a file into a sequence and give its ids; none when llama.cpp refuses it, and then the sequence is
        empty. The file must be known to be whole: llama.cpp trusts what is in it."""
        library = _library()
        tokens = (library.llama_token * self.n_ctx)()
        count = ctypes.c_size_t(0)
        self.truncate(sequence, 0)
        size = library.llama_state_seq_load_file(
            self._context, os.fsencode(path), sequence, tokens, self.n_ctx, ctypes.byref(count)
        )
        if not size or library.llama_memory_seq_pos_max(self._memory, sequence) != count.value - 1:
            self.truncate(sequence, 0)
            return []
        return list(tokens[: count.value])

    def set_threads(self, reading: int, writing: int) -> None:
        """Threads for batches (reading) and for single tokens (writing)."""
        _library().llama_set_n_threads(self._context, writing, reading)

    def close(self) -> None:
        library = _library()
        if self._context:
            library.llama_batch_free(self._batch)
            library.llama_free(self._context)
            self._context = None


@contextlib.contextmanager
def open_vocabulary(path: Path) -> Generator[LlamaModel]:
    """The model's header and vocabulary only, without its weights: for metadata and counting."""
    model = LlamaModel(path, vocabulary_only=True)
    try:
        yield model
    finally:
        model.close()
