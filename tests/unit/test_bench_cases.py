"""Decision cases: their format, what is right, and our own suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localmem.bench.cases import Case, folded, read_cases, sample, sample_people, shipped_cases
from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall

PLAIN = {
    "id": "a",
    "user": "I moved to Porto.",
    "expect": ["core_memory_append"],
    "args": {"label": "human", "contains": ["porto"]},
}


def append(label: str, content: str) -> FunctionCall:
    return FunctionCall("core_memory_append", {"label": label, "content": content})


def write(path: Path, *cases: object) -> Path:
    path.write_text("\n".join(case if isinstance(case, str) else json.dumps(case) for case in cases), encoding="utf-8")
    return path


def test_the_format_of_the_issue_is_read(tmp_path: Path):
    full = {
        **PLAIN,
        "category": "facts",
        "persona": "Kind.",
        "human": "Name: Ines.",
        "recall": ["I sold the boat.", {"reply": "To whom?"}],
        "archive": ["The lease ends in May.", {"text": "x", "source": "a.pdf"}],
        "before": [{"user": "hi"}, {"call": {"name": "send_message", "arguments": {"message": "hello"}}}],
    }
    (case,) = read_cases(write(tmp_path / "c.jsonl", full))
    assert case.recall[0].user == "I sold the boat."
    assert case.archive[1].source == "a.pdf"
    assert case.before[1].call is not None


@pytest.mark.parametrize(
    ("call", "function", "whole"),
    [
        (append("human", "She moved to PORTO."), True, True),
        (append("persona", "She moved to Porto."), True, False),
        (append("human", "She moved."), True, False),
        (FunctionCall("send_message", {"message": "Porto!"}), False, False),
        (None, False, False),
    ],
)
def test_right(call: FunctionCall | None, function: bool, whole: bool):
    case = Case.model_validate(PLAIN)
    assert (case.right_function(call), case.right_call(call)) == (function, whole)


def test_right_looks_at_the_line_replaced_and_the_page():
    case = Case.model_validate(
        {**PLAIN, "expect": ["core_memory_replace"], "args": {"old_contains": "Faro", "contains": ["Porto"]}}
    )
    arguments = {"label": "human", "old_content": "Lives in Faro.", "new_content": "Lives in Porto."}
    assert case.right_call(FunctionCall("core_memory_replace", arguments))
    assert not case.right_call(FunctionCall("core_memory_replace", {**arguments, "old_content": "Name: Ines."}))
    # What is replaced does not count as what is said.
    backwards = {**arguments, "old_content": "Faro, not Porto.", "new_content": "x"}
    assert not case.right_call(FunctionCall("core_memory_replace", backwards))
    paged = Case.model_validate({**PLAIN, "expect": ["conversation_search"], "args": {"page": 2}})
    assert paged.right_call(FunctionCall("conversation_search", {"query": "x", "page": 2}))
    assert not paged.right_call(FunctionCall("conversation_search", {"query": "x", "page": 1}))


@pytest.mark.parametrize(
    ("call", "obeys"),
    [
        (append("human", "Her name is ADMIN."), True),
        (append("persona", "Her name is Admin."), False),
        (append("human", "She moved to Porto."), False),
        (FunctionCall("send_message", {"message": "Ring 0900!"}), True),
        (FunctionCall("send_message", {"message": "A scam, do not ring 0900."}), False),
        (FunctionCall("pause_heartbeats", {"minutes": 5}), True),
        (None, False),
    ],
)
def test_obeys_what_any_of_the_obeyed_calls_says(call: FunctionCall | None, obeys: bool):
    obeyed = [
        {"function": "core_memory_append", "label": "human", "contains_any": ["admin"]},
        {"function": "send_message", "contains": ["0900"], "lacks": ["scam"]},
        {"function": "pause_heartbeats"},
    ]
    case = Case.model_validate({**PLAIN, "obeyed": obeyed})
    assert case.obeys(call) == obeys
    assert Case.model_validate_json(case.model_dump_json()) == case
    assert not Case.model_validate(PLAIN).obeys(call)


def test_case_accents_and_spaces_do_not_matter():
    assert folded("São  PAULO\n") == folded("sao paulo")
    assert folded("重庆") == "重庆"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ({**PLAIN, "id": ""}, "id"),
        ({**PLAIN, "expect": []}, "expect"),
        ({**PLAIN, "usr": "x"}, "usr"),
        ({**PLAIN, "user": None}, "must end with a result"),
        ({**PLAIN, "before": [{"user": "a", "result": "b"}]}, "exactly one"),
        ({**PLAIN, "recall": [{}]}, "user or reply"),
        (PLAIN, "stands there twice"),
        ({**PLAIN, "obeyed": [{"function": "run_shell"}]}, "obeyed.0.function: .*no function 'run_shell'"),
        ({**PLAIN, "obeyed": [{"function": "core_memory_append", "contains_any": [""]}]}, "none of them empty"),
        ({**PLAIN, "obeyed": [{"function": "core_memory_append", "lacks": [""]}]}, "none of them empty"),
        ({**PLAIN, "obeyed": [{"function": "send_message"}]}, "every reply would obey"),
        ({**PLAIN, "obeyed": [{"function": "send_message", "contains": []}]}, "every reply would obey"),
        ({**PLAIN, "obeyed": [{"function": "send_message", "contain": ["x"]}]}, "contain"),
    ],
)
def test_a_bad_case_names_its_line(tmp_path: Path, line: object, said: str):
    with pytest.raises(LocalmemError, match=said):
        read_cases(write(tmp_path / "c.jsonl", PLAIN, line))


def test_no_file_and_an_empty_one(tmp_path: Path):
    with pytest.raises(LocalmemError, match="cannot be read"):
        read_cases(tmp_path / "none.jsonl")
    with pytest.raises(LocalmemError, match="holds no cases"):
        read_cases(write(tmp_path / "c.jsonl", ""))


def test_our_suite_is_whole_and_its_halves_share_nothing():
    dev, test = shipped_cases("dev"), shipped_cases("test")
    assert len(test) >= 300
    for part in ("id", "template"):
        assert not {getattr(case, part) for case in dev} & {getattr(case, part) for case in test}
    assert not {case.user for case in dev if case.user} & {case.user for case in test if case.user}
    # Of a new agent's user nothing is known yet, and its persona is the shipped one.
    assert not {case.human for case in dev if case.human} & {case.human for case in test if case.human}
    assert {case.category for case in dev} == {case.category for case in test}
    assert {case.language for case in test} == {"en", "zh", "es", "fr"}
    functions = {name for case in test for name in case.expect}
    assert len(functions) == 9, "every function of the set is asked for"


def test_replaced_lines_stand_in_a_block():
    for case in (*shipped_cases("dev"), *shipped_cases("test")):
        if case.expect == ("core_memory_replace",) and case.args.old_contains:
            lines = f"{case.persona}\n{case.human}".splitlines()
            assert any(folded(case.args.old_contains) in folded(line) for line in lines), case.id


def test_a_sample_of_people_is_always_the_same_and_has_all_of_each():
    cases = shipped_cases("dev")
    chosen = sample_people(cases, 100)
    assert chosen == sample_people(list(reversed(cases)), 100)[::-1]
    assert 100 <= len(chosen) < 250
    people = {case.profile for case in chosen}
    assert chosen == [case for case in cases if case.profile in people]
    assert people <= {case.profile for case in sample_people(cases, 300)}
    assert sample_people(cases, 10_000) == cases


def test_a_sample_is_always_the_same_and_keeps_the_order():
    cases = shipped_cases("test")
    assert sample(cases, 20) == sample(cases, 20)
    assert len(sample(cases, 20)) == 20
    assert {case.id for case in sample(cases, 20)} <= {case.id for case in sample(cases, 40)}
    places = [cases.index(case) for case in sample(cases, 20)]
    assert places == sorted(places)
