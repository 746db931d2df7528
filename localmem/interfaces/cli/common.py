"""What the commands share: options, settings, input, output, and how an agent is opened for each purpose.

Data goes to stdout, everything else to stderr. Nothing heavy is imported before a command runs, so that
`localmem --help` answers at once.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from localmem.errors import AgentNotFound, LocalmemError

if TYPE_CHECKING:
    from types import FrameType

    from localmem.config import Settings
    from localmem.kernel.agent import Agent
    from localmem.memory.archival import Archival
    from localmem.memory.recall import Recall
    from localmem.memory.search import Page
    from localmem.storage.agent_store import AgentRow, AgentStore
    from localmem.storage.database import Database

DEFAULT_AGENT = "default"
"""The agent that needs no creating: whatever asks for it first makes it."""

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
PAGE_SIZE = 10

P = ParamSpec("P")
R = TypeVar("R")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]  # Any: a click option decorates any command

# As in localmem.config, which takes too long to import for `--help`; a test holds them together.
CACHE_TYPE = click.Choice(("f16", "q8_0", "q4_0", "f32", "bf16"))
FLASH_ATTENTION = click.Choice(("auto", "on", "off"))

PLACE: tuple[Option, ...] = (
    click.option(
        "-d", "--database", type=click.Path(path_type=Path), metavar="PATH", help="Database file to use instead."
    ),
    click.option(
        "-o", "--option", "options", nargs=2, multiple=True, metavar="KEY VALUE", help="Set any setting; repeatable."
    ),
    click.option("-v", "--verbose", count=True, help="Say what is going on, on stderr; twice for more."),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors on stderr."),
)
AGENT: tuple[Option, ...] = (
    click.option("-a", "--agent", default=DEFAULT_AGENT, show_default=True, metavar="NAME", help="Whose memory."),
)
MODEL_NAME: tuple[Option, ...] = (
    click.option("-m", "--model", metavar="MODEL", help="A model's name, or a path to a .gguf file."),
)
MODEL: tuple[Option, ...] = (
    *MODEL_NAME,
    click.option("--ctx-size", "window", type=int, metavar="N", help="Window in tokens; 0 is the model's own."),
    click.option("-t", "--threads", type=int, metavar="N", help="Threads; 0 lets a probe choose."),
    click.option("-ngl", "--gpu-layers", type=int, metavar="N", help="Layers on the GPU; -1 is all that fit."),
    click.option("-ctk", "--cache-type-k", "type_k", type=CACHE_TYPE, help="Type of the KV cache's keys."),
    click.option("-ctv", "--cache-type-v", "type_v", type=CACHE_TYPE, help="Type of the KV cache's values."),
    click.option("-fa", "--flash-attn", "flash_attention", type=FLASH_ATTENTION, help="Use of flash attention."),
    click.option("--temp", "temperature", type=float, metavar="F", help="Sampling temperature; 0 is greedy."),
    click.option("--seed", type=int, metavar="N", help="Seed of the sampling."),
)
JSON: tuple[Option, ...] = (click.option("--json", "as_json", is_flag=True, help="Print JSON."),)
PAGES: tuple[Option, ...] = (
    click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Page of results."),
)
NUMBER = click.option(
    "-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="How many, at most."
)
YES: tuple[Option, ...] = (click.option("--yes", is_flag=True, help="Do not ask."),)

_FLAGS = (
    "database",
    "model",
    "window",
    "threads",
    "gpu_layers",
    "type_k",
    "type_v",
    "flash_attention",
    "temperature",
    "seed",
)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared options of one command were given."""

    agent: str = DEFAULT_AGENT
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    options: tuple[tuple[str, str], ...] = ()
    as_json: bool = False
    quiet: bool = False

    def settings(self) -> Settings:
        """The settings in force. Raises ConfigError."""
        from localmem.config import load_settings, parse_option

        named = {name: value for name, value in self.flags.items() if value is not None}
        return load_settings(flags=dict(parse_option(key, text) for key, text in self.options) | named)

    def say(self, text: str) -> None:
        """A line for the person at the keyboard."""
        if not self.quiet:
            click.echo(text, err=True)


def shared(*groups: Sequence[Option]) -> Callable[[Callable[Concatenate[Shared, P], R]], Callable[..., R]]:
    """Decorator: the options of `groups`, and those of every command, come as one first argument."""
    given = [option for group in (*groups, PLACE) for option in group]

    def decorate(command: Callable[Concatenate[Shared, P], R]) -> Callable[..., R]:
        @wraps(command)
        def run(*args: P.args, **values: P.kwargs) -> R:
            _set_up_logging(verbose=values.pop("verbose"), quiet=values["quiet"])  # type: ignore[arg-type]
            flags = {name: values.pop(name) for name in _FLAGS if name in values}
            own = {name: values.pop(name) for name in ("agent", "options", "as_json", "quiet") if name in values}
            return command(Shared(flags=flags, **own), *args, **values)  # type: ignore[arg-type]

        decorated: Callable[..., R] = run
        for option in reversed(given):
            decorated = option(decorated)
        return decorated

    return decorate


def _set_up_logging(*, verbose: int, quiet: bool) -> None:
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("localmem").setLevel(level)


# -- opening ---------------------------------------------------------------------------------------------------


@contextmanager
def open_database(settings: Settings) -> Generator[tuple[Database, AgentStore]]:
    """The database, and every agent's state in it; no model."""
    from localmem.config import ensure_home
    from localmem.storage.agent_store import AgentStore
    from localmem.storage.database import Database

    ensure_home(settings)
    with Database(settings.database) as database:
        yield database, AgentStore(database)


@contextmanager
def open_row(shared: Shared) -> Generator[tuple[AgentStore, AgentRow]]:
    """The agent's row and the store it is in."""
    settings = shared.settings()
    with open_database(settings) as (_, store):
        yield store, find_agent(store, shared.agent, settings)


@contextmanager
def open_storages(shared: Shared) -> Generator[tuple[Recall, Archival]]:
    """The agent's two storages, without its model; their index is saved at the end."""
    from localmem import runtime

    settings = shared.settings()
    with open_database(settings) as (database, store):
        find_agent(store, shared.agent, settings)
        embedder = runtime.make_embedder(settings)
        _, recall, archival = runtime.open_storages(shared.agent, settings, database=database, embedder=embedder)
        yield recall, archival
        recall.save_index()
        archival.save_index()


@contextmanager
def open_to_look(shared: Shared) -> Generator[Agent]:
    """The agent as its window stands, counted but not run; another process may be running it."""
    from localmem import runtime

    settings = shared.settings()
    with open_database(settings) as (_, store):
        find_agent(store, shared.agent, settings)
    with runtime.look(shared.agent, settings) as agent:
        yield agent


@contextmanager
def open_to_edit(shared: Shared) -> Generator[Agent]:
    """The agent with its memory and its model's vocabulary, locked; the weights are not read."""
    from localmem import runtime

    settings = shared.settings()
    with open_database(settings) as (_, store):
        find_agent(store, shared.agent, settings)
    backend = runtime.load_backend(settings, counting_only=True)
    try:
        with runtime.open(shared.agent, settings=settings, backend=backend, create=False) as agent:
            yield agent
    finally:
        backend.close()


@contextmanager
def open_to_run(shared: Shared) -> Generator[Agent]:
    """The agent with its model, which takes a while the first time."""
    settings = shared.settings()
    shared.say(f"Loading {Path(settings.model).name} …")
    from localmem import runtime  # half a second: after the line that says to wait

    with runtime.open(shared.agent, settings=settings) as agent:
        yield agent


def find_agent(store: AgentStore, name: str, settings: Settings) -> AgentRow:
    """The agent of that name; the default one is made when it is first asked for. Raises AgentNotFound."""
    try:
        return store.get(name)
    except AgentNotFound:
        if name != DEFAULT_AGENT:
            raise
    from localmem import runtime

    return runtime.create_agent(store, name, settings)


@dataclass(slots=True)
class Presses:
    """How often Ctrl-C was pressed while the agent worked."""

    count: int = 0


_LEAVE_AT = 3


@contextmanager
def cancelling(agent: Agent) -> Generator[Presses]:
    """In here Ctrl-C asks the agent to stop, which it does between two tokens; the third time it is an interrupt."""
    presses = Presses()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        presses.count += 1
        agent.cancel()
        if presses.count >= _LEAVE_AT:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)


# -- reading and writing ---------------------------------------------------------------------------------------


def read_text(text: str) -> str:
    """`text`, or the whole of stdin for `-`. Bytes that are not UTF-8 are replaced. Raises UsageError for nothing."""
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    if not text.strip():
        raise click.UsageError("The text is empty.")
    return text


def read_file(path: Path, most_bytes: int) -> str:
    """The text of a file. Raises LocalmemError for one that is not there, too long, or no text."""
    try:
        if path.stat().st_size > most_bytes:
            raise LocalmemError(f"{path} is longer than {most_bytes:,} bytes", "Choose a smaller file.")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LocalmemError(
            f"{path} is no text: {error.reason}", "Choose another file, or save it as UTF-8."
        ) from error
    except OSError as error:
        raise LocalmemError(f"cannot read {path}: {error.strerror}", "Check the name and its permissions.") from error


_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """`text` without control characters: what a model wrote, or a document says, must not steer a terminal."""
    return _UNSAFE.sub("", text)


def one_line(text: str, width: int | None = None) -> str:
    """`text` on one line, cut to `width` characters.

    >>> one_line("a\\nb  c", 4)
    'a b…'
    """
    line = " ".join(plain(text[: width * 8] if width else text).split())
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def print_json(value: object) -> None:
    """One JSON value on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain_value))


def _plain_value(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone().isoformat(timespec="seconds")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows in aligned columns on stdout; numbers to the right. Nothing for no rows."""
    body = [[str(cell) for cell in row] for row in rows]
    if not body:
        return
    widths = [max(len(line[column]) for line in (list(header), *body)) for column in range(len(header))]
    right = [all(re.fullmatch(r"[\d,.:%\-]*( s)?", line[column]) for line in body) for column in range(len(header))]
    for line in (list(header), *body):
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def when(moment: datetime | None) -> str:
    """A moment in local time, to the minute; `never` for None."""
    return "never" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")


@contextmanager
def progress_bar(
    shared: Shared, total: int | None, unit: str, name: str | None = None
) -> Generator[Callable[[int], None]]:
    """A bar on stderr, seen where something takes over a second; what it gives is told how many are done."""
    from tqdm import tqdm

    interval_s = 0.2 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=total, desc=name, unit=f" {unit}", file=sys.stderr, disable=shared.quiet, delay=1, mininterval=interval_s
    ) as bar:

        def advance(done: int) -> None:
            bar.update(done - bar.n)

        yield advance


def page_note(found: Page[Any], page: int) -> str:  # Any: whatever was found
    """Which results are shown: `results 6-10 of 23, page 2 of 5`."""
    if not found.total:
        return "nothing found"
    if not found.items:
        return f"there is no page {page}: {found.counted} results on {found.pages} pages"
    first = (page - 1) * PAGE_SIZE + 1
    return f"results {first}-{first + len(found.items) - 1} of {found.counted}, page {page} of {found.pages}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Raises click.Abort unless the answer is yes."""
    if not yes:
        click.confirm(question, abort=True, err=True)


def show_error(error: Exception) -> None:
    """`Error: message` and the way out, on stderr."""
    message = error.message if isinstance(error, LocalmemError) else str(error)
    click.echo(f"Error: {plain(message)}", err=True)
    if isinstance(error, LocalmemError) and error.hint:
        click.echo(plain(error.hint), err=True)
