"""Model cards: the shipped ones, the user's own, finding, checking and writing them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import gguf_bytes

from localmem.config import Settings, load_settings
from localmem.errors import ModelCorrupt, ModelError, ModelNotFound
from localmem.models import (
    HuggingFaceSource,
    LocalSource,
    ModelCard,
    Profile,
    PypiPart,
    PypiSource,
    SamplingDefaults,
    card_from_gguf,
    check,
    find_card,
    load_cards,
    locate,
    read_card,
    remembered_sha256,
    write_card,
)

GGUF = gguf_bytes({"general.architecture": "qwen2"}) + b"the rest of a model"

CARD = ModelCard(
    name="tiny",
    file="tiny.gguf",
    size_bytes=len(GGUF),
    sha256=hashlib.sha256(GGUF).hexdigest(),
    context_window=2048,
    aliases=("t",),
    license="MIT",
    description='a "tiny" model \\ for tests',
    chat_template="{{ bos_token }}\n{% for m in messages %}'''{{ m.content }}\t{% endfor %}",
    run_here=True,
    sources=(
        LocalSource(Path("/somewhere/tiny.gguf")),
        HuggingFaceSource("someone/tiny", "tiny.gguf", "abc", "http://mirror.invalid"),
        PypiSource((PypiPart("a", "1.0", "a/x.bin"), PypiPart("b", "1.0", "b/y.bin"))),
    ),
    sampling=SamplingDefaults(0.7, 0.9, 0.01),
    profile=Profile("hermes", "first", examples=False, reply="plain", functions="plain"),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(environ={"LOCALMEM_HOME": str(tmp_path)})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(GGUF)
    return path


def test_shipped_cards_are_the_four_that_were_run(tmp_path: Path):
    cards = load_cards(tmp_path / "none")
    assert {name: (card.size_bytes, card.run_here) for name, card in cards.items()} == {
        "gemma-3-270m": (253_113_024, True),
        "qwen2.5-coder-0.5b-instruct": (491_400_064, True),
        "qwen2.5-coder-1.5b-instruct": (1_117_320_768, True),
        "smollm2-135m-instruct": (98_362_432, True),
    }


def test_the_default_model_has_a_card(tmp_path: Path, settings: Settings):
    card = find_card(settings.model, load_cards(tmp_path))
    assert card.sources[0] == HuggingFaceSource(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
    )
    assert isinstance(card.sources[1], PypiSource)
    assert len(card.sources[1].parts) == 22


def test_written_card_is_read_back_the_same(tmp_path: Path):
    assert read_card(write_card(CARD, tmp_path)) == CARD


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(0, 100))
def test_any_text_and_number_survives_a_card(tmp_path_factory: pytest.TempPathFactory, text: str, number: float):
    card = replace(CARD, description=text, chat_template=text, sampling=SamplingDefaults(number))
    assert read_card(write_card(card, tmp_path_factory.getbasetemp())) == card


def test_users_card_replaces_a_shipped_namesake(tmp_path: Path):
    write_card(replace(CARD, name="gemma-3-270m"), tmp_path)
    assert load_cards(tmp_path)["gemma-3-270m"].file == "tiny.gguf"


def test_relative_local_source_is_relative_to_the_card(tmp_path: Path):
    write_card(replace(CARD, sources=(LocalSource(Path("weights/tiny.gguf")),)), tmp_path)
    assert load_cards(tmp_path)["tiny"].sources == (LocalSource(tmp_path / "weights" / "tiny.gguf"),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "tiny"', 'name = "other"', "is called 'other'"),
        ('file = "tiny.gguf"', 'file = "../tiny.gguf"', "not valid: file"),
        ('file = "tiny.gguf"', 'file = ".."', "not valid: file"),
        ("size_bytes = ", "size_bytes = -", "not valid: size_bytes"),
        ('sha256 = "', 'sha256 = "z', "not valid: sha256"),
        ('frame = "hermes"', 'frame = "x"', "not valid: profile.frame"),
        ('kind = "local"', 'kind = "ftp"', "not valid: source.0"),
        ('package = "a"', 'package = "--index-url=x"', "package"),
        ('version = "1.0"', 'version = "1.0 --pre"', "version"),
        ('license = "MIT"', 'licence = "MIT"', "not valid: licence"),
        ('license = "MIT"', "license = = ", "not valid TOML: .*line 4"),
        ('license = "MIT"', "license = " + "[" * 9_999, "not valid TOML: .*recursion"),
        ('license = "MIT"', "license = 3", "not valid: license"),
    ],
)
def test_a_card_that_is_wrong_is_refused_by_field(tmp_path: Path, old: str, new: str, said: str):
    path = write_card(CARD, tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ModelError, match=said) as caught:
        load_cards(tmp_path)
    assert str(path) in caught.value.message


def test_a_card_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "tiny.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="not valid TOML"):
        load_cards(tmp_path)


def test_card_is_found_by_name_and_alias():
    cards = {"tiny": CARD}
    assert find_card("tiny", cards) is CARD
    assert find_card("t", cards) is CARD


def test_unknown_model_is_told_near_names(tmp_path: Path):
    with pytest.raises(ModelNotFound) as caught:
        find_card("smollm2-135m", load_cards(tmp_path))
    assert "'smollm2-135m'" in caught.value.message
    assert "smollm2-135m-instruct" in caught.value.hint


def test_unknown_model_near_nothing_is_told_all_names():
    with pytest.raises(ModelNotFound, match="Known models: tiny"):
        find_card("zzzz", {"tiny": CARD})


def test_path_to_a_gguf_is_a_model(weights: Path, settings: Settings):
    card = find_card(str(weights), {})
    assert (card.name, card.size_bytes) == ("tiny", len(GGUF))
    assert locate(card, settings) == weights
    check(card, weights)


def test_relative_path_to_a_gguf_is_a_model(weights: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(weights.parent)
    assert find_card("tiny.gguf", {}).sources == (LocalSource(weights),)


def test_path_to_nothing_is_not_found(tmp_path: Path):
    with pytest.raises(ModelNotFound, match="cannot be read: No such file"):
        find_card(str(tmp_path / "none.gguf"), {})


def test_path_to_a_folder_is_not_found(tmp_path: Path):
    with pytest.raises(ModelNotFound, match="cannot be read: Is a directory"):
        find_card(str(tmp_path), {})


def test_weights_are_looked_for_in_the_models_directory_first(tmp_path: Path, settings: Settings, weights: Path):
    card = replace(CARD, sources=(LocalSource(weights),))
    assert locate(card, settings) == weights
    settings.models_dir.mkdir()
    (settings.models_dir / "tiny.gguf").write_bytes(GGUF)
    assert locate(card, settings) == settings.models_dir / "tiny.gguf"


def test_missing_weights_name_the_places_and_the_command(settings: Settings):
    with pytest.raises(ModelNotFound) as caught:
        locate(replace(CARD, sources=()), settings)
    assert str(settings.models_dir / "tiny.gguf") in caught.value.message
    assert caught.value.hint == "Get them with: localmem models pull tiny"


def test_the_right_file_passes_and_is_counted(weights: Path):
    counted: list[int] = []

    class Count:
        def __enter__(self):
            return self

        def __exit__(self, *exception: object):
            return None

        def update(self, n: int, /):
            counted.append(n)

        def set_description(self, desc: str, /):
            raise AssertionError(desc)

    check(CARD, weights, lambda description, total: Count())
    assert sum(counted) == len(GGUF)


def test_truncated_file_is_told_by_its_size(weights: Path):
    weights.write_bytes(GGUF[:-1])
    with pytest.raises(ModelCorrupt, match=f"is {len(GGUF) - 1} bytes, but tiny is {len(GGUF)} bytes"):
        check(CARD, weights)


def test_changed_file_is_told_by_its_sha256(weights: Path):
    weights.write_bytes(GGUF[:-1] + b"!")
    with pytest.raises(ModelCorrupt, match=f"has sha256 [0-9a-f]{{64}}, but tiny has {CARD.sha256}") as caught:
        check(CARD, weights)
    assert "localmem models pull tiny" in caught.value.hint


def test_a_path_to_a_file_that_is_no_gguf_is_refused(tmp_path: Path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelCorrupt, match="is not a GGUF file: it begins with b'PK"):
        find_card(str(path), {})


def test_card_is_made_of_a_files_own_metadata(tmp_path: Path, settings: Settings):
    path = tmp_path / "My Model (Q4).gguf"
    metadata = {
        "general.architecture": "qwen2",
        "general.name": "My Model",
        "general.license": "mit",
        "qwen2.context_length": 32768,
        "tokenizer.chat_template": "{% if tools %}...",
    }
    path.write_bytes(gguf_bytes(metadata))

    card = card_from_gguf(path)
    write_card(card, settings.models_dir)

    assert card.name == "my-model-q4"
    assert (card.context_window, card.license, card.description) == (32768, "mit", "My Model")
    assert card.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card.profile.frame == "native"
    assert find_card("my-model-q4", load_cards(settings.models_dir)) == card
    assert locate(card, settings) == path


@pytest.mark.parametrize("context", [{}, {"x.context_length": 0}, {"x.context_length": "many"}])
def test_card_of_a_file_that_says_little_is_careful(weights: Path, context: dict[str, object]):
    weights.write_bytes(
        gguf_bytes({"general.architecture": "x", "tokenizer.chat_template": "{{ messages }}", **context})
    )
    card = card_from_gguf(weights)
    assert (card.context_window, card.license, card.profile.frame) == (4096, "unknown", "bare")


def test_a_card_that_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        write_card(CARD, tmp_path / "file")


def test_sha256_is_computed_once_and_remembered(weights: Path, tmp_path: Path):
    memory = tmp_path / "memory.json"
    assert remembered_sha256(weights, memory, compute=False) is None
    assert not memory.exists()
    assert remembered_sha256(weights, memory, compute=True) == CARD.sha256
    assert remembered_sha256(weights, memory, compute=False) == CARD.sha256
    status = weights.stat()
    weights.write_bytes(bytes(status.st_size))
    os.utime(weights, ns=(0, status.st_mtime_ns))
    assert remembered_sha256(weights, memory, compute=True) == CARD.sha256  # it was not read again
    assert memory.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [GGUF[:-1], GGUF[:-1] + b"!"], ids=["other size", "same size, written later"])
def test_sha256_of_a_file_that_was_written_to_is_computed_again(weights: Path, tmp_path: Path, content: bytes):
    memory = tmp_path / "memory.json"
    remembered_sha256(weights, memory, compute=True)
    weights.write_bytes(content)
    os.utime(weights, ns=(1, 1))
    assert remembered_sha256(weights, memory, compute=False) is None
    assert remembered_sha256(weights, memory, compute=True) == hashlib.sha256(content).hexdigest()
    assert len(json.loads(memory.read_bytes())) == 1


def test_sha256_is_remembered_for_a_relative_path_too(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    remembered_sha256(weights, tmp_path / "memory.json", compute=True)
    monkeypatch.chdir(tmp_path)
    assert remembered_sha256(Path(weights.name), Path("memory.json"), compute=False) == CARD.sha256


def test_sha256_of_several_files_is_remembered_by_path_whatever_its_characters(weights: Path, tmp_path: Path):
    memory, odd = tmp_path / "memory.json", tmp_path / os.fsdecode(b"\xff \\ \n.gguf")
    odd.write_bytes(b"odd")
    remembered_sha256(weights, memory, compute=True)
    remembered_sha256(odd, memory, compute=True)
    assert remembered_sha256(weights, memory, compute=False) == CARD.sha256
    assert remembered_sha256(odd, memory, compute=False) == hashlib.sha256(b"odd").hexdigest()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"null", b'{"/x": {"size_bytes": 1}}', b'{"/x": 5}', b"[" * 9999],
)
def test_damaged_memory_of_sha256_counts_as_empty_and_is_rewritten(weights: Path, tmp_path: Path, content: bytes):
    memory = tmp_path / "memory.json"
    memory.write_bytes(content)
    assert remembered_sha256(weights, memory, compute=False) is None
    assert remembered_sha256(weights, memory, compute=True) == CARD.sha256
    assert remembered_sha256(weights, memory, compute=False) == CARD.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.json", "tiny.gguf"]


def test_memory_of_sha256_that_cannot_be_written_is_no_error(weights: Path, tmp_path: Path):
    assert remembered_sha256(weights, tmp_path / "none" / "memory.json", compute=True) == CARD.sha256
    (tmp_path / "folder.json" / "in it").mkdir(parents=True)
    assert remembered_sha256(weights, tmp_path / "folder.json", compute=True) == CARD.sha256
    assert not list(tmp_path.glob("*.part"))


def test_sha256_of_a_missing_file_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        remembered_sha256(tmp_path / "none.gguf", tmp_path / "memory.json", compute=True)
