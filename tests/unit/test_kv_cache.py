"""What the KV cache holds: the least reading, and never a token that does not agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.kv_cache import LEAST_MOVED, KVCache, Sequence, common_prefix

ids = st.lists(st.integers(0, 3), max_size=12)
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=12)


class Cells:
    """Sequences by number as llama.cpp would hold them: (id, the id before it ...) at each position, in plain lists."""

    def __init__(self, *, can_cut: bool = True) -> None:
        self.held: dict[int, dict[int, int]] = {0: {}, 1: {}, 2: {}}
        self._can_cut = can_cut
        self.lost_when_compacted = False

    def truncate(self, sequence: int, length: int) -> bool:
        if not self._can_cut and 0 < length < len(self.held[sequence]):
            return False
        self.held[sequence] = {p: t for p, t in self.held[sequence].items() if p < length}
        return True

    def fork(self, source: int, target: int, length: int) -> None:
        assert not self.held[target]
        self.held[target] = {p: t for p, t in self.held[source].items() if p < length}

    def compact(self, sequence: int) -> bool:
        if self.lost_when_compacted:
            self.held[sequence] = {}
        return not self.lost_when_compacted

    def shift(self, source: int, target: int, *, start: int, stop: int, by: int) -> None:
        moving = {p: t for p, t in self.held[source].items() if start <= p < stop}
        for position, token in moving.items():
            del self.held[source][position]
            assert position + by not in self.held[target]
            self.held[target][position + by] = token

    def read(self, sequence: int, tokens: list[int]) -> None:
        end = len(self.held[sequence])
        self.held[sequence] |= {end + i: token for i, token in enumerate(tokens)}

    def ids(self, sequence: int) -> list[int]:
        held = self.held[sequence]
        assert sorted(held) == list(range(len(held))), "no gap and no overlap"
        return [held[position] for position in sorted(held)]


def complete(cache: KVCache, cells: Cells, prompt: list[int], sequence: Sequence) -> int:
    """Read a prompt as the backend does; gives how much was reused."""
    promised = cache.reusable(prompt, sequence)
    reused = cache.begin(prompt, sequence)
    assert reused == promised < len(prompt)
    cells.read(cache.place(sequence), prompt[reused:])
    cache.extend(sequence, prompt[reused:])
    return reused


def agree(cache: KVCache, cells: Cells) -> None:
    names: tuple[Sequence, ...] = ("main", "ahead", "side")
    assert [cells.ids(cache.place(name)) for name in names] == [list(cache.ids(name)) for name in names]


@given(left=ids, right=ids)
def test_common_prefix_is_common_and_no_longer_one_is(left: list[int], right: list[int]):
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left) == len(right)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["main", "ahead", "side", "drop"]), prompts), max_size=12),
    can_cut=st.booleans(),
)
def test_cells_hold_what_the_cache_says_and_the_prompt_after_every_step(
    steps: list[tuple[str, list[int]]], can_cut: bool
):
    cells = Cells(can_cut=can_cut)
    cache = KVCache(cells, can_cut=can_cut)
    for sequence, prompt in steps:
        if sequence == "drop":
            cache.drop("ahead")
        else:
            complete(cache, cells, prompt, sequence)  # type: ignore[arg-type]
            assert list(cache.ids(sequence)) == prompt  # type: ignore[arg-type]
        agree(cache, cells)


def test_window_read_ahead_becomes_main_and_the_old_one_is_gone():
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [1, 2, 3, 4], "main")
    assert complete(cache, cells, [1, 2, 9, 9, 9], "ahead") == 2
    assert list(cache.ids("main")) == [1, 2, 3, 4], "reading ahead leaves main as it is"
    assert complete(cache, cells, [1, 2, 9, 9, 9, 5], "main") == 5
    assert cache.length("ahead") == 0
    agree(cache, cells)


def test_window_that_is_lost_when_it_is_moved_is_read_again():
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [1, 2, 3, 4], "main")
    complete(cache, cells, [1, 2, 9, 9], "ahead")
    cells.lost_when_compacted = True
    assert cache.begin([1, 2, 9, 9, 5], "main") == 0
    agree(cache, cells)


def test_main_that_went_another_way_keeps_what_was_read_ahead_for_later():
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [1, 2, 3, 4], "main")
    complete(cache, cells, [1, 2, 9, 9], "ahead")
    assert complete(cache, cells, [1, 2, 3, 4, 5], "main") == 4
    assert complete(cache, cells, [1, 2, 9, 9, 8, 8], "ahead") == 4


def test_fork_reuses_main_and_leaves_no_trace():
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [1, 2, 3, 4, 5], "main")
    assert complete(cache, cells, [1, 2, 3, 7, 7], "side") == 3
    cache.drop("side")
    assert list(cache.ids("main")) == [1, 2, 3, 4, 5]
    agree(cache, cells)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        pytest.param(lambda cache: cache.reusable([1, 2, 3, 4], "main"), 3, id="grown at its end"),
        pytest.param(lambda cache: cache.reusable([1, 2, 4], "main"), 0, id="cut"),
        pytest.param(lambda cache: cache.reusable([1, 2, 3, 4], "side"), 0, id="forked"),
    ],
)
def test_recurrent_state_is_reused_whole_or_not_at_all(use: Callable[[KVCache], int], expected: int):
    cells = Cells(can_cut=False)
    cache = KVCache(cells, can_cut=False)
    complete(cache, cells, [1, 2, 3], "main")
    assert use(cache) == expected


run = st.lists(st.integers(10, 10_000), min_size=LEAST_MOVED, max_size=LEAST_MOVED + 40, unique=True)


@given(before=ids, old=ids, new=ids, after=ids, kept=run)
def test_moved_run_stands_where_the_prompt_has_it(
    before: list[int], old: list[int], new: list[int], after: list[int], kept: list[int]
):
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [*before, 5, *old, *kept], "main")
    prompt = [*before, 6, *new, *kept, *after, 7]
    moved = cache.set_aside(prompt)
    assert moved is not None
    assert list(moved.ids)[-len(kept) :] == kept, "it may begin earlier, where both agree by chance"
    cells.read(cache.place("main"), prompt[cache.length("main") : moved.at])
    cache.extend("main", prompt[cache.length("main") : moved.at])
    cache.attach(moved)
    agree(cache, cells)
    assert list(cache.ids("main")) == prompt[: cache.length("main")]
    assert cache.length("side") == 0


def test_window_read_ahead_is_not_given_up_for_moved_cells():
    cells = Cells()
    cache = KVCache(cells)
    kept = list(range(10, 10 + LEAST_MOVED + 20))
    complete(cache, cells, [1, 2, *kept], "main")
    prompt = [1, 9, *kept, 5]
    complete(cache, cells, prompt[:-1], "ahead")
    assert cache.set_aside(prompt) is None
    assert cache.begin(prompt, "main") == len(prompt) - 1
    agree(cache, cells)


def test_run_too_short_to_move_is_read_again():
    cells = Cells()
    cache = KVCache(cells)
    complete(cache, cells, [1, 2, 3, *range(10, 40)], "main")
    assert cache.set_aside([1, 9, *range(10, 40), 5]) is None
    agree(cache, cells)
