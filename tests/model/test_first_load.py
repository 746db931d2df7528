"""A model file is loaded by a process of its own first: what crashes llama.cpp is an error here, and said once."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import localmem
from support import gguf_bytes

from localmem.backend import first_load
from localmem.backend.first_load import MEMORY_NAME, ensure_loadable
from localmem.errors import ModelCorrupt, ModelNotFound


def changed(weights: Path, key: str, value: int) -> bytes:
    """The file with another value of an unsigned 32-bit key."""
    content = weights.read_bytes()
    place = content.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4
    return content[:place] + struct.pack("<I", value) + content[place + 4 :]


@pytest.fixture(scope="module")
def crashing(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose structure is right, and which aborts llama.cpp: it asks for more layers than there may be."""
    path = tmp_path_factory.mktemp("crashing") / "crashing.gguf"
    path.write_bytes(changed(smollm_path, "llama.block_count", 100_000))
    return path


def test_the_file_really_crashes_the_library(crashing: Path):
    code = "import sys; from pathlib import Path; from localmem.backend.llama_library import LlamaModel\n"
    done = subprocess.run([sys.executable, "-c", code + "LlamaModel(Path(sys.argv[1]))", crashing], capture_output=True)
    assert done.returncode < 0


def test_what_crashes_llama_cpp_is_an_error_and_not_our_end(crashing: Path, tmp_path: Path):
    for _ in range(2):
        with pytest.raises(ModelCorrupt, match=r"crashes when it loads .*crashing\.gguf \(SIGABRT\)"):
            ensure_loadable(crashing, tmp_path)
    assert not (tmp_path / MEMORY_NAME).exists()


def test_the_command_line_says_so(crashing: Path, tmp_path: Path):
    done = localmem(["models", "add", str(crashing)], home=tmp_path)
    assert done.returncode == 1
    assert "llama.cpp crashes when it loads" in done.stderr
    assert "Get another copy of the file" in done.stderr


def test_what_llama_cpp_refuses_is_said_in_its_words(tmp_path: Path):
    weights = tmp_path / "odd.gguf"
    weights.write_bytes(gguf_bytes({"general.architecture": "nonsense"}, [("a", (32,))]))
    with pytest.raises(ModelCorrupt, match="llama.cpp cannot load odd.gguf: .*unknown model architecture"):
        ensure_loadable(weights, tmp_path)


def test_a_file_is_tried_once_and_again_when_it_changes(smollm_path: Path, tmp_path: Path, monkeypatch):
    tried: list[Path] = []
    monkeypatch.setattr(first_load, "_try", tried.append)
    weights = tmp_path / "a.gguf"
    weights.write_bytes(smollm_path.read_bytes())

    for _ in range(3):
        ensure_loadable(weights, tmp_path)
    assert len(tried) == 1
    os.utime(weights, ns=(1, 1))
    ensure_loadable(weights, tmp_path)
    assert len(tried) == 2

    memory = tmp_path / MEMORY_NAME
    known = json.loads(memory.read_text())
    known[str(weights)]["known"] = "llama-cpp-python 0.0.1"  # another one may stumble over it
    memory.write_text(json.dumps(known))
    ensure_loadable(weights, tmp_path)
    assert len(tried) == 3


def test_real_weights_are_loaded_and_remembered(smollm_path: Path, tmp_path: Path):
    ensure_loadable(smollm_path, tmp_path)
    assert list(json.loads((tmp_path / MEMORY_NAME).read_text())) == [str(smollm_path)]


def test_a_child_that_does_not_end_is_ended(smollm_path: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(first_load, "_LONGEST_S", 0.01)
    with pytest.raises(ModelCorrupt, match="did not load"):
        ensure_loadable(smollm_path, tmp_path)


def test_no_file_is_not_found(tmp_path: Path):
    with pytest.raises(ModelNotFound):
        ensure_loadable(tmp_path / "none.gguf", tmp_path)
