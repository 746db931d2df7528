"""Letta's agent files (`.af`), read as far as they go here: an agent's blocks and what was said.

Two layouts are known: the present one with lists of `agents` and `blocks`, and the one before it, a single agent with
its `core_memory`. What else such a file has (tools, tool rules, sources, groups, settings of a provider, calls and
their results) is counted and left out. Pure: text in, plain data out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from localmem.errors import LocalmemError

Json = Mapping[str, Any]  # Any: whatever the file has


@dataclass(frozen=True, slots=True)
class LettaBlock:
    """A block as the file has it; its limit there is in characters, and is left out."""

    label: str
    description: str
    value: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class LettaMessage:
    """Something that was said, and when."""

    kind: Literal["user_message", "reply"]
    text: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LettaAgent:
    """What is read of one agent; `left_out` counts by name what is not."""

    name: str
    blocks: tuple[LettaBlock, ...]
    messages: tuple[LettaMessage, ...]
    left_out: Mapping[str, int]


def read_letta(text: str) -> list[LettaAgent]:
    """The agents of a file. Raises LocalmemError for what is no agent file."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is no JSON ({error})") from error
    if not isinstance(told, dict):
        raise _refusal("it holds no agent")
    told = cast(dict[str, Any], told)
    if isinstance(told.get("agents"), list):
        blocks = {str(block.get("id")): block for block in _objects(told, "blocks")}
        found = [_agent(agent, _of_agent(agent, blocks), told) for agent in _objects(told, "agents")]
    elif isinstance(told.get("core_memory"), list):
        found = [_agent(told, _objects(told, "core_memory"), told)]
    else:
        raise _refusal("it holds no agent")
    if not found:
        raise _refusal("it holds no agent")
    return found


def _refusal(why: str) -> LocalmemError:
    return LocalmemError(
        f"this is no agent file of Letta's: {why}", "Export the agent from Letta again, as an .af file."
    )


def _objects(holder: Json, name: str) -> list[Json]:
    """The objects in a list of the holder's; what is no object is passed over."""
    value = holder.get(name)
    items = cast(Sequence[object], value) if isinstance(value, list) else ()
    return [cast(Json, item) for item in items if isinstance(item, dict)]


def _of_agent(agent: Json, blocks: Mapping[str, Json]) -> list[Json]:
    """The agent's blocks: those it names, in that order, and those it carries itself."""
    named = agent.get("block_ids")
    ids = cast(Sequence[object], named) if isinstance(named, list) else ()
    return [*(blocks[str(id_)] for id_ in ids if str(id_) in blocks), *_objects(agent, "memory_blocks")]


def _agent(agent: Json, blocks: Iterable[Json], file: Json) -> LettaAgent:
    left_out = Counter[str]()
    for name in ("tools", "tool_rules", "sources", "files", "groups", "mcp_servers", "skills"):
        left_out[name.replace("_", " ")] += len(_objects(file, name)) or len(_objects(agent, name))
    left_out["system instructions"] += bool(agent.get("system"))
    messages = sorted(_said(agent, left_out), key=lambda message: message.created_at)
    return LettaAgent(
        str(agent.get("name") or "letta"),
        tuple(_block(block, number) for number, block in enumerate(blocks, 1)),
        tuple(messages),
        {name: number for name, number in left_out.items() if number},
    )


def _block(block: Json, number: int) -> LettaBlock:
    label = re.sub(r"[^a-z0-9_-]+", "-", str(block.get("label") or "").lower()).strip("-_0123456789")[:32]
    return LettaBlock(
        label or f"block-{number}",
        str(block.get("description") or ""),
        str(block.get("value") or "").strip(),
        block.get("read_only") is True,
    )


def _said(agent: Json, left_out: Counter[str]) -> Iterator[LettaMessage]:
    """What was said by either side. Events, calls and their results are counted in `left_out`."""
    last = datetime(1970, 1, 1, tzinfo=UTC)
    for message in _objects(agent, "messages"):
        last = _moment(message.get("created_at")) or last
        match message.get("role"):
            case "user":
                text = _user_text(_text(message))
                if text is None:
                    left_out["events"] += 1
                elif text.strip():
                    yield LettaMessage("user_message", text, last)
            case "assistant":
                calls = [_call(call) for call in _objects(message, "tool_calls")]
                replies = [said for name, said in calls if name == "send_message"]
                left_out["calls"] += len(calls) - len(replies)
                # Beside a call the text is the model's own thought.
                for text in replies or ([] if calls else [_text(message)]):
                    if text.strip():
                        yield LettaMessage("reply", text, last)
            case "tool" | "function":
                left_out["results"] += 1
            case _:
                left_out["system messages"] += 1


def _text(message: Json) -> str:
    """The text of a message: a string, or the text parts of a list."""
    content = message.get("content") or message.get("text") or ""
    if isinstance(content, str):
        return content
    parts = [part for part in _objects({"parts": content}, "parts") if part.get("type") == "text"]
    return "\n".join(str(part.get("text") or "") for part in parts)


def _user_text(text: str) -> str | None:
    """What the user wrote, without the envelope the older versions send it in; None for an event of the runtime's."""
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(envelope, dict) or "type" not in envelope:
        return text
    envelope = cast(dict[str, Any], envelope)
    return str(envelope.get("message") or "") if envelope["type"] == "user_message" else None


def _call(call: Json) -> tuple[str, str]:
    """The function's name, and the message where it sends one."""
    function = call.get("function")
    told = cast(Json, function) if isinstance(function, dict) else call
    try:
        arguments = json.loads(str(told.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        arguments = {}
    message = cast(Json, arguments).get("message") if isinstance(arguments, dict) else None
    return str(told.get("name") or ""), str(message or "")


def _moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(value))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
