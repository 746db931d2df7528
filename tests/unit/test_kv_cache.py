"""How much of a prompt the KV cache already holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.kv_cache import CachedSequence, common_prefix

ids = st.lists(st.integers(0, 3), max_size=12)


@given(left=ids, right=ids)
def test_common_prefix_is_common_and_no_longer_one_is(left: list[int], right: list[int]):
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left) == len(right)


@given(held=ids, prompt=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_last_token_is_always_read_for_its_logits(held: list[int], prompt: list[int]):
    cached = CachedSequence()
    cached.extend(held)
    assert cached.reusable(prompt) < len(prompt)
    assert prompt[: cached.reusable(prompt)] == held[: cached.reusable(prompt)]


def test_truncated_ids_are_not_reused():
    cached = CachedSequence()
    cached.extend([1, 2, 3, 4])
    cached.truncate(2)
    assert (len(cached), cached.reusable([1, 2, 3, 4])) == (2, 2)
