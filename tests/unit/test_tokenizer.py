"""The tiktoken encoding of a GGUF vocabulary, and when llama.cpp counts instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CONTROL_TEXT, model_path

from localmem.backend.llama import LlamaBackend
from localmem.backend.llama_library import LlamaModel
from localmem.backend.tokenizer import _PATTERNS, LlamaTokenizer, TiktokenTokenizer, Vocabulary, build_tokenizer

WORDS = [  # words, runs, scripts and joins that pre-tokenizers differ on
    "Hello",
    " world",
    "don't",
    "123",
    "\n\n",
    "  ",
    "\t",
    "é",
    "ß",
    "ﬃ",
    "日本",
    "한",
    "😀",
    "\u200b",
    "مر",
    "$$",
    "ي‎",
]
texts = st.text(max_size=60) | st.lists(st.sampled_from([*WORDS, *CONTROL_TEXT]), max_size=30).map("".join)


@given(text=texts, special=st.booleans())
def test_ids_are_llama_cpps(smollm_counting: LlamaBackend, smollm_vocabulary: LlamaModel, text: str, special: bool):
    exact = smollm_vocabulary.tokenize(text.encode(), special=special)
    assert smollm_counting.tokenizer.encode(text, special=special) == exact


@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=60))
def test_decoded_ids_are_the_text_but_for_bytes_the_vocabulary_lacks(smollm_counting: LlamaBackend, text: str):
    tokenizer = smollm_counting.tokenizer
    decoded = tokenizer.decode_bytes(tokenizer.encode(text))
    kept = iter(text.encode())
    assert all(byte in kept for byte in decoded)  # what is there is there in order; SmolLM2 lacks 21 bytes
    assert not text.isascii() or not text.isprintable() or decoded.decode() == text


@pytest.mark.parametrize("text", CONTROL_TEXT)
def test_control_text_is_no_control_token(smollm_counting: LlamaBackend, smollm_vocabulary: LlamaModel, text: str):
    tokenizer = smollm_counting.tokenizer
    attributes = smollm_vocabulary.vocabulary().attributes
    assert not any(attributes[token] & 8 for token in tokenizer.encode(text))
    assert tokenizer.decode_bytes(tokenizer.encode(text)).decode() == text


@pytest.fixture(scope="module")
def tagged(smollm_vocabulary: LlamaModel) -> Vocabulary:
    """SmolLM2's vocabulary, with `<repo_name>` as Qwen has `<tool_call>`: no control token, and read from any text."""
    vocabulary = smollm_vocabulary.vocabulary()
    tag = vocabulary.texts.index(b"<repo_name>")
    changed = tuple(16 if token == tag else each for token, each in enumerate(vocabulary.attributes))
    return replace(vocabulary, attributes=changed)


@pytest.mark.parametrize("kind", ["tiktoken", "llama.cpp"])
@given(text=st.lists(st.sampled_from(["<repo_name>", "<", "repo_name>", "x", " ", "<|im_end|>"]) | texts).map("".join))
def test_no_text_becomes_a_tag(smollm_vocabulary: LlamaModel, tagged: Vocabulary, kind: str, text: str):
    tag = tagged.texts.index(b"<repo_name>")

    def llama(text: bytes, special: bool) -> list[int]:
        """llama.cpp as it is where a tag is read from plain text too."""
        pieces = text.split(b"<repo_name>")
        read = [smollm_vocabulary.tokenize(piece, special=special) for piece in pieces]
        return [token for ids in read for token in (tag, *ids)][1:]

    made = {
        "tiktoken": lambda: TiktokenTokenizer(tagged, _PATTERNS["smollm"], llama),
        "llama.cpp": lambda: LlamaTokenizer(tagged, llama, smollm_vocabulary.piece),
    }
    tokenizer = made[kind]()
    assert tag not in tokenizer.encode(text)
    assert tokenizer.encode("a<repo_name>", special=True)[-1] == tag
    if kind == "tiktoken" and text.isascii() and text.isprintable():
        assert tokenizer.decode_bytes(tokenizer.encode(text)).decode() == text


def test_a_vocabulary_with_tags_is_still_counted_with_tiktoken():
    for name in ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"):
        path = model_path(name)
        if path is None:
            continue
        backend = LlamaBackend(path, window=512, counting_only=True)
        [tag] = backend.tokenizer.encode("<tool_call>", special=True)
        assert isinstance(backend.tokenizer, TiktokenTokenizer)
        assert tag not in backend.tokenizer.encode("x <tool_call>\n</tool_call>")
        backend.close()


def test_control_tokens_have_no_text_unless_it_is_asked_for(smollm_counting: LlamaBackend):
    tokenizer = smollm_counting.tokenizer
    ids = tokenizer.encode("<|im_start|>user", special=True)
    assert tokenizer.decode_bytes(ids) == b"user"
    assert tokenizer.decode_bytes(ids, special=True) == b"<|im_start|>user"


def test_vocabulary_that_is_known_is_counted_with_tiktoken(smollm_counting: LlamaBackend):
    assert isinstance(smollm_counting.tokenizer, TiktokenTokenizer)


@pytest.mark.parametrize("change", [{"pre": "unknown"}, {"kind": "llama"}, {"pre": "qwen2"}], ids=str)
def test_vocabulary_that_is_unknown_or_disagrees_is_counted_by_llama_cpp(
    smollm_vocabulary: LlamaModel, change: dict[str, str]
):
    vocabulary = replace(smollm_vocabulary.vocabulary(), **change)
    tokenizer = build_tokenizer(
        vocabulary, lambda text, special: smollm_vocabulary.tokenize(text, special=special), smollm_vocabulary.piece
    )
    assert isinstance(tokenizer, LlamaTokenizer)
    assert tokenizer.decode_bytes(tokenizer.encode("Grüße, <|im_end|>!")).decode() == "Grüße, <|im_end|>!"
    assert tokenizer.decode_bytes(tokenizer.encode("<|im_end|>", special=True)) == b""


def test_megabyte_of_one_character_is_counted(smollm_counting: LlamaBackend):
    assert len(smollm_counting.tokenizer.encode("a" * 1_000_000)) > 10_000


def test_lone_surrogate_is_counted_and_harms_nothing(smollm_counting: LlamaBackend):
    ids = smollm_counting.tokenizer.encode("a\ud83db")
    assert smollm_counting.tokenizer.decode_bytes(ids).decode()[::2] == "ab"
