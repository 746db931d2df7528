"""Cases made of others: what they take away, and what is right then."""

from __future__ import annotations

from localmem.bench.cases import Case, shipped_cases
from localmem.bench.variants import variants


def made(**fields: object) -> list[Case]:
    case = {"id": "a", "user": "I moved to Porto.", "human": "Lives in Faro.", "recall": ["x", "y"], "archive": ["z"]}
    cases = [Case.model_validate({**case, "id": str(number), **fields}) for number in range(120)]
    return variants(cases)


def test_the_step_after_an_edit_is_an_answer():
    found = made(expect=["core_memory_replace"], args={"old_contains": "faro"})
    (saved, *_) = [case for case in found if case.id.endswith("+saved")]
    assert saved.expect == ("send_message",)
    assert [next(iter(turn.model_dump(exclude_none=True))) for turn in saved.before] == ["user", "call", "result"]
    assert saved.before[1].call is not None
    assert saved.before[1].call.arguments["old_content"] == "Lives in Faro."
    assert saved.user is None


def test_a_new_agent_keeps_nothing_and_the_same_call_is_right():
    found = made(expect=["core_memory_append"], category="facts_new")
    (new, *_) = [case for case in found if case.id.endswith("+new")]
    assert (new.human, new.recall, new.archive, new.expect) == ("", (), (), ("core_memory_append",))


def test_what_is_searched_stays():
    assert all(case.archive and not case.recall for case in made(expect=["archival_memory_search"]))
    assert all(case.recall and not case.archive for case in made(expect=["conversation_search"]))
    assert made(expect=["conversation_search", "archival_memory_search"]) == []


def test_our_development_cases_have_variants_of_every_kind():
    cases = shipped_cases("dev")
    found = variants(cases)
    kinds = [case.id.rpartition("+")[2] for case in found]
    assert set(kinds) == {"stores", "new", "recall", "archive", "saved", "pages"}
    assert len({case.id for case in found}) == len(found) > 450
    whole = [c for c in cases if c.expect == ("send_message",) and not c.user and "page 1 of 1:" in _last_result(c)]
    assert kinds.count("pages") == len(whole) > 50, "every result that is whole, not a third of them"


def _last_result(case: Case) -> str:
    return (case.before[-1].result if case.before else None) or ""
