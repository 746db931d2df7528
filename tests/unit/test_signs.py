"""What the runtime sees of a decision for itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from localmem.kernel.messages import Kind, Message
from localmem.memory.signs import SIGNS, signs, terms

NOW = datetime(2026, 3, 2, tzinfo=UTC)
HUMAN = "Name: Ines.\nHer dog Bo is two years old.\nShe lives in Porto."


def message(kind: Kind, text: str) -> Message:
    return Message("user", kind, text, text, NOW)


def seen(*chain: Message, earlier: tuple[Message, ...] = (), **given: object) -> dict[str, float]:
    state = {"core_memory": HUMAN, "persona": "I am kind.", "passage": None, "older": None, **given}
    values = signs(chain, earlier, **state)  # type: ignore[arg-type]
    assert len(values) == len(SIGNS)
    assert ((values >= 0) & (values <= 1)).all()
    return {name: float(value) for name, value in zip(SIGNS, values, strict=True) if value}


def test_a_question_on_what_a_block_holds():
    found = seen(message("user_message", "How old is my dog Bo?"))
    assert found["ends with a question"] == 1
    assert found["words of it in one line of core memory, number"] > 0
    assert "words of it in one line of core memory, number" not in seen(message("user_message", "Why is the sky blue?"))


@pytest.mark.parametrize(
    ("result", "sign"),
    [
        ("Results 1-5 of 8, page 1 of 2:\n[2026-03-02] User: the boat", "there are more pages"),
        ("Results 1-2 of 2, page 1 of 1:\n[2026-03-02] User: the boat", "a search found something"),
        ("Nothing found for 'boat' in older messages. Try other or fewer words.", "a search found nothing"),
        ("No messages from 2026-03-01 to 2026-03-02. Try other days.", "a search found nothing"),
        ("Saved.", "something was saved"),
        ("Error: human is full", "a call failed"),
    ],
)
def test_what_came_of_the_last_call(result: str, sign: str):
    found = seen(message("user_message", "Where is the boat?"), message("call", "f()"), message("result", result))
    assert found[sign] == 1
    assert sign not in seen(message("user_message", "Where is the boat?"))


def test_a_search_that_was_widened_found_both_nothing_and_something():
    text = (
        "Nothing found for 'boat' in older messages. In archival memory:\nResults 1-1 of 1, page 1 of 1:\n[2026] boat"
    )
    found = seen(message("user_message", "Where is the boat?"), message("call", "f()"), message("result", text))
    assert found["a search found nothing"] == found["a search found something"] == 1


def test_an_empty_store_is_not_a_store_without_a_find():
    empty = seen(message("user_message", "Where is the boat?"))
    without = seen(message("user_message", "Where is the boat?"), passage="", older="")
    found = seen(message("user_message", "Where is the boat?"), passage="The boat is in Faro.", older="")
    assert "archival memory holds something" not in empty
    assert without["archival memory holds something"] == without["older messages have left"] == 1
    assert "words of it in the best passage, share" not in without
    assert found["words of it in the best passage, share"] == 1


def test_events():
    assert seen(message("timer", "Timer 'tea' fired: drink."))["a timed event"] == 1
    pressed = seen(message("memory_pressure", "Memory pressure"), unsaved=["I moved to Rome."])
    assert pressed["memory pressure"] == 1
    assert pressed["statements nobody has saved, number"] > 0


def test_what_was_saved_and_what_was_not():
    text = "I moved to Lisbon. My cat is called Otto. Which bakery did I like?"
    stated = ("I moved to Lisbon.", "My cat is called Otto.")
    edit = message("call", "core_memory_replace(label='human', old_content='x', new_content='Moved to Lisbon.')")
    found = seen(message("user_message", text), edit, message("result", "Saved."), stated=stated)
    assert found["something was saved before, times"] == pytest.approx(1 / 3)
    assert found["statements, number"] == 2 / 4
    assert found["statements of which nothing saved holds much, number"] == 1 / 4
    assert found["asks something"] == 1
    assert found["words of it in what was saved, share"] > 0
    before = seen(message("user_message", text), stated=stated)
    assert "statements of which nothing saved holds much, number" not in before
    assert "something was saved before, times" not in before


def test_a_statement_like_a_line_of_core_memory():
    def likeness(text: str) -> float:
        found = seen(message("user_message", text), stated=[text])
        return found.get("likeness of a statement and a line of core memory", 0.0)

    assert likeness("Her dog Bo is three years old.") > 0.5 > likeness("Bo has eaten her shoes.") > 0
    assert likeness("Nice weather today.") == 0


def test_terms_agree_over_endings_and_without_spaces():
    assert terms("We moved") & terms("She moves house") == set() or terms("moving boxes") & terms("moving box")
    assert terms("我的狗叫豆豆") & terms("豆豆是一只狗")
    assert not terms("the and of") & terms("dog")
