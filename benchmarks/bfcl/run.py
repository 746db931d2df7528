"""Single questions, arm by arm: asked, answered, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.bfcl.asking import Answer, Arm, Asked, Decide, answer, ask, fits
from benchmarks.bfcl.checker import Checker
from benchmarks.bfcl.data import Question
from benchmarks.journal import Journal, Record
from benchmarks.shares import Row, row
from localmem.backend.base import Backend

OnAnswer = Callable[[], object]


def run(
    backend: Backend,
    questions: Sequence[Question],
    checker: Checker,
    *,
    arms: Sequence[Arm],
    journal: Journal,
    decide: Decide | None = None,
    on_answer: OnAnswer | None = None,
) -> dict[Arm, list[Record]]:
    """Every question in every arm, one question after the other, so that each prompt is read once."""
    found: dict[Arm, list[Record]] = {arm: [] for arm in arms}
    for question in questions:
        asked: Asked | None = None
        for arm in arms:
            record = journal.known(f"{arm} {question.id}")
            if record is None:
                asked = asked or ask(backend, question.turns, question.functions)
                given = answer(backend, asked, arm, decide=decide) if fits(backend, asked) else None
                record = journal.add(f"{arm} {question.id}", _judged(question, given, checker))
            found[arm].append(record)
            if on_answer is not None:
                on_answer()
    return found


def _judged(question: Question, given: Answer | None, checker: Checker) -> Record:
    """An answer as it is kept. A question that did not fit the window was answered wrong."""
    if given is None:
        return {"id": question.id, "right": False, "called": False, "written": "", "fits": False}
    return {
        "id": question.id,
        "right": checker.right_call(question, given.call),
        "called": given.call is not None,
        "written": given.written,
        "tokens": given.tokens,
        "seconds": given.seconds,
    }


def rows(category: str, found: Mapping[Arm, Sequence[Record]]) -> list[Row]:
    """A row an arm: right, and how often anything was called at all."""
    return [row(category, arm, records, ("right", "called")) for arm, records in found.items()]
