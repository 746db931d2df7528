"""Letta's core-memory sets at their smallest, on invented cases in Letta's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import SMOLLM

from benchmarks import letta, shares
from benchmarks.journal import open_journal
from localmem.backend.scripted import ScriptedBackend
from localmem.config import Settings, load_settings
from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall

FACTS = ["Ina Foss keeps two emus.", "Ina Foss lives in Bergen.", "Olav Lund plays the cello."]


def line(question: str, answer: str, said: str = "", contradicted: tuple[int, ...] = ()) -> dict[str, Any]:
    more = {"contradicting_fact": said, "supporting_fact_indices": list(contradicted)} if said else {}
    return {"input": question, "ground_truth": answer, "agent_args": {"extra": {"facts": FACTS, **more}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    read = [line("Where does Ina Foss live?", "Bergen")]
    update = [
        line("Where does Ina Foss live?", "Oslo", '"Ina Foss lives in Oslo."', (1,)),
        line("Who plays the cello?", "Ina Foss", "Ina Foss plays the cello.", (2,)),
        line("What of it?", "one two three four five", "one two three four five", (0,)),
    ]
    for name, rows in (("read", read), ("update", update)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / letta.FILES[name]).write_text(text, encoding="utf-8")  # type: ignore[index]
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"home": tmp_path / "home"})


def say(text: str) -> FunctionCall:
    return FunctionCall("send_message", {"message": text})


def test_only_updates_that_the_block_shows_are_cases(folder: Path):
    (case,) = letta.read_cases(folder, "update")
    assert case.said == "Ina Foss lives in Oslo."
    assert len(letta.read_cases(folder, "read")) == 1


def test_missing_data_is_an_error_with_the_way_out(tmp_path: Path):
    with pytest.raises(LocalmemError, match="cannot be read") as caught:
        letta.read_cases(tmp_path, "read")
    assert "--data" in caught.value.hint


def test_facts_are_read_in_every_arm(folder: Path, settings: Settings):
    backend = ScriptedBackend([say("In BERGEN."), "In Bergen.", say("In Oslo."), say("In Bergen!")])
    cases = letta.read_cases(folder, "read")
    arms: list[Any] = ["schema", "free", "state", "tuned"]
    found = letta.run(backend, cases, settings, arms=arms, journal=open_journal(None))
    assert [found[arm][0]["right"] for arm in arms] == [True, True, False, True]
    assert "Ina Foss lives in Bergen." in backend.tokenizer.decode_bytes(backend.prompts[0].ids).decode()


def test_update_is_seen_in_the_block_and_asked_for_in_a_new_conversation(folder: Path, settings: Settings):
    new = {"label": "human", "old_content": FACTS[1], "new_content": "Ina Foss lives in Oslo."}
    backend = ScriptedBackend([FunctionCall("core_memory_replace", new), say("Aha!"), say("In Oslo.")])
    (case,) = letta.read_cases(folder, "update")
    record = letta.judge(backend, case, settings, "state")
    assert (record["right"], record["state"]) == (True, True)
    asked = backend.tokenizer.decode_bytes(backend.prompts[-1].ids).decode()
    assert "Aha!" not in asked
    assert "Ina Foss lives in Oslo.\n" in asked
    assert "Ina Foss lives in Bergen." not in asked


def test_new_fact_beside_the_old_one_is_no_update(folder: Path, settings: Settings):
    added = {"label": "human", "content": "Ina Foss lives in Oslo."}
    backend = ScriptedBackend([FunctionCall("core_memory_append", added), say("Noted."), say("In Oslo.")])
    (case,) = letta.read_cases(folder, "update")
    record = letta.judge(backend, case, settings, "state")
    assert (record["right"], record["state"]) == (True, False)


def test_rows_of_several_runs_stand_in_one_result_file(tmp_path: Path):
    wrong, right = [{"right": False}], [{"right": True, "tokens": 4}]
    first = [shares.row("read", "state", right), shares.row("read", "free", wrong)]
    shares.add_to_results("letta", "m", first, samples={"read": ["a"]}, folder=tmp_path, gate={"kept": 1.0})
    second = [shares.row("read", "state", wrong)]
    path = shares.add_to_results("letta", "m", second, samples={"read": None}, folder=tmp_path)
    result = json.loads(path.read_text())
    assert result["figures"] == {"read_free": 0.0, "read_state": 0.0}
    assert result["samples"] == {}
    assert result["gate"] == {"kept": 1.0}
    assert [one["arm"] for one in result["rows"]] == ["free", "state"]
    assert all(one["machine"] == result["machine"] and one["commit"] for one in result["rows"])


def test_command_writes_its_results(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCALMEM_HOME", str(tmp_path / "home"))
    words = ["--model", SMOLLM, "--set", "update", "--arm", "state", "--out", str(tmp_path)]
    letta.main([*words, "--data", str(folder)], load=lambda _: ScriptedBackend())
    assert "state" in capsys.readouterr().out
    result = json.loads((tmp_path / f"letta-{SMOLLM}.json").read_text())
    assert result["samples"] == {"update": ["update-0"]}
    assert {"right", "state", "n"} <= set(result["rows"][0])
    with pytest.raises(SystemExit, match="--data"):
        letta.main([*words, "--data", str(tmp_path / "nowhere")])
