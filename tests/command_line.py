"""Running `localmem` in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMAND = (sys.executable, "-c", "from localmem.interfaces.cli import main; main()")
QUICK = ("-t", "1", "-o", "embedder", "hash")


def environment(home: Path, models: Path | None = None) -> dict[str, str]:
    """An environment in which everything localmem keeps lies in `home`, and the weights in `models`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCALMEM_")}
    weights = {"LOCALMEM_MODELS": str(models)} if models else {}
    return kept | weights | {"LOCALMEM_HOME": str(home), "LOCALMEM_MODEL": "smollm2-135m-instruct"}


def localmem(
    arguments: Sequence[str], *, home: Path, models: Path | None = None, stdin: bytes = b"", timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """What the command line did; its output as text."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, env=environment(home, models), timeout=timeout_s
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
