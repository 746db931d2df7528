"""What every benchmark needs: where results go, and which commit and machine a number belongs to."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from localmem.bench.provenance import commit, machine
from localmem.config import DEFAULT_MODEL, Settings, load_settings

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def save(benchmark: str, model: str, figures: dict[str, object], *, folder: Path = RESULTS, **more: object) -> Path:
    """Write a result file and give its path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{benchmark}-{model}.json"
    record = {"benchmark": benchmark, "commit": commit(), "model": model, "machine": machine(), "figures": figures}
    path.write_text(json.dumps({**record, **more}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def part_parser(doc: str | None, *, model: bool = True) -> argparse.ArgumentParser:
    """The arguments every part of the speed benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    if model:
        parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    return parser


def show(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Figures for a program on one line, or for people one a line."""
    print(json.dumps(figures) if as_json else "\n".join(f"{name:28} {value}" for name, value in figures.items()))


@contextmanager
def temporary_settings(model: str, **flags: object) -> Generator[Settings]:
    """The user's weights and an empty home that is gone afterwards."""
    with tempfile.TemporaryDirectory() as home:
        settings = load_settings(flags={"model": model, "seed": 0, "embedder": "hash", **flags})
        yield replace(settings, home=Path(home), database=Path(home) / "localmem.db")
