"""`localmem bench`: how well a model calls functions, measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localmem.interfaces.cli.common import JSON, Shared, print_json, print_table, shared

if TYPE_CHECKING:
    from localmem.bench.arms import Arm
    from localmem.bench.cases import Case
    from localmem.bench.journal import Journal
    from localmem.bench.scoring import Outcome
    from localmem.config import Settings
    from localmem.models import ModelCard

_ARMS: tuple[Arm, ...] = ("free", "schema", "state", "tuned")


@click.group()
def bench() -> None:
    """Measure how reliably models call functions."""


@bench.command()
@click.option("-m", "--model", "models", multiple=True, metavar="MODEL", help="A model; may be given again.")
@click.option("--cases", "file", type=click.Path(path_type=Path), metavar="FILE", help="Your own cases, JSON lines.")
@click.option("--split", type=click.Choice(("dev", "test")), default="test", show_default=True, help="Of our cases.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(_ARMS), help="Only this arm; may be given again.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="A fixed sample of N cases.")
@click.option("--calls", type=click.IntRange(min=1), metavar="N", help="Prove the guarantee: N calls at T=0, N at T=1.")
@click.option("--fresh", is_flag=True, help="Begin again, though an earlier run was stopped on its way.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Write result files and a plot there.")
@click.option("-t", "--threads", type=int, metavar="N", help="Threads; 0 lets a probe choose.")
@click.option("--temp", "temperature", type=float, metavar="F", help="Sampling temperature; 0 is greedy.")
@shared(JSON)
def reliability(
    shared: Shared,
    *,
    models: tuple[str, ...],
    file: Path | None,
    split: str,
    arms: tuple[Arm, ...],
    limit: int | None,
    calls: int | None,
    fresh: bool,
    out: Path | None,
) -> None:
    """Single decisions over all functions, each model in each arm: free text, one JSON schema, the grammar of the
    memory's state, and that with the model's own profile.

    A run that is stopped goes on where it was. With --calls, every function that may be called is, in turn, and what
    is counted is whether each call parses, fits its schema, can be carried out and ends in time.
    """
    from localmem.bench.cases import read_cases, sample, shipped_cases
    from localmem.bench.report import HEADER, check_plotting, result, rows, write

    cases = shipped_cases("dev" if split == "dev" else "test") if file is None else read_cases(file)
    if limit is not None:
        cases = sample(cases, limit)
    settings = shared.settings()
    named = models or (settings.model,)
    if calls is not None:
        _prove(shared, [replace(settings, model=name) for name in named], cases, calls, out, fresh=fresh)
        return
    if out is not None:
        check_plotting()
    label = file.name if file is not None else split
    for name in named:
        card, outcomes, journal = _run(shared, replace(settings, model=name), cases, arms or _ARMS, fresh=fresh)
        record = result(card.name, outcomes, label)
        if shared.as_json:
            for arm in record["arms"]:
                print_json(arm)
        else:
            click.echo()
            print_table(HEADER, rows(record))
        if out is not None:
            for path in write(record, out):
                shared.say(f"wrote {path}")
        journal.put_away()


def _run(
    shared: Shared, settings: Settings, cases: list[Case], arms: tuple[Arm, ...], *, fresh: bool
) -> tuple[ModelCard, dict[Arm, list[Outcome]], Journal[Outcome]]:
    """A model's card, its outcomes, and the journal they are in. Raises ModelNotFound before anything is measured."""
    from tqdm import tqdm

    from localmem import models, runtime
    from localmem.bench.reliability import journal_path, open_journal, plain_settings, run

    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    settings = plain_settings(replace(settings, model=card.name))
    journal = open_journal(journal_path(settings, card, cases))
    if fresh:
        journal.forget()
    backend = runtime.load_backend(settings)
    try:
        with tqdm(total=len(cases) * len(arms), desc=card.name, unit="call", disable=shared.quiet) as bar:
            found = run(
                backend,
                cases,
                settings,
                arms=arms,
                journal=journal,
                on_outcome=lambda _arm, _outcome: bar.update(1),
            )
    finally:
        backend.close()
    return card, found, journal


def _prove(
    shared: Shared, each: list[Settings], cases: list[Case], calls: int, out: Path | None, *, fresh: bool
) -> None:
    """The guarantee, tried on each model at both temperatures. Exit code 1 when it was not kept."""
    from tqdm import tqdm

    from localmem import models, runtime
    from localmem.bench.guarantee import TEMPERATURES, open_journal, prove
    from localmem.bench.reliability import journal_path, plain_settings
    from localmem.bench.report import write_record

    kept = True
    rows: list[tuple[object, ...]] = []
    for settings in each:
        card = models.find_card(settings.model, models.load_cards(settings.models_dir))
        settings = plain_settings(replace(settings, model=card.name))
        journal = open_journal(journal_path(settings, card, cases, "guarantee"))
        if fresh:
            journal.forget()
        backend = runtime.load_backend(settings)
        try:
            with tqdm(total=calls * len(TEMPERATURES), desc=card.name, unit="call", disable=shared.quiet) as bar:
                tallies = prove(
                    backend, cases, settings, card.profile, calls=calls, journal=journal, on_call=bar.update
                )
        finally:
            backend.close()
        for temperature, tally in tallies.items():
            kept = kept and tally.kept
            counts = (tally.calls, tally.parsed, tally.valid, tally.executable, tally.finished)
            rows.append((card.name, f"{temperature:g}", *counts))
            for failure in tally.failures:
                shared.say(failure)
        figures = {f"temperature_{temperature:g}": tally.figures() for temperature, tally in tallies.items()}
        if shared.as_json:
            print_json({"model": card.name, **figures})
        if out is not None:
            shared.say(f"wrote {write_record('guarantee', card.name, figures, out)}")
        journal.forget()
    if not shared.as_json:
        print_table(("model", "T", "calls", "parsed", "valid", "executable", "finished"), rows)
    if not kept:
        raise SystemExit(1)
