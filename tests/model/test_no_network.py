"""A whole conversation with the network taken away, and nothing that asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import QUICK, environment

pytestmark = pytest.mark.model

# Notes every attempt to reach or look up another machine, then is `localmem`.
_WATCHED = """
import sys

asked = sys.argv.pop(1)

def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        with open(asked, "a") as file:
            file.write(f"{event} {arguments!r}\\n")

sys.addaudithook(note)
"""
_LOCALMEM = """
from localmem.interfaces.cli import main
main()
"""


def _without_network() -> list[str]:
    """What makes a command run in a network namespace of its own, with no interface up; [] where that cannot be had."""
    tool = ["unshare", "--map-root-user", "--net"]
    try:
        done = subprocess.run([*tool, "true"], check=False, capture_output=True)
    except FileNotFoundError:
        return []
    return tool if done.returncode == 0 else []


def test_the_watch_sees_an_attempt(tmp_path: Path):
    asked = tmp_path / "asked"
    script = "import socket\nsocket.gethostbyname('localhost')\n"
    subprocess.run([sys.executable, "-c", _WATCHED + script, str(asked)], check=True)
    assert "gethostbyname" in asked.read_text()


def test_a_whole_conversation_needs_no_network(smollm_path: Path, tmp_path: Path):
    asked = tmp_path / "asked"
    document = tmp_path / "boat.md"
    document.write_text("# The boat\n\nThe boat is blue.\n", encoding="utf-8")
    env = environment(tmp_path / "home", smollm_path.parent)

    def run(*arguments: str, stdin: bytes = b"") -> str:
        command = [*_without_network(), sys.executable, "-c", _WATCHED + _LOCALMEM, str(asked), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    assert run("chat", *QUICK, stdin=b"My name is Ana and I have a dog.\nWhat is my name?\n").count("\n") == 2
    run("archival", "load", str(document), *QUICK[2:])
    assert "blue" in run("archival", "search", "boat", *QUICK[2:])
    assert "dog" in run("recall", "search", "dog", *QUICK[2:])
    run("agents", "export", "default", str(tmp_path / "a.localmem"))
    run("agents", "import", str(tmp_path / "a.localmem"), "--name", "again")
    run("doctor", *QUICK[2:])
    assert not asked.exists(), asked.read_text()
