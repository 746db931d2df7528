"""A real model in a small window: nothing is lost over many turns, flushes and restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import Clock, make_agent, model_path, replies, stored_messages

import localmem
from localmem.backend.llama import LlamaBackend, LlamaOptions
from localmem.config import DEFAULT_MODEL, Settings, load_settings
from localmem.kernel.budget import Budget
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.export import Export, write_export
from localmem.storage.import_file import import_agent

pytestmark = pytest.mark.model

TOPICS = ["boat", "garden", "piano", "bread", "mountain", "river", "window", "letter", "market", "lamp"]


@pytest.mark.slow
def test_thirty_turns_with_flushes_and_a_restart_lose_nothing(smollm_path: Path, tmp_path: Path):
    backend = LlamaBackend(smollm_path, window=1_280, options=LlamaOptions(threads=1))
    clock = Clock()

    def opened() -> localmem.Agent:
        return make_agent(
            backend,
            database=Database(tmp_path / "localmem.db"),
            now=clock,
            budget=Budget(1_280, 64),
            summary_tokens=48,
            human_limit=60,
            max_steps=1,
        )

    said: list[str] = []
    answered: list[str] = []
    agent = opened()
    for turn in range(30):
        text = f"Message {turn}: I thought about the {TOPICS[turn % 10]} today, and it was number {turn * 7}."
        for step in agent.send(text):
            assert step.usage.prompt_tokens <= agent.options.budget.flush_tokens
            answered += [step.reply] if step.reply is not None else []
        said.append(text)
        if turn in (9, 19):
            before = agent.main_context.prompt()
            agent = opened()  # the first one is dropped as a killed process would drop it
            assert agent.main_context.prompt() == before

    database = Database(tmp_path / "localmem.db")
    stored = stored_messages(agent, database)
    assert [m.text for m in stored if m.kind == "user_message"] == said
    assert [m.text for m in stored if m.kind == "reply"] == answered
    assert len(answered) == 30
    summaries = AgentStore(database).summaries(agent.id)
    assert len(summaries) >= 2
    assert len(stored) == summaries[-1].evicted_messages + len(agent.main_context.queue)
    found = agent.recall.search("river number 35", exclude=[m.id for m in agent.main_context.queue if m.id])
    assert any("Message 5:" in message.text for message in found.items)
    backend.close()


def test_window_of_a_real_model_is_only_read_where_it_is_new(smollm: LlamaBackend):
    agent = make_agent(smollm, reserve=64, max_steps=1)
    first = list(agent.send("Hello."))
    second = list(agent.send("And how is the weather?"))
    assert second[0].usage.reused_tokens >= first[-1].usage.prompt_tokens
    assert second[0].usage.evaluated_tokens < 100


def test_an_exported_window_is_the_same_text_where_it_is_imported(smollm: LlamaBackend, tmp_path: Path):
    clock = Clock()
    here = make_agent(smollm, reserve=64, max_steps=2, database=Database(tmp_path / "here.db"), now=clock)
    for text in ("Hello, I am Ana.", 'I have a dog. <|im_end|> "é" \\ 🎉', "And how is the weather?"):
        list(here.send(text))
    write_export(Database(tmp_path / "here.db"), here.id, tmp_path / "ana.localmem")
    with Database(tmp_path / "there.db") as database, Export(tmp_path / "ana.localmem") as export:
        import_agent(database, export)
    there = make_agent(smollm, reserve=64, max_steps=2, database=Database(tmp_path / "there.db"), now=clock)
    decode = smollm.tokenizer.decode_bytes
    prompts = [agent.main_context.prompt().ids for agent in (here, there)]
    assert decode(prompts[0], special=True) == decode(prompts[1], special=True)
    control = [[token for token in prompt if decode([token]) == b""] for prompt in prompts]
    assert control[0] == control[1], "what was text is text, and what was a turn is a turn"


@pytest.mark.slow
def test_fact_told_in_one_session_is_answered_in_the_next(tmp_path: Path):
    if model_path(DEFAULT_MODEL) is None:
        pytest.skip(f"the weights of {DEFAULT_MODEL} are not here; `localmem models pull {DEFAULT_MODEL}` fetches them")
    real = load_settings()
    settings: Settings = replace(
        load_settings(environ={"LOCALMEM_HOME": str(tmp_path)}), models_dir=real.models_dir, embedder="hash"
    )
    with localmem.open("ana", settings=settings) as agent:
        assert replies(agent.send("My sister is called Ines and her birthday is on the 4th of May."))
    with localmem.open("ana", settings=settings) as agent:
        answer = " ".join(replies(agent.send("When is my sister's birthday?")))
    assert "May" in answer
    assert "4" in answer
