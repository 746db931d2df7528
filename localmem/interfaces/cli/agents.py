"""`localmem agents`: who there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from localmem.interfaces.cli import edits
from localmem.interfaces.cli.common import (
    DEFAULT_AGENT,
    JSON,
    MODEL_NAME,
    NUMBER,
    YES,
    Shared,
    confirm,
    find_agent,
    open_database,
    open_to_edit,
    print_json,
    print_table,
    shared,
    when,
)

if TYPE_CHECKING:
    from pathlib import Path

    from localmem.config import Settings
    from localmem.storage.agent_store import AgentRow
    from localmem.storage.database import Database


KEPT = "agent-snapshots"
"""The folder in the home directory."""


@click.group()
def agents() -> None:
    """List, create, show, export, restore and delete agents."""


@agents.command("list")
@shared(JSON)
def list_agents(shared: Shared) -> None:
    """Every agent, by name."""
    with open_database(shared.settings()) as (_, store):
        rows = store.list()
    if shared.as_json:
        print_json([_summary(row) for row in rows])
        return
    if not rows:
        shared.say("There are no agents yet; localmem chat makes one.")
    print_table(
        ("name", "model", "created", "last seen"),
        [(row.name, row.model, when(row.created_at), when(row.last_seen_at)) for row in rows],
    )


@agents.command()
@click.argument("name")
@shared(MODEL_NAME, JSON)
def create(shared: Shared, name: str) -> None:
    """Create an agent called NAME, with empty memory."""
    from localmem import models, runtime

    settings = shared.settings()
    models.find_card(settings.model, models.load_cards(settings.models_dir))
    with open_database(settings) as (_, store):
        row = runtime.create_agent(store, name, settings)
    if shared.as_json:
        print_json(_summary(row))
    else:
        shared.say(f"Created. Talk with it: localmem chat -a {row.name}")


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@shared(JSON)
def show(shared: Shared, name: str) -> None:
    """What there is of agent NAME."""
    from localmem.storage.attachments import Attachments

    settings = shared.settings()
    with open_database(settings) as (database, store):
        row = find_agent(store, name, settings)
        attached = [one.name for one in Attachments(database).of(row.id)]
        facts = {**_summary(row), **_amounts(database, row, settings), "reads": attached}
    if shared.as_json:
        print_json(facts)
        return
    shown = {**facts, "created_at": when(row.created_at), "last_seen_at": when(row.last_seen_at)}
    shown["reads"] = ", ".join(attached) or "nothing of others"
    width = max(map(len, shown))
    for key, value in shown.items():
        click.echo(f"{key.replace('_', ' '):{width}}  {value}")


@agents.command()
@click.argument("name")
@shared(YES)
def delete(shared: Shared, name: str, yes: bool) -> None:
    """Delete agent NAME and all it remembers."""
    from localmem import runtime
    from localmem.storage.lock import agent_lock

    settings = shared.settings()
    with open_database(settings) as (database, store):
        row = store.get(name)
        amounts = _amounts(database, row, settings)
        snapshots = kept(settings, name)
        also = f" and {len(snapshots)} snapshots" if snapshots else ""
        confirm(
            f"Delete {name!r} with its {amounts['messages']} messages, {amounts['passages']} passages{also}?", yes=yes
        )
        with agent_lock(settings.home / "locks", name):
            runtime.delete_agent(database, name, settings)
        for path in snapshots:
            path.unlink(missing_ok=True)
    shared.say(f"Deleted {name}.")


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@NUMBER
@shared(JSON)
def history(shared: Shared, name: str, number: int) -> None:
    """What was done to agent NAME: blocks, passages, summary and settings; newest first."""
    edits.show_history(replace(shared, agent=name), number)


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@click.option("--edit", "number", type=click.IntRange(min=1), metavar="EDIT", help="That one, an undo too.")
@shared(JSON)
def undo(shared: Shared, name: str, number: int | None) -> None:
    """Take back what was done last to agent NAME; again for what was before it."""
    edits.undo(replace(shared, agent=name), number=number)


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@shared(JSON)
def redo(shared: Shared, name: str) -> None:
    """Take back the newest undo, unless something was done after it."""
    edits.redo(replace(shared, agent=name))


_WHAT = (
    click.option("--block", "label", metavar="BLOCK", help="A block of OWNER's, always before NAME."),
    click.option("--archive", is_flag=True, help="OWNER's archival memory, searched with NAME's own."),
)


def _attachable(command: Callable[..., None]) -> Callable[..., None]:
    """NAME, OWNER, and which of the owner's memory."""
    for option in reversed(_WHAT):
        command = option(command)
    return click.argument("name")(click.argument("owner")(command))


@agents.command()
@_attachable
@shared(MODEL_NAME)
def attach(shared: Shared, name: str, owner: str, label: str | None, archive: bool) -> None:
    """Let agent NAME read a block of OWNER's, or its archive. It stays OWNER's, and NAME cannot change it."""
    wanted = _label(label, archive=archive)
    with open_to_edit(replace(shared, agent=name)) as agent:
        attached = agent.attach(owner, wanted)
    shared.say(f"{name} reads {attached.name}.")


@agents.command()
@_attachable
@shared(MODEL_NAME)
def detach(shared: Shared, name: str, owner: str, label: str | None, archive: bool) -> None:
    """Take away from agent NAME what it could read of OWNER's."""
    wanted = _label(label, archive=archive)
    with open_to_edit(replace(shared, agent=name)) as agent:
        agent.detach(owner, wanted)
    shared.say(f"{name} no longer reads {f'{owner}/{wanted}' if wanted else owner}.")


def _label(label: str | None, *, archive: bool) -> str:
    """The block's, or "" for the archive."""
    if archive == (label is not None) or label == "":
        raise click.UsageError("Say what of OWNER's: --block BLOCK or --archive.")
    return label or ""


def kept(settings: Settings, name: str) -> list[Path]:
    """The snapshots of an agent, the newest first. Raises LocalmemError for what is no name."""
    from localmem.storage.agent_store import check_agent_name

    check_agent_name(name)
    return sorted((settings.home / KEPT / name).glob("*.localmem"), reverse=True)


def _summary(row: AgentRow) -> dict[str, object]:
    fields = asdict(row)
    return {key: fields[key] for key in ("name", "model", "created_at", "last_seen_at")}


def _amounts(database: Database, row: AgentRow, settings: Settings) -> dict[str, int]:
    from localmem import runtime
    from localmem.storage.agent_store import AgentStore

    store = AgentStore(database)
    _, recall, archival = runtime.open_storages(row.name, settings, database=database)
    return {
        "messages": recall.count(),
        "queue": len(store.queue_ids(row.id)),
        "passages": archival.count(),
        "blocks": len(store.blocks(row.id)),
        "flushes": len(store.summaries(row.id)),
        "timers": len(store.timers(row.id)),
    }
