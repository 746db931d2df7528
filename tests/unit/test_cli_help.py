"""Every command says what it is for, at once; a wrong command line is one clear error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import click
import pytest

from localmem import __version__
from localmem.config import CacheType, FlashAttention, Settings
from localmem.interfaces.cli import cli, run
from localmem.interfaces.cli.common import CACHE_TYPE, FLASH_ATTENTION, MODEL, Shared, shared

HEAVY = {"numpy", "pydantic", "sqlite_utils", "llama_cpp", "tqdm", "prompt_toolkit", "jinja2", "platformdirs"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(cli))


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_command_and_each_of_its_options_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    command = COMMANDS[path]
    assert run([*path, "--help"]) == 0
    assert command.help
    assert command.help.split("\n")[0] in " ".join(capsys.readouterr().out.split())
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_help_lists_every_command_and_marks_the_default_one(capsys: pytest.CaptureFixture[str]):
    assert run(["-h"]) == 0
    shown = capsys.readouterr().out
    assert "chat*" in shown
    assert all(f"  {name}" in shown for name in cli.commands)


def test_version(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"localmem {__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from localmem.interfaces.cli import run\n"
        "run(['--help'])\n"
        "sys.stderr.write(' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sned", "hi"], "Did you mean send?"),
        (["frobnicate"], "No such command"),
        (["send"], "Missing argument 'TEXT'"),
        (["send", "  "], "The text is empty"),
        (["archival", "add", ""], "The text is empty"),
        (["chat", "hello"], "unexpected extra argument"),
        (["send", "hi", "--ctx-size", "many"], "not a valid integer"),
        (["send", "hi", "-ctk", "q5_1"], "'-ctk'"),
        (["send", "hi", "--cache-type-v", ""], "'--cache-type-v'"),
        (["send", "hi", "-fa", "perhaps"], "'-fa'"),
        (["recall", "search", "x", "--since", "2026-13-01"], "--since"),
        (["recall", "dates", "--since", "2026-02-02", "--until", "2026-02-01"], "--until is before --since"),
        (["recall", "search", "x", "--page", "0"], "--page"),
        (["memory", "add", "Not A Label"], "cannot name a block"),
        (["schedule", "add", "", "@daily", "note"], "NAME must have"),
        (["-o", "window"], "requires 2 arguments"),
    ],
)
def test_wrong_command_line_is_exit_2_and_one_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("Error:") == 1


def settings_given(*arguments: str) -> Settings:
    """What a command with the model's options would run on."""
    found: list[Settings] = []

    @click.command()
    @shared(MODEL)
    def probe(options: Shared) -> None:
        found.append(options.settings())

    probe.main(list(arguments), standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("-ctk", "q8_0", "-ctv", "q4_0", "-fa", "on"),
        ("--cache-type-k", "q8_0", "--cache-type-v", "q4_0", "--flash-attn", "on"),
        ("-o", "type_k", "q8_0", "-o", "backend.type_v", "q4_0", "-o", "flash_attention", "on"),
    ],
    ids=" ".join,
)
def test_llama_cpps_flags_set_the_kv_cache(arguments: tuple[str, ...]):
    settings = settings_given(*arguments)
    assert (settings.type_k, settings.type_v, settings.flash_attention) == ("q8_0", "q4_0", "on")
    assert {settings.origin[name] for name in ("type_k", "type_v", "flash_attention")} == {"flag"}


def test_flags_offer_what_the_settings_take():
    assert tuple(CACHE_TYPE.choices) == get_args(CacheType)
    assert tuple(FLASH_ATTENTION.choices) == get_args(FlashAttention)
