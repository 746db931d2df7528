"""What every benchmark needs: where results go, and which commit and machine a number belongs to."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def commit() -> str:
    """The commit of the checkout, marked when files differ from it."""
    run = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def machine() -> str:
    """Processor, cores and memory, in a line."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return f"{model}, {os.cpu_count()} cores, {memory // (1 << 20)} GB, {platform.system()}"


def save(benchmark: str, model: str, figures: dict[str, object], **more: object) -> Path:
    """Write a result file and give its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{benchmark}-{model}.json"
    record = {"benchmark": benchmark, "commit": commit(), "model": model, "machine": machine(), "figures": figures}
    path.write_text(json.dumps({**record, **more}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
