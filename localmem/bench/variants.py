"""Development cases made of others, for fitting: new and half-empty agents, and the step after something was saved.

Most cases of the suite have full blocks and full stores, and stand at the beginning of an event. A calibration fitted
on those alone does not know what to do in a new agent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from localmem.bench.cases import Case, Expected, PastCall, Turn, folded, sample
from localmem.kernel.messages import SEARCHES

_WHOLE_RESULT = re.compile(r"Results 1-(\d+) of \1, page 1 of 1:")
_VARIED = 3  # each needs its whole prompt read anew
_MORE, _PAGES = 9, 3
_APPENDED = 200  # characters of the message that are taken for what was saved


def variants(cases: Sequence[Case]) -> list[Case]:
    """One of every third case that has any, always the same one; of every result, that with more pages behind."""
    varied = {case.id for case in sample(cases, len(cases) // _VARIED)}
    found: list[Case] = []
    for case in cases:
        possible = [*_emptier(case), *_saved(case)] if case.id in varied else []
        if possible:
            found.append(possible[hashlib.sha256(case.id.encode()).digest()[0] % len(possible)])
        found.extend(_with_more_pages(case))
    return found


def _emptier(case: Case) -> Iterator[Case]:
    """The same message to an agent that remembers less, where that makes no other call right."""
    if case.event != "user" or not case.user or any(turn.result is not None for turn in case.before):
        return
    wanted = set(case.expect)
    if not wanted & set(SEARCHES):
        yield case.model_copy(update={"id": f"{case.id}+stores", "recall": (), "archive": ()})
        if case.category in ("facts_new", "notes", "small_talk") or wanted == {"core_memory_append"}:
            empty = {"recall": (), "archive": (), "human": "", "before": ()}
            yield case.model_copy(update={"id": f"{case.id}+new", **empty})
    elif wanted == {"archival_memory_search"}:
        yield case.model_copy(update={"id": f"{case.id}+recall", "recall": ()})
    elif "archival_memory_search" not in wanted:
        yield case.model_copy(update={"id": f"{case.id}+archive", "archive": ()})


def _saved(case: Case) -> Iterator[Case]:
    """The step after the call that was right, when that saved something: the user is answered."""
    call = _right_edit(case) if case.event == "user" and case.user else None
    if call is None:
        return
    done = (Turn(user=case.user), Turn(call=call), Turn(result="Saved."))
    yield case.model_copy(
        update={
            "id": f"{case.id}+saved",
            "before": (*case.before, *done),
            "user": None,
            "expect": ("send_message",),
            "args": Expected(),
        }
    )


def _with_more_pages(case: Case) -> Iterator[Case]:
    """The same result, the answer in it, with more pages behind: most searches have them, and are not read on."""
    last = case.before[-1].result if case.before and not case.user else None
    whole = _WHOLE_RESULT.match(last or "")
    if last is None or whole is None or case.expect != ("send_message",):
        return
    rows = int(whole[1])
    header = f"Results 1-{rows} of {rows + _MORE}, page 1 of {_PAGES}:"
    before = (*case.before[:-1], Turn(result=header + last[whole.end() :]))
    yield case.model_copy(update={"id": f"{case.id}+pages", "before": before})


def _right_edit(case: Case) -> PastCall | None:
    said = (case.user or "")[:_APPENDED]
    label = case.args.label or "human"
    if case.expect[0] == "core_memory_append":
        return PastCall(name="core_memory_append", arguments={"label": label, "content": said})
    if case.expect[0] == "archival_memory_insert":
        return PastCall(name="archival_memory_insert", arguments={"content": said})
    if case.expect[0] == "core_memory_replace" and case.args.old_contains:
        block = case.persona if label == "persona" else case.human
        for line in block.splitlines():
            if folded(case.args.old_contains) in folded(line):
                arguments = {"label": label, "old_content": line, "new_content": said}
                return PastCall(name="core_memory_replace", arguments=arguments)
    return None
