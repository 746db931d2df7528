"""The guarantee, tried: every function the state allows is called in turn, whether or not the model would have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from localmem.backend.base import Backend, Completion, Sampling
from localmem.bench.arms import Delegate
from localmem.bench.cases import Case
from localmem.bench.journal import Journal
from localmem.bench.reliability import declared_functions, is_valid, ordered
from localmem.bench.situation import decide, situation
from localmem.calls.grammar import CallGrammar, Schema
from localmem.calls.prompt import Prompt
from localmem.config import Settings
from localmem.models import Profile

TEMPERATURES = (0.0, 1.0)
_FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call that was asked for: the function in its `turn` of the `offered` ones. `failure` says what went wrong."""

    case: str
    function: str
    turn: int
    offered: int
    temperature: float
    parsed: bool
    valid: bool
    executable: bool
    finished: bool
    failure: str = ""


@dataclass(slots=True)
class Tally:
    """How many calls were made, and how many of them were what. `failures` holds the first few that were not."""

    calls: int = 0
    parsed: int = 0
    valid: int = 0
    executable: int = 0
    finished: int = 0
    failures: list[str] = field(default_factory=list[str])

    def add(self, attempt: Attempt) -> None:
        self.calls += 1
        self.parsed += attempt.parsed
        self.valid += attempt.valid
        self.executable += attempt.executable
        self.finished += attempt.finished
        if attempt.failure and len(self.failures) < _FAILURES_SHOWN:
            self.failures.append(attempt.failure)

    def figures(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @property
    def kept(self) -> bool:
        return self.calls == self.parsed == self.valid == self.executable == self.finished


def open_journal(path: Path | None) -> Journal[Attempt]:
    """Attempts by case, turn and temperature, kept at `path`."""
    return Journal(path, read=lambda record: Attempt(**record), write=asdict)


class OneFunctionBackend(Delegate):
    """Narrows every grammar to one function, by its place among those offered, at a temperature of its own."""

    def __init__(self, backend: Backend, turn: int, temperature: float, seed: int) -> None:
        super().__init__(backend)
        self._turn = turn
        self._temperature = temperature
        self._seed = seed
        self.offered: tuple[str, ...] = ()
        self.finish_reason = ""

    @property
    def wanted(self) -> str:
        return self.offered[self._turn]

    def complete(self, prompt: Prompt, *, grammar: CallGrammar | None, sampling: Sampling, **more: Any) -> Completion:
        if grammar is None:
            return self._backend.complete(prompt, grammar=None, sampling=sampling, **more)
        more.pop("guidance", None)
        self.offered = tuple(choice.name for choice in grammar.choices)
        completion = self._backend.complete(
            prompt,
            grammar=replace(grammar, choices=(grammar.choices[self._turn],)),
            sampling=replace(sampling, temperature=self._temperature, seed=self._seed),
            **more,
        )
        self.finish_reason = completion.finish_reason
        return completion


def prove(
    backend: Backend,
    cases: Sequence[Case],
    settings: Settings,
    profile: Profile,
    *,
    calls: int,
    temperatures: Sequence[float] = TEMPERATURES,
    journal: Journal[Attempt] | None = None,
    on_call: Callable[[], object] | None = None,
) -> Mapping[float, Tally]:
    """At least `calls` calls at each temperature: case after case, each function that may be called there; fewer only
    where the cases offer no more. The temperatures take turns, so that a case's prompt is read once."""
    journal = journal or open_journal(None)
    functions = declared_functions()
    tallies = {temperature: Tally() for temperature in temperatures}
    made = 0
    for case in spread(cases):
        turn, offered = 0, 1
        while turn < offered:
            for temperature, tally in tallies.items():
                key = f"{case.id} {turn} {temperature:g}"
                attempt = journal.known(key)
                if attempt is None:
                    forcing = OneFunctionBackend(backend, turn, temperature, seed=made + 1)
                    attempt = _attempt(forcing, case, settings, profile, functions, turn, temperature)
                    journal.add(key, attempt)
                offered = attempt.offered
                tally.add(attempt)
                if on_call is not None:
                    on_call()
            turn += 1
            made += 1
        if made >= calls:
            break
    return tallies


def _attempt(
    forcing: OneFunctionBackend,
    case: Case,
    settings: Settings,
    profile: Profile,
    functions: Mapping[str, Schema],
    turn: int,
    temperature: float,
) -> Attempt:
    with situation(case, cast("Backend", forcing), settings, profile) as agent:
        step = decide(agent, case)
    wanted = forcing.wanted
    made = step.call if step.call is not None and step.call.name == wanted else None
    valid, finished = is_valid(made, functions), forcing.finish_reason == "stop"
    executable = made is not None and step.result.could_run
    failure = ""
    if not (valid and executable and finished):
        written = "" if made is None else json.dumps(dict(made.arguments), ensure_ascii=False)
        failure = f"{case.id}, {wanted}: {step.result.text} {written} ({forcing.finish_reason})"
    return Attempt(
        case.id,
        wanted,
        turn,
        len(forcing.offered),
        temperature,
        parsed=made is not None,
        valid=valid,
        executable=executable,
        finished=finished,
        failure=failure,
    )


def spread(cases: Sequence[Case]) -> Iterator[Case]:
    """Every profile's cases, one of each profile in turn would read much anew: so in order, but every third first."""
    in_order = ordered(cases)
    for start in range(3):
        yield from in_order[start::3]
