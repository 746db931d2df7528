"""Exact token counts: a tiktoken encoding built from the GGUF's own vocabulary.

llama.cpp is the ground truth. For the byte-pair vocabularies listed in `_PATTERNS` the tiktoken encoding gives the
same ids several times faster; it proves that on `_PROBES` when it is built, and where it cannot (SentencePiece
vocabularies, unknown pre-tokenizers, a failed probe) llama.cpp itself does the counting. The only file that imports
tiktoken.

In one thing plain text is not read as llama.cpp reads it: a tag that a vocabulary has as a token of its own without
calling it a control token (`<tool_call>` of Qwen) becomes that token from any text, a document's too. Here it does not.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag

from localmem.kernel.tokens import Tokenizer

logger = logging.getLogger(__name__)

LlamaTokenize = Callable[[bytes, bool], list[int]]
"""llama.cpp's tokenizer: (UTF-8 text, read control tokens) -> ids."""


class Attribute(IntFlag):
    """llama.cpp's token attributes, as far as they are used (llama.h, llama_token_attr)."""

    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's vocabulary as data. `texts` are as the GGUF has them (byte-pair texts in GPT-2's alphabet)."""

    texts: tuple[bytes, ...]
    attributes: tuple[int, ...]
    kind: str
    pre: str
    end_of_generation: frozenset[int]
    bos: int | None
    eos: int


# Pre-tokenizer patterns, after llama.cpp's llama-vocab.cpp, by `tokenizer.ggml.pre`.
_QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# SmolLM splits digits first and then as GPT-2: one pattern with the same effect.
_SMOLLM = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_PATTERNS = {"qwen2": _QWEN2, "smollm": _SMOLLM}

_PROBES: tuple[str, ...] = (
    "",
    " ",
    "  \n\n  x",
    "Hello, world!",
    "My sister's birthday is on the 4th of May; I'll call at 17:30.",
    "don't DON'T we've WE'VE",
    "1234567890 3.14159 1e-9 0x7F",
    "\t\ttabs and trailing spaces   ",
    "línea ñandú Größe çelik",
    "我妹妹叫伊内丝,她的生日是五月四日。",
    "カタカナ ひらがな 한국어",
    "مرحبا بالعالم ‏ שלום",
    "🫠 👩‍👩‍👧 🦾 é ﷽",
    '{"name": "core_memory_append", "arguments": {"label": "human"}}',
    "<|im_start|>system\nobey<|im_end|> </s> <tool_call>",
    "def f(x):\n    return x ** 2  # comment\n",
    "a" * 300,
    " " * 90 + "x" + "\n" * 20,
    "$$$ ... !!! ??? ;;; --- ___ ~~~",
    "\u200b\u00ad\ufeff\u2028",
)


def build_tokenizer(vocabulary: Vocabulary, llama: LlamaTokenize, pieces: Callable[[int], bytes]) -> Tokenizer:
    """The fastest tokenizer that is exact for this vocabulary."""
    pattern = _PATTERNS.get(vocabulary.pre) if vocabulary.kind == "gpt2" else None
    if pattern is not None:
        candidate = TiktokenTokenizer(vocabulary, pattern, llama)
        wrong = next((p for p in _PROBES if not _agrees(candidate, llama, p)), None)
        if wrong is None:
            return candidate
        logger.warning("tiktoken disagrees with llama.cpp on %r; counting with llama.cpp instead", wrong)
    return LlamaTokenizer(vocabulary, llama, pieces)


def _agrees(candidate: TiktokenTokenizer, llama: LlamaTokenize, text: str) -> bool:
    plain = [token for piece in candidate.tags.broken(text) for token in llama(piece.encode(), False)]
    return candidate.encode(text) == plain and candidate.encode(text, special=True) == llama(text.encode(), True)


class Tags:
    """The tags of a vocabulary: tokens in angle brackets that are read even from plain text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        marked = zip(vocabulary.texts, vocabulary.attributes, strict=True)
        texts = [text.decode("utf-8", "replace") for text, attribute in marked if attribute & Attribute.USER_DEFINED]
        tags = sorted(re.escape(text) for text in texts if _TAG.fullmatch(text))
        self._inside = re.compile(f"(?<=<)(?={'|'.join(tag.removeprefix('<') for tag in tags)})") if tags else None

    def broken(self, text: str) -> list[str]:
        """The text in pieces, cut inside each tag: none of them holds one."""
        return [text] if self._inside is None or "<" not in text else self._inside.split(text)


_TAG = re.compile(r"<[^<>]+>")


class TiktokenTokenizer:
    """Byte-pair vocabularies: rank = id, because the ids are in the order of the merges."""

    def __init__(self, vocabulary: Vocabulary, pattern: str, llama: LlamaTokenize) -> None:
        import tiktoken

        self.name = "tiktoken"
        self.tags = Tags(vocabulary)
        self._llama = llama
        alphabet = _gpt2_alphabet()
        ranks: dict[bytes, int] = {}
        special: dict[str, int] = {}
        ordinary: set[str] = set()
        for token, (text, attribute) in enumerate(zip(vocabulary.texts, vocabulary.attributes, strict=True)):
            if attribute & Attribute.NORMAL:
                ranks.setdefault(bytes(alphabet[c] for c in text.decode()), token)
            if attribute & (Attribute.CONTROL | Attribute.UNKNOWN | Attribute.USER_DEFINED):
                special[text.decode()] = token
            if attribute & Attribute.USER_DEFINED:
                ordinary.add(text.decode())  # llama.cpp reads these even from plain text
        # A vocabulary may lack single bytes (SmolLM2 lacks 21): llama.cpp drops them, tiktoken needs an id for each.
        self._size = len(vocabulary.texts)
        missing = [b for b in range(256) if bytes([b]) not in ranks]
        ranks.update({bytes([b]): self._size + index for index, b in enumerate(missing)})
        self._drops = bool(missing)
        self._always = frozenset(ordinary)
        self._control = frozenset(t for t, a in enumerate(vocabulary.attributes) if a & Attribute.CONTROL)
        self._encoding = tiktoken.Encoding("gguf", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if special:
            return self._encode(text, special=True)
        return [token for piece in self.tags.broken(text) for token in self._encode(piece, special=False)]

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if _has_unassigned(text):
            return self._llama(text.encode("utf-8", "replace"), special)
        allowed = self._encoding.special_tokens_set if special else self._always
        ids = self._encoding.encode(text, allowed_special=set(allowed), disallowed_special=())
        return [token for token in ids if token < self._size] if self._drops else ids

    def decode_bytes(self, ids: Sequence[int], *, special: bool = False) -> bytes:
        return self._encoding.decode_bytes([token for token in ids if special or token not in self._control])


class LlamaTokenizer:
    """Any vocabulary, through llama.cpp."""

    def __init__(self, vocabulary: Vocabulary, llama: LlamaTokenize, pieces: Callable[[int], bytes]) -> None:
        self.name = "llama.cpp"
        self._tags = Tags(vocabulary)
        self._llama = llama
        self._pieces = pieces
        self._control = frozenset(t for t, a in enumerate(vocabulary.attributes) if a & Attribute.CONTROL)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        pieces = [text] if special else self._tags.broken(text)
        return [token for piece in pieces for token in self._llama(piece.encode("utf-8", "replace"), special)]

    def decode_bytes(self, ids: Sequence[int], *, special: bool = False) -> bytes:
        return b"".join(self._pieces(token) for token in ids if special or token not in self._control)


def _has_unassigned(text: str) -> bool:
    """True for code points our Unicode tables do not know: each library's tables call them something else."""
    return not text.isascii() and any(unicodedata.category(c) == "Cn" for c in set(text) if c > "\u02ff")


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, character -> byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet
