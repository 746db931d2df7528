"""The composition root: an agent by its name, as its settings say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import SMOLLM, append, prompt_text, replies, say

import localmem
from localmem import runtime
from localmem.backend.llama import LlamaBackend
from localmem.backend.scripted import ScriptedBackend
from localmem.config import Settings, load_settings
from localmem.errors import AgentNotFound, ContextTooSmall, DatabaseBusy, LocalmemError, ModelCorrupt, ModelNotFound
from localmem.models import SamplingDefaults
from localmem.runtime import load_backend, make_embedder, open_storages
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(
        load_settings(environ={"LOCALMEM_HOME": str(tmp_path / "home")}), embedder="hash", model=SMOLLM, threads=1
    )


def opened(settings: Settings, *script: object, name: str = "ana", **more: object) -> localmem.Agent:
    return localmem.open(name, settings=settings, backend=ScriptedBackend(script), **more)  # type: ignore[arg-type]


def test_new_agent_has_the_papers_blocks(settings: Settings):
    with opened(settings) as agent:
        assert list(agent.working_context) == ["persona", "human"]
        assert agent.working_context["persona"]
        assert agent.working_context["human"] == ""


def test_reopened_agent_goes_on_where_it_was(settings: Settings):
    with opened(settings, append("Name: Ana."), say("Hello Ana.")) as agent:
        assert replies(agent.send("I am Ana.")) == ["Hello Ana."]
        before = agent.main_context.prompt()
    with opened(settings) as agent:
        assert agent.main_context.prompt() == before
        assert agent.working_context["human"] == "Name: Ana."


def test_agents_of_one_home_know_nothing_of_each_other(settings: Settings):
    with opened(settings, append("Name: Ana.")) as ana, opened(settings, name="bea") as bea:
        list(ana.send("I am Ana."))
        ana.archival.insert("Ana's note.")
        assert bea.working_context["human"] == ""
        assert (bea.archival.count(), bea.recall.count()) == (0, 0)
        assert "Ana" not in prompt_text(bea)


def test_agent_that_is_open_cannot_be_opened_again(settings: Settings):
    with opened(settings), pytest.raises(DatabaseBusy, match="in use"):
        opened(settings)
    opened(settings).close()


def test_agent_that_cannot_be_put_together_is_not_left_locked(settings: Settings):
    with pytest.raises(ContextTooSmall):
        localmem.open("ana", settings=settings, backend=ScriptedBackend(window=1_024))
    opened(settings).close()


def test_agent_that_is_not_there_is_not_created_unless_asked(settings: Settings):
    with pytest.raises(AgentNotFound):
        opened(settings, create=False)
    opened(settings).close()
    opened(settings, create=False).close()


@pytest.mark.parametrize("name", ["", "../ana", "a/b", "ana\n", ".", "x" * 65, "ana bea"])
def test_name_that_is_no_file_name_is_refused(settings: Settings, name: str):
    with pytest.raises(LocalmemError):
        opened(settings, name=name)


def test_settings_reach_the_agent(settings: Settings):
    chosen = replace(settings, reserve=700, warning=0.5, max_steps=3, summary_tokens=99, temperature=0.7, seed=5)
    with opened(chosen) as agent:
        options = agent.options
        assert (options.budget.reserve, options.budget.warning, options.max_steps) == (700, 0.5, 3)
        assert (options.summary_tokens, options.sampling.temperature, options.sampling.seed) == (99, 0.7, 5)


def test_agent_with_some_functions_is_told_of_and_offered_no_other(settings: Settings):
    names = ("core_memory_append", "core_memory_replace")
    with localmem.open("ana", settings=settings, backend=ScriptedBackend([say("Hi.")]), functions=names) as agent:
        list(agent.send("Hello."))
        offered = {choice.name for choice in agent.grammar().choices}
        assert offered == {"send_message", "core_memory_append", "core_memory_replace"}
        assert [choice.name for choice in agent.grammar("edits", without=names).choices] == ["nothing_to_save"]
        assert "archival_memory_insert" not in prompt_text(agent)
        assert "conversation_search" not in prompt_text(agent), "no example calls what is not there"


def test_agent_cannot_have_a_function_that_is_not_built_in(settings: Settings):
    with pytest.raises(LocalmemError, match="no built-in function 'fly'"):
        localmem.open("ana", settings=settings, backend=ScriptedBackend(), functions=["fly"])
    localmem.open("ana", settings=settings, backend=ScriptedBackend()).close()


def test_window_is_the_backends(settings: Settings):
    backend = ScriptedBackend(window=9_999)
    with localmem.open("ana", settings=settings, backend=backend) as agent:
        assert agent.options.budget.window == 9_999


@pytest.mark.parametrize(("name", "kind"), [("none", type(None)), ("hash", HashEmbedder)])
def test_embedder_is_the_settings(settings: Settings, name: str, kind: type):
    assert isinstance(make_embedder(replace(settings, embedder=name)), kind)  # type: ignore[arg-type]


def test_storages_can_be_looked_at_without_a_model(settings: Settings):
    with opened(settings) as agent:
        list(agent.send("My boat is red."))
        agent.archival.insert("A note.")
    row, recall, archival = open_storages("ana", settings)
    assert (row.name, recall.spoken_count(), archival.count()) == ("ana", 2, 1)
    with pytest.raises(AgentNotFound):
        open_storages("nobody", settings)


def test_unknown_model_is_an_error_that_says_where_it_was_looked_for(settings: Settings):
    with pytest.raises(ModelNotFound) as caught:
        load_backend(replace(settings, model="smollm2-135m-instrukt"))
    assert SMOLLM in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>not found</html>", b"GGUF" + b"\0" * 500])
def test_damaged_model_file_is_an_error_and_leaves_no_lock(settings: Settings, tmp_path: Path, content: bytes):
    weights = tmp_path / "broken.gguf"
    weights.write_bytes(content)
    broken = replace(settings, model=str(weights))
    for _ in range(2):
        with pytest.raises(ModelCorrupt):
            localmem.open("ana", settings=broken)


KILLED = """
import os, sys
from dataclasses import replace
from pathlib import Path
import localmem
from localmem.backend.scripted import ScriptedBackend
from localmem.config import load_settings
from localmem.kernel.messages import FunctionCall

settings = replace(load_settings(), embedder="hash", model="smollm2-135m-instruct")
script = [FunctionCall("core_memory_append", {"label": "human", "content": f"Fact {n}."}) for n in range(50)]
agent = localmem.open("ana", settings=settings, backend=ScriptedBackend(script))
steps = agent.send("Remember all of it.")
for _ in range(int(sys.argv[1])):
    next(steps)
prompt = agent.main_context.prompt().ids
sys.stdout.write(" ".join(map(str, prompt)))
sys.stdout.flush()
os._exit(9)
"""


@pytest.mark.parametrize("steps", [1, 3])
def test_killed_process_leaves_the_window_of_its_last_step(settings: Settings, steps: int):
    environment = {**os.environ, "LOCALMEM_HOME": str(settings.home)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(steps)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 9, done.stderr
    with opened(settings) as agent:
        assert agent.main_context.prompt().ids == tuple(map(int, done.stdout.split()))
        assert agent.working_context["human"].count("Fact") == steps
        assert replies(agent.send("Are you there?")) == ["All right."]


@pytest.mark.model
def test_other_model_reads_what_was_said_in_its_own_vocabulary(settings: Settings, smollm_path: Path):
    with opened(settings) as agent:
        list(agent.send("What is it called?"))
        assert '"message": "All right."' in prompt_text(agent)
    other = settings.home / "other.gguf"
    other.symlink_to(smollm_path)
    swapped = named(settings, str(other))
    backend = LlamaBackend(smollm_path, window=4_096, counting_only=True)
    with localmem.open("ana", settings=swapped, backend=backend) as agent:
        assert "What is it called?" in prompt_text(agent)
        assert '"message": "All right."' in prompt_text(agent)
    backend.close()


def test_agent_keeps_its_model_until_another_is_named(settings: Settings, tmp_path: Path):
    made = named(settings, SMOLLM)
    opened(made).close()
    by_default = load_settings(environ={"LOCALMEM_HOME": str(settings.home)})
    assert by_default.model != SMOLLM
    opened(replace(by_default, embedder="hash")).close()
    row, _, _ = open_storages("ana", settings)
    assert row.model == SMOLLM
    opened(named(settings, "gemma-3-270m")).close()
    row, _, _ = open_storages("ana", settings)
    assert row.model == "gemma-3-270m"


def named(settings: Settings, model: str) -> Settings:
    """The settings of a user who names a model."""
    chosen = load_settings(flags={"model": model}, environ={"LOCALMEM_HOME": str(settings.home)})
    return replace(chosen, embedder="hash", window=4_096, threads=1)


@pytest.mark.parametrize(("flags", "temperature"), [({}, 0.7), ({"temperature": 0.2}, 0.2)])
def test_card_advises_the_sampling_nobody_has_set(flags: dict[str, object], temperature: float):
    advised = SamplingDefaults(temperature=0.7, top_p=0.8, min_p=0.1)
    sampling = runtime._sampling(load_settings(flags=flags, environ={}), advised)
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (temperature, 0.8, 0.1)


def test_a_new_agent_is_there_with_all_that_was_done_to_it_or_not_at_all(settings: Settings):
    def names() -> list[str]:
        with Database(settings.database) as database:
            return [row.name for row in AgentStore(database).list()]

    def make(error: type[BaseException] | None = None) -> None:
        with runtime.new_agent("ana", settings, ScriptedBackend()) as agent:
            agent.set_block("human", "Sails.")
            agent.archival.insert("The boat is blue.")
            assert names() == []  # a kill at this point leaves nothing
            if error is not None:
                raise error

    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            make(error)
        assert names() == []
    make()
    assert names() == ["ana"]
    with localmem.open("ana", settings=settings, backend=ScriptedBackend(), create=False) as agent:
        assert agent.working_context["human"] == "Sails."
        assert agent.archival.count() == 1
    with pytest.raises(LocalmemError, match="there is an agent named 'ana' already"):
        make()
    assert names() == ["ana"]
