"""What a model calls the functions: its names in all it reads and writes, the paper's everywhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import SMOLLM, append, declarations, frames, prompt_text, say, scripted_agent, stored_messages

import localmem
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.calibration import Choice, beginnings
from localmem.calls.frame import Frame
from localmem.calls.gbnf import write_gbnf
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.names import Names
from localmem.calls.spec import read_names
from localmem.calls.stream import ReplyStream
from localmem.config import Settings, load_settings
from localmem.errors import LocalmemError
from localmem.kernel.events import MemoryPressure
from localmem.kernel.messages import FunctionCall
from localmem.models import find_card, load_cards
from localmem.resources import data_dir
from localmem.storage.database import Database

NAMES, TOLD = read_names((data_dir("grammars") / "plain.toml").read_text(encoding="utf-8"))
BARE = frames()["bare"]
NAMED = Frame(BARE.before, BARE.between, BARE.after, names=NAMES)


def test_plain_set_tells_of_functions_that_are_there_each_by_a_name_of_its_own():
    assert TOLD.keys() == NAMES.known_as.keys() < declarations().keys()
    known = list(NAMES.known_as.values())
    assert len(set(known)) == len(known)
    assert not set(known) & declarations().keys(), "a name that is another function's would be read as that"
    assert {"send_message", "nothing_to_save"} <= TOLD.keys(), "what ends an event is always there"


@pytest.mark.parametrize("function", [*NAMES.known_as, "my_own"])
def test_call_is_written_by_the_models_name_and_read_back_by_its_own(function: str):
    written = NAMED.write(function, '{"x": 1}')
    assert json.loads(written)["name"] == NAMES.of(function)
    assert NAMED.parse(written) == FunctionCall(function, {"x": 1})


def test_longer_name_is_not_taken_for_the_shorter_one_in_it():
    names = Names({"conversation_search": "look", "conversation_search_date": "look_by_day"})
    text = "conversation_search_date, conversation_search; my_conversation_search"
    assert names.in_text(text) == "look_by_day, look; my_conversation_search"


@pytest.mark.parametrize(
    "write",
    [
        lambda grammar: json.dumps(grammar.json_schema()),
        lambda grammar: grammar.lark(lambda text: [ord(character) for character in text], by_ids=False),
        write_gbnf,
    ],
    ids=["json", "lark", "gbnf"],
)
def test_every_form_of_the_grammar_has_the_models_name(write: Callable[[CallGrammar], str]):
    text = write(CallGrammar(NAMED, scripted_agent().grammar("last").choices))
    assert "say" in text
    assert "send_message" not in text


def test_calibrated_choice_is_known_by_its_own_name_and_begins_with_the_models():
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    begun = beginnings(CallGrammar(NAMED, (FunctionChoice("conversation_search", schema),)))
    assert begun == {Choice("conversation_search"): '{"name": "search_messages", "arguments":'}


def test_reply_is_streamed_from_the_models_call():
    parts: list[str] = []
    stream = ReplyStream(NAMED, parts.append)
    for character in NAMED.write("send_message", '{"message": "Hello."}'):
        stream.feed(character)
    assert "".join(parts) == "Hello."


def test_model_reads_its_names_and_people_the_papers(any_database: Database):
    script = [append("Has a dog."), FunctionCall("archival_memory_search", {"query": "dog", "page": 1}), say("Hi.")]
    instructions = "After saving or searching: send_message."
    told = {name: declared for name, declared in declarations().items() if name in TOLD}
    agent = scripted_agent(script, database=any_database, names=NAMES, instructions=instructions, declarations=told)
    agent.archival.insert("The boat is blue.")
    steps = list(agent.send("I have a dog, conversation_search."))
    agent.note(MemoryPressure(1, 2))
    assert [step.call and step.call.name for step in steps] == [call.name for call in script]
    read = prompt_text(agent)
    for text in (
        "searching: say.",
        '"remember"',
        "or search_messages",
        "Call nothing_new",
        "with remember or keep_note",
    ):
        assert text in read
    assert not [name for name in NAMES.known_as if name in read and name != "conversation_search"]
    assert read.count("conversation_search") == read.count("dog, conversation_search."), (
        "what the user wrote stays as it was written"
    )
    stored = " ".join(message.text for message in stored_messages(agent, any_database))
    assert "core_memory_append(" in stored
    assert "remember" not in stored


def test_refusal_tells_the_model_its_own_names(any_database: Database):
    agent = scripted_agent(['{"name": "fly", "arguments": {}}', say("Hi.")], database=any_database, names=NAMES)
    list(agent.send("Hello."))
    [refusal] = [message for message in stored_messages(agent, any_database) if message.kind == "result"]
    assert "call one of say, remember" in refusal.content
    assert "call one of send_message, core_memory_append" in refusal.text


def test_users_function_cannot_take_a_name_the_model_has_for_another():
    def remember(text: str) -> str:
        """Remember."""
        return text

    with pytest.raises(LocalmemError, match="'remember' is a function of localmem itself"):
        scripted_agent(names=NAMES).function(remember)
    scripted_agent().function(remember)


def test_profile_asks_for_the_plain_set(tmp_path: Path):
    settings: Settings = load_settings(environ={"LOCALMEM_HOME": str(tmp_path)}, flags={"model": SMOLLM})
    card = find_card(SMOLLM, load_cards(tmp_path))
    profile = replace(card.profile, functions="plain")
    with localmem.open(settings=settings, backend=ScriptedBackend(), profile=profile) as agent:
        assert "search_notes(" in prompt_text(agent)
        assert not [name for name in declarations() if name in prompt_text(agent)]
        assert profile.calibration is not None
        assert agent.calibration is None, "it was fitted on the paper's names"
    wanted = ["core_memory_append", "conversation_search_date"]
    with localmem.open("b", settings=settings, backend=ScriptedBackend(), profile=profile, functions=wanted) as agent:
        assert [spec.name for spec in agent._memory_functions.shown()] == ["send_message", *wanted]
