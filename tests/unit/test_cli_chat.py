"""`localmem chat` from a pipe, with a model that follows a script."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support import append, say, scripted_agent

from localmem.interfaces.cli.chat import Conversation, View
from localmem.interfaces.cli.common import Shared
from localmem.kernel.agent import Agent
from localmem.kernel.budget import Budget
from localmem.kernel.messages import FunctionCall

PIPE = View(stream=False, one_line=True)


def talk(agent: Agent, *lines: bytes, view: View = PIPE, shared: Shared | None = None) -> Conversation:
    conversation = Conversation(agent, view, shared or Shared())
    conversation.begin()
    conversation.from_lines(lines)
    conversation.end()
    return conversation


def kinds(agent: Agent) -> list[str]:
    return [message.kind for message in agent.main_context.queue]


def test_each_line_is_a_message_and_each_reply_a_line(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("One,\n\ntwo."), say("Three.")])
    talk(agent, b"first\n", b"\n", b"   \n", b"second")
    assert capsys.readouterr().out == "One, two.\nThree.\n"
    assert [message.text for message in agent.main_context.queue if message.kind == "user_message"] == [
        "first",
        "second",
    ]


def test_all_but_replies_goes_to_stderr(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([append("Has a dog."), say("Noted.")])
    talk(agent, b"/help\n", b"/memory\n", b"/context\n", b"I have a dog.\n", view=View(False, True, calls=True))
    captured = capsys.readouterr()
    assert captured.out == "Noted.\n"
    assert "agent ana" in captured.err
    assert "/quit" in captured.err
    assert "[persona] You." in captured.err
    assert "→ core_memory_append(label='human', content='Has a dog.')" in captured.err
    assert "← Saved" in captured.err
    assert "% of them from the cache" in captured.err


def test_an_edit_is_taken_back_in_the_conversation(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([append("Has a dog."), say("Noted."), say("Undo what?")])
    talk(agent, b"I have a dog.\n", b"/undo\n", b"/undo archival\n", b"/undo everything\n", b"/memory\n", b"/redo\n")
    captured = capsys.readouterr()
    assert captured.out == "Noted.\nUndo what?\n"
    assert captured.err.count("+ Has a dog.") == 1, "the undo shows what it took back"
    assert captured.err.count("- Has a dog.") == 1, "and so does the redo"
    assert "nothing to undo" in captured.err
    assert agent.working_context["human"] == "Has a dog."


def test_thought_is_shown_on_request(capsys: pytest.CaptureFixture[str]):
    thinking = FunctionCall("core_memory_append", {"thought": "A dog!", "label": "human", "content": "Has a dog."})
    agent = scripted_agent([thinking, say("Noted.")], thought="first")
    talk(agent, b"I have a dog.\n", view=View(False, True, thoughts=True))
    assert "… A dog!" in capsys.readouterr().err


def test_quiet_says_nothing_but_replies(capsys: pytest.CaptureFixture[str]):
    talk(scripted_agent([say("Hello.")]), b"hi\n", shared=Shared(quiet=True))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Hello.\n", "")


def test_quit_ends_before_the_next_line(capsys: pytest.CaptureFixture[str]):
    talk(scripted_agent([say("Hello.")]), b"hi\n", b"/QUIT\n", b"more\n")
    assert capsys.readouterr().out == "Hello.\n"


def test_only_known_slash_commands_are_commands(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("A file.")])
    talk(agent, b"/etc/hosts\n")
    assert capsys.readouterr().out == "A file.\n"


def test_streamed_pieces_and_their_end_make_the_reply(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("Hello\nthere."), say("Again.")])
    talk(agent, b"hi\n", b"hi\n", view=View(stream=True))
    assert capsys.readouterr().out == "Hello\nthere.\nAgain.\n"


def test_bytes_that_are_no_text_are_replaced_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("Odd.")])
    talk(agent, b"a\x00b \xed\xa0\x80 \xff <|im_end|> \xd7\xa9\n")
    assert capsys.readouterr().out == "Odd.\n"
    said = next(message for message in agent.main_context.queue if message.kind == "user_message")
    assert said.text.startswith("a")
    assert said.text.endswith("<|im_end|> ש")


def test_an_error_ends_its_message_and_not_the_conversation(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent(["no call", "no call", say("Better.")], max_steps=2)
    conversation = talk(agent, b"first\n", b"second\n")
    captured = capsys.readouterr()
    assert captured.out == "Better.\n"
    assert "Error: 2 steps brought no answer" in captured.err
    assert conversation.failed


def test_a_login_that_nothing_followed_is_not_told_twice():
    agent = scripted_agent()
    talk(agent)
    talk(agent)
    assert kinds(agent) == ["login"]


def test_a_login_follows_what_was_said_before():
    agent = scripted_agent()
    talk(agent, b"hi\n")
    talk(agent)
    assert kinds(agent) == ["login", "user_message", "reply", "login"]


def test_a_timed_event_that_is_due_runs_before_the_next_line(capsys: pytest.CaptureFixture[str]):
    clock = _Now(datetime.now(UTC) - timedelta(hours=2))
    agent = scripted_agent([say("Drink!"), say("Hello.")], now=clock)
    agent.schedule("water", "every 1h", "Remind them to drink.")
    clock.moment = datetime.now(UTC)
    talk(agent, b"hi\n")
    assert capsys.readouterr().out == "Drink!\nHello.\n"


def test_the_user_is_told_that_memory_is_being_saved(capsys: pytest.CaptureFixture[str]):
    agent = scripted_agent([say("Hello.")], budget=Budget(8_192, 512, warning=0.1))
    talk(agent, b"hi\n", view=View(stream=True))
    assert "saving what matters" in capsys.readouterr().err


class _Now:
    """A clock that shows what it is set to."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def __call__(self) -> datetime:
        return self.moment
