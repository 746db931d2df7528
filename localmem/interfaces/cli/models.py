"""`localmem models`: which models there are, and getting them onto this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

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
        print_json([{**asdict(card), "path": here[name]} for name, card in cards.items()])
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
    facts = {**asdict(card), "path": _path(card, settings)}
    if shared.as_json:
        print_json(facts)
        return
    for key in ("name", "description", "license", "file", "size_bytes", "sha256", "context_window", "path"):
        click.echo(f"{key.replace('_', ' '):14}  {'-' if facts[key] in (None, '') else plain(str(facts[key]))}")
    click.echo(f"{'call frame':14}  {card.profile.frame}")
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
    from localmem.backend.llama_library import open_vocabulary
    from localmem.models import card_from_gguf, check_gguf, load_cards, write_card

    settings = shared.settings()
    file = file.expanduser().absolute()
    if not str(file).isprintable():  # llama.cpp takes paths as UTF-8, and a card is text
        raise ModelError(f"the name of {file} is not plain text", "Rename the file, or link to it.")
    check_gguf(file)
    with open_vocabulary(file) as model:
        metadata = model.metadata()
    card = card_from_gguf(file, metadata, progress=_progress(shared))
    known = load_cards(settings.models_dir).get(card.name)
    if known is not None and known.sha256 != card.sha256:
        confirm(f"There is another model called {card.name!r}. Put this one in its place?", yes=yes)
    path = write_card(card, settings.models_dir)
    if shared.as_json:
        print_json({**asdict(card), "card": path})
    else:
        click.echo(card.name)
        shared.say(f"Its card is {path}. Talk with it: localmem -m {card.name}")


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


def _path(card: ModelCard, settings: Settings) -> Path | None:
    from localmem.models import locate

    try:
        return locate(card, settings)
    except ModelNotFound:
        return None


def _progress(shared: Shared) -> ProgressFactory | None:
    from localmem.pull import tqdm_progress

    return None if shared.quiet else tqdm_progress
