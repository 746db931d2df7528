"""The SQL of an agent's state: its row, queue, blocks, summaries, timers, steps and inferences.

What must survive a kill at any moment is here; what it means is in the kernel. What a person could miss (a block, the
summary, a setting) is changed together with its edit in the log; `reverts` is the edit that the change takes back.
Messages and passages have files of their own, `memory.recall` and `memory.archival`. Every moment given back is
timezone-aware, in UTC.
"""

from __future__ import annotations

import builtins  # `list` is a method here, so annotations inside the class need the full name
import difflib
import re
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from localmem.errors import AgentNotFound, LocalmemError
from localmem.storage.database import Database, is_moment, storable, utc_moment, utc_text
from localmem.storage.edit_log import Attribution, EditLog, State

KEPT_PROMPTS = 200
"""Prompts are some 10 kB each, and only the latest are looked at: older inferences keep their figures."""

MODEL, PAUSE, TIMER, ATTACHED = "model", "pause of timers", "timer ", "attached "
"""The settings of an agent, as the edit log names them; a timer's name stands behind TIMER, behind ATTACHED what is."""

_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,64}")  # names are file names too; "." and ".." are none


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent, without its memory. `rendered_context` is the working context as its window shows it now."""

    id: int
    name: str
    model: str
    created_at: datetime
    last_seen_at: datetime | None = None
    warned: bool = False
    rendered_context: str = ""
    timers_paused_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block of the working context."""

    label: str
    description: str
    value: str
    limit_tokens: int
    read_only: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One state of the recursive summary; `evicted_messages` counts all it stands for."""

    id: int
    text: str
    evicted_messages: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TimerRow:
    """A timed event; `schedule` is a cron expression or a moment, as the scheduler reads it."""

    name: str
    schedule: str
    note: str
    next_due_at: datetime
    created_at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRow:
    """One call of the model: tokens, seconds, and the prompt while it is among the newest KEPT_PROMPTS."""

    agent_id: int
    step_id: int | None
    event: str
    phase: str
    prompt_tokens: int
    reused_tokens: int
    evaluated_tokens: int
    generated_tokens: int
    read_seconds: float
    write_seconds: float
    created_at: datetime
    completion: str
    prompt: str | None = None
    id: int = 0


def check_agent_name(name: str) -> None:
    """Raises LocalmemError when `name` cannot be an agent's."""
    if not _NAME.fullmatch(name):
        raise LocalmemError(
            f"{name!r} cannot be the name of an agent",
            "Use 1 to 64 letters (a-z), digits, dots, dashes and underscores.",
        )


class AgentStore:
    """Agents by name, and everything of an agent by its id."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = EditLog(database)

    # Agents

    def create(self, name: str, *, model: str, now: datetime, blocks: Iterable[BlockRow] = ()) -> AgentRow:
        """A new agent with its blocks, both or neither. Raises LocalmemError when the name is taken or is none."""
        check_agent_name(name)
        with self._database.transaction():
            if self._database.row("SELECT 1 FROM agent WHERE name = ?", (name,)):
                raise LocalmemError(f"there is an agent named {name!r} already", "Choose another name, or delete it.")
            self._database.execute(
                "INSERT INTO agent (name, model, created_at) VALUES (?, ?, ?)", (name, model, utc_text(now))
            )
            row = self.get(name)
            for block in blocks:
                self.put_block(row.id, block, Attribution("import", now))
        return row

    def get(self, name: str) -> AgentRow:
        """The agent of that name. Raises AgentNotFound, with near names in the hint."""
        row = self._database.row("SELECT * FROM agent WHERE name = ?", (name,))
        if row is None:
            raise AgentNotFound(f"no agent is named {name!r}", self._names_hint(name))
        return _agent(row)

    def list(self) -> builtins.list[AgentRow]:
        """Every agent, by name."""
        return [_agent(row) for row in self._database.rows("SELECT * FROM agent ORDER BY name")]

    def delete(self, name: str) -> None:
        """Remove the agent and all it remembers. Raises AgentNotFound."""
        self._database.execute("DELETE FROM agent WHERE id = ?", (self.get(name).id,))

    def set_model(self, agent_id: int, model: str, by: Attribution, *, reverts: int | None = None) -> None:
        """The agent runs on `model` from now on, and what it generated in another vocabulary is read as text."""
        with self._database.transaction():
            before = self._database.scalar("SELECT model FROM agent WHERE id = ?", (agent_id,))
            if before == model:
                return
            self._database.execute("UPDATE agent SET model = ? WHERE id = ?", (model, agent_id))
            self.forget_token_ids(agent_id)
            self._log.record(agent_id, "setting", MODEL, {"name": before}, {"name": model}, by, reverts=reverts)

    def forget_token_ids(self, agent_id: int) -> None:
        """The messages of the queue are encoded from their text from now on, not as they were generated."""
        self._database.execute(
            "UPDATE message SET token_ids = NULL WHERE id IN (SELECT message_id FROM queue WHERE agent_id = ?)",
            (agent_id,),
        )

    def touch(self, agent_id: int, now: datetime) -> None:
        """The user was here."""
        self._database.execute("UPDATE agent SET last_seen_at = ? WHERE id = ?", (utc_text(now), agent_id))

    def set_warned(self, agent_id: int, warned: bool) -> None:
        self._database.execute("UPDATE agent SET warned = ? WHERE id = ?", (int(warned), agent_id))

    def set_rendered_context(self, agent_id: int, text: str) -> None:
        self._database.execute("UPDATE agent SET rendered_context = ? WHERE id = ?", (text, agent_id))

    def _names_hint(self, name: str) -> str:
        names = [agent.name for agent in self.list()]
        if not names:
            return "There are no agents yet; create one first."
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        return f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(names[:10])}."

    # The FIFO queue: ids of messages, oldest first

    def queue_ids(self, agent_id: int) -> builtins.list[int]:
        rows = self._database.rows("SELECT message_id FROM queue WHERE agent_id = ? ORDER BY position", (agent_id,))
        return [row["message_id"] for row in rows]

    def append_to_queue(self, agent_id: int, message_id: int) -> None:
        self._database.execute(
            "INSERT INTO queue (agent_id, position, message_id) "
            "SELECT ?, COALESCE(MAX(position), -1) + 1, ? FROM queue WHERE agent_id = ?",
            (agent_id, message_id, agent_id),
        )

    def remove_from_queue(self, agent_id: int, message_ids: Iterable[int]) -> None:
        """Evict; the messages themselves stay in recall storage."""
        self._database.execute_many(
            "DELETE FROM queue WHERE agent_id = ? AND message_id = ?",
            [(agent_id, message_id) for message_id in message_ids],
        )

    def replace_queue(self, agent_id: int, ids: Sequence[int]) -> None:
        with self._database.transaction():
            self._database.execute("DELETE FROM queue WHERE agent_id = ?", (agent_id,))
            self._database.execute_many(
                "INSERT INTO queue (agent_id, position, message_id) VALUES (?, ?, ?)",
                [(agent_id, position, message_id) for position, message_id in enumerate(ids)],
            )

    # The working context

    def blocks(self, agent_id: int) -> builtins.list[BlockRow]:
        """In their order."""
        rows = self._database.rows("SELECT * FROM block WHERE agent_id = ? ORDER BY position, label", (agent_id,))
        return [_block(row) for row in rows]

    def put_block(self, agent_id: int, block: BlockRow, by: Attribution, *, reverts: int | None = None) -> None:
        """Add or replace the block of that label."""
        block = replace(block, value=storable(block.value), description=storable(block.description))
        with self._database.transaction():
            before = self._block(agent_id, block.label)
            if before == block:
                return
            self._database.execute(
                "INSERT INTO block (agent_id, label, description, value, limit_tokens, read_only, position) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id, label) DO UPDATE SET "
                "description = excluded.description, value = excluded.value, "
                "limit_tokens = excluded.limit_tokens, read_only = excluded.read_only, "
                "position = excluded.position",
                (
                    agent_id,
                    block.label,
                    block.description,
                    block.value,
                    block.limit_tokens,
                    int(block.read_only),
                    block.position,
                ),
            )
            states = None if before is None else state_of(before), state_of(block)
            self._log.record(agent_id, "block", block.label, *states, by, reverts=reverts)

    def delete_block(self, agent_id: int, label: str, by: Attribution, *, reverts: int | None = None) -> bool:
        """Whether there was one. Its history stays."""
        with self._database.transaction():
            before = self._block(agent_id, label)
            if before is None:
                return False
            self._database.execute("DELETE FROM block WHERE agent_id = ? AND label = ?", (agent_id, label))
            self._log.record(agent_id, "block", label, state_of(before), None, by, reverts=reverts)
        return True

    def _block(self, agent_id: int, label: str) -> BlockRow | None:
        row = self._database.row("SELECT * FROM block WHERE agent_id = ? AND label = ?", (agent_id, label))
        return None if row is None else _block(row)

    # The recursive summary

    def add_summary(
        self, agent_id: int, text: str, evicted_messages: int, by: Attribution, *, reverts: int | None = None
    ) -> SummaryRow:
        """The summary from now on; the earlier ones are kept."""
        moment = utc_text(by.moment)
        with self._database.transaction():
            before = self.current_summary(agent_id)
            cursor = self._database.execute(
                "INSERT INTO summary (agent_id, text, evicted_messages, created_at) VALUES (?, ?, ?, ?)",
                (agent_id, text, evicted_messages, moment),
            )
            summary = SummaryRow(_new_id(cursor), storable(text), evicted_messages, utc_moment(moment))
            if before is None or before.text != summary.text:
                state = None if before is None else {"text": before.text}
                self._log.record(agent_id, "summary", "", state, {"text": summary.text}, by, reverts=reverts)
        return summary

    def current_summary(self, agent_id: int) -> SummaryRow | None:
        row = self._database.row("SELECT * FROM summary WHERE agent_id = ? ORDER BY id DESC LIMIT 1", (agent_id,))
        return None if row is None else _summary(row)

    def summaries(self, agent_id: int) -> builtins.list[SummaryRow]:
        """Oldest first."""
        rows = self._database.rows("SELECT * FROM summary WHERE agent_id = ? ORDER BY id", (agent_id,))
        return [_summary(row) for row in rows]

    # Timed events

    def timers(self, agent_id: int) -> builtins.list[TimerRow]:
        """The next one due first."""
        rows = self._database.rows("SELECT * FROM timer WHERE agent_id = ? ORDER BY next_due_at, name", (agent_id,))
        return [_timer(row) for row in rows]

    def put_timer(self, agent_id: int, timer: TimerRow, by: Attribution, *, reverts: int | None = None) -> TimerRow:
        """Add the timer, or change the one of that name."""
        with self._database.transaction():
            before = self._timer(agent_id, timer.name)
            row = self._database.row(
                "INSERT INTO timer (agent_id, name, schedule, note, next_due_at, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id, name) DO UPDATE SET "
                "schedule = excluded.schedule, note = excluded.note, "
                "next_due_at = excluded.next_due_at RETURNING *",
                (
                    agent_id,
                    timer.name,
                    timer.schedule,
                    timer.note,
                    utc_text(timer.next_due_at),
                    utc_text(timer.created_at),
                ),
            )
            assert row is not None, "RETURNING gives the row that was written"
            stored = _timer(row)
            self._record_timer(agent_id, before, stored, by, reverts)
        return stored

    def delete_timer(self, agent_id: int, name: str, by: Attribution, *, reverts: int | None = None) -> bool:
        """Whether there was one."""
        with self._database.transaction():
            before = self._timer(agent_id, name)
            if before is None:
                return False
            self._database.execute("DELETE FROM timer WHERE agent_id = ? AND name = ?", (agent_id, name))
            self._record_timer(agent_id, before, None, by, reverts)
        return True

    def set_timer_due(self, agent_id: int, name: str, next_due_at: datetime) -> None:
        """When it is next due; no edit, since the timer itself stays what it was."""
        self._database.execute(
            "UPDATE timer SET next_due_at = ? WHERE agent_id = ? AND name = ?",
            (utc_text(next_due_at), agent_id, name),
        )

    def pause_timers(
        self, agent_id: int, until: datetime | None, by: Attribution, *, reverts: int | None = None
    ) -> None:
        """No timed events before `until`; None lets them run again."""
        with self._database.transaction():
            before = self._database.scalar("SELECT timers_paused_until FROM agent WHERE id = ?", (agent_id,))
            after = None if until is None else utc_text(until)
            if before == after:
                return
            self._database.execute("UPDATE agent SET timers_paused_until = ? WHERE id = ?", (after, agent_id))
            self._log.record(agent_id, "setting", PAUSE, _pause_state(before), _pause_state(after), by, reverts=reverts)

    def _timer(self, agent_id: int, name: str) -> TimerRow | None:
        row = self._database.row("SELECT * FROM timer WHERE agent_id = ? AND name = ?", (agent_id, storable(name)))
        return None if row is None else _timer(row)

    def _record_timer(
        self, agent_id: int, before: TimerRow | None, after: TimerRow | None, by: Attribution, reverts: int | None
    ) -> None:
        name = next(timer.name for timer in (before, after) if timer is not None)
        states = _timer_state(before), _timer_state(after)
        if states[0] != states[1]:
            self._log.record(agent_id, "setting", TIMER + name, *states, by, reverts=reverts)

    # Steps and inferences

    def add_step(self, agent_id: int, event_kind: str, now: datetime) -> int:
        """The id of a step that starts now."""
        cursor = self._database.execute(
            "INSERT INTO step (agent_id, event_kind, started_at) VALUES (?, ?, ?)",
            (agent_id, event_kind, utc_text(now)),
        )
        return _new_id(cursor)

    def add_inference(self, inference: InferenceRow) -> int:
        """The id it got; `inference.id` is not read."""
        prompt = None if inference.prompt is None else zlib.compress(storable(inference.prompt).encode())
        with self._database.transaction():
            cursor = self._database.execute(
                "INSERT INTO inference (agent_id, step_id, event, phase, prompt_tokens, reused_tokens, "
                "evaluated_tokens, generated_tokens, read_seconds, write_seconds, created_at, prompt, "
                "completion) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    inference.agent_id,
                    inference.step_id,
                    inference.event,
                    inference.phase,
                    inference.prompt_tokens,
                    inference.reused_tokens,
                    inference.evaluated_tokens,
                    inference.generated_tokens,
                    inference.read_seconds,
                    inference.write_seconds,
                    utc_text(inference.created_at),
                    prompt,
                    inference.completion,
                ),
            )
            inference_id = _new_id(cursor)
            self._database.execute(
                "UPDATE inference SET prompt = NULL WHERE agent_id = ?1 AND id = "
                "(SELECT id FROM inference WHERE agent_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                (inference.agent_id, KEPT_PROMPTS),
            )
        return inference_id

    def inferences(self, agent_id: int, limit: int) -> builtins.list[InferenceRow]:
        """The newest first."""
        rows = self._database.rows(
            "SELECT * FROM inference WHERE agent_id = ? ORDER BY id DESC LIMIT ?", (agent_id, limit)
        )
        return [_inference(row) for row in rows]

    def inference(self, agent_id: int, inference_id: int) -> InferenceRow | None:
        row = self._database.row("SELECT * FROM inference WHERE agent_id = ? AND id = ?", (agent_id, inference_id))
        return None if row is None else _inference(row)


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "an INSERT has an id"
    return cursor.lastrowid


def _optional_moment(text: str | None) -> datetime | None:
    return None if text is None else utc_moment(text)


def _agent(row: sqlite3.Row) -> AgentRow:
    return AgentRow(
        id=row["id"],
        name=row["name"],
        model=row["model"],
        created_at=utc_moment(row["created_at"]),
        last_seen_at=_optional_moment(row["last_seen_at"]),
        warned=bool(row["warned"]),
        rendered_context=row["rendered_context"],
        timers_paused_until=_optional_moment(row["timers_paused_until"]),
    )


def _block(row: sqlite3.Row) -> BlockRow:
    return BlockRow(
        label=row["label"],
        description=row["description"],
        value=row["value"],
        limit_tokens=row["limit_tokens"],
        read_only=bool(row["read_only"]),
        position=row["position"],
    )


def state_of(block: BlockRow) -> State:
    """A block as the edit log keeps it."""
    return {key: value for key, value in asdict(block).items() if key != "label"}


def is_block_state(state: State) -> bool:
    """Whether `block_of` can make a block of it."""
    kinds = {"description": str, "value": str, "limit_tokens": int, "read_only": bool, "position": int}
    return set(state) == set(kinds) and all(type(state[name]) is kind for name, kind in kinds.items())


def is_setting_state(item: str, state: State) -> bool:
    """Whether a setting of that name can be put back to it."""
    if item.startswith(ATTACHED):
        moment, names = None, {"owner", "label"}
    else:
        moment = {MODEL: None, PAUSE: "until"}.get(item, "next_due_at")
        names = {MODEL: {"name"}, PAUSE: {"until"}}.get(item, {"schedule", "note", "next_due_at"})
    if set(state) != names or not all(isinstance(value, str) for value in state.values()):
        return False
    return moment is None or is_moment(state[moment])


def block_of(label: str, state: State) -> BlockRow:
    """The block that a state in the edit log describes."""
    return BlockRow(label, **state)


def _timer_state(timer: TimerRow | None) -> State | None:
    """A timer as the edit log keeps it."""
    if timer is None:
        return None
    return {"schedule": timer.schedule, "note": timer.note, "next_due_at": utc_text(timer.next_due_at)}


def _pause_state(until: str | None) -> State | None:
    return None if until is None else {"until": until}


def _summary(row: sqlite3.Row) -> SummaryRow:
    return SummaryRow(row["id"], row["text"], row["evicted_messages"], utc_moment(row["created_at"]))


def _timer(row: sqlite3.Row) -> TimerRow:
    return TimerRow(
        name=row["name"],
        schedule=row["schedule"],
        note=row["note"],
        next_due_at=utc_moment(row["next_due_at"]),
        created_at=utc_moment(row["created_at"]),
        id=row["id"],
    )


def _inference(row: sqlite3.Row) -> InferenceRow:
    prompt: bytes | None = row["prompt"]
    return InferenceRow(
        agent_id=row["agent_id"],
        step_id=row["step_id"],
        event=row["event"],
        phase=row["phase"],
        prompt_tokens=row["prompt_tokens"],
        reused_tokens=row["reused_tokens"],
        evaluated_tokens=row["evaluated_tokens"],
        generated_tokens=row["generated_tokens"],
        read_seconds=row["read_seconds"],
        write_seconds=row["write_seconds"],
        created_at=utc_moment(row["created_at"]),
        completion=row["completion"],
        prompt=None if prompt is None else zlib.decompress(prompt).decode(),
        id=row["id"],
    )
