"""Agents for benchmarks: one arm's backend and profile, a clock, and an event run to its reply."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast

from localmem.backend.base import Backend
from localmem.bench.arms import Arm, FreeBackend, SchemaBackend
from localmem.bench.reliability import declared_functions, profiles
from localmem.config import Settings
from localmem.errors import ChainLimit
from localmem.kernel.agent import Agent
from localmem.kernel.messages import Step, Usage
from localmem.models import Profile


@dataclass
class Clock:
    """A clock that only the benchmark moves."""

    now: datetime = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of a user's message: the last reply ("" for none), the calls before it, and their cost."""

    reply: str
    calls: tuple[str, ...]
    usage: Usage

    @property
    def record(self) -> dict[str, object]:
        """For a journal. Seconds are those of reading and writing."""
        seconds = self.usage.read_seconds + self.usage.write_seconds
        return {
            "reply": self.reply,
            "calls": list(self.calls),
            "steps": len(self.calls) + bool(self.reply),
            "tokens": self.usage.generated_tokens,
            "seconds": round(seconds, 3),
        }


def quiet(settings: Settings) -> Settings:
    """The user's model, window and sampling; nothing is done or kept beside what is measured."""
    return replace(settings, snapshots_mb=0, idle=False)


def arm_backend(backend: Backend, arm: Arm, functions: Collection[str] | None = None) -> Backend:
    """The backend as an arm sees it; `functions` are those the agent has, None all of them."""
    if arm == "free":
        return cast("Backend", FreeBackend(backend))
    if arm == "schema":
        declared = declared_functions()
        names = declared if functions is None else [name for name in declared if name in {*functions, "send_message"}]
        return cast("Backend", SchemaBackend(backend, {name: declared[name] for name in names}))
    return backend


def arm_profile(settings: Settings, arm: Arm) -> Profile:
    """The model's own profile in arm tuned; in the others that which nobody has tuned."""
    plain, tuned = profiles(settings)
    return tuned if arm == "tuned" else plain


def say(agent: Agent, text: str) -> Exchange:
    """Give the agent a user's message and let it run. An event that ends without an answer has an empty reply."""
    return _exchange(agent.send(text))


def go_on(agent: Agent) -> Exchange:
    """Finish the event that an interruption left."""
    return _exchange(agent.resume())


def _exchange(steps: Iterator[Step]) -> Exchange:
    reply, calls, usage = "", list[str](), Usage()
    with suppress(ChainLimit):
        for step in steps:
            usage += step.usage
            if step.reply is not None:
                reply = step.reply
            else:
                calls.append("" if step.call is None else step.call.name)
    return Exchange(reply, tuple(calls), usage)
