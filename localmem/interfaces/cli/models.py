"""`localmem models`: which models there are, and getting them onto this machine."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localmem.errors import ModelError, ModelNotFound
from localmem.interfaces.cli.common import (
    JSON,
    YES,
    Shared,
    confirm,
    one_line,
    plain,
    print_json,
    print_table,
    shared,
)

if TYPE_CHECKING:
    from localmem.config import Settings
    from localmem.models import ModelCard, ProgressFactory


@click.group()
def models() -> None:
    """List, get and check models."""


@models.command("list")
@shared(JSON)
def list_models(shared: Shared) -> None:
    """Every model there is a card for; * marks the one in force."""
    from localmem.models import load_cards

    settings = shared.settings()
    cards = load_cards(settings.models_dir)
    here = {name: _path(card, settings) for name, card in cards.items()}
    if shared.as_json:
        print_json([{**_facts(card), "path": here[name]} for name, card in cards.items()])
        return
    print_table(
        ("", "name", "MB", "here", "license", "description"),
        [
            (
                "*" if settings.model in (name, *card.aliases) else "",
                name,
                f"{card.size_bytes / 1e6:,.0f}",
                "yes" if here[name] else "no",
                card.license,
                one_line(card.description, 60),
            )
            for name, card in cards.items()
        ],
    )


@models.command()
@click.argument("name", metavar="[NAME]", required=False)
@shared(JSON)
def show(shared: Shared, name: str | None) -> None:
    """The card of NAME, or of the model in force."""
    settings, card = _card(shared, name)
    facts = {**_facts(card), "path": _path(card, settings)}
    if shared.as_json:
        print_json(facts)
        return
    for key in ("name", "description", "license", "file", "size_bytes", "sha256", "context_window", "path"):
        click.echo(f"{key.replace('_', ' '):14}  {'-' if facts[key] in (None, '') else plain(str(facts[key]))}")
    for key, value in card.profile.asking.items():
        click.echo(f"{key:14}  {_shown(value)}")
    calibration = card.profile.calibration
    click.echo(f"{'calibrated':14}  {'no' if calibration is None else calibration.evidence}")
    click.echo(f"{'run here':14}  {'yes' if card.run_here else 'no: not tried by this project'}")


@models.command()
@click.argument("name", metavar="[NAME]", required=False)
@shared()
def pull(shared: Shared, name: str | None) -> None:
    """Get the weights of NAME, or of the model in force, and print where they lie.

    Sources are tried in order, every byte is checked, and an interrupted pull goes on where it was.
    """
    from localmem import pull as pulling

    settings, card = _card(shared, name)
    click.echo(pulling.pull(card, settings.models_dir, progress=_progress(shared), notify=shared.say))


@models.command()
@click.argument("file", metavar="FILE.gguf", type=click.Path(path_type=Path))
@shared(YES, JSON)
def add(shared: Shared, file: Path, yes: bool) -> None:
    """Make a card for a GGUF file, where it lies; then -m NAME works."""
    from localmem.backend.first_load import ensure_loadable
    from localmem.models import card_from_gguf, load_cards, write_card

    settings = shared.settings()
    file = file.expanduser().absolute()
    if not str(file).isprintable():  # llama.cpp takes paths as UTF-8, and a card is text
        raise ModelError(f"the name of {file} is not plain text", "Rename the file, or link to it.")
    ensure_loadable(file, settings.models_dir)
    card = card_from_gguf(file, progress=_progress(shared))
    known = load_cards(settings.models_dir).get(card.name)
    if known is not None and known.sha256 != card.sha256:
        confirm(f"There is another model called {card.name!r}. Put this one in its place?", yes=yes)
    path = write_card(card, settings.models_dir)
    if shared.as_json:
        print_json({**_facts(card), "card": path})
    else:
        click.echo(card.name)
        shared.say(f"Its card is {path}. Talk with it: localmem -m {card.name}")


@models.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--cases", "file", type=click.Path(path_type=Path), metavar="FILE", help="Your own cases to tune on.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Fit on a fixed sample of some N cases.")
@click.option("--trials", type=click.IntRange(min=0), default=60, show_default=True, help="Cases for each profile.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the card is written.")
@click.option("-t", "--threads", type=int, metavar="N", help="Threads; 0 lets a probe choose.")
@shared(JSON)
def tune(
    shared: Shared, name: str | None, *, file: Path | None, limit: int | None, trials: int, out: Path | None
) -> None:
    """Find how NAME is best asked for calls, and write it into its card.

    Tries some profiles on a sample of the development cases, takes the best, and fits the calibration to all of them.
    """
    from tqdm import tqdm

    from localmem import runtime
    from localmem.bench.cases import read_cases, sample, sample_people, shipped_cases
    from localmem.bench.looks import Looks
    from localmem.bench.reliability import journal_path, open_journal, plain_settings
    from localmem.bench.tuning import PROFILES, REGRESSIONS, fit, look_at, try_profiles
    from localmem.bench.variants import variants
    from localmem.models import write_card

    settings, card = _card(shared, name)
    settings = plain_settings(replace(settings, model=card.name))
    cases = shipped_cases("dev") if file is None else read_cases(file)
    if limit is not None:
        cases = sample_people(cases, limit)
    looked_at = [*cases, *variants(cases)]
    tried, on_trial = PROFILES if trials else (card.profile,), sample(cases, trials)
    journal = open_journal(journal_path(settings, card, on_trial, "trials"))
    backend = runtime.load_backend(settings)
    try:
        cases_in_all = trials * len(tried) + len(looked_at)
        with tqdm(total=cases_in_all, desc=card.name, unit="case", disable=shared.quiet) as bar:
            found = try_profiles(backend, on_trial, settings, tried, journal=journal, on_case=lambda _: bar.update(1))
            best = found[0].profile
            decisions, prompt = look_at(
                backend,
                looked_at,
                settings,
                best,
                looks=Looks(settings.home / "bench" / f"{card.name}.looks.jsonl"),
                weights=card.sha256 or card.name,
                on_case=lambda _: bar.update(1),
            )
    finally:
        backend.close()
    with tqdm(total=REGRESSIONS, desc="fitting", unit="fit", disable=shared.quiet) as bar:
        fitted = fit(decisions, prompt, on_regression=bar.update)
    evidence = fitted.evidence
    profile = replace(best, calibration=fitted if evidence.helps else None)
    path = write_card(replace(card, profile=profile), out or settings.models_dir)
    journal.put_away()
    if shared.as_json:
        scores = [{**trial.profile.asking, "right_call": round(trial.right, 4)} for trial in found]
        choice = {**asdict(evidence), "used": evidence.helps}
        print_json({"model": card.name, "card": path, "profile": best.asking, "trials": scores, "calibration": choice})
        return
    if trials:
        rows = [(*map(_shown, trial.profile.asking.values()), f"{trial.right:.1%}") for trial in found]
        print_table((*best.asking, f"right calls of {trials}"), rows)
    click.echo(f"Calibration: {evidence}{'' if evidence.helps else '; it does not help and is left out'}.")
    click.echo(f"Wrote {path}.")


@models.command()
@click.argument("name", metavar="[NAME]", required=False)
@shared()
def check(shared: Shared, name: str | None) -> None:
    """Compare the weights of NAME with its card, byte for byte."""
    from localmem.models import check as check_weights
    from localmem.models import locate

    settings, card = _card(shared, name)
    path = locate(card, settings)
    check_weights(card, path, _progress(shared))
    click.echo(f"{path}: {'right' if card.sha256 else 'a GGUF file of the right size; the card has no sha256'}")


@models.command("path")
@click.argument("name", metavar="[NAME]", required=False)
@shared()
def path_of(shared: Shared, name: str | None) -> None:
    """Where the weights of NAME lie; exit code 1 when they are not on this machine."""
    from localmem.models import locate

    settings, card = _card(shared, name)
    click.echo(locate(card, settings))


def _card(shared: Shared, name: str | None) -> tuple[Settings, ModelCard]:
    from localmem.models import find_card, load_cards

    settings = shared.settings()
    return settings, find_card(name or settings.model, load_cards(settings.models_dir))


def _shown(value: str | bool) -> str:
    return value if isinstance(value, str) else "yes" if value else "no"


def _facts(card: ModelCard) -> dict[str, Any]:  # Any: JSON
    """The card as plain values; of the calibration, which is rows of numbers, what it knows and how well."""
    facts = asdict(replace(card, profile=replace(card.profile, calibration=None)))
    calibration = card.profile.calibration
    known: dict[str, Any] | None = None
    if calibration is not None:
        known = {"choices": [str(choice) for choice in calibration.choices], **asdict(calibration.evidence)}
    return {**facts, "profile": {**facts["profile"], "calibration": known}}


def _path(card: ModelCard, settings: Settings) -> Path | None:
    from localmem.models import locate

    try:
        return locate(card, settings)
    except ModelNotFound:
        return None


def _progress(shared: Shared) -> ProgressFactory | None:
    from localmem.pull import tqdm_progress

    return None if shared.quiet else tqdm_progress
