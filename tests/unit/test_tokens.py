"""Cutting text to an exact number of tokens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localmem.backend.llama import LlamaBackend
from localmem.backend.scripted import ByteTokenizer
from localmem.kernel.tokens import clean, count, cut, fits

BYTES = ByteTokenizer()
any_text = st.text(max_size=400) | st.text(st.sampled_from("a é😀\n,.<|>{}\"'"), max_size=600)


@given(text=any_text, limit=st.integers(0, 300), marker=st.sampled_from([" […] ", "", "…", " [… cut …] "]))
@example(text="😀" * 100, limit=7, marker="")
@example(text="ab", limit=0, marker="")
def test_cut_text_never_takes_more_than_the_limit(text: str, limit: int, marker: str):
    assert count(BYTES, cut(BYTES, text, limit, marker=marker)) <= limit


@given(text=any_text, limit=st.integers(0, 120))
def test_cut_text_never_takes_more_than_the_limit_of_a_real_vocabulary(
    smollm_counting: LlamaBackend, text: str, limit: int
):
    assert count(smollm_counting.tokenizer, cut(smollm_counting.tokenizer, text, limit)) <= limit


@given(text=any_text, slack=st.integers(0, 5))
def test_text_that_fits_stays_as_it_is(text: str, slack: int):
    assert cut(BYTES, text, count(BYTES, text) + slack) == text


@given(text=any_text, limit=st.integers(0, 300))
def test_fits_is_a_count(text: str, limit: int):
    assert fits(BYTES, text, limit) == (count(BYTES, text) <= limit)


def test_beginning_and_end_are_kept_and_the_middle_marked():
    shown = cut(BYTES, "a" * 500 + "b" * 500, 100, marker="[…]")
    assert shown.startswith("a" * 60)
    assert shown.endswith("b" * 30)
    assert "[…]" in shown


def test_no_character_is_torn_apart():
    assert set(cut(BYTES, "é😀" * 200, 60, marker="")) == {"é", "😀"}


@pytest.mark.parametrize("text", ["x" * 1_000_000, " " * 1_000_000, "😀" * 250_000, "ab " * 300_000])
def test_megabyte_is_cut(smollm_counting: LlamaBackend, text: str):
    tokenizer = smollm_counting.tokenizer
    assert not fits(tokenizer, text, 256)
    assert 0 < count(tokenizer, cut(tokenizer, text, 256)) <= 256


@given(text=st.text(st.characters(), max_size=50))
def test_clean_text_can_be_encoded_and_holds_no_nul(text: str):
    assert "\0" not in clean(text)
    clean(text).encode()


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_clean_changes_nothing_that_is_clean(text: str):
    assert clean(text) == text


def test_lone_surrogates_and_nuls_are_taken_out():
    assert clean("a\ud83d\0b") == "a?b"
