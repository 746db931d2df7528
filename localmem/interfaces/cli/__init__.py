"""The command line: `localmem`, its commands, and what becomes of an error.

One file a group of commands; nothing imports this package. Data goes to stdout and all else to stderr. Exit codes:
0 done, 1 an error with its way out, 2 a wrong command line, 130 interrupted.
"""

from __future__ import annotations

import difflib
import io
import sys
from typing import Any

import click
from click_default_group import DefaultGroup

from localmem import __version__
from localmem.errors import FunctionError, LocalmemError
from localmem.interfaces.cli import agent_files, archival, bench, looking, memory, models, recall, schedule
from localmem.interfaces.cli.chat import chat
from localmem.interfaces.cli.common import INTERRUPTED, show_error
from localmem.interfaces.cli.send import send


class _Commands(DefaultGroup):  # pyright: ignore[reportUntypedBaseClass]  # the package carries no types
    """Commands in the order they were added; without one, `chat`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # Any: as click has it
        name = args[0]
        if not name.startswith("-") and name not in self.commands:
            near = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Options stand after the command."
            raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    default="chat",
    default_if_no_args=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Options of a command stand after it: localmem send -a ana --json TEXT. "
    "Settings, their values and their origins: localmem config show.",
)
@click.version_option(__version__, message="localmem %(version)s")
def cli() -> None:
    """An assistant that manages its own memory, on a local model in a small window.

    Without a command, it chats.
    """


for _command in (
    chat,
    send,
    agent_files.agents,  # `agents`, with what makes files of them
    memory.memory,
    recall.recall,
    archival.archival,
    schedule.schedule,
    models.models,
    bench.bench,
    looking.context,
    looking.grammar,
    looking.trace,
    looking.config,
    looking.doctor,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line and exit with its code. Never a traceback for what a user can act on."""
    _write_whatever_comes()
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """The exit code of a command line, its errors told on stderr."""
    try:
        result = cli.main(args, prog_name="localmem", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        click.echo("Nothing was done.", err=True)
        return 1
    except (LocalmemError, FunctionError, OSError) as error:  # OSError: a full disk, a folder one may not read
        show_error(error)
        return 1


def _write_whatever_comes() -> None:
    """A terminal of a narrower encoding shows `?` for what it lacks; it does not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
