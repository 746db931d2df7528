"""`localmem chat`: the conversation, on a terminal or through a pipe.

On a terminal a line editor waits for the user's next message; when a timed event comes due meanwhile, it hands the
line back half written, the event is dealt with, and the line is taken up again. So one thing happens at a time, in
one thread. From a pipe each line is a message and each reply a line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from localmem import __version__
from localmem.errors import LocalmemError
from localmem.interfaces.cli.common import (
    AGENT,
    MODEL,
    Shared,
    cancelling,
    one_line,
    open_to_run,
    plain,
    shared,
    show_error,
)

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

    from localmem.kernel.agent import Agent, OnReply
    from localmem.kernel.messages import Step
    from localmem.storage.edit_log import Edit

_AGAIN_S = 2.0  # a second Ctrl-C within this leaves
_LOOK_S = 5.0  # how long a timer set by another process may go unnoticed
_HELP = """/help     this list
/memory   what the agent always has in mind
/context  how full its window is
/undo     take back the newest edit of its core memory; /undo archival that of its archival memory
/redo     take back the newest undo; /redo archival too
/quit     leave; Ctrl-D does too
Anything else is said to the agent. Ctrl-C stops a reply."""


@click.command()
@click.option("--thoughts", is_flag=True, help="Show each call, its result, and the model's thoughts.")
@click.option("--calls", is_flag=True, help="Show each call and its result.")
@click.option("--no-stream", is_flag=True, help="Print a reply when it is whole.")
@click.option("--no-idle", is_flag=True, help="Do no work while waiting for the next message.")
@shared(AGENT, MODEL)
def chat(shared: Shared, thoughts: bool, calls: bool, no_stream: bool, no_idle: bool) -> int:
    """Talk with an agent. This is what localmem does without a command.

    From a pipe, each line is a message and each reply one line.

    On a terminal localmem works ahead while you read and type: it reads what the next reply will need, and makes room
    before the window is full. --no-idle, or agent.idle = false in config.toml, leaves that to the next reply.
    """
    on_terminal = sys.stdin.isatty()
    if no_idle:
        shared = replace(shared, flags={**shared.flags, "idle": False})
    with open_to_run(shared) as agent, _closing_on_signals():
        view = View(stream=on_terminal and not no_stream, one_line=not on_terminal, calls=calls, thoughts=thoughts)
        conversation = Conversation(agent, view, shared)
        conversation.begin()
        if on_terminal:
            conversation.at_terminal(shared.settings().state_dir / "history")
        else:
            conversation.from_lines(sys.stdin.buffer)
        conversation.end()
    return int(conversation.failed and not on_terminal)


@contextmanager
def _closing_on_signals() -> Generator[None]:
    """In here a closed terminal or a kill ends the program as Ctrl-D does: what the model has read is kept."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has one

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class View:
    """What of the agent's work is shown, and how."""

    stream: bool = True
    one_line: bool = False
    calls: bool = False
    thoughts: bool = False


class TimerDue(Exception):
    """A timed event came due while the user was writing `draft`."""

    def __init__(self, draft: str) -> None:
        super().__init__(draft)
        self.draft = draft


class Conversation:
    """An agent and a user, one message at a time. Replies go to stdout, all else to stderr."""

    def __init__(self, agent: Agent, view: View, shared: Shared) -> None:
        self.agent = agent
        self.failed = False
        self._view = view
        self._shared = shared
        self._reply = _Reply(view)
        self._interrupted_at = -_AGAIN_S
        self._prompt_tokens = 0
        self._reused_tokens = 0
        self._written_tokens = 0

    def begin(self) -> None:
        """Say who is here, and tell the agent so."""
        agent, say = self.agent, self._shared.say
        queue = agent.main_context.queue
        say(
            f"localmem {__version__} · agent {agent.name} · {Path(self._shared.settings().model).name} · "
            f"window {agent.options.budget.window:,} tokens"
        )
        say("Ctrl-C stops a reply, Ctrl-D ends, /help lists the commands.")
        for note in agent.notes:
            say(f"Note: {note}")
        if not queue or queue[-1].kind != "login":  # a login that nothing followed has been told already
            agent.log_in()

    def end(self) -> None:
        """Say what the session cost."""
        if not self._prompt_tokens:
            return
        share = self._reused_tokens * 100 // self._prompt_tokens
        self._shared.say(
            f"Read {self._prompt_tokens:,} tokens, {share} % of them from the cache; wrote {self._written_tokens:,}."
        )

    def from_lines(self, lines: BinaryIO | Iterable[bytes]) -> None:
        """Each line is a message; timed events run between two of them."""
        self._run_timers()
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text and not self.say(text):
                return
            self._run_timers()

    def at_terminal(self, history: Path) -> None:
        """Read messages with a line editor until the user leaves."""
        editor = _Editor(self.agent, history)
        armed = False
        draft = ""
        while True:
            self._run_timers()
            try:
                self.agent.rest()
                text, draft = editor.read(draft), ""
            except TimerDue as due:
                draft = due.draft
                continue
            except EOFError:
                return
            except KeyboardInterrupt:
                draft = ""
                if editor.had_text:
                    continue
                if armed or time.monotonic() - self._interrupted_at < _AGAIN_S:
                    return
                armed = True
                self._shared.say("Ctrl-C again leaves, and so does Ctrl-D.")
                continue
            armed = False
            if text.strip() and not self.say(text.strip()):
                return

    def say(self, text: str) -> bool:
        """Have the agent answer `text`, or carry out the slash command it is; False when that is to leave."""
        command = text.lower()
        if command in ("/quit", "/exit"):
            return False
        looks = {"/help": lambda: _HELP, "/memory": self._memory, "/context": self._context}
        changes = {"/undo": self.agent.undo, "/redo": self.agent.redo}
        name, _, store = command.partition(" ")
        if command in looks:
            self.agent.wake()
            click.echo(looks[command](), err=True)
        elif name in changes and store in ("", "archival"):
            self._turn_back(lambda: changes[name]("passages" if store else "block"))
        else:
            self._run(lambda on_reply: self.agent.send(text, on_reply=on_reply))
        return True

    def _run_timers(self) -> None:
        due = self.agent.next_timer()
        if due is not None and due <= datetime.now(UTC):
            self._run(lambda on_reply: self.agent.run_timers(on_reply=on_reply))

    def _run(self, steps: Callable[[OnReply | None], Iterator[Step]]) -> None:
        """Show the steps of one event as they come; Ctrl-C stops it, and an error ends it and nothing else."""
        with cancelling(self.agent) as presses:
            try:
                for step in steps(self._reply.feed if self._view.stream else None):
                    self._count(step)
                    self._show(step)
            except LocalmemError as error:
                self._reply.end()
                self.failed = True
                show_error(error)
        self._reply.end()
        if presses.count:
            self._interrupted_at = time.monotonic()

    def _show(self, step: Step) -> None:
        if step.reply is not None:
            self._reply.whole(step.reply)
            if self._view.stream and self.agent.queue_manager.warning_due:
                self._dim("The window is filling up; saving what matters. Ctrl-C skips it.")
            return
        self._reply.end()
        if step.call is None and step.result.text.startswith("Stopped"):
            self._dim("(stopped)")
        elif self._view.calls or self._view.thoughts:
            self._show_call(step)

    def _show_call(self, step: Step) -> None:
        if step.call is not None:
            if self._view.thoughts and step.call.thought:
                self._dim(f"  … {one_line(step.call.thought)}")
            arguments = ", ".join(f"{name}={value!r}" for name, value in step.call.arguments.items())
            self._dim(f"  → {step.call.name}({one_line(arguments, 400)})")
        self._dim(f"  {'←' if step.result.ok else '✗'} {one_line(step.result.text, 400)}")

    def _dim(self, text: str) -> None:
        click.secho(text, dim=True, err=True)

    def _count(self, step: Step) -> None:
        self._prompt_tokens += step.usage.prompt_tokens
        self._reused_tokens += step.usage.reused_tokens
        self._written_tokens += step.usage.generated_tokens

    def _turn_back(self, change: Callable[[], list[Edit]]) -> None:
        """Undo or redo, and show what was taken back."""
        from localmem.interfaces.cli.edits import edit_text

        try:
            edits = change()
        except LocalmemError as error:
            self.failed = True
            show_error(error)
            return
        for edit in edits:
            click.echo(f"Taken back: {edit_text(edit)}", err=True)

    def _memory(self) -> str:
        from localmem.interfaces.cli.memory import blocks_text

        return blocks_text(self.agent.working_context.blocks)

    def _context(self) -> str:
        from localmem.interfaces.cli.looking import use_text
        from localmem.runtime import window_use

        return use_text(window_use(self.agent))


class _Reply:
    """A reply on stdout: in pieces as it is written, or whole; always ended with one line break."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._is_open = False

    def feed(self, piece: str) -> None:
        if piece:
            self._is_open = True
            click.echo(plain(piece), nl=False)

    def whole(self, reply: str) -> None:
        """The step is done: print what was not streamed."""
        if not self._is_open:
            click.echo(one_line(reply) if self._view.one_line else plain(reply), nl=False)
            self._is_open = True
        self.end()

    def end(self) -> None:
        if self._is_open:
            click.echo()
        self._is_open = False


class _Editor:
    """A line editor with a history kept on disk, for the user's eyes only."""

    def __init__(self, agent: Agent, history: Path) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._agent = agent
        # On stderr where stdout goes elsewhere: `localmem | tee log` keeps its prompt.
        output = create_output(always_prefer_tty=True)
        self._session: PromptSession[str] = PromptSession(history=_history(history), output=output)
        self.had_text = False

    def read(self, draft: str) -> str:
        """The user's line. Raises EOFError, KeyboardInterrupt, or TimerDue with what was written so far."""
        try:
            return self._session.prompt("> ", default=draft, pre_run=self._watch)
        except KeyboardInterrupt:
            self.had_text = bool(self._session.default_buffer.text)
            raise

    def _watch(self) -> None:
        from prompt_toolkit.application import get_app

        get_app().create_background_task(self._until_due())

    async def _until_due(self) -> None:
        import asyncio

        app: Any = self._session.app  # Any: its result is a str or an exception, which its type cannot say
        while True:
            due = self._agent.next_timer()
            wait_s = _LOOK_S if due is None else (due - datetime.now(UTC)).total_seconds()
            if wait_s <= 0 and not app.future.done():  # done: the line was entered just now
                app.exit(exception=TimerDue(self._session.default_buffer.text))
                return
            await asyncio.sleep(max(0.1, min(wait_s, _LOOK_S)))


def _history(path: Path) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
