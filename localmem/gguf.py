"""GGUF files, read by ourselves before llama.cpp maps them: a header that lies makes C code read past its end.

Structure only, after the format's description in the ggml repository (docs/gguf.md): every count, length, type and
offset is held against the file's size before it is used. No weight is read.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from localmem.errors import ModelCorrupt, ModelNotFound

Scalar = int | float | bool | str

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 was never read by the llama.cpp we build on
_MOST_PAIRS, _MOST_TENSORS, _MOST_ELEMENTS = 1 << 16, 1 << 20, 1 << 24
_MOST_KEY_BYTES, _MOST_NAME_BYTES = 65_535, 63  # of the format; of ggml's own buffer
_MOST_TEXT_BYTES = 1 << 26  # a chat template is some thousands
_MOST_DIMENSIONS = 4
_MOST_VALUES = (1 << 63) - 1  # ggml counts in int64
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_ALIGNMENT = "general.alignment"
_LARGEST_ALIGNMENT = 1 << 20
# Of each kind of tensor, how many values a block has and how many bytes (ggml.c). llama.cpp judges a kind not in here.
_BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82)},
    **{23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2)},
    **{34: (256, 54), 35: (256, 66), 39: (32, 17)},
}

_WAY_OUT = "Give a whole .gguf file, or get a model with: localmem models pull NAME"


@dataclass(slots=True)
class GgufHeader:
    """What stands before the weights."""

    version: int
    metadata: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Values by key, arrays left out."""
    tensors: int = 0


def check_gguf(path: Path) -> GgufHeader:
    """The header of the file. Raises ModelCorrupt, saying what is wrong, unless it is a whole GGUF of version 2 or 3.

    A file that is not there, or may not be read, is ModelNotFound.
    """
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            return read_gguf(file, size_bytes, str(path))
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}", "Check the path.") from error


class _Wrong(Exception):
    """What is wrong with the file, to stand after its name."""


def read_gguf(file: BinaryIO, size_bytes: int, name: str) -> GgufHeader:
    """The header of an open file of that size, read from its start. Raises ModelCorrupt, with the file's name in it."""
    try:
        return _read(file, size_bytes)
    except _Wrong as error:
        raise ModelCorrupt(f"{name} {error}", _WAY_OUT) from error


def _read(file: BinaryIO, size_bytes: int) -> GgufHeader:
    reader = _Reader(file, size_bytes)
    if not size_bytes:
        raise _Wrong("is empty")
    if (magic := file.read(4)) != MAGIC:
        raise _Wrong(f"is not a GGUF file: it begins with {magic!r}")
    reader.position = 4
    header = GgufHeader(version=int(reader.scalar("<I")))
    if header.version not in _VERSIONS:
        raise _Wrong(f"is GGUF version {header.version}; versions 2 and 3 can be read")
    tensors = reader.count("tensors", _MOST_TENSORS)
    pairs = reader.count("metadata", _MOST_PAIRS)
    keys: set[str] = set()
    for _ in range(pairs):
        _read_pair(reader, header, keys)
    alignment = header.metadata.get(_ALIGNMENT, 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise _Wrong(f"is damaged: its {_ALIGNMENT} is {alignment!r}")
    names: set[str] = set()
    ends = [_read_tensor(reader, names, alignment) for _ in range(tensors)]
    header.tensors = len(ends)
    start = -(-reader.position // alignment) * alignment
    needed = start + max(ends, default=0) if ends else reader.position + 1
    if size_bytes < needed:
        raise _Wrong(f"is cut off: it is {size_bytes:,} bytes, and what its header tells of needs {needed:,}")
    return header


class _Reader:
    """Takes what the file holds, and never more; `position` is in bytes from its start."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self.position = 0

    def take(self, count: int) -> bytes:
        self.skip(count)
        return self._file.read(count)

    def skip(self, count: int) -> None:
        """Count bytes as read: the caller reads them, or goes past them."""
        if count > self._size_bytes - self.position:
            raise _Wrong(f"is cut off after {self._size_bytes:,} bytes")
        self.position += count

    def pass_over(self, count: int) -> None:
        self.skip(count)
        self._file.seek(count, 1)

    def scalar(self, kind: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(kind, self.take(struct.calcsize(kind)))[0]
        return value

    def count(self, what: str, most: int) -> int:
        """How many there are of something. No file has more than that, and a loop over them must end."""
        number = int(self.scalar("<Q"))
        if number > most:
            raise _Wrong(f"is damaged: it claims {number:,} {what}")
        return number

    def text(self, what: str, most: int) -> str:
        return self.take(self.count(f"bytes of {what}", most)).decode("utf-8", "replace")

    def pass_strings(self, number: int) -> None:
        """Go past that many strings: a vocabulary has hundreds of thousands."""
        read, unpack = self._file.read, struct.Struct("<Q").unpack
        position, size_bytes = self.position, self._size_bytes
        for _ in range(number):
            position += 8
            if position > size_bytes:
                break
            (length,) = unpack(read(8))
            position += length
            if position > size_bytes:
                break
            read(length)
        self.skip(position - self.position)


def _read_pair(reader: _Reader, header: GgufHeader, keys: set[str]) -> None:
    key = reader.text("a key", _MOST_KEY_BYTES)
    if key in keys:
        raise _Wrong(f"is damaged: it has the key {key[:60]!r} twice")
    keys.add(key)
    kind = int(reader.scalar("<I"))
    if kind == _ARRAY:
        _pass_array(reader, key)
    elif kind == _STRING:
        header.metadata[key] = reader.text(repr(key[:60]), _MOST_TEXT_BYTES)
    else:
        header.metadata[key] = reader.scalar(_form(kind, key))


def _pass_array(reader: _Reader, key: str) -> None:
    kind = int(reader.scalar("<I"))
    number = reader.count(f"values of {key[:60]!r}", _MOST_ELEMENTS)
    if kind == _STRING:
        reader.pass_strings(number)
    else:
        reader.pass_over(number * struct.calcsize(_form(kind, key)))


def _form(kind: int, key: str) -> str:
    form = _SCALARS.get(kind)
    if form is None:
        raise _Wrong(f"is damaged: {key[:60]!r} is of kind {kind}, which there is not")
    return form


def _read_tensor(reader: _Reader, names: set[str], alignment: int) -> int:
    """Where the tensor ends, in bytes from the start of all weights."""
    name = reader.text("a tensor's name", _MOST_NAME_BYTES)
    if name in names:
        raise _Wrong(f"is damaged: it has the tensor {name!r} twice")
    names.add(name)
    dimensions = int(reader.scalar("<I"))
    if dimensions > _MOST_DIMENSIONS:
        raise _Wrong(f"is damaged: the tensor {name!r} has {dimensions:,} dimensions")
    shape = [int(reader.scalar("<Q")) for _ in range(dimensions)]
    values = math.prod(shape)
    if not 0 < values <= _MOST_VALUES:
        raise _Wrong(f"is damaged: the tensor {name!r} has the shape {shape}")
    kind = int(reader.scalar("<I"))
    offset = int(reader.scalar("<Q"))
    if offset % alignment:
        raise _Wrong(f"is damaged: the tensor {name!r} lies at {offset:,}, which is no multiple of {alignment}")
    if kind not in _BLOCKS:
        return offset
    of_a_block, block_bytes = _BLOCKS[kind]
    if shape and shape[0] % of_a_block:
        raise _Wrong(f"is damaged: rows of the tensor {name!r} are {shape[0]} long, no multiple of {of_a_block}")
    return offset + values // of_a_block * block_bytes
