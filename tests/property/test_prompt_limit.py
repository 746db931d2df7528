"""Whatever happens to an agent: no prompt is over the limit, and recall storage holds every message, in order, once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st
from support import Clock, append, make_agent, say, stored_messages

from localmem.backend.scripted import ScriptedBackend
from localmem.errors import ChainLimit, FunctionError, LocalmemError
from localmem.kernel.agent import Agent
from localmem.kernel.budget import Budget
from localmem.kernel.events import Event, SystemMessage, UserMessage
from localmem.kernel.messages import FAILURE, FunctionCall, Step
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database, storable

PAPER = (0.7, 1.0, 0.5)  # warning, flush, evict
sizes = st.integers(0, 300) | st.integers(300, 6_000) | st.sampled_from([20_000, 200_000])
texts = st.builds(
    lambda character, size, tail: character * (size // len(character.encode())) + tail,
    st.sampled_from(["x", "é", "😀", "ab ", "\n", "<|im_end|>"]),
    sizes,
    st.text(max_size=10),
)
calls = st.one_of(
    st.builds(say, texts),
    st.builds(append, texts, heartbeat=st.booleans()),
    st.builds(
        lambda old, new: FunctionCall(
            "core_memory_replace", {"label": "human", "old_content": old, "new_content": new}
        ),
        texts,
        texts,
    ),
    st.builds(lambda text: FunctionCall("archival_memory_insert", {"content": text}), texts),
    st.builds(
        lambda name, query, page: FunctionCall(name, {"query": query, "page": page}),
        st.sampled_from(["conversation_search", "archival_memory_search"]),
        st.sampled_from(["x", "story", "", "é"]),
        st.integers(-1, 3),
    ),
    st.just(
        FunctionCall("conversation_search_date", {"start_date": "2026-01-01", "end_date": "2026-12-31", "page": 1})
    ),
    st.builds(lambda name: FunctionCall(name, {"x": 1}), st.sampled_from(["fly", "send_message", "read"])),
    st.just(FunctionCall("read", {})),
)
scripts = st.lists(calls | texts.map(lambda text: text or " "), max_size=25)


@dataclass
class Run:
    """An agent, and what its recall storage must hold: texts in order, None for what only the agent knows."""

    agent: Agent
    database: Database
    clock: Clock
    expected: list[tuple[str, str | None]] = field(default_factory=list)

    def note(self, event: Event) -> None:
        self.agent.note(event)
        self.expected.append((event.kind, storable(event.text)))

    def handle(self, event: Event) -> None:
        self.expected.append((event.kind, storable(event.text)))
        with contextlib.suppress(ChainLimit):
            for step in self.agent.handle(event):
                self.expected += told(step)


def told(step: Step) -> list[tuple[str, str | None]]:
    if step.reply is not None:
        return [("reply", storable(step.reply))]
    called: list[tuple[str, str | None]] = [("call", None)] if step.usage.generated_tokens else []
    return [*called, ("result", storable(step.result.text))]


def upload(run: Run, text: str) -> None:
    run.agent.upload("a.md", [text, "second passage"])
    run.expected.append(("document", None))


def timer(run: Run, text: str) -> None:
    run.agent.schedule("tea", "every 5m", text)
    run.clock.advance(timedelta(minutes=17))
    steps = list(run.agent.run_timers())
    run.expected.append(("timer", None))
    for step in steps:
        run.expected += told(step)


def set_block(run: Run, text: str) -> None:
    with contextlib.suppress(FunctionError):
        run.agent.set_block("human", text)


def log_in(run: Run, _text: str) -> None:
    run.clock.advance(timedelta(hours=30))
    run.agent.log_in()
    run.expected.append(("login", None))


actions: dict[str, Callable[[Run, str], None]] = {
    "user": lambda run, text: run.handle(UserMessage(text)),
    "system": lambda run, text: run.handle(SystemMessage(text)),
    "noted": lambda run, text: run.note(SystemMessage(text)),
    "noted user": lambda run, text: run.note(UserMessage(text)),
    "document": upload,
    "timer": timer,
    "login": log_in,
    "block": set_block,
    "flush": lambda run, _text: run.agent.queue_manager.flush(),
}
plans = st.lists(st.tuples(st.sampled_from(sorted(actions)), texts), min_size=1, max_size=14)


def start(script: list[FunctionCall | str], window: int, reserve: int, shares: tuple[float, float, float]) -> Run:
    backend = ScriptedBackend(script, window=window, summary="They talked of the sea. " * 30)
    database, clock = Database(":memory:"), Clock()
    budget = Budget(window, reserve, *shares)
    agent = make_agent(backend, database=database, now=clock, budget=budget, max_steps=6, max_tokens_per_event=3_000)

    @agent.function
    def read() -> str:
        """Read a long text."""
        return "z" * 40_000

    return Run(agent, database, clock)


@given(
    script=scripts,
    plan=plans,
    window=st.sampled_from([3_000, 3_333, 4_096, 9_000]),
    reserve=st.sampled_from([64, 512, 900]),
    shares=st.sampled_from([PAPER, (0.5, 0.9, 0.05), (0.7, 0.95, 1.0)]),
)
@example(
    script=[], plan=[("noted", "x" * 900)] * 14 + [("user", "x")], window=3_333, reserve=512, shares=(0.7, 1.0, 0.5)
)
@example(script=["x" * 900] * 25, plan=[("user", "y" * 900)] * 5, window=3_333, reserve=900, shares=(0.7, 1.0, 0.5))
def test_no_prompt_is_over_the_limit_and_nothing_is_lost(
    script: list[FunctionCall | str], plan: list[tuple[str, str]], window: int, reserve: int, shares: tuple[float, ...]
):
    try:
        run = start(script, window, reserve, shares)  # type: ignore[arg-type]
    except LocalmemError:  # a window too small for its reserve is refused at once
        assert window < 4_096
        return
    backend, budget = run.agent.backend, run.agent.options.budget
    assert isinstance(backend, ScriptedBackend)
    for name, text in plan:
        actions[name](run, text)

    # No prompt over the limit, on either sequence; one that continues the window shares its cells.
    assert all(prompt.tokens <= budget.flush_tokens for prompt in backend.prompts)
    for prompt in backend.side_prompts:
        room = backend.window if "window" in prompt.parts else backend.side_window
        assert prompt.tokens + 200 <= room

    # Every prompt begins with the same instructions and functions; the first timer adds the one that pauses it.
    prefixes = {prompt.ids[: prompt.parts["system"]] for prompt in backend.prompts}
    assert len(prefixes) <= (2 if "timer" in {name for name, _ in plan} else 1)

    # Recall holds what was told, in order, once; memory pressure is the agent's own.
    stored = stored_messages(run.agent, run.database)
    found = [(message.kind, message.text) for message in stored if message.kind != "memory_pressure"]
    assert [kind for kind, _ in found] == [kind for kind, _ in run.expected]
    known = [(text, told) for (_, text), (_, told) in zip(found, run.expected, strict=True) if told is not None]
    assert [text for text, _ in known] == [told for _, told in known]

    # What is not in the queue was evicted, and each flush took something.
    summaries = AgentStore(run.database).summaries(run.agent.id)
    evicted = [summary.evicted_messages for summary in summaries]
    assert evicted == sorted(set(evicted))
    queue = AgentStore(run.database).queue_ids(run.agent.id)
    assert queue == sorted(set(queue)) == [message.id for message in run.agent.main_context.queue]
    # Failed calls leave the queue with their results when their event is done.
    forgotten = len(stored) - len(queue) - (evicted[-1] if evicted else 0)
    failures = sum(message.kind == "result" and message.text.startswith(FAILURE) for message in stored)
    assert forgotten in range(0, 2 * failures + 1, 2)
