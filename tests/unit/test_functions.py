"""The paper's functions on one agent's memory, and how the memory's state narrows them."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from jsonschema import Draft202012Validator
from support import Clock, append, prompt_text, say, scripted_agent

from localmem.calls.grammar import ROOM
from localmem.kernel.agent import Agent
from localmem.kernel.events import SystemMessage, UserMessage
from localmem.kernel.executor import execute
from localmem.kernel.messages import FunctionCall, FunctionResult
from localmem.kernel.rules import ToolRules
from localmem.kernel.tokens import count
from localmem.memory.functions import days_of, excerpt
from localmem.memory.user_text import is_question
from localmem.memory.working_context import Block
from localmem.storage.embedder import HashEmbedder


def did(agent: Agent, name: str, **arguments: object) -> FunctionResult:
    """The result of a call, through a whole step of the agent."""
    agent.backend.script[:] = [FunctionCall(name, arguments)]  # type: ignore[attr-defined]
    return next(agent.send("Go on.")).result


def schema(agent: Agent, name: str) -> dict[str, object]:
    return {choice.name: dict(choice.parameters) for choice in agent.grammar().choices}[name]


def names(agent: Agent) -> list[str]:
    return [choice.name for choice in agent.grammar().choices]


def with_history(texts: list[str], **options: object) -> Agent:
    """An agent that was told `texts`, all of it evicted."""
    agent = scripted_agent(embedder=HashEmbedder(), **options)
    for text in texts:
        agent.note(UserMessage(text))
    while agent.main_context.queue:
        agent.queue_manager.flush()
    return agent


def test_new_agent_is_offered_no_search():
    assert names(scripted_agent()) == [
        "send_message",
        "core_memory_append",
        "core_memory_replace",
        "archival_memory_insert",
    ]


def test_each_store_is_offered_for_search_once_it_holds_something():
    agent = with_history(["The boat is red."])
    agent.archival.insert("A note.")
    assert {"conversation_search", "conversation_search_date", "archival_memory_search"} <= set(names(agent))


def test_full_and_read_only_blocks_are_not_offered_for_appending():
    agent = scripted_agent()
    agent.add_block(Block("rules", "", "Be kind.", read_only=True))
    agent.add_block(Block("tiny", "", "abcdefgh", limit=12))
    alternatives = schema(agent, "core_memory_append")["anyOf"]
    labels = [alternative["properties"]["label"]["const"] for alternative in alternatives]  # type: ignore[index,union-attr]
    assert labels == ["persona", "human"]


def test_appending_is_bounded_by_the_room_of_its_block():
    agent = scripted_agent()
    agent.set_block("human", "x" * 150)
    rooms = {
        alternative["properties"]["label"]["const"]: alternative["properties"]["content"][ROOM]  # type: ignore[index]
        for alternative in schema(agent, "core_memory_append")["anyOf"]  # type: ignore[union-attr]
    }
    assert rooms["human"] == 200 - 150 - 2  # a new line may take two tokens
    assert rooms["persona"] == 100 - len("I am kind.") - 2


@pytest.mark.parametrize(
    ("day", "exists"),
    [
        ("2024-02-29", True),
        ("2023-02-29", False),
        ("2023-02-28", True),
        ("2023-04-31", False),
        ("2023-12-31", True),
        ("2022-05-05", False),
        ("2025-05-05", False),
        ("0000-01-01", False),
        ("2023-13-01", False),
        ("2023-00-10", False),
        ("2023-10-00", False),
    ],
)
def test_days_that_may_be_searched_exist(day: str, exists: bool):
    assert (re.fullmatch(days_of(2023, 2024), day) is not None) == exists


def test_every_day_that_may_be_searched_is_one_and_every_one_may():
    pattern = re.compile(days_of(1999, 2001))
    days = {str(date(1999, 1, 1) + timedelta(days=number)) for number in range(3 * 365 + 1)}
    written = {f"{y}-{m:02}-{d:02}" for y in range(1998, 2003) for m in range(14) for d in range(34)}
    assert {day for day in written if pattern.fullmatch(day)} == days


def test_a_search_that_finds_nothing_looks_in_the_other_store():
    agent = with_history(["The boat is red."])
    agent.archival.insert("The lease ends in May.")
    functions = agent._memory_functions
    found = functions.conversation_search("lease")
    assert found.startswith("Nothing found for 'lease' in older messages. In archival memory:\nResults 1-1 of 1")
    assert "ends in May" in found
    found = functions.archival_memory_search("boat")
    assert found.startswith("Nothing found for 'boat' in 1 passages. In older messages:\nResults 1-1 of 1")
    assert functions.archival_memory_search("zebra").endswith("Try other or fewer words, or conversation_search.")


def test_what_the_rules_close_is_not_offered_and_not_looked_into():
    closed = ToolRules(at_most={"archival_memory_search": 0})
    agent = with_history(["The boat is red."], rules=closed)
    agent.archival.insert("The lease ends in May.")
    assert "archival_memory_search" not in names(agent)
    found = did(agent, "conversation_search", query="lease", page=1)
    assert found.text == "Nothing found for 'lease' in older messages. Try other or fewer words."
    agent = with_history(["The boat is red."], rules=ToolRules(at_most={"conversation_search": 0}))
    agent.archival.insert("The lease ends in May.")
    found = did(agent, "archival_memory_search", query="boat", page=1)
    assert found.text == "Nothing found for 'boat' in 1 passages. Try other or fewer words."


def test_what_ends_an_event_cannot_be_closed():
    closed = dict.fromkeys(("send_message", "nothing_to_save", "core_memory_append", "archival_memory_insert"), 0)
    agent = scripted_agent(rules=ToolRules(at_most=closed))
    assert [choice.name for choice in agent.grammar("last").choices] == ["send_message"]
    assert [choice.name for choice in agent.grammar("edits").choices] == ["nothing_to_save"]


def offered(agent: Agent, function: str, **arguments: object) -> bool:
    """Whether the schema of the next step holds for these arguments."""
    return Draft202012Validator(schema(agent, function)).is_valid(arguments)


def test_pages_belong_to_the_search_that_has_them():
    agent = with_history(["The boat is red."])
    call = FunctionCall("conversation_search", {"query": "boat", "page": 1})

    def pages(query: str, function: str = "conversation_search") -> list[int]:
        return [page for page in range(1, 8) if offered(agent, function, query=query, page=page)]

    assert pages("boat") == pages("sea") == [1]
    agent.recount(call, "Results 1-5 of 23, page 1 of 5:\nboat")
    assert (pages("boat"), pages("sea")) == ([1, 2, 3, 4, 5], [1])
    agent.recount(
        FunctionCall("archival_memory_search", {"query": "x", "page": 1}), "Results 1-9 of 9, page 1 of 2:\nx"
    )
    assert (pages("boat"), pages("x")) == ([1, 2, 3, 4, 5], [1])
    agent.recount(call, "Results 1-5 of 11, page 1 of 3:\nboat")
    assert pages("boat") == [1, 2, 3]


def test_a_widened_search_goes_on_in_the_other_store():
    agent = with_history(["The boat is red."])
    agent.archival.insert("The lease ends in May.")
    call = FunctionCall("conversation_search", {"query": "lease", "page": 1})
    agent.recount(
        call, "Nothing found for 'lease' in older messages. In archival memory:\nResults 1-5 of 9, page 1 of 2:\nx"
    )
    assert offered(agent, "archival_memory_search", query="lease", page=2)
    assert not offered(agent, "conversation_search", query="lease", page=2)
    assert offered(agent, "conversation_search", query="lease", page=1)


def test_days_have_pages_of_their_own():
    agent = with_history(["The boat is red."])
    days = {"start_date": "2026-03-01", "end_date": "2026-03-02"}
    agent.recount(FunctionCall("conversation_search_date", {**days, "page": 1}), "Results 1-5 of 9, page 1 of 2:\nx")
    year = Clock()().year
    assert offered(agent, "conversation_search_date", **days, page=2)
    other = {"start_date": f"{year}-03-01", "end_date": f"{year}-03-03"}
    assert offered(agent, "conversation_search_date", **other, page=1)
    assert not offered(agent, "conversation_search_date", **other, page=2)


def test_replacing_offers_the_lines_that_are_there():
    agent = scripted_agent()
    agent.set_block("human", 'Name: "Ana".\nHas a dog.\nHas a dog.')
    alternatives = schema(agent, "core_memory_replace")["anyOf"]
    lines = {a["properties"]["label"]["const"]: a["properties"]["old_content"]["enum"] for a in alternatives}  # type: ignore[index,union-attr]
    assert lines["persona"] == ["I am kind."]
    assert lines["human"][0] == 'Name: "Ana".'


@pytest.mark.parametrize("text", ["Has a dog.\nHas a dog.", "Has a dog.\nHas a dog. It barks."], ids=["twice", "part"])
def test_offered_line_can_be_replaced(text: str):
    agent = scripted_agent()
    agent.set_block("human", text)
    result = did(agent, "core_memory_replace", label="human", old_content="Has a dog.", new_content="Has a cat.")
    assert result.ok
    assert "Has a cat." in agent.working_context["human"]


def test_appending_says_that_it_was_saved_or_known():
    agent = scripted_agent()
    assert did(agent, "core_memory_append", label="human", content="Name: Ana.").text.startswith("Saved")
    again = did(agent, "core_memory_append", label="human", content="Name: Ana.")
    assert "says that already" in again.text


def test_what_a_block_has_no_room_for_goes_into_archival_memory():
    agent = scripted_agent(embedder=HashEmbedder())
    agent.set_block("human", "x" * 190)
    agent.note(UserMessage("My aunt Rosa has a dog that is called Bo."))
    assert contents(agent) == ["My aunt Rosa has a dog that is called Bo."]
    result = did(agent, "core_memory_append", label="human", content="My aunt Rosa has a dog that is called Bo.")
    assert result.ok
    assert result.text == "Stored. Archival memory holds 1 passages."
    assert agent.working_context["human"] == "x" * 190
    assert [one.text for one in agent.archival.search("Rosa").items] == ["My aunt Rosa has a dog that is called Bo."]


def test_without_archival_memory_a_full_block_says_what_would_work():
    agent = scripted_agent(rules=ToolRules(at_most={"archival_memory_insert": 0}))
    agent.set_block("human", "x" * 195)
    agent.note(UserMessage("My aunt Rosa has a dog that is called Bo."))
    assert "human" not in str(schema(agent, "core_memory_append"))
    result = did(agent, "core_memory_append", label="human", content="x" * 11)
    assert not result.ok
    assert "shorten a line" in result.text
    assert agent.working_context["human"] == "x" * 195


def test_replacing_changes_the_line_and_an_empty_text_deletes_it():
    agent = scripted_agent()
    agent.set_block("human", "Lives in Oslo.\nHas a dog.")
    changed = {"label": "human", "old_content": "Lives in Oslo.", "new_content": "Lives in Bergen."}
    assert did(agent, "core_memory_replace", **changed).ok
    assert agent.working_context["human"] == "Lives in Bergen.\nHas a dog."
    deleted = did(agent, "core_memory_replace", label="human", old_content="Has a dog.", new_content="")
    assert "Deleted" in deleted.text
    assert agent.working_context["human"] == "Lives in Bergen."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"label": "work", "content": "x"}, "the blocks are persona, human"),
        ({"label": "human", "content": "  "}, "content is empty"),
        ({"label": "human"}, "it takes label, content"),
        ({"label": "human", "content": 7}, "argument content"),
    ],
    ids=["unknown block", "empty", "missing argument", "wrong type"],
)
def test_refused_edit_says_what_would_work_and_changes_nothing(arguments: dict[str, object], says: str):
    agent = scripted_agent()
    result = did(agent, "core_memory_append", **arguments)
    assert not result.ok
    assert says in result.text
    assert agent.working_context["human"] == ""


def test_found_messages_are_told_with_their_day_and_speaker(clock: Clock):
    agent = with_history(["My boat is red."], now=clock)
    text = did(agent, "conversation_search", query="boat", page=1).text
    assert re.search(r"Results 1-1 of 1, page 1 of 1:\n\[2026-03-02 \d\d:\d\d\] User: My boat is red\.", text)


def test_what_the_agent_said_is_found_too():
    agent = scripted_agent([say("I like the sea.")], embedder=HashEmbedder())
    list(agent.send("What do you like?"))
    while agent.main_context.queue:
        agent.queue_manager.flush()
    assert "You: I like the sea." in did(agent, "conversation_search", query="sea", page=1).text


def test_totals_and_pages_are_true():
    agent = with_history([f"Boat number {n}." for n in range(23)])
    headers = [did(agent, "conversation_search", query="boat", page=page).text.split("\n")[0] for page in range(1, 7)]
    assert headers[0] == "Results 1-5 of 23, page 1 of 5:"
    assert headers[4] == "Results 21-23 of 23, page 5 of 5:"
    assert headers[5] == "There is no page 6: 23 results, 5 pages."


def test_pages_that_exist_are_offered_after_a_search():
    agent = with_history([f"Boat number {n}." for n in range(23)])
    assert not offered(agent, "conversation_search", query="boat", page=2)
    did(agent, "conversation_search", query="boat", page=1)
    assert offered(agent, "conversation_search", query="boat", page=5)
    assert not offered(agent, "conversation_search", query="boat", page=6)


def test_behind_what_was_found_the_model_reads_the_question_again():
    agent = with_history(["The boat is red."])
    agent.backend.script[:] = [  # type: ignore[attr-defined]
        FunctionCall("conversation_search", {"query": "boat", "page": 1}),
        FunctionCall("core_memory_append", {"label": "human", "content": "Has a red boat."}),
    ]
    steps = agent.send("I was away. What colour is the boat?")
    next(steps)
    found = agent.main_context.queue[-1]
    assert found.content.endswith("User: The boat is red.\nWhat colour is the boat?")
    assert found.text.endswith("User: The boat is red.")
    next(steps)
    assert agent.main_context.queue[-1].content.endswith("Saved.")


def test_a_text_that_is_handed_over_is_kept_word_for_word():
    agent = scripted_agent(embedder=HashEmbedder())
    agent.note(UserMessage("Hello!"))
    assert "const" not in str(schema(agent, "archival_memory_insert"))
    message = 'Keep this:\n2 eggs, 100 g "fine" flour \\ a pinch of salt'
    agent.note(UserMessage(message))
    assert offered(agent, "archival_memory_insert", content=message)
    assert not offered(agent, "archival_memory_insert", content="A recipe.")
    agent.recount(
        FunctionCall("archival_memory_insert", {"content": message}), "Stored. Archival memory holds 1 passages."
    )
    assert offered(agent, "archival_memory_insert", content="A recipe.")


def test_a_text_too_long_to_be_written_out_is_left_to_the_model():
    agent = scripted_agent(embedder=HashEmbedder())
    agent.note(UserMessage("Keep this:\n" + "2 eggs, 100 g flour, a pinch of salt. " * 60))
    assert offered(agent, "archival_memory_insert", content="A recipe.")


def test_no_message_is_found_on_two_pages():
    agent = with_history([f"Boat number {n}." for n in range(12)])
    pages = "\n".join(did(agent, "conversation_search", query="boat", page=page).text for page in (1, 2, 3))
    assert [pages.count(f"number {n}.") for n in range(12)] == [1] * 12


def test_nothing_found_says_what_to_try():
    agent = with_history(["My boat is red."])
    agent.archival.insert("A note.")
    assert "Try other or fewer words" in did(agent, "archival_memory_search", query="zzzz", page=1).text


def test_what_is_still_in_the_window_is_not_found_again():
    agent = with_history(["My boat is red."])
    agent.note(UserMessage("The boat has a leak."))
    text = did(agent, "conversation_search", query="boat", page=1).text
    assert "leak" not in text
    assert "of 1," in text


def test_days_asked_for_include_the_last_one(clock: Clock):
    agent = with_history(["On Monday."], now=clock)
    clock.advance(timedelta(days=1))
    agent.note(UserMessage("On Tuesday."))
    clock.advance(timedelta(days=1))
    agent.note(UserMessage("On Wednesday."))
    text = did(agent, "conversation_search_date", start_date="2026-03-02", end_date="2026-03-03", page=1).text
    assert [day in text for day in ("On Monday.", "On Tuesday.", "On Wednesday.")] == [True, True, False]


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2026-02-30", "2026-03-01", "2026-02-30"),
        ("yesterday", "2026-03-01", "yesterday"),
        ("1999-01-01", "1999-12-31", "Try other days"),
    ],
)
def test_days_that_cannot_be_searched_are_told(start: str, end: str, says: str):
    agent = with_history(["Hello."])
    assert says in did(agent, "conversation_search_date", start_date=start, end_date=end, page=1).text


def test_days_in_the_wrong_order_are_searched_all_the_same():
    agent = with_history(["Hello there."])
    found = did(agent, "conversation_search_date", start_date="2030-01-01", end_date="2020-01-01", page=1)
    assert "Hello there." in found.text


def contents(agent: Agent, label: str = "human") -> list[object]:
    """What may be appended to the block."""
    for alternative in schema(agent, "core_memory_append")["anyOf"]:  # type: ignore[union-attr]
        if alternative["properties"]["label"] == {"const": label}:  # type: ignore[index]
            return alternative["properties"]["content"].get("enum", ["anything"])  # type: ignore[index]
    return []


def test_a_fact_is_kept_in_the_users_words():
    agent = scripted_agent()
    agent.note(UserMessage("Hi there! My aunt Rosa has a dog, Bo. He's two. Do you like dogs?"))
    assert contents(agent) == ["My aunt Rosa has a dog, Bo. He's two."]
    agent.note(UserMessage("My uncle Ray rows at Henley. " * 20))
    assert contents(agent) == ["My uncle Ray rows at Henley."], "too long as a whole"


@pytest.mark.parametrize("text", ["58", "Yes, that one.", "Where do I live?", "💛"])
def test_what_means_little_by_itself_is_put_into_the_models_words(text: str):
    agent = scripted_agent()
    agent.note(UserMessage(text))
    assert contents(agent) == ["anything"]


def test_what_no_user_said_is_put_into_the_models_words():
    agent = scripted_agent()
    agent.note(UserMessage("My aunt Rosa has a dog, Bo."))
    agent.note(SystemMessage("The house at Elm Street has been sold."))
    assert contents(agent) == ["anything"]


def test_what_does_not_fit_as_it_was_said_the_model_may_shorten_where_nothing_else_takes_it():
    agent = scripted_agent(rules=ToolRules(at_most={"archival_memory_insert": 0}))
    agent.set_block("human", "x" * 170)
    agent.note(UserMessage("My aunt Rosa has a dog that is called Bo."))
    assert contents(agent) == ["anything"]
    assert contents(agent, "persona") == ["My aunt Rosa has a dog that is called Bo."]


def test_what_the_agent_is_to_be_is_kept_in_the_users_words():
    agent = scripted_agent()
    agent.set_block("persona", "I write long answers.\nI am kind. I like tea.")
    agent.set_block("human", "Lives in Faro.")
    agent.note(UserMessage("Keep it short from now on, please!"))
    assert replacements(agent) == {
        "I write long answers.": ["Keep it short from now on, please!"],
        "I am kind. I like tea.": ["I am kind. I like tea. Keep it short from now on, please!"],
        "Lives in Faro.": ["Lives in Faro. Keep it short from now on, please!"],
    }


def replacements(agent: Agent) -> dict[str, list[str] | None]:
    """What may take the place of each line; None for what the model makes of it."""
    offered = schema(agent, "core_memory_replace")
    return {
        line: alternative["properties"]["new_content"].get("enum")
        for alternative in offered.get("anyOf", [offered])
        for line in alternative["properties"]["old_content"]["enum"]
    }


def test_a_line_that_the_user_says_anew_is_kept_in_the_users_words():
    agent = scripted_agent()
    agent.set_block("persona", "")
    agent.set_block("human", "Her dog Bo is two.\nLives in Faro.")
    agent.note(UserMessage("Hello! My dog Bo is three. He likes the sea. Is that old?"))
    assert replacements(agent) == {
        "Her dog Bo is two.": ["My dog Bo is three."],
        "Lives in Faro.": ["Lives in Faro. My dog Bo is three. He likes the sea."],
    }


def test_a_line_that_shares_no_word_with_the_message_is_never_lost():
    agent = scripted_agent()
    agent.set_block("persona", "")
    agent.set_block("human", "Lives in Faro.\nHer neighbour Rui has " + "x" * 160)
    agent.note(UserMessage("My dog Bo is three."))
    assert "core_memory_replace" not in names(agent), "there is no room behind either of them"
    agent.set_block("human", "Lives in Faro.")
    assert replacements(agent) == {"Lives in Faro.": ["Lives in Faro. My dog Bo is three."]}


def test_what_the_user_said_takes_a_lines_place():
    agent = scripted_agent()
    agent.set_block("persona", "")
    agent.set_block("human", "Her dog Bo is two.\nHas no cat.\nBo is fond of beef.\nHas a beagle. Likes the sea.")
    agent.note(UserMessage("My dog Bo is three."))
    assert replacements(agent) == {
        "Her dog Bo is two.": ["My dog Bo is three."],
        "Has no cat.": ["Has no cat. My dog Bo is three."],  # the wrong line, maybe: nothing is lost
        "Bo is fond of beef.": ["My dog Bo is three."],
        "Has a beagle. Likes the sea.": ["Has a beagle. Likes the sea. My dog Bo is three."],
    }
    agent.note(UserMessage("Three."))  # by itself it means little: the model makes a line of it
    assert set(replacements(agent).values()) == {None}


def test_what_is_said_anew_and_does_not_fit_the_model_may_shorten():
    agent = scripted_agent()
    agent.set_block("persona", "")
    agent.set_block("human", "Her dog Bo is two.\n" + "x" * 160)
    agent.note(UserMessage("Her dear and beloved little dog Bo is three."))
    assert replacements(agent)["Her dog Bo is two."] is None


def test_what_a_block_holds_is_not_appended_again():
    agent = scripted_agent()
    agent.set_block("human", "My aunt Rosa has a dog, Bo.")
    agent.note(UserMessage("My aunt Rosa has a dog, Bo."))
    assert "core_memory_append" not in names(agent)


def test_memory_pressure_offers_only_what_the_user_stated_and_no_block_holds():
    agent = scripted_agent()
    agent.set_block("human", "My cat is called Miso.")
    for text in ("Hi! My cat is called Miso. I row on Sundays.", "Do you like rowing?", "And you, and you?"):
        agent.note(UserMessage(text))
    choices = {choice.name: choice.parameters for choice in agent.grammar("edits").choices}
    for alternative in choices["core_memory_append"]["anyOf"]:
        assert alternative["properties"]["content"] == {"enum": ["I row on Sundays."]}
    assert "core_memory_replace" not in choices
    assert choices["nothing_to_save"]["properties"] == {}


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Where do I live?", True),
        ("Good evening! Where do I live?", True),
        ("我住在哪里？", True),
        ("I moved to Porto. Isn't that nice?", False),
        ("Why? Because I moved to Porto.", False),
        ("Tell me a joke.", False),
        ("", False),
    ],
)
def test_question_states_nothing(text: str, asks: bool):
    assert is_question(text) is asks


@pytest.mark.parametrize("query", ['"', "-", "a OR", "NEAR(", "*", "'; DROP TABLE message; --", "👩‍👩‍👧"])
def test_any_query_is_a_search(query: str):
    agent = with_history(["My boat is red."])
    assert did(agent, "conversation_search", query=query, page=1).ok


def test_note_is_found_by_the_same_search_that_missed_it():
    agent = scripted_agent(embedder=HashEmbedder())
    agent.archival.insert("Something else altogether.")
    assert "needs sugar" not in did(agent, "archival_memory_search", query="rhubarb cake", page=1).text
    assert did(agent, "archival_memory_insert", content="A rhubarb cake needs sugar.").ok
    assert "A rhubarb cake needs sugar." in did(agent, "archival_memory_search", query="rhubarb cake", page=1).text


def test_note_that_is_known_is_not_stored_twice():
    agent = scripted_agent(embedder=HashEmbedder())
    did(agent, "archival_memory_insert", content="A rhubarb cake needs sugar.")
    assert "already" in did(agent, "archival_memory_insert", content="A rhubarb cake needs sugar.").text
    assert agent.archival.count() == 1


def test_page_of_long_results_stays_in_its_share_and_shows_what_was_searched_for():
    agent = with_history([f"{'x ' * 2_000} boat {n} {'y ' * 2_000}" for n in range(9)], window=8_192)
    text = did(agent, "conversation_search", query="boat", page=1).text
    assert count(agent.backend.tokenizer, text) <= agent.options.budget.limit * 0.12
    assert text.count("boat") == 5


def test_pause_is_told_with_its_end(clock: Clock):
    agent = scripted_agent(now=clock)
    agent.schedule("tea", "every 5m", "Tea.")
    text = did(agent, "pause_heartbeats", minutes=60).text
    assert f"{(clock.now + timedelta(hours=1)).astimezone():%H:%M}" in text


@pytest.mark.parametrize("minutes", [0, -1, 361, "sixty", 1.5])
def test_pause_has_bounds(minutes: object):
    agent = scripted_agent()
    agent.schedule("tea", "every 5m", "Tea.")
    assert not did(agent, "pause_heartbeats", minutes=minutes).ok


def test_only_edits_take_a_heartbeat_and_only_where_it_is_for_the_model_to_ask():
    agent = with_history(["Hello."])
    takers = [
        {choice.name for choice in grammar.choices if "request_heartbeat" in str(choice.parameters)}
        for grammar in (agent.grammar(heartbeat=True), agent.grammar(heartbeat=False))
    ]
    assert takers == [{"core_memory_append", "core_memory_replace", "archival_memory_insert"}, set()]


def test_model_is_told_of_pausing_only_while_there_is_a_timer():
    agent = scripted_agent()
    assert "pause_heartbeats" not in prompt_text(agent)
    agent.schedule("tea", "every 5m", "Tea.")
    assert "pause_heartbeats" in prompt_text(agent)
    agent.unschedule("tea")
    assert "pause_heartbeats" not in prompt_text(agent)


@pytest.mark.parametrize(("thought", "place"), [("first", 0), ("last", -1)])
def test_thought_stands_where_it_is_asked_for(thought: str, place: int):
    choices = scripted_agent(thought=thought).grammar().choices
    there = [
        list(alternative["properties"])[place]
        for choice in choices
        for alternative in choice.parameters.get("anyOf", [choice.parameters])
    ]
    assert set(there) == {"thought"}


def test_edit_of_the_model_is_in_the_window_as_call_and_result():
    agent = scripted_agent([append("Name: Ana.")])
    list(agent.send("I am Ana."))
    assert "Name: Ana." in prompt_text(agent)
    assert "Saved" in prompt_text(agent)


def test_declared_schema_refuses_what_the_grammar_would_not_write():
    agent = scripted_agent()
    specs = agent._memory_functions.specs  # the executor's own view of them
    result = execute(FunctionCall("send_message", {"message": ""}), specs, allowed=["send_message"])
    assert not result.ok


@pytest.mark.parametrize("length", [10, 30, 200])
def test_excerpt_holds_what_was_searched_for(length: int):
    assert "needle" in excerpt("a" * 500 + " needle " + "b" * 500, "the needle", length)


def test_excerpt_of_a_short_text_is_the_text():
    assert excerpt("short", "needle", 20) == "short"
