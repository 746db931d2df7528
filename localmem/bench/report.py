"""What a reliability run found, for people and for programs: a table, a Markdown page, a plot, a result file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localmem.bench.arms import Arm
from localmem.bench.provenance import commit, machine
from localmem.bench.scoring import SHARES, Outcome, Share, figures
from localmem.errors import LocalmemError

HEADER = ("model", "arm", "calls", "valid", "executable", "right function", "right call", "restraint", "tokens", "s")


Result = dict[str, Any]
"""JSON: one model's record, as it is written to a result file."""


def result(model: str, outcomes: Mapping[Arm, Sequence[Outcome]], split: str) -> Result:
    """The record of a run, as every benchmark of this project writes it; figures are those of the last arm."""
    *others, main = [{"model": model, "arm": arm, **figures(found)} for arm, found in outcomes.items()]
    counted = {"calls": main["n"], **{name: main[name] for name in (*SHARES, "restraint")}}
    more = {name: main[name] for name in ("tokens_per_call", "seconds_per_call")}
    return {
        "benchmark": "reliability",
        "commit": commit(),
        "model": model,
        "machine": machine(),
        "split": split,
        "figures": {**counted, **more, "arm": main["arm"]},
        "arms": [*others, main],
    }


def rows(record: Result) -> list[tuple[str, ...]]:
    """A row an arm, under HEADER: shares in per cent with their 95 % intervals."""
    return [
        (
            arm["model"],
            arm["arm"],
            str(arm["n"]),
            *(_percent(arm, name) for name in (*SHARES, "restraint")),
            f"{arm['tokens_per_call']:.0f}",
            f"{arm['seconds_per_call']:.2f}",
        )
        for arm in record["arms"]
    ]


def category_rows(record: Result) -> list[tuple[str, ...]]:
    """Category, n, and each arm's right functions and right calls in per cent."""
    return [
        (
            name,
            str(counted["n"]),
            *(
                f"{arm['by_category'][name]['right_function']:.0%} / {arm['by_category'][name]['right_call']:.0%}"
                for arm in record["arms"]
            ),
        )
        for name, counted in record["arms"][0]["by_category"].items()
    ]


def _percent(arm: Mapping[str, Any], name: str) -> str:  # Any: JSON
    """A share with its 95 % interval, `87.3 (83-91)`; a dash where nothing was asked."""
    low, high = arm["intervals"][name]
    return "-" if (low, high) == Share(0, 0).interval else f"{100 * arm[name]:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def markdown(records: Sequence[Result]) -> str:
    """A page: one table of every model and arm, then each model's categories."""
    lines = [
        f"# Function-call reliability, {records[0]['split']}",
        "",
        "Shares in per cent with their 95 % intervals; tokens and seconds are a call's mean, its prompt already read.",
        "",
        *_table(HEADER, [row for record in records for row in rows(record)]),
    ]
    for record in records:
        header = ("category", "n", *(f"{arm['arm']}: function / call" for arm in record["arms"]))
        source = f"Commit {record['commit']}, {record['machine']}."
        lines += ["", f"## {record['model']}, by category", "", source, "", *_table(header, category_rows(record))]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]


def check_plotting() -> None:
    """Raise LocalmemError where matplotlib is not installed: better before an hour of measuring than behind it."""
    if find_spec("matplotlib") is None:
        raise LocalmemError("a plot needs matplotlib", "Install it: pip install 'localmem[plot]'.")


def plot(results: Sequence[Result], path: Path) -> None:
    """Reliability against speed, one point a model and arm, as an image of the kind `path` is named for.

    Raises LocalmemError where matplotlib is not installed.
    """
    check_plotting()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    marks = {"free": "x", "schema": "s", "state": "o", "tuned": "*"}
    for number, result in enumerate(results):
        arms = result["arms"]
        seconds, right = [arm["seconds_per_call"] for arm in arms], [100 * arm["right_call"] for arm in arms]
        axes.plot(seconds, right, color=f"C{number}", linewidth=0.6, alpha=0.5, label=result["model"])
        for arm, x, y in zip(arms, seconds, right, strict=True):
            low, high = (100 * end for end in arm["intervals"]["right_call"])
            axes.errorbar(
                x,
                y,
                yerr=[[y - low], [high - y]],
                fmt=marks[arm["arm"]],
                color=f"C{number}",
                markersize=9,
                elinewidth=0.7,
            )
            axes.annotate(arm["arm"], (x, y), xytext=(6, 6), textcoords="offset points", fontsize=8)
    axes.set(xlabel="seconds a call", ylabel="right function and arguments, %", xscale="log", ylim=(0, 100))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.grid(visible=True, linewidth=0.3)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)  # inside, it would hide points
    figure.savefig(path)


def write(record: Result, folder: Path) -> list[Path]:
    """The result file in `folder`, and there the page and the plot of every model of this split; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"reliability-{record['model']}.json"
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("reliability-*.json"))]
    alike = [one for one in found if one["split"] == record["split"]]
    page, image = folder / "reliability.md", folder / "reliability.svg"
    page.write_text(markdown(alike), encoding="utf-8")
    plot(alike, image)
    return [path, page, image]


def write_record(benchmark: str, model: str, measured: Mapping[str, Any], folder: Path) -> Path:  # Any: JSON
    """A result file as every benchmark of this project writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}-{model}.json"
    record = {"benchmark": benchmark, "commit": commit(), "model": model, "machine": machine(), "figures": measured}
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
