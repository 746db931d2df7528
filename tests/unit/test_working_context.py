"""Working context: bounded blocks that only checked edits change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.scripted import ByteTokenizer
from localmem.errors import BlockNotFound, InvalidArguments, WorkingContextFull
from localmem.kernel.tokens import count
from localmem.memory.working_context import Block, WorkingContext

BYTES = ByteTokenizer()


class Saved(list[Block]):
    """Remembers what was saved; a list with a name."""


def context(*blocks: Block) -> tuple[WorkingContext, Saved]:
    saved = Saved()
    return WorkingContext(blocks or (Block("human", "The user.", limit=40),), BYTES, saved.append), saved


def test_facts_stand_one_a_line():
    blocks, _ = context()
    blocks.append("human", "Name: Ana.")
    blocks.append("human", " Has a dog. ")
    assert blocks["human"] == "Name: Ana.\nHas a dog."


def test_edit_is_saved_before_it_is_shown():
    blocks, saved = context()
    blocks.append("human", "Name: Ana.")
    assert [block.value for block in saved] == ["Name: Ana."]


def test_failed_save_leaves_the_block_as_it_was():
    def full_disk(_block: Block) -> None:
        raise OSError("no space")

    blocks = WorkingContext([Block("human", "", "Name: Ana.")], BYTES, full_disk)
    with pytest.raises(OSError, match="no space"):
        blocks.append("human", "Has a dog.")
    assert blocks["human"] == "Name: Ana."


def test_fact_that_is_there_already_is_not_added_twice():
    blocks, saved = context(Block("human", "", "Name: Ana."))
    assert not blocks.append("human", " name: ana. ")
    assert blocks["human"] == "Name: Ana."
    assert saved == []


@pytest.mark.parametrize("nothing", ["", "  \n ", "\0"])
def test_empty_fact_is_refused(nothing: str):
    blocks, _ = context()
    with pytest.raises(InvalidArguments):
        blocks.append("human", nothing)


@given(edits=st.lists(st.text(max_size=30), max_size=8), limit=st.integers(1, 60))
def test_block_never_grows_past_its_limit_and_a_refused_edit_changes_nothing(edits: list[str], limit: int):
    blocks, saved = context(Block("human", "", limit=limit))
    for text in edits:
        before = blocks["human"]
        try:
            blocks.append("human", text)
        except (WorkingContextFull, InvalidArguments):
            assert blocks["human"] == before
        assert count(BYTES, blocks["human"]) <= limit
    assert blocks["human"] == (saved[-1].value if saved else "")


def test_full_block_says_how_full_and_what_to_do():
    blocks, _ = context(Block("human", "", "x" * 38, limit=40))
    with pytest.raises(WorkingContextFull, match=r"49 of 40 tokens.*core_memory_replace"):
        blocks.append("human", "y" * 10)


def test_text_of_a_megabyte_is_refused_like_any_other():
    blocks, _ = context()
    with pytest.raises(WorkingContextFull):
        blocks.append("human", "x" * 1_000_000)


def test_replace_changes_the_one_place():
    blocks, _ = context(Block("human", "", "Lives in Oslo.\nHas a dog.", limit=60))
    blocks.replace("human", "Lives in Oslo.", "Lives in Bergen.")
    assert blocks["human"] == "Lives in Bergen.\nHas a dog."


def test_empty_replacement_deletes_the_line():
    blocks, _ = context(Block("human", "", "a\nb\nc"))
    blocks.replace("human", "b", "")
    assert blocks["human"] == "a\nc"


@pytest.mark.parametrize(
    ("old", "problem"), [("", "empty"), ("z", "is not in"), ("x", "stands 2 times in"), ("XA\nb", "is not in")]
)
def test_place_that_cannot_be_told_is_refused_and_the_block_shown(old: str, problem: str):
    blocks, _ = context(Block("human", "", "xa\nb\nxb"))
    with pytest.raises(InvalidArguments, match=problem):
        blocks.replace("human", old, "new")
    assert blocks["human"] == "xa\nb\nxb"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("Has a dog.\nHas a dog. It barks.", "Has a cat.\nHas a dog. It barks."),
        ("Has a dog.\nName: Ana.\nHas a dog.", "Has a cat.\nName: Ana."),
    ],
    ids=["part of another", "twice"],
)
def test_whole_line_can_always_be_replaced(text: str, after: str):
    blocks, _ = context(Block("human", "", text, limit=80))
    blocks.replace("human", "Has a dog.", "Has a cat.")
    assert blocks["human"] == after


def test_unknown_block_is_refused_with_the_labels_there_are():
    blocks, _ = context(Block("human", ""), Block("persona", ""))
    with pytest.raises(BlockNotFound, match="human, persona"):
        blocks.append("work", "x")


def test_model_cannot_write_a_read_only_block_and_a_person_can():
    blocks, _ = context(Block("rules", "", "Be kind.", read_only=True))
    with pytest.raises(InvalidArguments, match="read-only"):
        blocks.append("rules", "x")
    with pytest.raises(InvalidArguments, match="read-only"):
        blocks.replace("rules", "Be kind.", "x")
    blocks.set("rules", "Be brief.")
    assert blocks["rules"] == "Be brief."


def test_added_block_stands_last_and_a_changed_one_stays_in_its_place():
    blocks, _ = context(Block("human", ""), Block("persona", ""))
    blocks.add(Block("work", "Tasks."))
    blocks.add(Block("human", "Changed."))
    assert list(blocks) == ["human", "persona", "work"]
    assert blocks.block("human").description == "Changed."


def test_block_whose_text_is_over_its_new_limit_is_refused():
    blocks, _ = context(Block("human", "", "x" * 30))
    with pytest.raises(WorkingContextFull):
        blocks.add(Block("human", "", "x" * 30, limit=10))
    assert blocks.block("human").limit == 300


@given(values=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=4))
def test_rendering_never_takes_more_than_was_promised(values: list[str]):
    blocks, _ = context(*(Block(f"b{i}", "What it is for.", limit=120) for i in range(len(values))))
    for index, value in enumerate(values):
        blocks.set(f"b{index}", value)
    assert count(BYTES, blocks.render()) <= blocks.most_tokens()


def test_rendering_shows_label_description_flag_and_text():
    blocks, _ = context(Block("rules", "How to be.", "Be kind.", read_only=True), Block("human", "The user."))
    assert "[rules] How to be., read-only\nBe kind." in blocks.render()
    assert "[human] The user.\n(empty)" in blocks.render()


def test_room_is_what_is_left():
    blocks, _ = context(Block("human", "", "x" * 30, limit=40))
    assert (blocks.used("human"), blocks.room("human")) == (30, 10)


def test_what_storage_cannot_hold_is_cleaned_on_the_way_in():
    blocks, _ = context()
    blocks.append("human", "a\ud83d\0b")
    assert blocks["human"] == "a?b"


def test_a_line_that_says_it_already_makes_an_append_do_nothing():
    blocks, saved = context(Block("human", "", "Big news: we moved to Porto last weekend."))
    assert not blocks.append("human", "We moved to Porto.")
    assert blocks.append("human", "To Porto we moved.")
    assert len(saved) == 1


def test_a_replacement_that_changes_nothing_says_so():
    blocks, saved = context(Block("human", "", "Rex is three."))
    assert not blocks.replace("human", "Rex is three.", "Rex is three. ")
    assert saved == []
    assert blocks.replace("human", "Rex is three.", "Rex is four.")


def test_counts_follow_every_edit():
    blocks, _ = context(Block("human", "", "abc", limit=40))
    assert (blocks.used("human"), blocks.room("human")) == (3, 37)
    blocks.append("human", "def")
    assert (blocks.used("human"), blocks.room("human")) == (7, 33)
    blocks.replace("human", "abc", "")
    assert (blocks.used("human"), blocks.room("human")) == (3, 37)


def test_room_for_core_memory_follows_limits_and_new_blocks():
    blocks, _ = context(Block("human", "", "abc", limit=40))
    before = blocks.most_tokens()
    blocks.add(Block("human", "", "abc", limit=50))
    assert blocks.most_tokens() == before + 10
    blocks.add(Block("rules", "Obey.", limit=60))
    assert blocks.most_tokens() == before + 10 + count(BYTES, "\n[rules] Obey.\n") + 60


def test_refused_edit_changes_no_count():
    blocks, _ = context(Block("human", "", "abc", limit=4))
    assert blocks.used("human") == 3
    with pytest.raises(WorkingContextFull):
        blocks.append("human", "much too long")
    assert (blocks.used("human"), blocks.room("human")) == (3, 1)
