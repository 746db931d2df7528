"""`localmem context | grammar | trace | config | doctor`: looking at what is there, without running a model."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localmem.errors import LocalmemError
from localmem.interfaces.cli.common import (
    AGENT,
    JSON,
    MODEL_NAME,
    Option,
    Shared,
    one_line,
    open_row,
    open_to_look,
    plain,
    print_json,
    print_table,
    shared,
    when,
)

if TYPE_CHECKING:
    from localmem.runtime import WindowUse
    from localmem.storage.agent_store import InferenceRow

_WINDOW: tuple[Option, ...] = (
    *MODEL_NAME,
    click.option("--ctx-size", "window", type=int, metavar="N", help="Window in tokens; 0 is the model's own."),
)


@click.command()
@shared(AGENT, _WINDOW, JSON)
def context(shared: Shared) -> None:
    """The exact token count of each part of the window."""
    from localmem.runtime import window_use

    with open_to_look(shared) as agent:
        use = window_use(agent)
        notes = agent.notes
    if shared.as_json:
        print_json(asdict(use))
        return
    click.echo(use_text(use))
    for note in notes:
        shared.say(f"Note: {note}")


def use_text(use: WindowUse) -> str:
    """The use of a window as people read it."""
    limit = use.window - use.reserve
    lines = [f"{name.replace('_', ' '):16}{tokens:>7,}" for name, tokens in use.parts.items()]
    lines += [
        f"{'used':16}{use.used:>7,}  {use.used * 100 // limit} % of {limit:,}",
        f"{'free':16}{use.free:>7,}",
        f"{'reserve':16}{use.reserve:>7,}  for the answer",
        f"{'window':16}{use.window:>7,}",
    ]
    return "\n".join(lines)


@click.group()
def grammar() -> None:
    """Show what the model may write now, and check grammars."""


@grammar.command("show")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lark", "schema", "gbnf"]),
    default="lark",
    show_default=True,
    help="How to write it.",
)
@shared(AGENT, _WINDOW)
def show_grammar(shared: Shared, form: str) -> None:
    """The grammar the agent's next step is held to, made from its memory as it stands.

    gbnf is its twin for llama.cpp's own sampler, which backend.constraint = "gbnf" selects.
    """
    from localmem.calls.gbnf import write_gbnf

    with open_to_look(shared) as agent:
        current = agent.grammar()
        if form == "gbnf":
            click.echo(write_gbnf(current), nl=False)
        elif form == "schema":
            click.echo(json.dumps(current.json_schema(), ensure_ascii=False, indent=2))
        else:
            click.echo(agent.backend.write_grammar(current), nl=False)


@grammar.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@shared(MODEL_NAME)
def check_grammar(shared: Shared, file: Path) -> None:
    """Compile FILE as the decode loop would: Lark, or JSON Schema in a file called *.json."""
    from localmem import runtime

    settings = shared.settings()
    text = _text_of(file)
    if file.suffix.lower() == ".json":
        try:
            text = f"start: %json {json.dumps(json.loads(text))}\n"
        except (ValueError, RecursionError) as error:
            raise LocalmemError(f"{file} is not JSON: {error}", "Mend it, or call it *.lark.") from error
    try:
        runtime.check_grammar(text, settings)
    except LocalmemError as error:
        raise LocalmemError(f"{file}: {error.message}", "Mend it there.") from error
    click.echo(f"{file}: right")


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalmemError(f"{file} cannot be read: {error.strerror}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise LocalmemError(f"{file} is not UTF-8 text", "Save it as UTF-8.") from error


@click.group()
def trace() -> None:
    """What the model really read and wrote, and what it cost."""


@trace.command("list")
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="How many, at most.")
@shared(AGENT, JSON)
def list_inferences(shared: Shared, number: int) -> None:
    """The latest inferences, newest first. Those of a flush belong to no step."""
    with open_row(shared) as (store, row):
        inferences = store.inferences(row.id, number)
    if shared.as_json:
        print_json([_object(inference, prompt=False) for inference in inferences])
        return
    if not inferences:
        shared.say("The model has not run yet.")
    print_table(
        ("id", "step", "event", "phase", "prompt", "reused", "read", "written", "time", "completion"),
        [
            (
                one.id,
                "-" if one.step_id is None else one.step_id,
                one.event,
                one.phase,
                f"{one.prompt_tokens:,}",
                f"{one.reused_tokens:,}",
                f"{one.evaluated_tokens:,}",
                f"{one.generated_tokens:,}",
                f"{one.read_seconds + one.write_seconds:.1f} s",
                one_line(one.completion, 60),
            )
            for one in inferences
        ],
    )


@trace.command("show")
@click.argument("number", metavar="STEP", type=int)
@click.option("--inference", is_flag=True, help="STEP is the id of an inference: those of a flush have no step.")
@click.option("--prompt", "with_prompt", is_flag=True, help="Print the whole prompt too, control tokens included.")
@shared(AGENT, JSON)
def show_inference(shared: Shared, number: int, inference: bool, with_prompt: bool) -> None:
    """All that is known of one step."""
    with open_row(shared) as (store, row):
        everything = store.inferences(row.id, -1)
    found = [one for one in everything if (one.id if inference else one.step_id) == number]
    if not found:
        kind = "inference" if inference else "step"
        raise LocalmemError(f"agent {shared.agent!r} has no {kind} {number}", "localmem trace list shows the latest.")
    if shared.as_json:
        print_json(_object(found[0], prompt=with_prompt))
    else:
        _show_inference(shared, found[0], with_prompt=with_prompt)


def _show_inference(shared: Shared, one: InferenceRow, *, with_prompt: bool) -> None:
    step = "no step" if one.step_id is None else f"step {one.step_id}"
    click.echo(f"inference {one.id}, {step}, {one.phase}, event {one.event}, {when(one.created_at)}")
    click.echo(
        f"read {one.prompt_tokens:,} tokens in {one.read_seconds:.1f} s, {one.reused_tokens:,} of them from the cache; "
        f"wrote {one.generated_tokens:,} in {one.write_seconds:.1f} s"
    )
    if with_prompt:
        if one.prompt is None:
            shared.say("The prompt is not kept any more.")
        else:
            click.echo(f"\n{plain(one.prompt)}")
    click.echo(f"\n{plain(one.completion)}")


def _object(one: InferenceRow, *, prompt: bool) -> dict[str, object]:
    return {key: value for key, value in asdict(one).items() if key != "agent_id" and (prompt or key != "prompt")}


@click.group()
def config() -> None:
    """Show the settings and where each is from."""


@config.command("show")
@shared(_WINDOW, JSON)
def show_config(shared: Shared) -> None:
    """Each setting, its value, and its origin."""
    from localmem.config import KEYS

    settings = shared.settings()
    keys = {"home": "home"} | {key.field: key.toml for key in KEYS}
    values = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name in keys}
    rows = [(keys[name], value, settings.origin[name]) for name, value in values.items()]
    if shared.as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
    else:
        print_table(("key", "value", "origin"), rows)


@config.command("path")
@shared()
def path_of_config(shared: Shared) -> None:
    """Where config.toml is looked for; it need not be there."""
    click.echo(shared.settings().config_file)


@click.command()
@click.option("--mend", is_flag=True, help="Put right what can be: caches, leftovers, permissions.")
@shared(MODEL_NAME, JSON)
def doctor(shared: Shared, mend: bool) -> int:
    """Look at everything an agent needs. Exit code 1 when something is broken."""
    from localmem.interfaces.cli.checkup import examine

    findings = []
    for finding in examine(shared.settings()):
        findings.append(finding)
        mended = finding.mend() if mend and finding.mend is not None else ""
        if not shared.as_json:
            click.echo(f"{finding.state:7} {finding.check}: {plain(finding.text)}")
            if mended:
                click.echo(f"        mended: {mended}")
            elif finding.hint:
                click.echo(f"        {plain(finding.hint)}")
    if shared.as_json:
        names = ("check", "state", "text", "hint")
        print_json([{name: getattr(finding, name) for name in names} for finding in findings])
    return int(any(finding.state == "broken" for finding in findings))
