"""Records of right and wrong, counted: one row for each category and arm, in one result file that runs add to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import RESULTS, save
from benchmarks.journal import Record
from localmem.bench.provenance import commit, machine
from localmem.bench.scoring import Share

Row = dict[str, Any]
"""JSON: category, arm, n, and the figures."""


def row(category: str, arm: str, records: Sequence[Record], flags: Sequence[str] = ("right",)) -> Row:
    """Each flag's share with its 95 % interval, and the mean of what else is counted."""
    found: Row = {"category": category, "arm": arm, "n": len(records)}
    for flag in flags:
        share = Share(sum(bool(record[flag]) for record in records), len(records))
        found[flag] = round(share.value, 4)
        found[f"{flag}_interval"] = [round(end, 4) for end in share.interval]
    for name in ("tokens", "seconds", "steps"):
        values = [record[name] for record in records if name in record]
        if values:
            found[name] = round(mean(values), 3)
    return {**found, "commit": commit(), "machine": machine()}


_OF_EVERY_RUN = frozenset({"benchmark", "commit", "model", "machine", "figures", "rows", "samples"})


def add_to_results(
    benchmark: str,
    model: str,
    rows: Sequence[Row],
    *,
    samples: Mapping[str, Sequence[str] | None] | None = None,
    folder: Path = RESULTS,
    **more: object,
) -> Path:
    """Put rows into the benchmark's result file, in place of those of the same category and arm; gives its path.

    `figures` are the shares of right answers by category and arm. `samples` are the ids of what was asked of a
    category, None where it was all.
    """
    path = folder / f"{benchmark}-{model}.json"
    old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    new = {(one["category"], one["arm"]) for one in rows}
    kept = [one for one in old.get("rows", []) if (one["category"], one["arm"]) not in new]
    every = sorted([*kept, *rows], key=lambda one: (one["category"], one["arm"]))
    figures: dict[str, object] = {f"{one['category']}_{one['arm']}": one["right"] for one in every}
    chosen = {**old.get("samples", {}), **(samples or {})}
    others = {name: value for name, value in old.items() if name not in _OF_EVERY_RUN}
    asked = {name: list(ids) for name, ids in chosen.items() if ids is not None}
    return save(benchmark, model, figures, folder=folder, rows=every, samples=asked, **{**others, **more})


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for people: category, arm, n, each share in per cent with its interval, tokens."""
    lines = [f"{'category':18} {'arm':8} {'n':>5}"]
    for one in rows:
        flags = [name.removesuffix("_interval") for name in one if name.endswith("_interval")]
        shares = "  ".join(f"{flag} {_percent(one, flag):15}" for flag in flags)
        tokens = f"{one['tokens']:.1f} tokens" if "tokens" in one else ""
        lines.append(f"{one['category']:18} {one['arm']:8} {one['n']:5}  {shares}  {tokens}".rstrip())
    return "\n".join(lines)


def _percent(one: Mapping[str, Any], flag: str) -> str:
    low, high = (100 * end for end in one[f"{flag}_interval"])
    return f"{100 * one[flag]:.1f} ({low:.0f}-{high:.0f})"
