"""The composition root: settings -> database, model, embedder, agent. The only file that names concrete parts."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from localmem import models
from localmem.backend.base import Backend, Sampling
from localmem.backend.constraint import GuidanceEngine
from localmem.backend.first_load import ensure_loadable
from localmem.backend.llama import LlamaBackend, LlamaOptions
from localmem.backend.llama_library import open_vocabulary
from localmem.backend.snapshots import forget
from localmem.calls.chat_format import probe, with_bos
from localmem.calls.examples import read_examples
from localmem.calls.frame import Frame
from localmem.calls.names import OWN_NAMES
from localmem.calls.prompt import TurnEncoder
from localmem.calls.spec import load_declarations, read_names
from localmem.config import Settings, ensure_home, load_settings
from localmem.errors import AgentNotFound, LocalmemError
from localmem.kernel.agent import Agent, AgentOptions
from localmem.kernel.budget import Budget
from localmem.kernel.rules import ToolRules
from localmem.memory.archival import Archival
from localmem.memory.functions import NOTHING
from localmem.memory.recall import Recall
from localmem.memory.working_context import PERSONA
from localmem.resources import data_dir
from localmem.storage.agent_store import AgentRow, AgentStore, BlockRow, check_agent_name
from localmem.storage.attachments import Attachments
from localmem.storage.database import MEMORY, Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import Embedder, HashEmbedder, SentenceTransformerEmbedder
from localmem.storage.export import Export
from localmem.storage.import_file import import_agent
from localmem.storage.lock import agent_lock

logger = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"
"""The folder in the home directory."""

REPLY = "send_message"
"""The one function no agent can be without."""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def open(  # noqa: A001  # localmem.open is the public name
    name: str = "default",
    *,
    model: str | None = None,
    settings: Settings | None = None,
    backend: Backend | None = None,
    embedder: Embedder | None = None,
    profile: models.Profile | None = None,
    rules: ToolRules | None = None,
    functions: Collection[str] | None = None,
    now: Clock = utc_now,
    create: bool = True,
) -> Agent:
    """The agent of that name, created with empty memory or reopened with all of it.

    `model` is a card's name or a path to a GGUF. `backend` and `embedder` replace those of the settings, `profile` that
    of the model's card. `rules` say what may be called when. Of the built-in functions only `functions` are told of and
    offered, and `send_message`; None is all of them. The agent is locked against other processes until `close`, but not
    in the database `:memory:`. Raises LocalmemError in its many kinds.
    """
    settings = settings or load_settings(flags={"model": model})
    check_agent_name(name)
    ensure_home(settings)
    with ExitStack() as held:
        if str(settings.database) != MEMORY:  # which no other process sees
            held.enter_context(agent_lock(settings.home / "locks", name))
        database = held.enter_context(Database(settings.database))
        store = AgentStore(database)
        row = _row(store, name, settings, now, create=create)
        settings = _with_model_of(row, settings)
        if backend is None:
            backend = load_backend(settings)
            held.callback(backend.close)
        row = _use_model(store, row, settings, now)
        options = _options(settings, backend.window, profile, rules=rules, functions=functions)
        agent = _assemble(row, settings, database, backend, embedder or make_embedder(settings), now, options)
        agent.on_close(held.pop_all().close)
    return agent


@contextmanager
def new_agent(name: str, settings: Settings, backend: Backend, *, now: Clock = utc_now) -> Generator[Agent]:
    """An agent that is there, with all that was done to it, when the block ends without an error; else it is not.

    Raises LocalmemError when the name is taken, or is none.
    """
    check_agent_name(name)
    ensure_home(settings)
    with agent_lock(settings.home / "locks", name), Database(settings.database) as database:
        with database.transaction():
            row = create_agent(AgentStore(database), name, settings, now)
            options = _options(settings, backend.window)
            agent = _assemble(row, settings, database, backend, make_embedder(settings), now, options)
            yield agent
        agent.close()


def load_backend(settings: Settings, *, counting_only: bool = False) -> LlamaBackend:
    """The model of the settings, loaded. Raises ModelNotFound, ModelCorrupt or BackendError."""
    card, path = find_weights(settings)
    return LlamaBackend(
        path,
        window=settings.window or card.context_window,
        options=LlamaOptions(
            threads=settings.threads,
            gpu_layers=settings.gpu_layers,
            type_k=settings.type_k,
            type_v=settings.type_v,
            flash_attention=settings.flash_attention,
            constraint=settings.constraint,
            kv_shift=settings.kv_shift,
            snapshots=settings.home / SNAPSHOTS,
            snapshot_bytes=settings.snapshots_mb * 1_000_000,
        ),
        chat_template=card.chat_template,
        counting_only=counting_only,
    )


def find_weights(settings: Settings) -> tuple[models.ModelCard, Path]:
    """The model of the settings and its file, which llama.cpp can load. Raises ModelNotFound or ModelCorrupt."""
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    path = models.locate(card, settings)
    ensure_loadable(path, settings.models_dir)
    return card, path


def make_embedder(settings: Settings) -> Embedder | None:
    """The embedder of the settings; it loads when it is first used."""
    if settings.embedder == "none":
        return None
    return HashEmbedder() if settings.embedder == "hash" else SentenceTransformerEmbedder(settings.embedder)


def open_storages(
    name: str, settings: Settings, *, database: Database | None = None, embedder: Embedder | None = None
) -> tuple[AgentRow, Recall, Archival]:
    """An agent's two storages without its model, for looking and loading. Raises AgentNotFound."""
    database = database or Database(settings.database)
    row = AgentStore(database).get(name)
    return row, *_storages(row, settings, database, embedder)


@contextmanager
def look(name: str, settings: Settings, *, backend: Backend | None = None, now: Clock = utc_now) -> Generator[Agent]:
    """An agent as its window stands, to be looked at and not run: not locked, the weights not read.

    Raises AgentNotFound, and LocalmemError in its other kinds.
    """
    with Database(settings.database) as database:
        row = AgentStore(database).get(name)
        settings = _with_model_of(row, settings)
        used = backend or load_backend(settings, counting_only=True)
        try:
            yield _assemble(row, settings, database, used, None, now, _options(settings, used.window))
        finally:
            if backend is None:
                used.close()


@dataclass(frozen=True, slots=True)
class WindowUse:
    """How an agent's window is filled, in tokens; `parts` add up to `used`."""

    window: int
    reserve: int
    used: int
    free: int
    parts: Mapping[str, int]


def window_use(agent: Agent) -> WindowUse:
    """The exact count of each part of the window; the answer's beginning counts with the queue."""
    backend, budget = agent.backend, agent.options.budget
    without_functions = probe(backend.chat_template, bos=backend.bos_text, eos=backend.eos_text, tools=[])
    if backend.adds_bos:
        without_functions = with_bos(without_functions, backend.bos_text)
    system = len(TurnEncoder(backend.tokenizer, without_functions).first(agent.options.instructions))
    found = agent.main_context.prompt().parts
    parts = {
        "system": system + found["examples"],
        "functions": found["system"] - system,
        "working_context": found["working_context"],
        "summary": found["summary"],
        "queue": found["queue"] + found["answer"],
    }
    used = sum(parts.values())
    return WindowUse(budget.window, budget.reserve, used, max(0, budget.limit - used), parts)


def check_grammar(lark: str, settings: Settings) -> None:
    """Compile a Lark grammar as the decode loop would, in the model's vocabulary. Raises BackendError if it is bad."""
    with open_vocabulary(find_weights(settings)[1]) as model:
        GuidanceEngine(model.vocabulary_handle, len(model.vocabulary().texts)).start(lark)


def _row(store: AgentStore, name: str, settings: Settings, now: Clock, *, create: bool) -> AgentRow:
    try:
        row = store.get(name)
    except AgentNotFound:
        if not create:
            raise
        row = create_agent(store, name, settings, now)
    return row


def _with_model_of(row: AgentRow, settings: Settings) -> Settings:
    """An agent keeps the model it was made with, until somebody names another."""
    return replace(settings, model=row.model) if settings.origin.get("model") == "default" else settings


def _use_model(store: AgentStore, row: AgentRow, settings: Settings, now: Clock) -> AgentRow:
    """Note that the agent now runs on the model of the settings, which could be loaded."""
    if row.model == settings.model:
        return row
    store.set_model(row.id, settings.model, Attribution("user", now()))
    return replace(row, model=settings.model)


def create_agent(store: AgentStore, name: str, settings: Settings, now: Clock = utc_now) -> AgentRow:
    """A new agent with the blocks of the paper: persona and human. Raises LocalmemError if the name is taken."""
    blocks = (
        BlockRow(PERSONA, "Who you are.", _prompt("personas/default.md"), limit_tokens=150, position=0),
        BlockRow("human", "What you know about the user.", "", limit_tokens=400, position=1),
    )
    return store.create(name, model=settings.model, now=now(), blocks=blocks)


def _assemble(
    row: AgentRow,
    settings: Settings,
    database: Database,
    backend: Backend,
    embedder: Embedder | None,
    now: Clock,
    options: AgentOptions,
) -> Agent:
    recall, archival = _storages(row, settings, database, embedder)
    return Agent(
        row,
        backend=backend,
        database=database,
        recall=recall,
        archival=archival,
        options=options,
        now=now,
        owner=_owner(database, row.id),
        embedder=embedder,
    )


def _owner(database: Database, agent_id: int) -> str:
    """Whose the snapshots of a window are, over all databases; "" where nothing is to be kept."""
    return "" if database.in_memory else f"{database.path.absolute()}#{agent_id}"


def forget_snapshots(database: Database, agent_id: int, settings: Settings) -> None:
    """Delete what models have read of an agent's window."""
    forget(settings.home / SNAPSHOTS, _owner(database, agent_id))


def delete_agent(database: Database, name: str, settings: Settings) -> None:
    """Remove the agent and all it remembers, caches too. Raises AgentNotFound."""
    row = AgentStore(database).get(name)
    AgentStore(database).delete(name)
    _forget_caches(database, row.id, settings)


def restore_agent(database: Database, name: str, export: Export, settings: Settings) -> None:
    """Put the agent of that name back to what an export of it holds. Raises LocalmemError; then it is what it was."""
    row = AgentStore(database).get(name)
    attachments = Attachments(database)
    with database.transaction():
        attached = attachments.moved(row.id)
        AgentStore(database).delete(name)
        new_id, _ = import_agent(database, export, name)
        attachments.put_back(attached, row.id, new_id)
    _forget_caches(database, row.id, settings)


def _forget_caches(database: Database, agent_id: int, settings: Settings) -> None:
    forget_snapshots(database, agent_id, settings)
    for path in (settings.home / "index").glob(f"*-{agent_id}-*"):
        path.unlink(missing_ok=True)


def _storages(
    row: AgentRow, settings: Settings, database: Database, embedder: Embedder | None
) -> tuple[Recall, Archival]:
    folder = None if embedder is None or database.in_memory else settings.home / "index"
    return Recall(database, row.id, embedder, folder), Archival(database, row.id, embedder, folder)


def _options(
    settings: Settings,
    window: int,
    profile: models.Profile | None = None,
    *,
    rules: ToolRules | None = None,
    functions: Collection[str] | None = None,
) -> AgentOptions:
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    profile = profile or card.profile
    grammars = data_dir("grammars")
    declarations, names = load_declarations(grammars / "memgpt.json"), OWN_NAMES
    _check_known(functions or (), declarations)
    if profile.functions == "plain":
        names, told = read_names((grammars / "plain.toml").read_text(encoding="utf-8"))
        wanted = {*told, *(functions or ())}  # what is asked for by its name is told of under that name
        declarations = {
            name: (told.get(name, description), parameters)
            for name, (description, parameters) in declarations.items()
            if name in wanted
        }
    examples = read_examples(_prompt("examples.toml")) if profile.examples else ()
    if functions is not None:
        # A memory-pressure warning can always be answered with nothing.
        declarations = {name: told for name, told in declarations.items() if name in {*functions, REPLY, NOTHING}}
        examples = tuple(one for one in examples if all(call.name in declarations for call, _ in one.calls))
    frames = tomllib.loads((grammars / "frames.toml").read_text(encoding="utf-8"))
    return AgentOptions(
        budget=Budget(window, settings.reserve, settings.warning, settings.flush, settings.evict),
        instructions=_prompt("system_plain.md" if profile.reply == "plain" else "system.md"),
        summary_instructions=_prompt("summary.md"),
        summary_request=_prompt("summary_request.md"),
        declarations=declarations,
        frames={name: Frame(**frame) for name, frame in frames.items()},
        examples=examples,
        frame=profile.frame,
        names=names,
        thought=profile.thought,
        plain_reply=profile.reply == "plain",
        calibration=profile.calibration,
        rules=rules or ToolRules(),
        summary_tokens=settings.summary_tokens,
        max_steps=settings.max_steps,
        max_tokens_per_event=settings.max_tokens_per_event,
        sampling=_sampling(settings, card.sampling),
        idle=settings.idle,
    )


def _check_known(functions: Collection[str], declarations: Collection[str]) -> None:
    unknown = sorted(set(functions) - set(declarations))
    if unknown:
        raise LocalmemError(f"there is no built-in function {unknown[0]!r}", f"There are: {', '.join(declarations)}.")


def _sampling(settings: Settings, advised: models.SamplingDefaults) -> Sampling:
    """The settings' sampling; what nobody has set is as the model's card advises."""
    chosen = settings.temperature > 0 or settings.origin.get("temperature", "default") != "default"
    return Sampling(
        temperature=settings.temperature if chosen else advised.temperature,
        top_p=advised.top_p,
        min_p=advised.min_p,
        seed=settings.seed,
    )


def _prompt(name: str) -> str:
    return (files("localmem") / "prompts" / name).read_text(encoding="utf-8").strip()
