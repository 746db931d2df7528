"""What a user's text states, asks, and hands over."""

from __future__ import annotations

import pytest

from localmem.memory.user_text import asked_in, hands_over, is_question, statements, told


@pytest.mark.parametrize(
    "text",
    [
        "Keep this for me: 2 eggs, 100 g flour, a pinch of salt",
        "put in the vault:\ndocker compose down\ndocker compose up -d",
        "Save this\nFlatbread\n250 g flour, 150 g yoghurt",
        'Hang on to this quotation. "Music is what happens between the notes", says Stern.',
        "Store this bit of code\n```python\nraw = hx.read_average(10)\n```",
        "帮我存一下这个：酸梅汤 乌梅50克 山楂30克 陈皮10克",
        "把这个存起来。酸梅汤 乌梅50克 山楂30克 甘草5克 冰糖100克 水两升半 泡一小时 煮四十分钟 最后撒桂花 放凉后再喝",
        "Garde ceci : « Mesdames et messieurs, nous sommes arrêtés en pleine voie. »",
        "Minutes for the file. Arden Street stair, 14 April, six of eight were present. "
        "Roof works approved, five to one. The cellar waits.",
    ],
)
def test_a_message_hands_a_text_over(text: str):
    assert hands_over(text)


@pytest.mark.parametrize(
    "text",
    ["Please keep that recipe.", "save it", "Keep this: no", "把刚才的菜谱存起来", "Note that he said: yes.", ""],
)
def test_a_message_points_at_something_else(text: str):
    assert not hands_over(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi! I moved to Porto. Isn't that nice?", ["I moved to Porto."]),
        ("你好！我这个月考下驾照了。", ["我这个月考下驾照了。"]),
        ("Good evening!", []),
        ("How are you?\nI am fine today.", ["I am fine today."]),
    ],
)
def test_statements(text: str, expected: list[str]):
    assert statements(text) == expected


def test_what_is_asked_is_the_last_question_or_all_of_a_short_message():
    assert asked_in("Where is it? I forgot. Was it the red one?") == "Was it the red one?"
    assert asked_in("Look for the\nlease.") == "Look for the lease."
    assert asked_in("a word " * 60) == ""
    assert asked_in("") == ""


def test_a_question_with_a_statement_before_it_is_not_only_a_question():
    assert is_question("What is my name?")
    assert not is_question("I am called Ana. Nice, isn't it?")


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("Good evening! My boat is red. Is yours?", ["My boat is red."]),
        ("Please address me as Dr. Achterberg.", ["Please address me as Dr. Achterberg."]),
        ("im 58", ["im 58"]),
        ("你好！我这个月考下驾照了。真开心。", ["我这个月考下驾照了。真开心。"]),
        ("Where is it?", []),
        ("", []),
        ("x" * 300, []),
    ],
)
def test_what_a_message_tells(text: str, tells: list[str]):
    assert told(text, 240) == tells
