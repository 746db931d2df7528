"""BFCL, offline: simple, multiple and live questions, restraint, and memory, arm beside arm.

python -m benchmarks.bfcl [--model NAME] [--category NAME ...] [--arm NAME ...] [--scenario NAME ...] [--limit N]
                          [--fit] [--fresh] [--json]

Questions, answers and checker come out of the wheel bfcl-eval, which is fetched into localmem's home. A run that is
stopped goes on where it was. Parallel calls are left out: a step of localmem is one call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from tqdm import tqdm

from benchmarks.bfcl import asking, data, gate, memory
from benchmarks.bfcl.checker import Checker, load_checker
from benchmarks.bfcl.run import rows, run
from benchmarks.common import HERE, RESULTS
from benchmarks.journal import Journal, open_journal
from benchmarks.shares import Row, add_to_results, row, table
from localmem import models
from localmem.backend.base import Backend
from localmem.backend.llama import LlamaBackend
from localmem.bench import arms as agent_arms
from localmem.bench.cases import sample
from localmem.config import DEFAULT_MODEL, Settings, load_settings
from localmem.errors import LocalmemError
from localmem.models import ModelCard
from localmem.runtime import load_backend, make_embedder

CASES = HERE / "cases" / "gate.jsonl"
WINDOW = 8192  # tokens: some live questions bring dozens of functions
MEMORY_WINDOW = 4096
MEMORY = tuple(f"memory_{store}" for store in memory.STORES)
DEFAULT = ("simple_python", "multiple", "irrelevance", "live_simple")
Load = Callable[[Settings], Backend]
"""The model of the settings, loaded."""
MEMORY_ARMS: tuple[agent_arms.Arm, ...] = ("free", "tuned")


def main(words: Sequence[str] | None = None, *, load: Load = load_backend) -> None:
    arguments = _arguments(words)
    try:
        found = _run(arguments, load)
    except LocalmemError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(found) if arguments.json else table(found))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--category", action="append", choices=(*data.CATEGORIES, *MEMORY), help="may be given again")
    every_arm = dict.fromkeys((*asking.ARMS, *agent_arms.ARMS))
    parser.add_argument("--arm", action="append", choices=tuple(every_arm), help="may be given again")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="of memory; may be given again")
    parser.add_argument("--limit", type=int, metavar="N", help="a fixed sample of N questions of each category")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="0 lets a probe choose")
    parser.add_argument("--fit", action="store_true", help="fit the gate again; with no --category, nothing else")
    parser.add_argument("--fresh", action="store_true", help="begin again, though a run was stopped on its way")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the result file goes")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON and nothing else")
    return parser.parse_args(words)


def _run(arguments: argparse.Namespace, load: Load) -> list[Row]:
    settings = load_settings(flags={"model": arguments.model, "threads": arguments.threads, "snapshots_mb": 0})
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    categories = arguments.category or (() if arguments.fit else DEFAULT)
    folder = data.find(settings.home) if categories else None
    found: list[Row] = []
    single = [category for category in categories if category not in MEMORY]
    if single or arguments.fit:
        found += _single(arguments, settings, card, single, folder, load)
    stores = [category for category in categories if category in MEMORY]
    if stores and folder is not None:
        found += _memory(arguments, settings, card, stores, folder, load)
    return found


def _single(
    arguments: argparse.Namespace,
    settings: Settings,
    card: ModelCard,
    categories: Sequence[str],
    folder: Path | None,
    load: Load,
) -> list[Row]:
    """Single questions; fits the gate first where it is asked for."""
    arms = [arm for arm in asking.ARMS if not arguments.arm or arm in arguments.arm]
    found: list[Row] = []
    backend = load(_with_window(settings, WINDOW))
    try:
        keeper = _gatekeeper(arguments, settings, card, backend) if "gate" in arms or arguments.fit else None
        if folder is None:
            return found
        checker = load_checker(folder)
        for category in categories if arms else ():
            questions = data.load(folder, category)
            if arguments.limit:
                questions = sample(questions, arguments.limit)
            journal = _journal(settings, card, category, asking.INSTRUCTIONS, fresh=arguments.fresh)
            with tqdm(total=len(questions) * len(arms), desc=category, unit="answer", file=sys.stderr) as bar:
                records = run(
                    backend, questions, checker, arms=arms, journal=journal, decide=keeper, on_answer=bar.update
                )
            told = rows(category, records)
            _tell(arguments, card, told, questions)
            journal.put_away()
            found += told
    finally:
        backend.close()
    return found


def _gatekeeper(
    arguments: argparse.Namespace, settings: Settings, card: ModelCard, backend: Backend
) -> gate.GateKeeper:
    """The gate of this model and prompt: fitted before, or now. What was looked at is kept beside it."""
    if not isinstance(backend, LlamaBackend):
        raise LocalmemError("only llama.cpp shows what a model holds in front of its answer", "Name the other arms.")
    name = gate.gate_name(backend, card.name, card.sha256, CASES)
    bench = settings.home / "bench"
    path = bench / gate.fitted_name(name)
    if arguments.fit or not path.is_file():
        cases = gate.read_gate_cases(CASES)
        with tqdm(total=len(cases), desc="gate", unit="case", file=sys.stderr) as bar:
            seen = gate.look_at(backend, cases, open_journal(bench / f"{name}.looks.jsonl"), on_case=bar.update)
        fitted = gate.fit_gate(cases, seen)
        fitted.write(path)
        print(f"gate, in cross-validation: {fitted.figures()}", file=sys.stderr)
    chosen = gate.read_gate(path)
    add_to_results("bfcl", card.name, [], folder=arguments.out, gate=chosen.figures())
    return gate.GateKeeper(backend, chosen)


def _memory(
    arguments: argparse.Namespace,
    settings: Settings,
    card: ModelCard,
    categories: Sequence[str],
    folder: Path,
    load: Load,
) -> list[Row]:
    chosen = [arm for arm in agent_arms.ARMS if arm in (arguments.arm or MEMORY_ARMS)]
    questions = data.load_memory(folder, arguments.scenario)
    if arguments.limit:
        questions = sample(questions, arguments.limit)
    settings = _with_window(settings, MEMORY_WINDOW)
    checker, embedder = load_checker(folder), make_embedder(settings)
    found: list[Row] = []
    backend = load(settings)
    try:
        for category in categories:
            store = cast("memory.Store", category.removeprefix("memory_"))
            for arm in chosen:
                agents = settings.home / "bench" / "bfcl-memory" / card.name
                telling = memory.Telling(store, arm, settings, backend, embedder, agents)
                if arguments.fresh:
                    for path in agents.glob(f"{arm}-{store}-*"):
                        path.unlink()
                found.append(_memory_row(telling, questions, folder, checker, card, fresh=arguments.fresh))
                _tell(arguments, card, found[-1:], questions)
    finally:
        backend.close()
    return found


def _memory_row(
    telling: memory.Telling,
    questions: Sequence[data.MemoryQuestion],
    folder: Path,
    checker: Checker,
    card: ModelCard,
    *,
    fresh: bool,
) -> Row:
    """One store in one arm."""
    category = f"memory_{telling.store}"
    journal = _journal(telling.settings, card, f"{category}-{telling.arm}", "", fresh=fresh)
    with tqdm(desc=f"{category} {telling.arm}", unit="turn", file=sys.stderr) as bar:
        records = memory.run_memory(
            telling,
            questions,
            lambda scenario: data.load_sessions(folder, scenario),
            checker,
            journal=journal,
            on_turn=bar.update,
        )
    journal.put_away()
    return row(category, telling.arm, records)


def _with_window(settings: Settings, window: int) -> Settings:
    """The window the benchmark needs, unless the user has set one."""
    return settings if settings.origin.get("window", "default") != "default" else replace(settings, window=window)


def _journal(settings: Settings, card: ModelCard, part: str, prompt: str, *, fresh: bool) -> Journal:
    """Where the answers of this model are kept until all of a part are there."""
    text = json.dumps([card.sha256 or card.name, settings.window, settings.temperature, prompt, data.VERSION])
    name = f"bfcl-{card.name}-{part}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
    journal = open_journal(settings.home / "bench" / name)
    if fresh:
        journal.forget()
    return journal


def _tell(
    arguments: argparse.Namespace,
    card: ModelCard,
    told: Sequence[Row],
    questions: Sequence[data.Question] | Sequence[data.MemoryQuestion],
) -> None:
    """Write one category's rows into the result file; of a sample, the ids too."""
    ids = [question.id for question in questions] if arguments.limit or arguments.scenario else None
    samples = {one["category"]: ids for one in told}
    path = add_to_results("bfcl", card.name, told, samples=samples, folder=arguments.out)
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
