"""Which commit and which machine a figure belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from localmem import __version__


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
