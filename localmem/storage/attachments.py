"""What one agent may see of another's memory: single blocks, or the whole archive, to read and never to write.

Agents of a home share nothing. What is attached is attached by the user, one by one, and can be seen in the history of
the agent it is attached to. It stays its owner's: it is changed there, undone there, exported there, and gone with it.
Attachments are not followed any further: what an owner has attached itself is not shown on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from localmem.errors import LocalmemError
from localmem.storage.agent_store import ATTACHED, AgentStore, BlockRow
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, EditLog, State

ARCHIVE = ""
"""Stands where a block's label would: the archive is attached."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A block of another agent's, or its archive."""

    owner: str
    owner_id: int
    label: str = ARCHIVE

    @property
    def name(self) -> str:
        """The block as it is called in the window, `owner/label`; the owner alone is its archive."""
        return f"{self.owner}/{self.label}" if self.label else self.owner


class Attachments:
    """What is attached to the agents of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = AgentStore(database)
        self._log = EditLog(database)

    def of(self, agent_id: int) -> list[Attachment]:
        """What is attached to an agent, by name."""
        rows = self._database.rows(
            "SELECT o.name, o.id, a.label FROM attachment a JOIN agent o ON o.id = a.owner_id "
            "WHERE a.agent_id = ? ORDER BY o.name, a.label",
            (agent_id,),
        )
        return [Attachment(*row) for row in rows]

    def blocks(self, agent_id: int) -> list[tuple[str, BlockRow]]:
        """The attached blocks as they are now, called as in the window, each behind the name of its owner."""
        found: list[tuple[str, BlockRow]] = []
        for one in self.of(agent_id):
            if one.label != ARCHIVE:
                own = {block.label: block for block in self._store.blocks(one.owner_id)}
                if one.label in own:  # the owner's undo may have taken it away
                    found.append((one.owner, replace(own[one.label], label=one.name, read_only=True)))
        return found

    def add(self, agent_id: int, owner: str, label: str, by: Attribution, *, reverts: int | None = None) -> Attachment:
        """Attach a block of the owner's, or its archive.

        Raises AgentNotFound, and LocalmemError for a block that there is not, or for the agent's own memory.
        """
        row = self._store.get(owner)
        if row.id == agent_id:
            raise LocalmemError(f"{owner} cannot be attached to itself", "Name another agent.")
        labels = [block.label for block in self._store.blocks(row.id)]
        if label != ARCHIVE and label not in labels:
            raise LocalmemError(f"{owner} has no block {label!r}", f"It has: {', '.join(labels)}.")
        attached = Attachment(row.name, row.id, label)
        with self._database.transaction():
            if attached in self.of(agent_id):
                raise LocalmemError(f"{attached.name} is attached already", "localmem agents show tells what is.")
            self._database.execute("INSERT INTO attachment VALUES (?, ?, ?)", (agent_id, row.id, label))
            self._log.record(agent_id, "setting", ATTACHED + attached.name, None, _state(attached), by, reverts=reverts)
        return attached

    def remove(self, agent_id: int, owner: str, label: str, by: Attribution, *, reverts: int | None = None) -> None:
        """Take it away. Raises LocalmemError when it is not attached, unless that takes back an edit: the owner may be
        gone since."""
        wanted = Attachment(owner, 0, label)
        attached = self.of(agent_id)
        found = [one for one in attached if one.name == wanted.name]
        if not found and reverts is None:
            known = ", ".join(one.name for one in attached) or "nothing"
            raise LocalmemError(f"{wanted.name} is not attached", f"Attached is: {known}.")
        with self._database.transaction():
            for one in found:
                self._database.execute(
                    "DELETE FROM attachment WHERE agent_id = ? AND owner_id = ? AND label = ?",
                    (agent_id, one.owner_id, label),
                )
            self._log.record(agent_id, "setting", ATTACHED + wanted.name, _state(wanted), None, by, reverts=reverts)

    def moved(self, old_id: int) -> list[tuple[int, int, str]]:
        """The rows that name an agent, on either side, to be put back by `put_back` when it is there under a new id."""
        rows = self._database.rows("SELECT * FROM attachment WHERE agent_id = ?1 OR owner_id = ?1", (old_id,))
        return [tuple(row) for row in rows]

    def put_back(self, rows: list[tuple[int, int, str]], old_id: int, new_id: int) -> None:
        """Have the new id stand where the old one did."""
        self._database.execute_many(
            "INSERT INTO attachment VALUES (?, ?, ?)",
            [(*(new_id if each == old_id else each for each in ids), label) for *ids, label in rows],
        )


def _state(attached: Attachment) -> State:
    """As the edit log keeps it."""
    return {"owner": attached.owner, "label": attached.label}
