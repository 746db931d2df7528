"""Faults: what is lost, doubled or crossed by kills, power cuts, a full disk, or two processes on one home.

python -m benchmarks.faults [--kills N] [--power N] [--full N] [--operations N] [--json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.common import RESULTS, save
from benchmarks.faults.disk import fill_often
from benchmarks.faults.kills import Kills, kill_often
from benchmarks.faults.power import cut_often
from benchmarks.faults.processes import run_two

Figures = dict[str, object]


def main() -> None:
    arguments = _arguments()
    kills = kill_often(arguments.kills, seed=arguments.seed, quiet=arguments.json)
    power = cut_often(arguments.power, seed=arguments.seed, quiet=arguments.json)
    full = fill_often(arguments.full, seed=arguments.seed)
    processes = run_two(arguments.operations, seed=arguments.seed)
    figures: Figures = {
        "kills": kills.kills,
        "kill_points": len(kills.points),
        "statements": len(kills.all_points | kills.points),
        "lost": len(kills.lost),
        "duplicates": len(kills.duplicates),
        "failed_opens": len(kills.failed_opens),
        "reruns": len(kills.reruns),
        "windows_compared": kills.compared,
        "differences_after_reopen": len(kills.differences),
        **_power_figures(power),
        "disk_full": full.times,
        "disk_read_only": full.read_only,
        "disk_full_lost": None if full.times is None else len(full.lost) + len(full.other_errors),
        "process_operations": processes.operations,
        "process_lost": len(processes.lost),
        "process_crossed": len(processes.crossed) + processes.shared,
    }
    wrong = {
        "lost": kills.lost,
        "duplicates": kills.duplicates,
        "failed_opens": kills.failed_opens,
        "reruns": kills.reruns,
        "differences_after_reopen": kills.differences,
        **_power_wrong(power or Kills()),
        "disk_full_lost": [*full.lost, *full.other_errors],
        "process_lost": processes.lost,
        "process_crossed": processes.crossed,
    }
    save("faults", "scripted", figures, folder=arguments.out, seed=arguments.seed, wrong=wrong)
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name:26} {value}" for name, value in figures.items()))


def _power_figures(power: Kills | None) -> Figures:
    wrong = _power_wrong(power or Kills())
    if power is None:
        return dict.fromkeys(("power_cuts", *wrong))
    return {"power_cuts": power.kills, **{name: len(found) for name, found in wrong.items()}}


def _power_wrong(power: Kills) -> dict[str, list[str]]:
    return {
        "power_lost": [*power.lost, *power.differences],
        "power_duplicates": [*power.duplicates, *power.reruns],
        "power_failed_opens": power.failed_opens,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=500, metavar="N")
    parser.add_argument("--power", type=int, default=200, metavar="N", help="times that the power is cut")
    parser.add_argument("--full", type=int, default=200, metavar="N", help="times that the disk is full")
    parser.add_argument("--operations", type=int, default=1_000, metavar="N", help="of two processes on one home")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the result file goes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    main()
