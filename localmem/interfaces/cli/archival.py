"""`localmem archival`: passages the agent can search, documents among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localmem.errors import LocalmemError
from localmem.interfaces.cli import edits
from localmem.interfaces.cli.common import (
    AGENT,
    JSON,
    MODEL_NAME,
    NUMBER,
    PAGE_SIZE,
    PAGES,
    YES,
    Shared,
    confirm,
    one_line,
    open_storages,
    open_to_edit,
    page_note,
    plain,
    print_json,
    progress_bar,
    read_text,
    shared,
)

if TYPE_CHECKING:
    from localmem.memory.archival import Archival, Passage
    from localmem.memory.search import Page


@click.group()
def archival() -> None:
    """Add, load, search and delete passages."""


@archival.command()
@click.argument("text")
@click.option("--source", help="Where the text is from.")
@click.option("--tag", "tags", multiple=True, help="A tag; repeatable.")
@shared(AGENT, JSON)
def add(shared: Shared, text: str, source: str | None, tags: tuple[str, ...]) -> None:
    """Store TEXT, or stdin for -. A long text becomes several passages."""
    from localmem.kernel.tokens import clean
    from localmem.memory.archival import split_text

    pieces = split_text(clean(read_text(text)))
    with open_storages(shared) as (_, storage), progress_bar(shared, len(pieces), "passages") as advance:
        stored = storage.insert_many(pieces, source=source, tags=tags, progress=advance)
    if shared.as_json:
        print_json([_object(passage) for passage in stored])
    else:
        shared.say(f"Stored as {'passage' if len(stored) == 1 else 'passages'} {_ids(stored)}.")


@archival.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Drop what is stored of a file of that name.")
@shared(AGENT, MODEL_NAME)
def load(shared: Shared, files: tuple[Path, ...], replace: bool) -> None:
    """Store text and Markdown files as passages, and tell the agent.

    Every file is read and checked before the first is stored. A file's name is its passages' source.
    """
    documents = [_document(path) for path in files]
    with open_to_edit(shared) as agent:
        old = _stored(agent.archival, documents, replace=replace)
        for document in documents:
            with progress_bar(shared, len(document.pieces), "passages", document.name) as advance:
                agent.upload(document.name, document.pieces, progress=advance)
            shared.say(f"{plain(document.name)}: {len(document.pieces)} passages")
        agent.archival.delete(old)  # last: an interruption leaves too much, not too little


@archival.command()
@click.argument("query")
@click.option("--source", help="Only passages of that source.")
@click.option("--tag", "tags", multiple=True, help="Only passages with that tag; repeatable.")
@shared(AGENT, PAGES, JSON)
def search(shared: Shared, query: str, source: str | None, tags: tuple[str, ...], page: int) -> None:
    """Passages about QUERY, by words and meaning, best first."""
    with open_storages(shared) as (_, storage):
        found = storage.search(query, source=source, tags=tags, page=page - 1, page_size=PAGE_SIZE)
        stale = storage.stale_count()
    _show(shared, found, page)
    if stale:
        shared.say(f"{stale} passages were found by their words only; localmem archival reindex mends that.")


@archival.command("list")
@click.option("--source", help="Only passages of that source.")
@shared(AGENT, PAGES, JSON)
def list_passages(shared: Shared, source: str | None, page: int) -> None:
    """Passages in the order they were stored."""
    with open_storages(shared) as (_, storage):
        found = storage.list(page=page - 1, page_size=PAGE_SIZE, source=source)
    _show(shared, found, page)


@archival.command()
@click.argument("passage_id", metavar="ID", type=int)
@shared(AGENT, YES)
def delete(shared: Shared, passage_id: int, yes: bool) -> None:
    """Delete passage ID. It can be brought back: localmem archival undo."""
    confirm(f"Delete passage {passage_id}?", yes=yes)
    with open_storages(shared) as (_, storage):
        found = storage.delete([passage_id])
    if not found:
        raise LocalmemError(f"there is no passage {passage_id}", "localmem archival list shows them.")
    shared.say(f"Deleted passage {passage_id}.")


@archival.command()
@NUMBER
@shared(AGENT, JSON)
def history(shared: Shared, number: int) -> None:
    """What was stored and deleted, by whom and when; newest first."""
    edits.show_history(shared, number, "passages")


@archival.command()
@click.option("--edit", "number", type=click.IntRange(min=1), metavar="EDIT", help="That one, an undo too.")
@shared(AGENT, JSON)
def undo(shared: Shared, number: int | None) -> None:
    """Take back what was stored or deleted last; again for what was before it."""
    edits.undo(shared, "passages", number=number)


@archival.command()
@shared(AGENT, JSON)
def redo(shared: Shared) -> None:
    """Take back the newest undo, unless something was stored or deleted after it."""
    edits.redo(shared, "passages")


@archival.command()
@shared(AGENT, YES)
def purge(shared: Shared, yes: bool) -> None:
    """Forget for good what was deleted."""
    with open_storages(shared) as (_, storage):
        found = storage.deleted_count()
        if not found:
            shared.say("Nothing is kept of what was deleted.")
            return
        confirm(f"Forget {found} deleted passages? They cannot be brought back.", yes=yes)
        storage.purge()
    shared.say(f"{found} deleted passages are forgotten.")


@archival.command()
@shared(AGENT)
def reindex(shared: Shared) -> None:
    """Give every passage a vector of the present embedder."""
    if shared.settings().embedder == "none":
        raise LocalmemError("there is no embedder to index with", "Choose one: -o embedder all-MiniLM-L6-v2.")
    with open_storages(shared) as (_, storage), progress_bar(shared, storage.count(), "passages") as advance:
        done = storage.reindex(advance)
    shared.say(f"{done} passages have their vectors.")


@dataclass(frozen=True, slots=True)
class _Document:
    """A text file, cut into passages."""

    name: str
    pieces: list[str]


def _document(path: Path) -> _Document:
    """Raises LocalmemError for what is no text."""
    from localmem.kernel.tokens import clean
    from localmem.memory.archival import split_text

    way_out = "Load plain text or Markdown, saved as UTF-8."
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise LocalmemError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise LocalmemError(f"{path} is not UTF-8 text (byte {error.start})", way_out) from error
    if "\0" in text:
        raise LocalmemError(f"{path} is not a text file: it holds NULs", way_out)
    pieces = split_text(clean(text.replace("\r\n", "\n")))
    if not text.strip():
        raise LocalmemError(f"{path} is empty", way_out)
    return _Document(clean(path.name), pieces)


def _stored(storage: Archival, documents: list[_Document], *, replace: bool) -> list[int]:
    """The passages that new ones of the same name take the place of. Raises LocalmemError unless that is meant."""
    names = [document.name for document in documents]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LocalmemError(f"two files are called {twice[0]}", "Rename one: a name is a passage's source.")
    known = {source: number for source, number in storage.sources() if source in names}
    if known and not replace:
        name = next(iter(known))
        raise LocalmemError(f"{name} is stored already, in {known[name]} passages", "Add --replace to store it anew.")
    return [
        passage.id
        for source, number in known.items()
        for passage in storage.list(page_size=max(1, number), source=source).items
    ]


def _show(shared: Shared, found: Page[Passage], page: int) -> None:
    if shared.as_json:
        items = [_object(passage) for passage in found.items]
        print_json({"total": found.total, "more": found.more, "page": page, "pages": found.pages, "items": items})
        return
    shared.say(page_note(found, page))
    for passage in found.items:
        source = f" {one_line(passage.source, 40)}" if passage.source else ""
        tags = "".join(f" #{one_line(tag, 30)}" for tag in passage.tags)
        click.echo(f"{passage.id:>5}{source}{tags}: {one_line(passage.text)}")


def _object(passage: Passage) -> dict[str, object]:
    return {
        "id": passage.id,
        "text": passage.text,
        "source": passage.source,
        "tags": list(passage.tags),
        "created_at": passage.created_at,
        "score": round(float(passage.score), 4),
    }


def _ids(passages: list[Passage]) -> str:
    first, last = passages[0].id, passages[-1].id
    return str(first) if first == last else f"{first} to {last}"
