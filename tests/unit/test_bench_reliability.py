"""The reliability benchmark on scripted completions: situations, arms, scores, journal, report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from localmem.backend.base import Sampling
from localmem.backend.scripted import ScriptedBackend
from localmem.bench.arms import FreeBackend, call_in
from localmem.bench.cases import Case, shipped_cases
from localmem.bench.guarantee import open_journal as open_attempts
from localmem.bench.guarantee import prove
from localmem.bench.reliability import open_journal, ordered, run
from localmem.bench.report import result, rows, write
from localmem.bench.scoring import Outcome, Share, figures, restraint
from localmem.bench.situation import decide, situation
from localmem.bench.tuning import try_profiles
from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.prompt import Prompt
from localmem.config import Settings, load_settings
from localmem.kernel.messages import FunctionCall
from localmem.models import Profile

CASE = Case.model_validate(
    {
        "id": "moved",
        "category": "facts_changed",
        "persona": "I am kind.",
        "human": "Lives in Faro.",
        "recall": ["I sold the boat.", {"reply": "To whom?"}],
        "archive": ["The lease ends in May."],
        "before": [{"user": "hi"}, {"call": {"name": "send_message", "arguments": {"message": "hello"}}}],
        "user": "I moved to Porto.",
        "expect": ["core_memory_replace"],
        "args": {"old_contains": "faro", "contains": ["porto"]},
    }
)
AFTER = Case.model_validate(
    {
        "id": "after",
        "human": "Lives in Faro.",
        "recall": ["one", "two"],
        "before": [
            {"user": "Who bought the boat?"},
            {"call": {"name": "conversation_search", "arguments": {"query": "boat", "page": 1}}},
            {"result": "Results 1-5 of 8, page 1 of 2:\n[2026-03-02 18:40] User: a boat"},
        ],
        "expect": ["conversation_search"],
        "args": {"page": 2},
    }
)
REPLACED = FunctionCall(
    "core_memory_replace", {"label": "human", "old_content": "Lives in Faro.", "new_content": "Lives in Porto."}
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(
        load_settings(flags={"model": "smollm2-135m-instruct"}), home=tmp_path, database=tmp_path / "x.db", reserve=512
    )


def backend(*script: FunctionCall | str) -> ScriptedBackend:
    return ScriptedBackend(script, window=40_000)


def test_a_situation_is_the_cases_state(settings: Settings):
    scripted = backend(REPLACED)
    with situation(CASE, scripted, settings, Profile()) as agent:
        assert agent.working_context.block("human").value == "Lives in Faro."
        assert [message.kind for message in agent.main_context.queue] == ["user_message", "reply"]
        assert agent.recall.search("boat").total == 1
        assert agent.archival.count() == 1
        step = decide(agent, CASE)
        assert CASE.right_call(step.call)
        assert agent.working_context.block("human").value == "Lives in Porto."
    (grammar,) = scripted.grammars
    assert grammar is not None
    names = [choice.name for choice in grammar.choices]
    assert {"core_memory_replace", "conversation_search", "archival_memory_search", "send_message"} <= set(names)


def test_a_case_that_goes_on_after_a_result_offers_the_next_page(settings: Settings):
    scripted = backend(FunctionCall("conversation_search", {"query": "boat", "page": 2}))
    with situation(AFTER, scripted, settings, Profile()) as agent:
        assert AFTER.right_call(decide(agent, AFTER).call)
    (grammar,) = scripted.grammars
    assert grammar is not None
    search = next(choice for choice in grammar.choices if choice.name == "conversation_search")
    reading_on = {"query": "boat", "page": 2}
    assert Draft202012Validator(dict(search.parameters)).is_valid(reading_on)
    assert not Draft202012Validator(dict(search.parameters)).is_valid({**reading_on, "page": 1})


def test_every_shipped_case_can_be_set_up_and_what_is_expected_can_be_called(settings: Settings):
    out_of_reach: list[str] = []
    for case in shipped_cases("test"):
        scripted = backend()
        with situation(case, scripted, settings, Profile()) as agent:
            decide(agent, case)
        (grammar,) = scripted.grammars
        assert grammar is not None
        if not {choice.name for choice in grammar.choices} & set(case.expect):
            out_of_reach.append(case.id)
    assert out_of_reach == ["facts_new-en-t_takes_up_cello-1"], "a statement within a question holds nothing to save"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (BARE.write("f", '{"a": 1}'), ("f", {"a": 1})),
        ('Sure:\n```json\n{"name": "f", "arguments": {"a": 1}}\n```', ("f", {"a": 1})),
        ('{"function": "f", "parameters": {"a": 1}} and so on', ("f", {"a": 1})),
        ("Hello there!", ("send_message", {"message": "Hello there!"})),
        ('{"name": "f", "arguments": {"a": ', None),
        ("", None),
    ],
)
def test_a_call_is_found_in_free_text(text: str, call: object):
    assert call_in(text, BARE) == call


def test_the_free_arm_begins_behind_the_opening_tag():
    frame = Frame('<call>{"name": "', '", "arguments": ', "}</call>")
    grammar = CallGrammar(frame, (FunctionChoice("f", {"type": "object", "properties": {}}),))
    scripted = backend('{"name": "f", "arguments": {"a": 1}}</call> and so on')
    more = {"sampling": Sampling(), "max_tokens": 80}
    done = FreeBackend(scripted).complete(Prompt((1, 2)), grammar=grammar, **more)
    assert scripted.prompts[-1].ids == (1, 2, *scripted.tokenizer.encode("<call>", special=True))
    assert frame.parse(done.text) == FunctionCall("f", {"a": 1})


def test_arms_side_by_side(settings: Settings):
    said = "I am glad for you!"
    found = run(backend(said, REPLACED, REPLACED), [CASE], settings, arms=("free", "schema", "state"))
    free, schema, state = (found[arm][0] for arm in ("free", "schema", "state"))
    assert (free.function, free.valid, free.right_function) == ("send_message", True, False)
    assert schema.right_call
    assert state.right_call
    assert state.executable


def test_what_cannot_be_carried_out_is_valid_and_not_executable(settings: Settings):
    missing = FunctionCall("core_memory_replace", {**REPLACED.arguments, "old_content": "Lives in Rome."})
    (outcome,) = run(backend(missing), [CASE], settings, arms=("schema",))["schema"]
    assert (outcome.valid, outcome.executable) == (True, False)
    (broken,) = run(backend('{"name": "core'), [CASE], settings, arms=("free",))["free"]
    assert (broken.valid, broken.executable, broken.function) == (False, False, "")


def test_a_stopped_run_goes_on(settings: Settings, tmp_path: Path):
    path = tmp_path / "j.jsonl"
    run(backend(REPLACED), [CASE], settings, arms=("state",), journal=open_journal(path))
    with path.open("a") as file:
        file.write('["state after", {"case": "aft')  # killed as it wrote
    again = backend()
    found = run(again, [CASE, AFTER], settings, arms=("state",), journal=open_journal(path))
    assert len(again.prompts) == 1, "only the new case was decided"
    assert [outcome.case for outcome in found["state"]] == ["moved", "after"]


def test_cases_of_one_profile_stand_together():
    other = CASE.model_copy(update={"id": "b", "human": "x"})
    third = CASE.model_copy(update={"id": "c"})
    assert [case.id for case in ordered([CASE, other, third])] == ["moved", "c", "b"]


def test_the_guarantee_calls_every_function_in_turn_and_goes_on_where_it_stopped(settings: Settings, tmp_path: Path):
    path = tmp_path / "guarantee.jsonl"
    tally = prove(backend(), [CASE], settings, Profile(), calls=1, journal=open_attempts(path))[1.0]
    assert tally.calls == 7
    # The script answers everything with send_message, which does not count where another function was asked for.
    assert (tally.parsed, tally.executable, tally.finished, tally.kept) == (1, 1, 7, False)

    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 14, "seven functions at two temperatures"
    path.write_text("".join(lines[:-3]) + lines[-3][:20], encoding="utf-8")
    again = backend()
    assert prove(again, [CASE], settings, Profile(), calls=1, journal=open_attempts(path))[1.0] == tally
    assert len(again.prompts) == 3


def test_profiles_are_tried_on_the_same_cases_the_best_first_and_not_twice(settings: Settings, tmp_path: Path):
    path = tmp_path / "trials.jsonl"
    usual, plain = Profile(), Profile(functions="plain")
    found = try_profiles(backend("no call", REPLACED), [CASE], settings, [usual, plain], journal=open_journal(path))
    assert [(trial.profile, trial.right) for trial in found] == [(plain, 1.0), (usual, 0.0)]

    again = backend()
    known = try_profiles(again, [CASE], settings, [usual, plain, Profile(frame="bare")], journal=open_journal(path))
    assert [trial.right for trial in known] == [1.0, 0.0, 0.0]
    assert len(again.prompts) == 1, "only the new profile was tried"


def outcome(case: str, *, right: bool, category: str = "x", only_reply: bool = False) -> Outcome:
    return Outcome(case, category, "f()", "f", True, True, right, right, only_reply, 10, 0.5)


def test_figures():
    found = [outcome("a", right=True), outcome("b", right=False, category="y", only_reply=True)]
    table = figures(found)
    assert (table["n"], table["right_call"], table["valid"], table["restraint"]) == (2, 0.5, 1.0, 0.0)
    assert table["by_category"]["y"]["right_function"] == 0.0
    assert restraint(found) == Share(0, 1)


def test_intervals_hold_the_share_and_shrink():
    assert Share(0, 0).interval == (0.0, 1.0)
    narrow, wide = Share(90, 100).interval, Share(9, 10).interval
    assert wide[0] < narrow[0] < 0.9 < narrow[1] < wide[1]
    assert Share(1000, 1000).interval[0] > 0.99


def test_report_in_every_form(tmp_path: Path):
    record = result("m", {"state": [outcome("a", right=True)], "tuned": [outcome("a", right=False)]}, "test")
    assert {"benchmark", "commit", "model", "machine", "figures"} <= set(record)
    assert record["figures"]["right_call"] == 0.0, "the last arm's"
    assert rows(record)[0][:7] == ("m", "state", "1", *["100.0 (21-100)"] * 4)
    assert rows(record)[0][7] == "-", "no case wanted an answer only"
    paths = write(record, tmp_path)
    assert json.loads(paths[0].read_text())["arms"][0]["arm"] == "state"
    assert (tmp_path / "reliability.svg").read_text().lstrip().startswith("<?xml")


def test_page_and_plot_are_of_every_model_of_the_split_in_the_folder(tmp_path: Path):
    for model, split in (("m", "test"), ("n", "test"), ("o", "dev")):
        write(result(model, {"state": [outcome("a", right=True)]}, split), tmp_path)
    write(result("m", {"state": [outcome("a", right=False)]}, "test"), tmp_path)
    page = (tmp_path / "reliability.md").read_text()
    assert [line.split(" | ")[:2] for line in page.splitlines() if "| state |" in line] == [
        ["| m", "state"],
        ["| n", "state"],
    ]
    assert "| m | state | 1 | 100.0 (21-100) | 100.0 (21-100) | 0.0 (0-79) |" in page, "measured anew"
    assert "## n, by category" in page
    assert "\n| x | 1 | 100% / 100% |" in page
    image = (tmp_path / "reliability.svg").read_text()
    assert ("<!-- m -->" in image, "<!-- n -->" in image, "<!-- o -->" in image) == (True, True, False)
