"""A case made real: an agent in memory whose state is the case's, up to the decision."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import localmem
from localmem.backend.base import Backend
from localmem.bench.cases import Case
from localmem.config import Settings
from localmem.kernel.agent import Agent
from localmem.kernel.events import Event, MemoryPressure, TimerFired, UserMessage
from localmem.kernel.messages import FunctionCall, Message, Step
from localmem.kernel.tokens import count
from localmem.models import Profile
from localmem.storage.edit_log import Attribution

NOW = datetime(2026, 11, 29, 16, 0, tzinfo=UTC)
_DAY = timedelta(days=1)
_ROOM = 60  # tokens a block has left at least, so that it can be added to


@contextmanager
def situation(case: Case, backend: Backend, settings: Settings, profile: Profile) -> Generator[Agent]:
    """The agent just before the case's decision."""
    settings = replace(settings, database=Path(":memory:"), embedder="none", idle=False)
    with localmem.open("case", settings=settings, backend=backend, profile=profile, now=lambda: NOW) as agent:
        for label, text in (("persona", case.persona), ("human", case.human)):
            block = agent.working_context.block(label)
            # One vocabulary's 100 tokens are another's 300.
            limit = max(block.limit, count(backend.tokenizer, text) + _ROOM)
            agent.add_block(replace(block, value=text, limit=limit))
        for index, old in enumerate(case.recall):
            when = old.date or NOW - (len(case.recall) - index + 7) * _DAY
            kind, role = ("user_message", "user") if old.user is not None else ("reply", "assistant")
            text = old.user or old.reply or ""
            agent.recall.insert(Message(role, kind, text, text, when.astimezone(UTC)))
        for passage in case.archive:
            agent.archival.insert(passage.text, source=passage.source, by=Attribution("user", NOW - 20 * _DAY))
        for timer in case.timers:
            agent.schedule(timer.name, "every 1d", timer.note)
        _replay(agent, case)
        yield agent


def decide(agent: Agent, case: Case) -> Step:
    """The case's decision: the first step of its event."""
    steps = run(agent, case)
    try:
        return next(steps)
    finally:
        steps.close()  # type: ignore[attr-defined]  # a generator: what follows the decision is not run


def run(agent: Agent, case: Case) -> Iterator[Step]:
    """The steps of the case's event, the decision first."""
    event = event_of(agent, case)
    return agent.resume() if event is None else agent.handle(event)


def event_of(agent: Agent, case: Case) -> Event | None:
    """What the case's decision is about; None where that stands in the queue already."""
    if case.event == "memory_pressure":
        budget = agent.options.budget
        return MemoryPressure(budget.warning_tokens, budget.flush_tokens)
    if case.event == "timer":
        return TimerFired("reminder", case.user or "", NOW.astimezone())
    return UserMessage(case.user) if case.user else None


def _replay(agent: Agent, case: Case) -> None:
    for turn, following in zip_longest(case.before, case.before[1:]):
        if turn.user is not None:
            agent.note(UserMessage(turn.user))
        elif turn.call is not None:
            result = following.result if following is not None and following.result is not None else ""
            agent.recount(FunctionCall(turn.call.name, turn.call.arguments), result)
