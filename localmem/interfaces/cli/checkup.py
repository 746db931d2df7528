"""What `localmem doctor` looks at: everything that must be right before an agent can run, each on its own.

Nothing is created, and a model is loaded only by a process of its own, the first time; a check that finds something
broken says what to do about it. What is only a cache, a leftover or a permission can be mended, where it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localmem import models, runtime
from localmem.backend.first_load import ensure_loadable
from localmem.calls.chat_format import probe
from localmem.config import Settings
from localmem.errors import LocalmemError
from localmem.interfaces.cli.agents import KEPT
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import EditLog

State = Literal["ok", "note", "broken"]

_NATIVE = ("llama_cpp", "llguidance", "hnswlib", "tiktoken", "sqlite_utils")  # imported: a wheel may not fit the CPU
_SLOW = ("sentence_transformers", "torch", "outlines")  # only looked for: importing them takes seconds
_ROOM_BYTES = 200_000_000  # what an index, a snapshot and a log may take
_NO_ROOM_BYTES = 20_000_000
_OTHERS = 0o077
_PRIVATE = ("index", runtime.SNAPSHOTS, KEPT, "locks")  # of the home: what tells something of what is remembered
_TOLD = 4  # of the files something is said of
_BEING_WRITTEN_S = 3_600  # a younger one may be another process's that is writing it


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. A `note` is worth knowing and stops nothing; `mend` puts it right and says what it did."""

    check: str
    state: State
    text: str
    hint: str = ""
    mend: Callable[[], str] | None = None


def examine(settings: Settings) -> Iterator[Finding]:
    """Every check in turn."""
    yield Finding("python", "ok", ".".join(map(str, sys.version_info[:3])))
    yield from _packages()
    yield _home(settings)
    yield _room(settings)
    yield _guarded("privacy", lambda: _privacy(settings))
    yield _guarded("database", lambda: _database(settings))
    yield _guarded("history", lambda: _history(settings))
    yield _guarded("leftovers", lambda: _leftovers(settings))
    yield _guarded("model", lambda: _model(settings))
    yield _guarded("template", lambda: _template(settings))
    yield _guarded("embedder", lambda: _embedder(settings))
    yield _guarded("index", lambda: _index(settings))


def _guarded(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except LocalmemError as error:
        return Finding(check, "broken", error.message, error.hint)
    except OSError as error:
        return Finding(check, "broken", f"{error.filename}: {error.strerror}", "Check its permissions and the disk.")


def _packages() -> Iterable[Finding]:
    for name in _NATIVE:
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:
            yield Finding(name, "broken", f"cannot be imported: {error}", "Install it again: make install.")
        else:
            yield Finding(name, "ok", _version(name))
    for name in _SLOW:
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "broken", "is not installed", "Install it: make install.")
        else:
            yield Finding(name, "ok", _version(name))


def _version(module: str) -> str:
    name = {"llama_cpp": "llama-cpp-python"}.get(module, module)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


def _home(settings: Settings) -> Finding:
    folder = _nearest(settings.home)
    if not os.access(folder, os.W_OK | os.X_OK):
        hint = "Set LOCALMEM_HOME to a folder you may write to."
        return Finding("home", "broken", f"{folder} cannot be written to", hint)
    return Finding("home", "ok", f"{settings.home}{'' if folder == settings.home else ' (not there yet)'}")


def _room(settings: Settings) -> Finding:
    free = shutil.disk_usage(_nearest(settings.home)).free
    text = f"{free / 1e6:,.0f} MB free"
    if free < _NO_ROOM_BYTES:
        return Finding("disk", "broken", text, "Free some room: nothing more can be remembered without.")
    return Finding("disk", "note" if free < _ROOM_BYTES else "ok", text)


def _nearest(path: Path) -> Path:
    """The path, or the first folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _database(settings: Settings) -> Finding:
    if not settings.database.exists():
        return Finding("database", "ok", f"{settings.database} (not there yet)")
    with Database(settings.database) as database:
        damage = str(database.scalar("PRAGMA quick_check(1)"))
        stray = database.row("PRAGMA foreign_key_check")
        agents = len(AgentStore(database).list())
    if damage == "ok" and stray is not None:
        damage = f"a row of {stray['table']} belongs to no row of {stray['parent']}"
    if damage != "ok":
        way_out = "Restore a backup, or a snapshot of each agent (localmem agents import FILE)."
        return Finding("database", "broken", f"{settings.database}: {damage}", way_out)
    return Finding("database", "ok", f"{settings.database}, {agents} agent{'' if agents == 1 else 's'}")


def _privacy(settings: Settings) -> Finding:
    """Whether others on this machine may read what the agents remember."""
    database = settings.database
    files = [database, *(database.with_name(f"{database.name}-{side}") for side in ("wal", "shm"))]
    kept = [path for folder in _PRIVATE for path in ((settings.home / folder), *(settings.home / folder).rglob("*"))]
    looked_at = (settings.home, *files, *kept)
    open_to_others = [path for path in looked_at if path.exists() and path.stat().st_mode & _OTHERS]
    if not open_to_others or os.name == "nt":
        return Finding("privacy", "ok", "only you may read what is remembered")

    def mend() -> str:
        for path in open_to_others:
            path.chmod(path.stat().st_mode & ~_OTHERS)
        return f"{len(open_to_others)} are yours alone now"

    names = ", ".join(map(str, open_to_others[:_TOLD])) + (", …" if len(open_to_others) > _TOLD else "")
    return Finding("privacy", "note", f"others may read {names}", "localmem doctor --mend", mend)


def _history(settings: Settings) -> Finding:
    """Whether what was done to each agent stands as it was written."""
    if not settings.database.exists():
        return Finding("history", "ok", "nothing was done yet")
    with Database(settings.database) as database:
        log = EditLog(database)
        broken = {row.name: log.first_broken(row.id) for row in AgentStore(database).list()}
    changed = [f"{name}: edit {number}" for name, number in broken.items() if number is not None]
    if changed:
        text = f"changed from outside ({', '.join(changed)})"
        return Finding("history", "broken", text, "Nothing is undone on it: restore a snapshot or a backup.")
    return Finding("history", "ok", "every edit is as it was written")


def _leftovers(settings: Settings) -> Finding:
    """Files that nobody needs: indexes of agents that are gone, and what a killed process was writing."""
    if not settings.home.exists():
        return Finding("leftovers", "ok", "none")
    left = [*(settings.home / KEPT).glob("*/*.part"), *settings.database.parent.glob(f"{settings.database.name}*.part")]
    left = [path for path in left if path.stat().st_mtime < time.time() - _BEING_WRITTEN_S]
    if settings.database.exists() and settings.database.parent == settings.home:  # another's indexes may lie here too
        with Database(settings.database) as database:
            known = {str(row.id) for row in AgentStore(database).list()}
        left += [path for path in (settings.home / "index").glob("*-*-*") if path.name.split("-")[1] not in known]
    if not left:
        return Finding("leftovers", "ok", "none")
    size = sum(path.stat().st_size for path in left)

    def mend() -> str:
        for path in left:
            path.unlink(missing_ok=True)
        return f"{len(left)} files are gone"

    return Finding("leftovers", "note", f"{len(left)} files, {size / 1e6:,.1f} MB", "localmem doctor --mend", mend)


def _model(settings: Settings) -> Finding:
    card, path = _weights(settings)
    size_bytes = path.stat().st_size
    if size_bytes != card.size_bytes:
        text = f"{path} is {size_bytes:,} bytes, its card says {card.size_bytes:,}"
        return Finding("model", "broken", text, f"Get it again: delete it, then localmem models pull {card.name}.")
    ensure_loadable(path, settings.models_dir)
    return Finding("model", "ok", f"{card.name}: {path}, {size_bytes / 1e6:,.0f} MB")


def _template(settings: Settings) -> Finding:
    _weights(settings)
    backend = runtime.load_backend(settings, counting_only=True)
    try:
        notes = probe(backend.chat_template, bos=backend.bos_text, eos=backend.eos_text, tools=[]).notes
    finally:
        backend.close()
    return Finding("template", "note", "; ".join(notes)) if notes else Finding("template", "ok", "usable as it is")


def _weights(settings: Settings) -> tuple[models.ModelCard, Path]:
    card = models.find_card(settings.model, models.load_cards(settings.models_dir))
    return card, models.locate(card, settings)


def _embedder(settings: Settings) -> Finding:
    embedder = runtime.make_embedder(settings)  # raises where its weights are not
    if embedder is None:
        return Finding("embedder", "note", "none: searches go by words alone")
    return Finding("embedder", "ok", embedder.name)


def _index(settings: Settings) -> Finding:
    if not settings.database.exists():
        return Finding("index", "ok", "nothing to index yet")
    with Database(settings.database) as database:
        embedder = runtime.make_embedder(settings)
        stale = {
            row.name: runtime.open_storages(row.name, settings, database=database, embedder=embedder)[2].stale_count()
            for row in AgentStore(database).list()
        }
    behind = {name: number for name, number in stale.items() if number}
    if not behind:
        return Finding("index", "ok", "every passage has its vector")
    text = ", ".join(f"{number} passages of {name}" for name, number in behind.items())
    way_out = "localmem archival reindex -a NAME, or localmem doctor --mend"
    return Finding(
        "index", "note", f"{text} are found by words only", way_out, lambda: _reindex(settings, list(behind))
    )


def _reindex(settings: Settings, names: Iterable[str]) -> str:
    done = 0
    with Database(settings.database) as database:
        embedder = runtime.make_embedder(settings)
        for name in names:
            _, _, archival = runtime.open_storages(name, settings, database=database, embedder=embedder)
            done += archival.reindex()
            archival.save_index()
    return f"{done} passages have their vectors"
