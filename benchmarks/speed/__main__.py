"""Every figure of speed in one run: `make bench-speed`.

python -m benchmarks.speed [--model NAME] [--json] [--only PART ...]

Writes `benchmarks/results/speed-MODEL.json`; its `parts` say at which commit each was run. Each part can be run alone;
its docstring says what it measures and how. A part that fails leaves its figures out, and the result says why.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.common import RESULTS, commit, save

PARTS = ("window", "decoding", "restore", "preemption", "process", "growth", "storage")
"""Each runs in a process of its own, so that none finds another's memory."""

WITH_MODEL = {"process", "restore", "preemption", "decoding", "window"}

TARGETS: Mapping[str, tuple[str, float]] = {
    "constrained_over_free": (">=", 1.4),
    "constrained_over_llama_gbnf": (">=", 2.2),
    "mask_ms_per_token": ("<=", 1.0),
    "extra_tokens_p95": ("<=", 64),
    "reuse_share": (">=", 0.95),
    "flush_user_tokens_p95": ("<=", 128),
    "restore_over_cold": ("<=", 0.05),
    "preempt_ms_p95": ("<=", 100),
    "runtime_share": ("<=", 0.03),
    "growth": ("<=", 1.2),
    "recall_search_ms": ("<=", 30),
    "archival_search_ms": ("<=", 10),
    "archival_recall_at_10": (">=", 0.95),
    "tokenizer_over_llama": (">=", 3),
    "extra_rss_mb": ("<=", 300),
    "help_s": ("<=", 0.3),
}
"""For qwen2.5-coder-1.5b-instruct on two quiet cores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts anew, into the result that is there")
    arguments = parser.parse_args()
    figures, parts, failed = _earlier(arguments.model) if arguments.only else ({}, {}, {})
    for part in arguments.only or PARTS:
        print(f"-- {part}", file=sys.stderr)
        started = time.perf_counter()
        try:
            figures |= _run(part, arguments.model)
            failed.pop(part, None)
        except (subprocess.CalledProcessError, ValueError) as error:
            failed[part] = str(error)
            print(f"{part} failed: {error}", file=sys.stderr)
        parts[part] = {"commit": commit(), "seconds": round(time.perf_counter() - started, 1)}
        # After each part: an hour's work is not lost to the last one.
        missed = [name for name, wanted in TARGETS.items() if name in figures and not _meets(figures[name], *wanted)]
        save("speed", arguments.model, figures, missed=missed, left_out=failed, parts=parts)
    print(json.dumps(figures) if arguments.json else _table(figures))
    sys.exit(bool(failed))


def _earlier(model: str) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Figures, parts and failures of the result that is there."""
    path = RESULTS / f"speed-{model}.json"
    if not path.exists():
        return {}, {}, {}
    result = json.loads(path.read_text(encoding="utf-8"))
    return result["figures"], result["parts"], result["left_out"]


def _run(part: str, model: str) -> dict[str, object]:
    command = [sys.executable, "-m", f"benchmarks.speed.{part}", "--json"]
    if part in WITH_MODEL:
        command += ["--model", model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _meets(value: object, relation: str, target: float) -> bool:
    assert isinstance(value, int | float)
    return value >= target if relation == ">=" else value <= target


def _table(figures: Mapping[str, object]) -> str:
    lines = [f"{'figure':28} {'value':>12}  target"]
    for name, value in figures.items():
        target = TARGETS.get(name)
        verdict = (
            "" if target is None else f"{target[0]} {target[1]:g}  {'met' if _meets(value, *target) else 'MISSED'}"
        )
        lines.append(f"{name:28} {value!s:>12}  {verdict}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()
