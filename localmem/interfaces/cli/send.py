"""`localmem send`: one event, its reply on stdout, and done. For scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from localmem.interfaces.cli.common import (
    AGENT,
    INTERRUPTED,
    JSON,
    MODEL,
    Shared,
    cancelling,
    open_to_run,
    plain,
    print_json,
    read_text,
    shared,
)

if TYPE_CHECKING:
    from localmem.kernel.messages import Step


@click.command()
@click.argument("text")
@shared(AGENT, MODEL, JSON)
def send(shared: Shared, text: str) -> int:
    """Send TEXT, or stdin for -, and print the reply.

    With --json each step is one line, as it happens; the last line has the reply.
    """
    message = read_text(text)
    with open_to_run(shared) as agent, cancelling(agent) as presses:
        steps = agent.send(message)
        if shared.as_json:
            print_steps(steps)
        else:
            print_reply(steps)
    return INTERRUPTED if presses.count else 0


def print_reply(steps: Iterable[Step]) -> None:
    """The reply alone, as soon as it is there; what the agent does after it goes on in silence."""
    for step in steps:
        if step.reply is not None:
            click.echo(plain(step.reply))


def print_steps(steps: Iterable[Step]) -> None:
    """A JSON object a step. The reply's is held back, for the steps of a memory-pressure warning may follow it."""
    held: Step | None = None
    try:
        for step in steps:
            if step.reply is None:
                print_json(step_object(step))
            else:
                held = step
    finally:
        if held is not None:
            print_json(step_object(held))


def step_object(step: Step) -> dict[str, object]:
    """A step as `--json` has it."""
    call = step.call
    return {
        "step": step.id,
        "call": None
        if call is None
        else {
            "name": call.name,
            "arguments": dict(call.arguments),
            "thought": call.thought,
            "request_heartbeat": call.request_heartbeat,
        },
        "result": {"ok": step.result.ok, "text": step.result.text},
        "usage": asdict(step.usage),
        "reply": step.reply,
    }
