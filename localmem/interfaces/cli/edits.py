"""What the groups `memory`, `archival` and `agents` share: what was done, shown and taken back."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from localmem.interfaces.cli.common import Shared, find_agent, one_line, open_database, plain, print_json, when

if TYPE_CHECKING:
    from localmem.memory.history import History
    from localmem.storage.edit_log import Attribution, Edit, EditKind, State


@contextmanager
def open_history(shared: Shared, *, to_change: bool = False) -> Generator[History]:
    """What was done to the agent's memory, without its model; `to_change` locks the agent."""
    from contextlib import ExitStack

    from localmem import runtime
    from localmem.memory.history import History
    from localmem.storage.lock import agent_lock

    settings = shared.settings()
    with ExitStack() as held:
        database, store = held.enter_context(open_database(settings))
        row = find_agent(store, shared.agent, settings)
        if to_change:
            held.enter_context(agent_lock(settings.home / "locks", row.name))
        embedder = runtime.make_embedder(settings)
        _, _, archival = runtime.open_storages(row.name, settings, database=database, embedder=embedder)
        yield History(database, row.id, archival)
        if to_change:
            archival.save_index()


def show_history(shared: Shared, number: int, kind: EditKind | None = None, item: str | None = None) -> None:
    """The newest edits, newest first."""
    with open_history(shared) as history:
        edits = history.edits(kind, item, number)
    if shared.as_json:
        print_json([asdict(edit) for edit in edits])
        return
    if not edits:
        shared.say("Nothing was done yet.")
    for edit in edits:
        click.echo(edit_text(edit))


def undo(shared: Shared, kind: EditKind | None = None, item: str | None = None, *, number: int | None = None) -> None:
    """Take back the newest edit that stands, or that of a number, and say which it was."""
    with open_history(shared, to_change=True) as history:
        edits = history.undo(_by_user(), kind, item) if number is None else [history.revert(number, _by_user())]
    _report(shared, "Undone", edits)


def redo(shared: Shared, kind: EditKind | None = None, item: str | None = None) -> None:
    """Take back the newest undo, and say which it was."""
    with open_history(shared, to_change=True) as history:
        undos = history.redo(_by_user(), kind, item)
        edits = [history.edit(edit.reverts) for edit in undos if edit.reverts is not None]
    _report(shared, "Done again", edits)


def _by_user() -> Attribution:
    from localmem.runtime import utc_now
    from localmem.storage.edit_log import Attribution

    return Attribution("user", utc_now())


def _report(shared: Shared, done: str, edits: list[Edit]) -> None:
    if shared.as_json:
        print_json([asdict(edit) for edit in edits])
        return
    for edit in edits:
        click.echo(f"{done}: {edit_text(edit)}")


def edit_text(edit: Edit) -> str:
    """An edit as people read it: when, which, of what, by whom, and what it changed."""
    step = "" if edit.step_id is None else f", step {edit.step_id}"
    back = "" if edit.reverts is None else f", takes back {edit.reverts}"
    head = f"[{when(edit.created_at)}] {edit.number} {one_line(edit.item or edit.kind)}, by {edit.author}{step}{back}:"
    return "\n".join((head, *(f"  {line}" for line in _changes(edit))))


def diff_text(label: str, before: State | None, after: State | None) -> str:
    """Two states of a block, line by line; "" where its text is the same."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"{label} before", f"{label} after", lineterm="")
    return plain("\n".join(lines))


def _changes(edit: Edit) -> Iterator[str]:
    if edit.kind == "passages":
        state = edit.after or edit.before or {}
        ids = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in state["ids"])
        source = "" if state["source"] is None else f" of {one_line(state['source'], 40)}"
        one = len(state["ids"]) == 1 and state["ids"][0][0] == state["ids"][0][1]
        yield f"passage{'' if one else 's'} {ids}{source} {'stored' if edit.before is None else 'deleted'}"
    elif edit.kind == "setting":
        yield f"{_value(edit.before)} -> {_value(edit.after)}"
    else:
        yield from _block_changes(edit.before, edit.after)


def _block_changes(before: State | None, after: State | None) -> Iterator[str]:
    """Its lines that went and came; what else a block is made of, where that changed."""
    if after is None:
        yield "deleted"
    for line in difflib.ndiff(_lines(before), _lines(after)):
        if line[0] in "-+":
            yield plain(line)
    if before is not None and after is not None:
        for key in after:
            if key not in ("value", "text") and before.get(key) != after[key]:
                yield f"{key}: {one_line(str(before.get(key)))} -> {one_line(str(after[key]))}"


def _lines(state: State | None) -> list[str]:
    text = "" if state is None else str(state.get("value", state.get("text", "")))
    return text.split("\n") if text else []


def _value(state: State | None) -> str:
    """A setting on one line; when a timer was next due is left out."""
    if state is None:
        return "nothing"
    return one_line(
        ", ".join(str(value) for name, value in sorted(state.items(), reverse=True) if name != "next_due_at")
    )
