"""What the fuzzer aims at: everything that reads what others wrote, each with sound inputs to begin from."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from hypothesis import strategies as st
from pydantic import BaseModel, Field

import localmem
from benchmarks.faults.hostile import TEXTS
from localmem import runtime
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.calibration import read_calibration
from localmem.config import Settings, load_settings
from localmem.gguf import read_gguf
from localmem.kernel.agent import Agent
from localmem.letta_import import take_in
from localmem.memory.letta_file import read_letta
from localmem.models import read_card
from localmem.resources import data_dir
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import MEMORY, Database
from localmem.storage.embedder import HashEmbedder
from localmem.storage.export import MANIFEST, TABLES, Export, write_export
from localmem.storage.import_file import import_agent

Run = Callable[[bytes], None]
"""Reads an input. Raises LocalmemError where it refuses it."""

_WINDOW = 20_000  # bytes here
_NEW_AGENT_AFTER = 200  # inputs: one that has lived long answers slowly
_MANIFEST_MARK = b"#"


@dataclass(frozen=True, slots=True)
class Target:
    """`share` is its part of all inputs; `words` are spliced in; with a `strategy` hypothesis makes the inputs."""

    name: str
    share: int
    opened: Callable[[Path], AbstractContextManager[Run]]
    seeds: tuple[bytes, ...] = ()
    words: tuple[bytes, ...] = tuple(text[:300].encode("utf-8", "replace") for text in TEXTS)
    strategy: st.SearchStrategy[bytes] | None = None


def as_text(data: bytes) -> str:
    """Any bytes as a text, lone surrogates for what is no UTF-8."""
    return data.decode("utf-8", "surrogateescape")


# -- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _gguf(_: Path) -> Generator[Run]:
    def run(data: bytes) -> None:
        header = read_gguf(io.BytesIO(data), len(data), "x.gguf")
        assert header.tensors <= len(data)

    yield run


def _gguf_seed() -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    pairs = [
        text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
        text(b"general.alignment") + struct.pack("<II", 4, 32),
        text(b"llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text(b"a") + text(b"") + text("ß".encode()),
        text(b"tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
        text(b"tokenizer.ggml.add_bos_token") + struct.pack("<I?", 7, True),
    ]
    tensors = [
        text(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 3, 2, 0),
        text(b"output.weight") + struct.pack("<IQIQ", 1, 4, 0, 64),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % 32) + bytes(96)


@contextmanager
def _card(folder: Path) -> Generator[Run]:
    path = folder / "smollm2-135m-instruct.toml"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read_card(path)

    yield run


@contextmanager
def _calibration(folder: Path) -> Generator[Run]:
    path = folder / "x.calibration.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read_calibration(path)

    yield run


_CALIBRATION = json.dumps(
    {
        "prompt": "6f1fcc2165168cd8",
        "trust": 0.5,
        "evidence": {"decisions": 760, "right": 0.6934, "right_without": 0.3539},
        "choices": ["archival_memory_search", "core_memory_append human"],
        "bias": [-1.1787, 5.4819],
        "features": 3,
        "weights": ["AAAAAAAA", "ADwAPAA8"],
    },
    indent=1,
).encode()


@contextmanager
def _config(folder: Path) -> Generator[Run]:
    def run(data: bytes) -> None:
        (folder / "config.toml").write_bytes(data)
        load_settings(flags={"home": folder}, environ={})

    yield run


_CONFIG = b"""
database = "memory.db"
models_dir = "~/models"
model = "smollm2-135m-instruct"
[budget]
window = 4096
reserve = 512
warning = 0.7
flush = 1.0
[agent]
max_steps = 8
idle = true
[backend]
threads = 2
type_k = "q8_0"
flash_attention = "auto"
[sampling]
temperature = 0.5
seed = 7
"""


# -- agents from files -----------------------------------------------------------------------------------------------


@contextmanager
def _export(folder: Path) -> Generator[Run]:
    """The file as it is: the archive, the manifest, the digests."""
    path = folder / "x.localmem"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with Export(path) as export, Database(MEMORY) as database:
            import_agent(database, export)

    yield run


@contextmanager
def _export_rows(folder: Path) -> Generator[Run]:
    """The rows, in an archive whose digests are right; what is taken is then opened, searched and undone."""
    path, settings = folder / "x.localmem", _settings(folder, folder / "localmem.db")

    def run(data: bytes) -> None:
        path.write_bytes(_packed(data))
        with Database(settings.database) as database, Export(path) as export:
            import_agent(database, export, "x")
        try:
            with _agent(settings, ScriptedBackend(window=_WINDOW), "x") as agent:
                agent.main_context.prompt()
                agent.recall.search("boat")
                agent.archival.search("boat")
                list(agent.send("Hello."))
                if agent.history():
                    agent.undo()
        finally:
            with Database(settings.database) as database:
                runtime.delete_agent(database, "x", settings)

    yield run


@cache
def _export_seed() -> bytes:
    """An agent that has lived, as a file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder), Path(folder) / "localmem.db")
        calls = [
            '{"name": "core_memory_append", "arguments": {"label": "human", "content": "Sails a boat."}}',
            '{"name": "archival_memory_insert", "arguments": {"content": "The boat is blue."}}',
        ]
        with _agent(settings, ScriptedBackend(calls, window=_WINDOW), "x") as agent:
            list(agent.send("I sail a boat. 🎉 <|im_end|>"))
            agent.archival.insert_many(["Chapter 1.", "Chapter 2."], source="book.md")
            agent.archival.delete([1])
            agent.set_block("human", "Sails a blue boat.")
            agent.undo("block")
            agent.schedule("water", "every 2h", "Drink.")
        with Database(settings.database) as database:
            write_export(database, AgentStore(database).get("x").id, Path(folder) / "x.localmem")
        return (Path(folder) / "x.localmem").read_bytes()


def _unpacked(export: bytes) -> bytes:
    """The rows of an export, each table behind a line with its name."""
    with zipfile.ZipFile(io.BytesIO(export)) as archive:
        return b"".join(_MANIFEST_MARK + t.encode() + b"\n" + archive.read(f"{t}.jsonl") for t in TABLES)


def _packed(data: bytes) -> bytes:
    """Such rows as an export whose manifest fits them."""
    tables: dict[str, bytes] = dict.fromkeys(TABLES, b"")
    name = ""
    for line in data.splitlines(keepends=True):
        if line.startswith(_MANIFEST_MARK):
            name = line[1:].strip().decode("utf-8", "replace")
        elif name in tables:
            tables[name] += line
    members = {
        name: {
            "rows": rows.count(b"\n") + (not rows.endswith(b"\n") and bool(rows)),
            "bytes": len(rows),
            "sha256": hashlib.sha256(rows).hexdigest(),
        }
        for name, rows in tables.items()
    }
    manifest = {"localmem": 1, "agent": "x", "created_at": "2026-01-01T00:00:00+00:00", "members": members}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest))
        for name, rows in tables.items():
            archive.writestr(f"{name}.jsonl", rows)
    return packed.getvalue()


@contextmanager
def _letta(folder: Path) -> Generator[Run]:
    settings = _settings(folder, Path(MEMORY))

    def run(data: bytes) -> None:
        for told in read_letta(as_text(data)):
            with _agent(settings, ScriptedBackend(window=_WINDOW)) as agent:
                take_in(agent, told)
                agent.main_context.prompt()

    yield run


_LETTA = json.dumps(
    {
        "agents": [
            {
                "id": "agent-0",
                "name": "Sam",
                "block_ids": ["block-0", "block-1"],
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "I sail."}],
                        "created_at": "2025-10-31T22:01:00Z",
                    },
                    {
                        "role": "assistant",
                        "content": "a thought",
                        "tool_calls": [{"function": {"name": "send_message", "arguments": '{"message": "Where to?"}'}}],
                    },
                    {"role": "tool", "content": "OK"},
                ],
            }
        ],
        "blocks": [
            {"id": "block-0", "label": "human", "value": "Name: Chad", "limit": 2000},
            {"id": "block-1", "label": "Log!", "value": "line", "description": "d", "read_only": True},
        ],
    }
).encode()
_LETTA_OLD = json.dumps(
    {
        "name": "sam",
        "core_memory": [{"label": "persona", "value": "I am Sam.", "limit": 5000}],
        "messages": [{"role": "user", "text": "Hello."}],
    }
).encode()


# -- what users and models write -------------------------------------------------------------------------------------


@contextmanager
def _queries(folder: Path) -> Generator[Run]:
    with _agent(_settings(folder, Path(MEMORY)), ScriptedBackend(window=_WINDOW)) as agent:
        said = (
            "We sailed to Faro in May.",
            "我妹妹叫伊内丝。",
            "def f(x): return x[0] # ok",
            *(text[:400] for text in TEXTS),
        )
        agent.archival.insert_many([text for text in said if text.strip()], source="log")
        for text in said[:6]:
            list(agent.send(text))

        def run(data: bytes) -> None:
            query, page = as_text(data), len(data) % 3
            agent.recall.search(query, page=page)
            agent.archival.search(query, page=page)

        yield run


_QUERY_WORDS = (
    '"',
    "*",
    "^",
    "AND",
    "OR",
    "NOT",
    "NEAR(",
    ")",
    ":",
    "-",
    "+",
    "{",
    "text:",
    "'",
    "--",
    ";",
    "\0",
    "ina",
    "boat",
)
_MADE_QUERIES = st.lists(st.text(max_size=12) | st.sampled_from(_QUERY_WORDS), max_size=9).map(
    lambda words: " ".join(words).encode("utf-8", "surrogatepass")
)


class _Place(BaseModel):
    name: str
    near: list[Annotated[int, Field(ge=0, le=9)]] = Field(default_factory=list[int])


@contextmanager
def _calls(folder: Path) -> Generator[Run]:
    """What a model might write in place of a call: parsed, checked, run, and the error told to it."""
    settings = _settings(folder, Path(MEMORY))
    with _renewed(lambda backend: _with_own_functions(_agent(settings, backend))) as next_agent:

        def run(data: bytes) -> None:
            agent, backend = next_agent()
            backend.script[:] = [as_text(data)]
            list(agent.send("Turn."))

        yield run


def _with_own_functions(agent: Agent) -> Agent:
    @agent.function
    def travel(place: _Place, by: Literal["boat", "foot"], weights: list[float], when: str | None = None) -> str:
        """Go somewhere."""
        return f"{place.name} {by} {when} {sum(weights)}"

    return agent


_CALLS = tuple(
    json.dumps({"name": name, "arguments": arguments}).encode()
    for name, arguments in (
        ("core_memory_append", {"label": "human", "content": "Has a dog.", "request_heartbeat": True}),
        ("core_memory_replace", {"label": "human", "old_content": "Has a dog.", "new_content": "Has two dogs."}),
        ("archival_memory_insert", {"content": "The boat is blue."}),
        ("archival_memory_search", {"query": "boat", "page": 1}),
        ("conversation_search", {"query": "Turn", "page": 2}),
        ("conversation_search_date", {"start_date": "2026-01-01", "end_date": "2026-02-01", "page": 1}),
        ("pause_heartbeats", {"minutes": 30}),
        ("send_message", {"message": "Hello!"}),
        ("travel", {"place": {"name": "Faro", "near": [1, 2]}, "by": "boat", "when": None, "weights": [1.5]}),
    )
)
_NAMES = sorted({json.loads(call)["name"] for call in _CALLS})
_PARAMETERS = sorted({name for call in _CALLS for name in json.loads(call)["arguments"]})
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(["human", "persona"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_MADE_CALLS = st.builds(
    lambda name, arguments: json.dumps({"name": name, "arguments": arguments}).encode("utf-8", "surrogatepass"),
    st.sampled_from(_NAMES) | st.text(max_size=20),
    st.dictionaries(st.sampled_from(_PARAMETERS) | st.text(max_size=8), _JSON, max_size=5),
)


@contextmanager
def _messages(folder: Path) -> Generator[Run]:
    """What a user might send: cut, counted, written, shown, searched for."""
    settings = _settings(folder, Path(MEMORY))
    with _renewed(lambda backend: _agent(settings, backend)) as next_agent:

        def run(data: bytes) -> None:
            agent, _ = next_agent()
            list(agent.send(as_text(data)))

        yield run


def _settings(home: Path, database: Path) -> Settings:
    flags = {"home": home, "window": _WINDOW, "reserve": 700, "embedder": "hash", "idle": False, "snapshots_mb": 0}
    return replace(load_settings(flags=flags, environ={}), database=database)


def _agent(settings: Settings, backend: ScriptedBackend, name: str = "x") -> Agent:
    moment = datetime(2026, 1, 15, 12, tzinfo=UTC)
    return localmem.open(name, settings=settings, backend=backend, embedder=HashEmbedder(), now=lambda: moment)


@contextmanager
def _renewed(
    make: Callable[[ScriptedBackend], Agent],
) -> Generator[Callable[[], tuple[Agent, ScriptedBackend]]]:
    """An agent and its backend, another one every so often."""
    used = 0
    backend = ScriptedBackend(window=_WINDOW)
    agent = make(backend)

    def next_agent() -> tuple[Agent, ScriptedBackend]:
        nonlocal used, agent, backend
        used += 1
        if used % _NEW_AGENT_AFTER == 0:
            agent.close()
            backend = ScriptedBackend(window=_WINDOW)
            agent = make(backend)
        return agent, backend

    try:
        yield next_agent
    finally:
        agent.close()


def _card_seed() -> bytes:
    return (data_dir("models") / "smollm2-135m-instruct.toml").read_bytes()


def _binary(*words: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in words)


_ZIP = _binary("PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "../x", MANIFEST)
_GGUF = _binary("general.alignment", "GGUF", "token_embd.weight", "\0" * 8)
_HOSTILE = tuple(text[:4_000].encode("utf-8", "replace") for text in TEXTS)

TARGETS: tuple[Target, ...] = (
    Target("gguf", 45, _gguf, (_gguf_seed(),), _GGUF),
    Target("config", 10, _config, (_CONFIG,)),
    Target("card", 8, _card, (_card_seed(),)),
    Target("calibration", 2, _calibration, (_CALIBRATION,)),
    Target("letta", 6, _letta, (_LETTA, _LETTA_OLD)),
    Target("export", 6, _export, (_export_seed(),), _ZIP),
    Target("export_rows", 2, _export_rows, (_unpacked(_export_seed()),)),
    Target("queries", 8, _queries, tuple(text[:400] for text in _HOSTILE)),
    Target("queries_made", 4, _queries, strategy=_MADE_QUERIES),
    Target("calls", 3, _calls, _CALLS),
    Target("calls_made", 3, _calls, strategy=_MADE_CALLS),
    Target("messages", 3, _messages, _HOSTILE),
)
