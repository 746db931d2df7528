"""`localmem send`: the reply alone, or a JSON object a step whose last one has the reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest
from support import append, say, scripted_agent

from localmem.errors import BackendError
from localmem.interfaces.cli.send import print_reply, print_steps
from localmem.kernel.budget import Budget
from localmem.kernel.messages import FunctionCall, Step

FULL = Budget(8_192, 512, warning=0.1)  # instructions alone are over the warning


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_reply_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([append("Has a dog."), say("Noted.\nReally.")])
    print_reply(agent.send("I have a dog."))
    assert capsys.readouterr().out == "Noted.\nReally.\n"


def test_each_step_is_one_json_line(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([append("Has a dog.", heartbeat=True), say("Schön 🐕")])
    print_steps(agent.send("I have a dog."))
    first, last = lines(capsys)
    assert first["call"] == {
        "name": "core_memory_append",
        "arguments": {"label": "human", "content": "Has a dog."},
        "thought": "",
        "request_heartbeat": True,
    }
    assert first["result"]["ok"] is True  # type: ignore[index]
    assert "Saved" in first["result"]["text"]  # type: ignore[index]
    assert first["reply"] is None
    assert set(first) == set(last) == {"step", "call", "result", "usage", "reply"}
    assert last["reply"] == "Schön 🐕"


def test_text_that_is_no_call_is_a_step_without_one(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent(["just words", say("Sorry.")])
    print_steps(agent.send("Hello"))
    first, last = lines(capsys)
    assert first["call"] is None
    assert first["result"]["ok"] is False  # type: ignore[index]
    assert last["reply"] == "Sorry."


def test_reply_is_the_last_line_though_a_memory_warning_follows_it(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("Hello."), append("Said hello.")], budget=FULL)
    print_steps(agent.send("Hello"))
    warned, answered = lines(capsys)
    assert warned["call"]["name"] == "core_memory_append"  # type: ignore[index]
    assert answered["reply"] == "Hello."
    assert answered["step"] < warned["step"]  # type: ignore[operator]


def test_reply_is_not_lost_when_what_follows_it_fails(capsys: pytest.CaptureFixture[str]):
    def steps() -> Iterator[Step]:
        yield from scripted_agent([say("Hello.")]).send("Hello")
        raise BackendError("gone")

    with pytest.raises(BackendError):
        print_steps(steps())
    assert [line["reply"] for line in lines(capsys)] == ["Hello."]


def test_reply_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]):
    reply: Iterable[FunctionCall] = [say("a\x1b[2Jb\x07\u009bc")]
    print_reply(scripted_agent(reply).send("Hello"))
    assert capsys.readouterr().out == "a[2Jbc\n"
