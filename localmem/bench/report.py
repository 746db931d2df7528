"""What a reliability run found, for people and for programs: a table, a Markdown page, a plot, a result file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localmem import __version__
from localmem.bench.arms import Arm
from localmem.bench.scoring import SHARES, Outcome, Share, figures, restraint, share
from localmem.errors import LocalmemError

HEADER = ("model", "arm", "calls", "valid", "executable", "right function", "right call", "restraint", "tokens", "s")


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One model's outcomes, arm by arm, in the order of the arms."""

    model: str
    outcomes: Mapping[Arm, Sequence[Outcome]]

    def objects(self) -> list[dict[str, Any]]:  # Any: JSON
        """One object an arm: model, arm, and the figures."""
        return [{"model": self.model, "arm": arm, **figures(found)} for arm, found in self.outcomes.items()]

    def rows(self) -> list[tuple[str, ...]]:
        return [_row(self.model, arm, found) for arm, found in self.outcomes.items()]

    def category_rows(self) -> list[tuple[str, ...]]:
        """Category, n, and the share of right calls in each arm."""
        arms = list(self.outcomes)
        names = sorted({outcome.category for found in self.outcomes.values() for outcome in found})
        rows: list[tuple[str, ...]] = []
        for name in names:
            chosen = [[o for o in self.outcomes[arm] if o.category == name] for arm in arms]
            cells = (f"{share(c, 'right_function').value:.0%} / {share(c, 'right_call').value:.0%}" for c in chosen)
            rows.append((name, str(len(chosen[0])), *cells))
        return rows


def _row(model: str, arm: str, found: Sequence[Outcome]) -> tuple[str, ...]:
    table = figures(found)
    return (
        model,
        arm,
        str(len(found)),
        *(percent(share(found, name)) for name in SHARES),
        percent(restraint(found)),
        f"{table['tokens_per_call']:.0f}",
        f"{table['seconds_per_call']:.2f}",
    )


def percent(value: Share) -> str:
    """A share with its 95 % interval: `87.3 (83-91)`."""
    low, high = value.interval
    return "-" if not value.n else f"{100 * value.value:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def result(run: ModelRun, split: str) -> dict[str, Any]:  # Any: JSON
    """The record of a run, as every benchmark of this project writes it; figures are those of the last arm."""
    *others, main = run.objects()
    counted = {"calls": main["n"], **{name: main[name] for name in (*SHARES, "restraint")}}
    more = {name: main[name] for name in ("tokens_per_call", "seconds_per_call")}
    return {
        "benchmark": "reliability",
        "commit": commit(),
        "model": run.model,
        "machine": machine(),
        "split": split,
        "figures": {**counted, **more, "arm": main["arm"]},
        "arms": [*others, main],
    }


def markdown(runs: Sequence[ModelRun], split: str) -> str:
    """A page: one table of every model and arm, then each model's categories."""
    lines = [
        f"# Function-call reliability, {split}",
        "",
        f"Commit {commit()}, {machine()}.",
        "Shares in per cent with their 95 % intervals; tokens and seconds are a call's mean, its prompt already read.",
        "",
        *_table(HEADER, [row for run in runs for row in run.rows()]),
    ]
    for run in runs:
        header = ("category", "n", *(f"{arm}: function / call" for arm in run.outcomes))
        lines += ["", f"## {run.model}, by category", "", *_table(header, run.category_rows())]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]


def check_plotting() -> None:
    """Raise LocalmemError where matplotlib is not installed: better before an hour of measuring than behind it."""
    if find_spec("matplotlib") is None:
        raise LocalmemError("a plot needs matplotlib", "Install it: pip install 'localmem[plot]'.")


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> None:  # Any: JSON
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
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path)


def write(results: Sequence[Mapping[str, Any]], text: str, folder: Path) -> list[Path]:  # Any: JSON
    """The result files, the page and the plot, in `folder`; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"reliability-{record['model']}.json" for record in results]
    for path, record in zip(paths, results, strict=True):
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page, image = folder / "reliability.md", folder / "reliability.svg"
    page.write_text(text, encoding="utf-8")
    plot(results, image)
    return [*paths, page, image]


def write_record(benchmark: str, model: str, measured: Mapping[str, Any], folder: Path) -> Path:  # Any: JSON
    """A result file as every benchmark of this project writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}-{model}.json"
    record = {"benchmark": benchmark, "commit": commit(), "model": model, "machine": machine(), "figures": measured}
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The commit of the checkout the package lies in, marked when files differ from it; else the version."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return __version__
    return run.stdout.strip() or __version__


def machine() -> str:
    """Processor, cores and memory, in a line."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return f"{model}, {os.cpu_count()} cores, {memory // (1 << 20)} GB, {platform.system()}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
