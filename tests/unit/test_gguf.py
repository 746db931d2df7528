"""GGUF headers: what is whole is read, and whatever lies about itself is refused before llama.cpp sees it."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import gguf_bytes

from localmem.errors import ModelCorrupt, ModelNotFound
from localmem.gguf import check_gguf, read_gguf

METADATA = {"general.architecture": "llama", "llama.block_count": 2, "tokenizer.ggml.tokens": ["a", "ß", ""]}
TENSORS = [("a.weight", (4, 3)), ("b.weight", (5,))]
WHOLE = gguf_bytes(METADATA, TENSORS)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "x.gguf"
    path.write_bytes(content)
    return path


def test_a_whole_file_is_read(tmp_path: Path):
    header = check_gguf(write(tmp_path, WHOLE))
    assert header.version == 3
    assert header.metadata == {"general.architecture": "llama", "llama.block_count": 2}  # arrays are left out
    assert header.tensors == 2


def test_real_weights_are_whole(smollm_path: Path):
    header = check_gguf(smollm_path)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.context_length"] == 8192
    assert header.tensors == 272


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path):
    for length in range(len(WHOLE) - 12):  # its last tensor ends 12 bytes before: what follows only fills up
        with pytest.raises(ModelCorrupt, match=r"is empty|is not a GGUF|is cut off"):
            check_gguf(write(tmp_path, WHOLE[:length]))


def _head(*, version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def _tensor(name: bytes = b"t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    told = struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return _head(tensors=1) + told + bytes(4096)


KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "is not a GGUF file: it begins with b'PK"),
        (b"GGU", "is not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", "is cut off after 8 bytes"),
        (_head(), "is cut off: it is 24 bytes"),
        (_head(version=99) + b"x", "is GGUF version 99"),
        (_head(pairs=1 << 40), "claims 1,099,511,627,776 metadata"),
        (_head(tensors=1 << 63), "claims 9,223,372,036,854,775,808 tensors"),
        (_head(pairs=1) + struct.pack("<Q", 1 << 62), "bytes of a key"),
        (_head(pairs=1) + struct.pack("<Q", 60_000), "is cut off"),
        (_head(pairs=1) + KEY + struct.pack("<I", 13), "'k' is of kind 13"),
        (_head(pairs=1) + KEY + struct.pack("<IIQ", 9, 9, 1), "'k' is of kind 9"),
        (_head(pairs=1) + KEY + struct.pack("<IIQ", 9, 0, 1 << 60), "values of 'k'"),
        (_head(pairs=1) + KEY + struct.pack("<IIQ", 9, 12, 1 << 20), "is cut off"),
        (_head(pairs=1) + KEY + struct.pack("<IIQQ", 9, 8, 5, (1 << 64) - 8), "is cut off"),
        (_head(pairs=1) + KEY + struct.pack("<IQ", 8, (1 << 64) - 1), "bytes of 'k'"),
        (_head(pairs=2) + 2 * (KEY + struct.pack("<IB", 0, 1)) + b"x", "the key 'k' twice"),
        (gguf_bytes({"general.alignment": 33}) + b"x", "general.alignment is 33"),
        (gguf_bytes({"general.alignment": 0}) + b"x", "general.alignment is 0"),
        (gguf_bytes({"general.alignment": "wide"}) + b"x", "general.alignment is 'wide'"),
        (gguf_bytes({}, [("a", (1,)), ("a", (1,))]), "the tensor 'a' twice"),
        (_tensor(name=b"t" * 64), "64 bytes of a tensor's name"),
        (_tensor(shape=(1, 1, 1, 1, 1)), "5 dimensions"),
        (_tensor(shape=(0,)), "the shape [0]"),
        (_tensor(shape=(1 << 40, 1 << 40)), "the shape [1099511627776, 1099511627776]"),
        (_tensor(offset=7), "lies at 7"),
        (_tensor(shape=(33,), kind=2), "rows of the tensor 't' are 33 long, no multiple of 32"),
        (_tensor(shape=(4096,)), "is cut off: it is 4,"),
        (_tensor(offset=1 << 40), "is cut off"),
        (_tensor(kind=999, offset=1 << 40), "is cut off"),
    ],
)
def test_what_lies_about_itself_is_refused(tmp_path: Path, content: bytes, said: str):
    with pytest.raises(ModelCorrupt) as caught:
        check_gguf(write(tmp_path, content))
    assert said in str(caught.value)
    assert "localmem models pull" in caught.value.hint


@given(st.data())
def test_any_change_of_a_byte_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Changed anywhere, several times, and cut: nothing but a header or ModelCorrupt comes of it."""
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = write(tmp_path_factory.getbasetemp(), bytes(content))
    try:
        header = check_gguf(path)
    except ModelCorrupt:
        return
    assert header.tensors <= len(content)


@pytest.mark.parametrize("name", ["none.gguf", "."])
def test_no_file_is_not_found(tmp_path: Path, name: str):
    with pytest.raises(ModelNotFound, match="cannot be read"):
        check_gguf(tmp_path / name)


def test_no_more_is_asked_for_than_the_file_holds():
    """A string that claims more than there is must not make the reader ask for it."""

    class Counting(io.BytesIO):
        asked = 0

        def read(self, size: int | None = -1, /) -> bytes:
            Counting.asked = max(Counting.asked, size or 0)
            return super().read(size)

    content = _head(pairs=1) + KEY + struct.pack("<IIQQ", 9, 8, 2, 1 << 50) + bytes(100)
    with pytest.raises(ModelCorrupt, match="x is cut off"):
        read_gguf(Counting(content), len(content), "x")
    assert Counting.asked <= len(content)
