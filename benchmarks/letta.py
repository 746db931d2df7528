"""Letta's core-memory sets, without a judge: reading core memory, and correcting it when the user says otherwise.

python -m benchmarks.letta [--model NAME] [--set read|update ...] [--arm NAME ...] [--limit 100] [--data FOLDER]

read    ten facts stand in block human; the user asks once. Right when the reply contains the answer.
update  ten facts stand there; the user says something that contradicts one. In a new conversation, with nothing of the
        old one but core memory, the user asks. Right when the reply contains the new answer. `state`: the block holds
        the new answer, and a fact that it contradicts stands there no more, whatever is replied.

Of update only the cases whose answer is at most four words, stands in the contradiction and in none of the facts: of
them the state can be seen without a judge. The data is letta-ai/letta-evals (Apache-2.0); none of it is in this
repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tqdm import tqdm

import localmem
from benchmarks.agents import Clock, arm_backend, arm_profile, quiet, say
from benchmarks.common import HERE, RESULTS
from benchmarks.journal import Journal, Record, open_journal
from benchmarks.shares import Row, add_to_results, row, table
from localmem import models
from localmem.backend.base import Backend
from localmem.bench.arms import ARMS, Arm
from localmem.bench.cases import sample
from localmem.config import DEFAULT_MODEL, Settings, load_settings
from localmem.errors import LocalmemError
from localmem.kernel.agent import Agent
from localmem.kernel.tokens import count
from localmem.runtime import load_backend

Set = Literal["read", "update"]
SETS: tuple[Set, ...] = ("read", "update")

DATA = HERE.parent.parent / "shared" / "data" / "letta_evals"
FILES: dict[Set, str] = {"read": "core_memory_read_dev.jsonl", "update": "core_memory_update_dev.jsonl"}
DEFAULT_ARMS: tuple[Arm, ...] = ("free", "state", "tuned")

_ROOM = 100  # tokens a block has left, so that it can be corrected
_MOST_WORDS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """Facts in core memory, and a question. `said` contradicts those of the `facts` that `contradicted` numbers."""

    id: str
    facts: tuple[str, ...]
    question: str
    answer: str
    said: str = ""
    contradicted: tuple[int, ...] = ()

    @property
    def is_seen_in_the_block(self) -> bool:
        """Whether the block alone tells that it was corrected."""
        return (
            len(self.answer.split()) <= _MOST_WORDS
            and _contains(self.said, self.answer)
            and not any(_contains(fact, self.answer) for fact in self.facts)
        )


def read_cases(folder: Path, name: Set) -> list[Case]:
    """The cases of a set, in order. Raises LocalmemError, with the way out, when they are not there."""
    path = folder / FILES[name]
    try:
        table = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        cases = [_case(f"{name}-{number}", line) for number, line in enumerate(table)]
    except (OSError, ValueError, KeyError) as error:
        raise LocalmemError(
            f"the cases of {name} cannot be read: {error!r}",
            f"Put {FILES[name]} of letta-ai/letta-evals (its first half, JSON lines) into {folder}, or name another "
            "folder with --data.",
        ) from error
    return cases if name == "read" else [case for case in cases if case.is_seen_in_the_block]


def _case(name: str, line: Record) -> Case:
    extra = line["agent_args"]["extra"]
    return Case(
        id=name,
        facts=tuple(extra["facts"]),
        question=line["input"],
        answer=line["ground_truth"],
        said=extra.get("contradicting_fact", "").strip().strip('"'),
        contradicted=tuple(extra.get("supporting_fact_indices", ())),
    )


def run(
    backend: Backend,
    cases: Sequence[Case],
    settings: Settings,
    *,
    arms: Sequence[Arm],
    journal: Journal,
    on_answer: Callable[[], object] | None = None,
) -> dict[Arm, list[Record]]:
    """Every case in every arm; one arm after the other, and cases of the same facts together: their prompts begin
    alike."""
    found: dict[Arm, list[Record]] = {arm: [] for arm in arms}
    for arm in arms:
        for case in sorted(cases, key=lambda case: case.facts):
            record = journal.known(f"{arm} {case.id}")
            if record is None:
                record = journal.add(f"{arm} {case.id}", judge(backend, case, settings, arm))
            found[arm].append(record)
            if on_answer is not None:
                on_answer()
    return found


def judge(backend: Backend, case: Case, settings: Settings, arm: Arm) -> Record:
    """One case in one arm."""
    block, corrected = "\n".join(case.facts), dict[str, object]()
    if case.said:
        with _agent(backend, block, settings, arm) as agent:
            told = say(agent, case.said)
            block = agent.working_context.block("human").value
        corrected = {"block": block, "said": told.record, "state": _is_corrected(block, case)}
    with _agent(backend, block, settings, arm) as agent:
        asked = say(agent, case.question)
    return {"id": case.id, "right": _contains(asked.reply, case.answer), **corrected, **asked.record}


def _agent(backend: Backend, human: str, settings: Settings, arm: Arm) -> Agent:
    """A new agent in memory that knows of the user what stands in `human`."""
    agent = localmem.open(
        "letta",
        settings=replace(quiet(settings), database=Path(":memory:"), embedder="none"),
        backend=arm_backend(backend, arm),
        profile=arm_profile(settings, arm),
        now=Clock(),
    )
    block = agent.working_context.block("human")
    limit = max(block.limit, count(backend.tokenizer, human) + _ROOM)
    agent.add_block(replace(block, value=human, limit=limit))
    return agent


def _is_corrected(block: str, case: Case) -> bool:
    """The new answer stands in the block, and at least one of the facts it contradicts no more does."""
    lines = block.split("\n")
    return _contains(block, case.answer) and any(case.facts[number] not in lines for number in case.contradicted)


def _contains(text: str, answer: str) -> bool:
    """Letta's own measure: the answer stands in the text, case aside."""
    return bool(answer) and answer.lower() in text.lower()


def main(words: Sequence[str] | None = None, *, load: Callable[[Settings], Backend] = load_backend) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--set", dest="sets", action="append", choices=SETS, help="may be given again")
    parser.add_argument("--arm", action="append", choices=ARMS, help="may be given again")
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="a fixed sample of N cases; 0 is all")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="where the sets lie")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="0 lets a probe choose")
    parser.add_argument("--fresh", action="store_true", help="begin again, though a run was stopped on its way")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the result file goes")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON and nothing else")
    arguments = parser.parse_args(words)
    try:
        found = _run(arguments, load)
    except LocalmemError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(found) if arguments.json else table(found))


def _run(arguments: argparse.Namespace, load: Callable[[Settings], Backend]) -> list[Row]:
    sets = [name for name in SETS if name in (arguments.sets or SETS)]
    arms = [arm for arm in ARMS if arm in (arguments.arm or DEFAULT_ARMS)]
    cases = {name: read_cases(arguments.data, name) for name in sets}
    settings = load_settings(flags={"model": arguments.model, "threads": arguments.threads, "snapshots_mb": 0})
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    found: list[Row] = []
    backend = load(settings)
    try:
        for name in sets:
            chosen = sample(cases[name], arguments.limit) if arguments.limit else cases[name]
            journal = open_journal(_journal_path(settings, card, name))
            if arguments.fresh:
                journal.forget()
            with tqdm(total=len(chosen) * len(arms), desc=name, unit="case", file=sys.stderr) as bar:
                records = run(backend, chosen, settings, arms=arms, journal=journal, on_answer=bar.update)
            flags = ("right", "state") if name == "update" else ("right",)
            rows = [row(name, arm, records[arm], flags) for arm in arms]
            sampled = [case.id for case in chosen] if arguments.limit else None
            path = add_to_results("letta", card.name, rows, samples={name: sampled}, folder=arguments.out)
            print(f"wrote {path}", file=sys.stderr)
            journal.put_away()
            found += rows
    finally:
        backend.close()
    return found


def _journal_path(settings: Settings, card: models.ModelCard, name: Set) -> Path:
    """Where the answers of this model and this way of asking are kept until all of a set are there."""
    asked = [card.sha256 or card.name, settings.window, settings.temperature, card.profile.fingerprint]
    text = json.dumps(asked)
    return settings.home / "bench" / f"letta-{card.name}-{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"


if __name__ == "__main__":
    main()
