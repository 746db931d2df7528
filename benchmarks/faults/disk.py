"""A disk that is full, or turns read-only: what was acknowledged, and is not there afterwards?

The conversation of `life` is held on a tmpfs of a few megabytes, in a mount namespace of its own (no other rights are
needed). Most of it is filled, with a random rest left, or it is mounted read-only; the conversation ends with an error,
the disk is put right, and what is there is held against what had been acknowledged, as after a kill. Then it goes on.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.faults.kills import TURNS, Kills, look
from benchmarks.faults.life import DATABASE, live
from localmem.errors import LocalmemError

_SIZE_BYTES = 8_000_000
_MOST_ROOM_BYTES = 600_000  # left: what a few turns write, and less
_READ_ONLY_SHARE = 0.2  # of the times
_NAMESPACE = ("unshare", "--map-root-user", "--mount")


@dataclass(slots=True)
class Full:
    """What came of it. `times` is how often the disk was full, `read_only` how often it was that; None where no tmpfs
    can be mounted."""

    times: int | None = None
    read_only: int = 0
    lost: list[str] = field(default_factory=list[str])
    other_errors: list[str] = field(default_factory=list[str])
    """Errors that were not said as such to the user."""


def fill_often(times: int, *, seed: int = 0) -> Full:
    """Hold conversations until the disk was full that many times."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES},mode=0700", "tmpfs", folder]
        here = [sys.executable, "-m", "benchmarks.faults.disk", folder, str(times), str(seed)]
        try:
            done = subprocess.run(
                [*_NAMESPACE, "sh", "-c", 'set -e; eval "$1"; shift; exec "$@"', "sh", " ".join(mount), *here],
                check=False,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError:
            return Full()
    if done.returncode:
        if "Traceback" in done.stderr:
            raise RuntimeError(done.stderr)
        return Full()
    return Full(**json.loads(done.stdout))


def _hold(folder: Path, times: int, seed: int) -> Full:
    chance, full = random.Random(seed), Full(0)
    number = 0
    while (full.times or 0) < times:
        _one_life(folder / str(number), chance, full, times)
        number += 1
    return full


def _one_life(home: Path, chance: random.Random, full: Full, times: int) -> None:
    home.mkdir()
    acknowledged: list[tuple[str, str]] = []
    ballast = home.parent / "ballast"
    is_over = False
    while not is_over and (full.times or 0) < times:
        if home.joinpath(DATABASE).exists() and chance.random() < _READ_ONLY_SHARE:
            _turn_read_only(home, full)
        _fill(ballast, home.parent, chance.randrange(_MOST_ROOM_BYTES))
        try:
            live(home, TURNS, lambda kind, text: acknowledged.append((kind, text))).close()
            is_over = True
        except LocalmemError as error:
            full.times = (full.times or 0) + 1
            if "space" not in str(error):
                full.other_errors.append(str(error))
        finally:
            ballast.unlink()
        found = Kills()
        look(home, acknowledged, found, {})
        full.lost += [*found.lost, *found.duplicates, *found.failed_opens, *found.differences]
    for path in sorted(home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    home.rmdir()


def _turn_read_only(home: Path, full: Full) -> None:
    """Try to go on where nothing can be written."""
    subprocess.run(["mount", "-o", "remount,ro", str(home.parent)], check=True)
    try:
        live(home, TURNS, lambda *_: None)
        full.other_errors.append("nothing was said of a disk that cannot be written to")
    except LocalmemError:
        full.read_only += 1
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(home.parent)], check=True)


def _fill(ballast: Path, folder: Path, room_bytes: int) -> None:
    """Write a file that leaves that much of the disk."""
    free = shutil.disk_usage(folder).free
    ballast.write_bytes(bytes(max(0, free - room_bytes)))


if __name__ == "__main__":
    outcome = _hold(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(asdict(outcome)))
