"""An agent as a file: `localmem agents export`, `import`, `snapshot`, `restore`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localmem.errors import LocalmemError
from localmem.interfaces.cli.agents import KEPT, agents, kept
from localmem.interfaces.cli.common import (
    DEFAULT_AGENT,
    JSON,
    MODEL_NAME,
    YES,
    Shared,
    confirm,
    find_agent,
    open_database,
    plain,
    print_json,
    print_table,
    progress_bar,
    read_file,
    shared,
    when,
)

if TYPE_CHECKING:
    from localmem.config import Settings
    from localmem.storage.database import Database

_MOST_LETTA_BYTES = 500_000_000


@agents.command("export")
@click.argument("name")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Write over FILE if it is there.")
@shared()
def export_agent(shared: Shared, name: str, path: Path, force: bool) -> None:
    """Write all there is of agent NAME to FILE: messages, blocks, passages, vectors, history, schedule."""
    if path.exists() and not force:
        raise LocalmemError(f"{path} is there already", "Choose another FILE, or write over it with --force.")
    settings = shared.settings()
    with open_database(settings) as (database, store):
        row = find_agent(store, name, settings)
        rows = _write(shared, database, row.id, path)
    shared.say(f"{plain(str(path))}: {rows:,} rows, {path.stat().st_size:,} bytes. It is not encrypted.")


@agents.command("import")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="Another name than the one in FILE.")
@click.option("--agent", "wanted", metavar="NAME", help="Which, where a file of Letta's holds several.")
@shared(MODEL_NAME, JSON)
def import_agent(shared: Shared, path: Path, name: str | None, wanted: str | None) -> None:
    """Make an agent of FILE, which `localmem agents export` has written, or Letta (.af): then blocks and what was said.

    A damaged file is refused whole.
    """
    if path.suffix.lower() == ".af":
        _import_letta(shared, path, name, wanted)
        return
    from localmem.storage import import_file
    from localmem.storage.export import Export

    settings = shared.settings()
    with (
        open_database(settings) as (database, _),
        Export(path) as export,
        progress_bar(shared, export.manifest.rows, "rows", "import") as advance,
    ):
        _, imported = import_file.import_agent(database, export, name, progress=advance)
    if shared.as_json:
        print_json({"name": imported, "rows": export.manifest.rows, "exported_at": export.manifest.created_at})
    else:
        shared.say(f"Imported. Talk with it: localmem chat -a {imported}")


def _import_letta(shared: Shared, path: Path, name: str | None, wanted: str | None) -> None:
    from localmem import runtime
    from localmem.letta_import import agent_name, only_agent, take_in
    from localmem.memory.letta_file import read_letta

    told = only_agent(read_letta(read_file(path, _MOST_LETTA_BYTES)), wanted)
    ours = agent_name(told.name) if name is None else name
    settings = shared.settings()
    backend = runtime.load_backend(settings, counting_only=True)
    try:
        with runtime.new_agent(ours, settings, backend) as agent:
            taken = take_in(agent, told)
    finally:
        backend.close()
    if shared.as_json:
        print_json({"name": ours, **asdict(taken)})
        return
    shared.say(f"blocks: {taken.blocks}, messages: {taken.messages}, passages: {taken.passages}")
    for note in taken.notes:
        shared.say(plain(note))
    shared.say(f"Imported. Talk with it: localmem chat -a {ours}")


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@shared(JSON)
def snapshot(shared: Shared, name: str) -> None:
    """Keep agent NAME as it is now, to be restored later."""
    settings = shared.settings()
    with open_database(settings) as (database, store):
        row = find_agent(store, name, settings)
        path = _take(shared, database, row.id, name, settings)
    if shared.as_json:
        print_json({"snapshot": path.stem, "path": path, "bytes": path.stat().st_size})
    else:
        shared.say(f"Kept as {path.stem}. Back to it: localmem agents restore {name} {path.stem}")


@agents.command()
@click.argument("name", default=DEFAULT_AGENT)
@shared(JSON)
def snapshots(shared: Shared, name: str) -> None:
    """What was kept of agent NAME, the newest first."""
    found = [(path, _taken_at(path), path.stat().st_size) for path in kept(shared.settings(), name)]
    if shared.as_json:
        print_json(
            [{"snapshot": path.stem, "path": path, "bytes": size, "taken_at": taken} for path, taken, size in found]
        )
        return
    if not found:
        shared.say(f"Nothing was kept of {name}; localmem agents snapshot {name} does.")
    print_table(
        ("snapshot", "taken", "bytes"),
        [(path.stem, when(taken), f"{size:,}") for path, taken, size in found],
    )


@agents.command()
@click.argument("name")
@click.argument("snapshot", metavar="[SNAPSHOT]", required=False)
@shared(YES)
def restore(shared: Shared, name: str, snapshot: str | None, yes: bool) -> None:
    """Put agent NAME back to SNAPSHOT, or the newest. As it is now is kept as a snapshot first."""
    from localmem import runtime
    from localmem.storage.export import Export
    from localmem.storage.lock import agent_lock

    settings = shared.settings()
    path = next((path for path in kept(settings, name) if snapshot in (None, path.stem)), None)
    if path is None:
        raise LocalmemError(
            f"nothing is kept of {name!r}" if snapshot is None else f"there is no snapshot {snapshot!r} of {name!r}",
            "localmem agents snapshots NAME shows them.",
        )
    confirm(f"Put {name!r} back to {path.stem}?", yes=yes)
    with open_database(settings) as (database, store), Export(path) as export:
        row = store.get(name)
        with agent_lock(settings.home / "locks", name):
            before = _take(shared, database, row.id, name, settings)
            runtime.restore_agent(database, name, export, settings)
    shared.say(f"{name} is what it was at {path.stem}. What it was just now: {before.stem}")


def _take(shared: Shared, database: Database, agent_id: int, name: str, settings: Settings) -> Path:
    folder = settings.home / KEPT / name
    path = folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.localmem"
    _write(shared, database, agent_id, path)
    return path


def _taken_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime).astimezone()


def _write(shared: Shared, database: Database, agent_id: int, path: Path) -> int:
    """Write the agent to a file; how many rows it has."""
    from localmem.storage.export import write_export

    with progress_bar(shared, None, "rows", "export") as advance:
        return write_export(database, agent_id, path, progress=advance).rows
