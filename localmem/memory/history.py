"""Undo and redo of what was done to an agent's memory.

Taking an edit back puts its item as it was before, which is an edit of its own. `undo` takes back the newest edit that
still stands, `redo` the newest undo that nothing was done after; the passages of one document go together. A block, the
summary or a setting must be as the edit left it: what came later is undone first. Passages are taken out and put back
whatever was done to others since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from localmem.errors import LocalmemError
from localmem.memory.archival import Archival, ids_of
from localmem.storage.agent_store import ATTACHED, MODEL, PAUSE, TIMER, AgentStore, TimerRow, block_of, state_of
from localmem.storage.attachments import Attachments
from localmem.storage.database import Database, utc_moment
from localmem.storage.edit_log import Attribution, Edit, EditKind, EditLog, State

_SHORT = "Look at what was done: localmem memory history, archival history, agents history."


class History:
    """What was done to one agent's memory, to be looked at and taken back."""

    def __init__(self, database: Database, agent_id: int, archival: Archival) -> None:
        self._database = database
        self._agent_id = agent_id
        self._archival = archival
        self._store = AgentStore(database)
        self._attachments = Attachments(database)
        self._log = EditLog(database)

    def edits(self, kind: EditKind | None = None, item: str | None = None, limit: int | None = None) -> list[Edit]:
        """Newest first."""
        return self._log.edits(self._agent_id, kind=kind, item=item, limit=limit)

    def edit(self, number: int) -> Edit:
        """Raises LocalmemError when there is none of that number."""
        found = self._log.edit(self._agent_id, number)
        if found is None:
            raise LocalmemError(f"there is no edit {number}", _SHORT)
        return found

    def undo(self, by: Attribution, kind: EditKind | None = None, item: str | None = None) -> list[Edit]:
        """Take back the newest edit that stands, and those made with it; what was taken back, newest first.

        What the agent began with, or was imported with, is only taken back by its number. Raises LocalmemError when
        there is nothing to undo.
        """
        edits = self.edits(kind, item)
        undone = _undone(edits)
        standing = [edit for edit in edits if edit.reverts is None and edit.number not in undone]
        standing = [edit for edit in standing if edit.author != "import"]
        if not standing:
            raise LocalmemError("there is nothing to undo", _SHORT)
        return self._revert_all(_made_together(standing), by)

    def redo(self, by: Attribution, kind: EditKind | None = None, item: str | None = None) -> list[Edit]:
        """Take back the newest undo after which nothing was done; the undos that were taken back, newest first.

        Raises LocalmemError when there is nothing to redo.
        """
        edits = self.edits(kind, item)
        undone, numbers = _undone(edits), {edit.number for edit in edits if edit.reverts is None}
        newest = max(numbers, default=0)
        undos = [
            edit for edit in edits if edit.reverts in numbers and edit.number not in undone and edit.number > newest
        ]
        if not undos:
            raise LocalmemError("there is nothing to redo", _SHORT)
        return self._revert_all(_made_together(undos), by)

    def revert(self, number: int, by: Attribution) -> Edit:
        """Take back one edit, an undo too. Raises LocalmemError when it was already, or others stand on it."""
        edit = self.edit(number)
        if number in _undone(self.edits(edit.kind, edit.item)):
            raise LocalmemError(f"edit {number} was taken back already", _SHORT)
        self._revert_all([edit], by)
        return edit

    def check(self) -> None:
        """Raises LocalmemError when an edit is not as it was written."""
        broken = self._log.first_broken(self._agent_id)
        if broken is not None:
            raise LocalmemError(
                f"the history was changed from outside: edit {broken} is not as it was written",
                "Nothing is undone on such a history. Restore a snapshot (localmem agents restore) or a backup.",
            )

    def _revert_all(self, edits: Sequence[Edit], by: Attribution) -> list[Edit]:
        self.check()
        with self._database.transaction():
            for edit in edits:
                self._revert(edit, by)
            # The window shows it the next time it is made.
            self._store.set_rendered_context(self._agent_id, "")
        return list(edits)

    def _revert(self, edit: Edit, by: Attribution) -> None:
        if edit.kind == "passages":
            self._revert_passages(edit, by)
            return
        newest = self.edits(edit.kind, edit.item, limit=1)[0]
        if newest.after != edit.after or (edit.kind == "block" and self._block(edit.item) != edit.after):
            raise LocalmemError(
                f"edit {edit.number} cannot be taken back: {edit.item or edit.kind} was changed since",
                f"Undo what came after it first; edit {newest.number} is the newest.",
            )
        match edit.kind:
            case "block":
                self._put_block(edit, by)
            case "summary":
                self._put_summary(edit, by)
            case "setting":
                self._put_setting(edit, by)

    def _revert_passages(self, edit: Edit, by: Attribution) -> None:
        if edit.after is not None:
            self._archival.delete(ids_of(edit.after), by, reverts=edit.number)
            return
        assert edit.before is not None, "passages come or go"
        if not self._archival.restore(ids_of(edit.before), by, reverts=edit.number):
            raise LocalmemError(
                f"edit {edit.number} cannot be taken back: its passages were purged",
                "Another is taken back by its number: localmem archival undo --edit N.",
            )

    def _block(self, label: str) -> State | None:
        """The block as it really is."""
        return next((state_of(block) for block in self._store.blocks(self._agent_id) if block.label == label), None)

    def _put_block(self, edit: Edit, by: Attribution) -> None:
        if edit.before is None:
            self._store.delete_block(self._agent_id, edit.item, by, reverts=edit.number)
        else:
            self._store.put_block(self._agent_id, block_of(edit.item, edit.before), by, reverts=edit.number)

    def _put_summary(self, edit: Edit, by: Attribution) -> None:
        current = self._store.current_summary(self._agent_id)
        text = "" if edit.before is None else edit.before["text"]
        evicted = 0 if current is None else current.evicted_messages  # what left the queue has left it
        self._store.add_summary(self._agent_id, text, evicted, by, reverts=edit.number)

    def _put_setting(self, edit: Edit, by: Attribution) -> None:
        before = edit.before
        if edit.item == MODEL:
            assert before is not None, "an agent always has a model"
            self._store.set_model(self._agent_id, before["name"], by, reverts=edit.number)
        elif edit.item == PAUSE:
            until = None if before is None else utc_moment(before["until"])
            self._store.pause_timers(self._agent_id, until, by, reverts=edit.number)
        elif edit.item.startswith(ATTACHED):
            self._put_attachment(edit, by)
        elif before is None:
            self._store.delete_timer(self._agent_id, edit.item.removeprefix(TIMER), by, reverts=edit.number)
        else:
            due = utc_moment(before["next_due_at"])
            timer = TimerRow(edit.item.removeprefix(TIMER), before["schedule"], before["note"], due, by.moment)
            self._store.put_timer(self._agent_id, timer, by, reverts=edit.number)

    def _put_attachment(self, edit: Edit, by: Attribution) -> None:
        if edit.before is not None:
            self._attachments.add(self._agent_id, edit.before["owner"], edit.before["label"], by, reverts=edit.number)
        elif edit.after is not None:
            self._attachments.remove(self._agent_id, edit.after["owner"], edit.after["label"], by, reverts=edit.number)


def _undone(edits: Iterable[Edit]) -> set[int]:
    """The numbers of those that another of them, which still stands, takes back."""
    undone: set[int] = set()
    for edit in sorted(edits, key=lambda edit: edit.number, reverse=True):  # what takes it back comes after it
        if edit.reverts is not None and edit.number not in undone:
            undone.add(edit.reverts)
    return undone


def _made_together(edits: Sequence[Edit]) -> list[Edit]:
    """The first; of passages those behind it too that came or went in the same moment, as those of one document do."""
    first = edits[0]
    if first.kind != "passages":
        return [first]
    return list(takewhile(lambda edit: _occasion(edit) == _occasion(first), edits))


def _occasion(edit: Edit) -> tuple[object, ...]:
    """What the passages of one document share: they came, or went, by the same hand in the same moment."""
    return edit.kind, edit.author, edit.created_at, edit.before is None
