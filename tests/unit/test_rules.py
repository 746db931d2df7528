"""Tool rules: what may be called when."""

from __future__ import annotations

import pytest

from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall, FunctionResult
from localmem.kernel.rules import Done, ToolRules

OFFERED = ("send_message", "archival_memory_search", "core_memory_append")
FIRST, SECOND, THIRD = "aaaa-1111", "bbbb-2222", "cccc-3333"
IDENTIFIER = r"[a-z]{4}-\d{4}"


def search(query: str, *rows: str) -> Done:
    text = "\n".join(["Results 1-2 of 2, page 1 of 1:", *rows]) if rows else f"Nothing found for {query!r}."
    return FunctionCall("archival_memory_search", {"query": query, "page": 1}), FunctionResult(True, text)


APPENDED: Done = (
    FunctionCall("core_memory_append", {"label": "human", "content": "x"}),
    FunctionResult(True, "Saved."),
)


def test_no_rules_forbid_nothing():
    assert ToolRules().left_out(OFFERED, []) == set()
    assert ToolRules().left_out(OFFERED, [APPENDED, search("x", "row")]) == set()


def test_first():
    rules = ToolRules(first=("archival_memory_search",))
    assert rules.left_out(OFFERED, []) == {"send_message", "core_memory_append"}
    assert rules.left_out(OFFERED, [search("x", "row")]) == set()


def test_followed_by():
    rules = ToolRules(followed_by={"core_memory_append": ("archival_memory_search",)})
    assert rules.left_out(OFFERED, [APPENDED]) == {"send_message", "core_memory_append"}
    assert rules.left_out(OFFERED, [APPENDED, search("x", "row")]) == set()


def test_at_most():
    rules = ToolRules(at_most={"archival_memory_search": 2})
    assert rules.left_out(OFFERED, [search("x", "row")]) == set()
    assert rules.left_out(OFFERED, [search("x", "row"), search("y", "row")]) == {"archival_memory_search"}


def test_not_before():
    rules = ToolRules(not_before={"send_message": ("archival_memory_search", "core_memory_append")})
    assert rules.left_out(OFFERED, [APPENDED]) == {"send_message"}
    assert rules.left_out(OFFERED, [APPENDED, search("x", "row")]) == set()


def test_verified_follows_a_chain_to_its_end():
    rules = ToolRules(identifiers=IDENTIFIER, verified=True)
    request = f"What is the value of {FIRST}?"
    assert rules.left_out(OFFERED, [], request=request) == {"send_message"}
    assert rules.open_identifiers(request, []) == [FIRST]
    found = search(FIRST, f"{FIRST}: {SECOND}")
    assert rules.open_identifiers(request, [found]) == [SECOND]
    assert "send_message" in rules.left_out(OFFERED, [found], request=request)
    further = search(SECOND, f"{SECOND}: {THIRD}", f"{FIRST}: {SECOND}")
    assert rules.open_identifiers(request, [found, further]) == [THIRD]
    ended = search(THIRD, f"{SECOND}: {THIRD}")
    assert rules.open_identifiers(request, [found, further, ended]) == []
    assert "send_message" not in rules.left_out(OFFERED, [found, further, ended], request=request)


def test_rows_found_by_likeness_lead_nowhere():
    rules = ToolRules(identifiers=IDENTIFIER)
    found = search(FIRST, f"{FIRST}: {SECOND}", f"zzzz-9999: {THIRD}")
    assert rules.open_identifiers(FIRST, [found]) == [SECOND]


def test_a_rule_that_leaves_nothing_gives_way_to_the_answer():
    rules = ToolRules(first=("no_such_function",))
    assert rules.left_out(OFFERED, []) == {"archival_memory_search", "core_memory_append"}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"identifiers": "("}, "regular expression"),
        ({"verified": True}, "identifiers"),
        ({"at_most": {"f": -1}}, "at_most"),
    ],
)
def test_bad_rules_are_refused(rules: dict[str, object], said: str):
    with pytest.raises(LocalmemError, match=said):
        ToolRules(**rules)  # type: ignore[arg-type]
