"""An agent of a Letta file becomes one of ours: its blocks as far as they fit, all that was said in recall storage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from localmem.errors import ContextTooSmall, LocalmemError
from localmem.kernel.agent import Agent
from localmem.kernel.messages import Message
from localmem.kernel.tokens import clean, count, cut
from localmem.memory.archival import split_text
from localmem.memory.letta_file import LettaAgent, LettaBlock
from localmem.memory.working_context import Block

LIMITS = {"persona": 150, "human": 400}
_LIMIT = 300  # tokens, of any other block
_CUT = "\n[… cut: the whole block is in archival memory …]\n"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a file's agent: `notes` say what is elsewhere than it was, and what was left out."""

    blocks: int
    messages: int
    passages: int
    notes: tuple[str, ...]


def agent_name(name: str) -> str:
    """A name of the file's as an agent can have it here."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:64] or "letta"


def take_in(agent: Agent, told: LettaAgent) -> Taken:
    """Give a new agent what the file's agent holds."""
    notes: list[str] = []
    passages = 0
    with agent.made_by("import"):
        for block in _each_label_once(told.blocks):
            stored, note = _take_block(agent, block)
            passages += stored
            notes += [note] if note else []
    for message in told.messages:
        role = "user" if message.kind == "user_message" else "assistant"
        text = clean(message.text)
        tokens = count(agent.backend.tokenizer, text)
        agent.recall.insert(Message(role, message.kind, text, text, message.created_at, tokens=tokens))
    notes += [f"left out: {name} ({number})" for name, number in told.left_out.items()]
    return Taken(len(told.blocks), len(told.messages), passages, tuple(notes))


def _each_label_once(blocks: Sequence[LettaBlock]) -> list[LettaBlock]:
    return list({block.label: block for block in blocks}.values())


def _take_block(agent: Agent, block: LettaBlock) -> tuple[int, str]:
    """How many passages it also became, and what is to be said about it; "" where it is a block as it was."""
    tokenizer = agent.backend.tokenizer
    limit = LIMITS.get(block.label, _LIMIT)
    value = clean(block.value)
    size = count(tokenizer, value)
    shown = value if size <= limit else cut(tokenizer, value, limit, marker=_CUT)
    described = " ".join(clean(block.description).split())
    ours = Block(block.label, cut(tokenizer, described, 40), shown, limit, block.read_only)
    try:
        agent.add_block(ours)
    except ContextTooSmall:
        return _store(
            agent, block.label, value
        ), f"block {block.label}: no room in the window; it is in archival memory"
    if size <= limit:
        return 0, ""
    stored = _store(agent, block.label, value)
    return stored, f"block {block.label}: cut to {limit} of {size} tokens; all of it is in archival memory"


def _store(agent: Agent, label: str, text: str) -> int:
    if not text.strip():
        return 0
    return len(agent.archival.insert_many(split_text(text), source=f"block {label}", by=agent.attribution()))


def only_agent(agents: Sequence[LettaAgent], wanted: str | None) -> LettaAgent:
    """The one agent of a file, or the one of that name. Raises LocalmemError where that is none, or not one."""
    found = [agent for agent in agents if wanted in (None, agent.name)]
    if len(found) != 1:
        names = ", ".join(repr(agent.name) for agent in agents[:10])
        raise LocalmemError(f"the file holds {len(agents)} agents: {names}", "Choose one: --agent NAME.")
    return found[0]
