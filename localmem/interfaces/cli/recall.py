"""`localmem recall`: everything that was ever said."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

import click

from localmem.interfaces.cli.common import (
    AGENT,
    JSON,
    PAGE_SIZE,
    PAGES,
    Option,
    Shared,
    open_storages,
    page_note,
    plain,
    print_json,
    shared,
    when,
)

if TYPE_CHECKING:
    from localmem.kernel.messages import Message
    from localmem.memory.search import Page

_SHOWN_CHARACTERS = 2_000
_DAY = click.DateTime(formats=["%Y-%m-%d"])
_DAYS: tuple[Option, ...] = (
    click.option("--since", type=_DAY, metavar="DATE", help="First day, YYYY-MM-DD."),
    click.option("--until", type=_DAY, metavar="DATE", help="Last day, itself included."),
)


@click.group()
def recall() -> None:
    """Search all that was said."""


@recall.command()
@click.argument("query")
@shared(AGENT, _DAYS, PAGES, JSON)
def search(shared: Shared, query: str, since: datetime | None, until: datetime | None, page: int) -> None:
    """What was said about QUERY, by its words and its meaning, best first."""
    first, last = _span(since, until)
    with open_storages(shared) as (storage, _):
        found = storage.search(query, since=first, until=last, page=page - 1, page_size=PAGE_SIZE)
    _show(shared, found, page)


@recall.command()
@shared(AGENT, _DAYS, PAGES, JSON)
def dates(shared: Shared, since: datetime | None, until: datetime | None, page: int) -> None:
    """What was said between two days, in the order it was said."""
    first, last = _span(since, until)
    with open_storages(shared) as (storage, _):
        found = storage.between(first, last, page=page - 1, page_size=PAGE_SIZE)
    _show(shared, found, page)


def _span(since: datetime | None, until: datetime | None) -> tuple[date | None, date | None]:
    if since and until and until < since:
        raise click.UsageError("--until is before --since.")
    return since.date() if since else None, until.date() if until else None


def _show(shared: Shared, found: Page[Message], page: int) -> None:
    if shared.as_json:
        items = [
            {"id": message.id, "kind": message.kind, "created_at": message.created_at, "text": message.text}
            for message in found.items
        ]
        print_json({"total": found.total, "more": found.more, "page": page, "pages": found.pages, "items": items})
        return
    shared.say(page_note(found, page))
    for message in found.items:
        who = "user" if message.kind == "user_message" else "agent"
        click.echo(f"[{when(message.created_at)}] {who}: {_shown(message.text)}")


def _shown(text: str) -> str:
    """A message as people read it; a megabyte would bury the others."""
    if len(text) <= _SHOWN_CHARACTERS:
        return plain(text)
    return f"{plain(text[:_SHOWN_CHARACTERS])}… ({len(text):,} characters; --json prints them all)"
