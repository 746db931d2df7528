"""The guarantee, tried: every function the state allows is called in turn, whether or not the model would have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from localmem.backend.base import Backend, Completion, Sampling
from localmem.bench.arms import Delegate
from localmem.bench.cases import Case
from localmem.bench.reliability import declared_functions, is_valid, ordered
from localmem.bench.situation import decide, situation
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.config import Settings
from localmem.models import Profile

TEMPERATURES = (0.0, 1.0)


@dataclass(slots=True)
class Tally:
    """How many calls were made, and how many of them were what. `failures` holds the first few that were not."""

    calls: int = 0
    parsed: int = 0
    valid: int = 0
    executable: int = 0
    finished: int = 0
    failures: list[str] = field(default_factory=list[str])

    def figures(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @property
    def kept(self) -> bool:
        return self.calls == self.parsed == self.valid == self.executable == self.finished


class OneFunctionBackend(Delegate):
    """Narrows every grammar to one function, the next in turn, at a temperature of its own."""

    def __init__(self, backend: Backend, temperature: float) -> None:
        super().__init__(backend)
        self._temperature = temperature
        self.offered: tuple[str, ...] = ()
        self.turn = 0
        self.seed = 0
        self.finish_reason = ""

    def complete(self, prompt: Prompt, *, grammar: CallGrammar | None, sampling: Sampling, **more: Any) -> Completion:
        if grammar is None:
            return self._backend.complete(prompt, grammar=None, sampling=sampling, **more)
        more.pop("guidance", None)
        self.offered = tuple(choice.name for choice in grammar.choices)
        self.seed += 1
        completion = self._backend.complete(
            prompt,
            grammar=replace(grammar, choices=(grammar.choices[self.turn],)),
            sampling=replace(sampling, temperature=self._temperature, seed=self.seed),
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
    temperature: float,
    calls: int,
    on_call: Callable[[], object] | None = None,
) -> Tally:
    """At least `calls` calls: case after case, each function that may be called there; as many as there are at most."""
    functions = declared_functions()
    tally = Tally()
    for case in spread(cases):
        forcing = OneFunctionBackend(backend, temperature)
        forcing.seed = tally.calls
        while True:
            with situation(case, cast("Backend", forcing), settings, profile) as agent:
                step = decide(agent, case)
            wanted = forcing.offered[forcing.turn]
            made = step.call if step.call is not None and step.call.name == wanted else None
            tally.calls += 1
            tally.parsed += made is not None
            tally.valid += is_valid(made, functions)
            tally.executable += made is not None and step.result.ok
            tally.finished += forcing.finish_reason == "stop"
            if not (step.result.ok and is_valid(made, functions)) and len(tally.failures) < 20:
                written = "" if made is None else json.dumps({made.name: dict(made.arguments)}, ensure_ascii=False)
                tally.failures.append(f"{case.id}, {wanted}: {step.result.text} {written}")
            if on_call is not None:
                on_call()
            forcing.turn += 1
            if forcing.turn >= len(forcing.offered):
                break
        if tally.calls >= calls:
            break
    return tally


def spread(cases: Sequence[Case]) -> Iterator[Case]:
    """Every profile's cases, one of each profile in turn would read much anew: so in order, but every third first."""
    in_order = ordered(cases)
    for start in range(3):
        yield from in_order[start::3]
