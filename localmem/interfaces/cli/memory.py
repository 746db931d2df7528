"""`localmem memory`: the working context, what the agent always has in mind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

import click

from localmem.errors import FunctionError, LocalmemError, WorkingContextFull
from localmem.interfaces.cli import edits
from localmem.interfaces.cli.common import (
    AGENT,
    JSON,
    MODEL_NAME,
    NUMBER,
    Shared,
    find_agent,
    one_line,
    open_database,
    open_to_edit,
    plain,
    print_json,
    read_text,
    shared,
)

if TYPE_CHECKING:
    from localmem.kernel.agent import Agent

_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_LIMIT_TOKENS = 300  # of a block that is added without saying
_BLOCK = click.argument("label", metavar="[BLOCK]", required=False)


@click.group()
def memory() -> None:
    """Show and edit the working context."""


@memory.command()
@shared(AGENT, JSON)
def show(shared: Shared) -> None:
    """Every block, as it is stored; those of others that are attached too."""
    from localmem.storage.attachments import Attachments

    settings = shared.settings()
    with open_database(settings) as (database, store):
        row = find_agent(store, shared.agent, settings)
        attached = Attachments(database).blocks(row.id)
        blocks = [*store.blocks(row.id), *(block for _, block in attached)]
    owners = {block.label: owner for owner, block in attached}
    if shared.as_json:
        print_json([{**asdict(block), "owner": owners.get(block.label)} for block in blocks])
    else:
        click.echo(blocks_text(blocks))


@memory.command("set")
@click.argument("label", metavar="BLOCK")
@click.argument("text")
@shared(AGENT, MODEL_NAME)
def set_block(shared: Shared, label: str, text: str) -> None:
    """Rewrite BLOCK with TEXT, or with stdin for -. An empty TEXT empties it."""
    value = text if not text.strip() else read_text(text)
    with open_to_edit(shared) as agent:
        _edit(lambda: agent.set_block(label, value))
        shared.say(f"{label}: {_filled(agent, label)}")


@memory.command()
@click.argument("label", metavar="BLOCK")
@click.option("--description", help="What the block is for, as the model reads it.")
@click.option("--limit", type=click.IntRange(min=8), help=f"Tokens it may hold; {_LIMIT_TOKENS} for a new one.")
@click.option("--read-only/--writable", default=None, help="Whether the model may change it; writable at first.")
@shared(AGENT, MODEL_NAME)
def add(shared: Shared, label: str, description: str | None, limit: int | None, read_only: bool | None) -> None:
    """Add a BLOCK, or change the description, limit and flag of one there is; its text stays."""
    from localmem.memory.working_context import Block

    if not _LABEL.fullmatch(label):
        raise click.UsageError(f"{label!r} cannot name a block: use 1 to 32 of a-z, 0-9, _ and -, a letter first.")
    with open_to_edit(shared) as agent:
        known = {block.label: block for block in agent.working_context.blocks}
        block = known.get(label, Block(label, "", limit=_LIMIT_TOKENS))
        changed = replace(
            block,
            description=block.description if description is None else one_line(description),
            limit=block.limit if limit is None else limit,
            read_only=block.read_only if read_only is None else read_only,
        )
        _edit(lambda: agent.add_block(changed))
        shared.say(f"{label}: {_filled(agent, label)}")


@memory.command()
@_BLOCK
@NUMBER
@shared(AGENT, JSON)
def history(shared: Shared, label: str | None, number: int) -> None:
    """What was done to BLOCK, or to all of them, by whom and when; newest first."""
    edits.show_history(shared, number, "block", label)


@memory.command()
@click.argument("label", metavar="BLOCK")
@click.option("--since", type=click.IntRange(min=1), metavar="EDIT", help="From that edit on; only the newest without.")
@shared(AGENT)
def diff(shared: Shared, label: str, since: int | None) -> None:
    """What the newest edit of BLOCK changed in it, or all edits from one on."""
    with edits.open_history(shared) as found:
        made = [edit for edit in found.edits("block", label) if since is None or edit.number >= since]
    if not made:
        shared.say("Nothing was done to it.")
        return
    first = made[0] if since is None else made[-1]
    click.echo(edits.diff_text(label, first.before, made[0].after) or "The text is the same.")


@memory.command()
@_BLOCK
@click.option("--edit", "number", type=click.IntRange(min=1), metavar="EDIT", help="That one, an undo too.")
@shared(AGENT, JSON)
def undo(shared: Shared, label: str | None, number: int | None) -> None:
    """Take back the newest edit of BLOCK, or of any block; again for the one before it."""
    edits.undo(shared, "block", label, number=number)


@memory.command()
@_BLOCK
@shared(AGENT, JSON)
def redo(shared: Shared, label: str | None) -> None:
    """Take back the newest undo, unless something was done after it."""
    edits.redo(shared, "block", label)


class _Shown(Protocol):
    """What a block, stored or live, shows of itself."""

    @property
    def label(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


def blocks_text(blocks: Iterable[_Shown]) -> str:
    """Blocks as people read them."""
    return "\n".join(
        f"[{block.label}] {plain(block.description)}{' (read-only)' if block.read_only else ''}\n"
        + _indented(block.value or "(empty)")
        for block in blocks
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in plain(text).split("\n"))


def _filled(agent: Agent, label: str) -> str:
    return f"{agent.working_context.used(label)} of {agent.working_context.block(label).limit} tokens"


def _edit(change: Callable[[], None]) -> None:
    """Make a change whose refusal is worded for the model; here it is worded for people."""
    try:
        change()
    except WorkingContextFull as error:
        raise LocalmemError(
            str(error).partition(";")[0],
            "Write less, or raise its limit: localmem memory add BLOCK --limit N.",
        ) from error
    except FunctionError as error:
        raise LocalmemError(str(error), "localmem memory add BLOCK adds one.") from error
