"""What the documents show exists and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from localmem.interfaces.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shell_commands() -> list[list[str]]:
    lines = [line.split("#")[0].split() for block in blocks("sh") for line in block.splitlines()]
    return [words for words in lines if words]


@pytest.mark.parametrize("words", [w for w in shell_commands() if w[0] == "localmem" and len(w) > 1], ids=" ".join)
def test_command_in_the_readme_exists(words: list[str]):
    group: click.Command = main
    for word in words[1:]:
        if not isinstance(group, click.Group) or word.startswith("-"):
            break
        assert word in group.commands
        group = group.commands[word]


@pytest.mark.parametrize("words", [w for w in shell_commands() if w[0] == "make"], ids=" ".join)
def test_make_target_in_the_readme_exists(words: list[str]):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "docs/design.md", "benchmarks/README.md"])
def test_links_lead_somewhere(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


def test_files_named_in_the_design_exist():
    tree = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("```")[1]
    names = re.findall(r"[\w/]+\.(?:py|md|json|toml)\b", tree)
    missing = [name for name in names if not list(ROOT.glob(f"**/{name}"))]
    assert len(names) > 30
    assert missing == []


@pytest.mark.model
def test_python_in_the_readme_runs(tmp_path: Path, smollm_path: Path):
    environment = {
        **os.environ,
        "LOCALMEM_HOME": str(tmp_path),
        "LOCALMEM_MODELS": str(smollm_path.parent),
        "LOCALMEM_MODEL": "smollm2-135m-instruct",
    }
    for block in blocks("python"):
        run = subprocess.run(
            [sys.executable, "-c", block], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip()
