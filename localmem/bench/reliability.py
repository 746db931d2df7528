"""The reliability benchmark: one model's decisions on many cases, arm beside arm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from localmem import models
from localmem.backend.base import Backend
from localmem.bench.arms import ARMS, Arm, FreeBackend, ReadBackend, SchemaBackend
from localmem.bench.cases import Case
from localmem.bench.journal import Journal
from localmem.bench.provenance import commit
from localmem.bench.scoring import Outcome
from localmem.bench.situation import decide, situation
from localmem.calls.grammar import Schema
from localmem.calls.spec import load_declarations
from localmem.config import Settings
from localmem.errors import ChainLimit
from localmem.kernel.messages import FunctionCall, FunctionResult, Step, Usage
from localmem.models import ModelCard, Profile
from localmem.resources import data_dir

OnOutcome = Callable[[Arm, Outcome], object]


def open_journal(path: Path | None) -> Journal[Outcome]:
    """Outcomes by arm and case, kept at `path`."""
    return Journal(path, read=lambda record: Outcome(**record), write=asdict)


def run(
    backend: Backend,
    cases: Sequence[Case],
    settings: Settings,
    *,
    arms: Sequence[Arm] = ARMS,
    journal: Journal[Outcome] | None = None,
    on_outcome: OnOutcome | None = None,
) -> dict[Arm, list[Outcome]]:
    """Every case in every arm. Cases of one profile are run together, so that their prompts' beginning is read once."""
    journal = journal or open_journal(None)
    found: dict[Arm, list[Outcome]] = {arm: [] for arm in arms}
    plain, tuned = profiles(settings)
    functions = declared_functions()
    read = cast("Backend", ReadBackend(backend))
    backends: Mapping[Arm, Backend] = {
        "free": cast("Backend", FreeBackend(read)),
        "schema": cast("Backend", SchemaBackend(read, functions)),
        "state": read,
        "tuned": read,
    }
    for group in _groups(arms, alike=replace(tuned, calibration=None) == plain):
        for case in ordered(cases):
            for arm in group:
                key = f"{arm} {case.id}"
                outcome = journal.known(key)
                if outcome is None:
                    profile = tuned if arm == "tuned" else plain
                    outcome = journal.add(key, judge(backends[arm], case, settings, profile, functions))
                found[arm].append(outcome)
                if on_outcome is not None:
                    on_outcome(arm, outcome)
    return found


def declared_functions() -> dict[str, Schema]:
    """The built-in functions and the schemas they are declared with."""
    return {name: schema for name, (_, schema) in load_declarations(data_dir("grammars") / "memgpt.json").items()}


def profiles(settings: Settings) -> tuple[Profile, Profile]:
    """The profile nobody has tuned, and the model's own."""
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    return Profile(), card.profile


def ordered(cases: Iterable[Case]) -> list[Case]:
    """By profile, in the order of their first case; those with timers, whose functions differ, last."""
    cases = list(cases)
    places = {profile: place for place, profile in enumerate(dict.fromkeys(case.profile for case in cases))}
    return sorted(cases, key=lambda case: (bool(case.timers), places[case.profile]))


def judge(
    backend: Backend, case: Case, settings: Settings, profile: Profile, functions: Mapping[str, Schema]
) -> Outcome:
    """One case decided and scored."""
    with situation(case, backend, settings, profile) as agent:
        try:
            step = decide(agent, case)
        except ChainLimit:  # pragma: no cover  # the first step never is the last one's failure
            step = Step(None, FunctionResult(False, "no step"), Usage())
    call = step.call
    return Outcome(
        case=case.id,
        category=case.category,
        call="" if call is None else f"{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})",
        function="" if call is None else call.name,
        valid=is_valid(call, functions),
        executable=step.result.could_run,
        right_function=case.right_function(call),
        right_call=case.right_call(call),
        only_reply=set(case.expect) == {"send_message"},
        tokens=step.usage.generated_tokens,
        seconds=round(step.usage.read_seconds + step.usage.write_seconds, 4),
        result="" if step.result.could_run else step.result.text,
    )


def is_valid(call: FunctionCall | None, functions: Mapping[str, Schema]) -> bool:
    """Whether the call parses and its arguments fit the declared schema."""
    from jsonschema import Draft202012Validator

    if call is None or call.name not in functions:
        return False
    schema = {**functions[call.name], "additionalProperties": False}
    return Draft202012Validator(schema).is_valid(dict(call.arguments))


def _groups(arms: Sequence[Arm], *, alike: bool) -> list[list[Arm]]:
    """Arms that share a prompt: they go case by case, so that it is read once."""
    shared: list[Arm] = [arm for arm in arms if alike or arm != "tuned"]
    own: list[Arm] = [arm for arm in arms if not alike and arm == "tuned"]
    return [group for group in (shared, own) if group]


def plain_settings(settings: Settings) -> Settings:
    """The user's model, window and sampling; their memory is neither read nor written."""
    return replace(settings, snapshots_mb=0)


def journal_path(settings: Settings, card: ModelCard, cases: Sequence[Case], kind: str = "reliability") -> Path:
    """Where the outcomes of this commit, this model, these cases and this way of asking are kept until they are
    whole: what another commit measured is no part of this one's figures."""
    weights = card.sha256 or card.name
    asked = [commit(), weights, settings.temperature, settings.window, card.profile.fingerprint]
    text = json.dumps([asked, [case.model_dump(mode="json") for case in cases]], sort_keys=True)
    return settings.home / "bench" / f"{kind}-{card.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
