"""The power is cut, in the middle of everything: what was acknowledged, and had never been synced?

The conversation of `life` is held on an ext4 in a file of its own. What was written and not synced is in memory and not
in that file, so a copy of it is what a disk holds after the power was cut. The process is stopped, before a statement
or after a random while, the file is copied, the process killed, and the copy mounted in its place, where ext4 replays
its journal. Then it is looked at as after a kill, and the conversation goes on.

All happens in a mount namespace, on a tmpfs, and is gone with it; mounting a file takes root. Not in it: a disk that
drops or reorders what it was told to keep, and what only another file system forgets.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from benchmarks.faults.children import fork, fork_piped, output_of
from benchmarks.faults.kills import Kills, Point, Told, live_often, live_to, told_in, windows_of_a_whole_life

T = TypeVar("T")

_DISK_MB = 24  # a conversation's database, its log and a journal
_DISKS = 4  # an empty one, one that is used, one that is copied, and room
_OPTIONS = "loop,commit=300,noauto_da_alloc"
"""Nothing is synced that was not asked for: neither after some seconds, nor what is renamed over another file."""
_CLONE_NEWNS = 0x20000  # linux/sched.h


def cut_often(cuts: int, *, seed: int = 0, quiet: bool = False) -> Kills | None:
    """Cut the power at least that many times; None where no file can be mounted."""
    return _with_mounts(lambda folder: _cut(folder, cuts, random.Random(seed), quiet=quiet))


def left_of(write: Callable[[Path], object], look: Callable[[Path], T]) -> T | None:
    """What `look` finds in a folder when the power is cut right after `write` wrote to it; None as above."""

    def work(folder: Path) -> T:
        with _Disk(folder) as disk:
            child = fork(lambda: (write(disk.root), os.kill(os.getpid(), signal.SIGSTOP)))
            if not disk.is_cut(child):
                raise RuntimeError("the writing failed")
            return look(disk.root)

    return _with_mounts(work)


def _with_mounts(work: Callable[[Path], T]) -> T | None:
    """What `work` gives in a process with mounts of its own, told the folder of the empty disk."""
    with tempfile.TemporaryDirectory() as folder:

        def run(pipe: int) -> None:
            outcome = work(Path(folder)) if _set_up(Path(folder)) else None
            with os.fdopen(pipe, "wb") as file:
                pickle.dump(outcome, file)

        return pickle.loads(output_of(run))


def _set_up(folder: Path) -> bool:
    """Give this process mounts of its own and an empty disk; False where that cannot be."""
    empty = str(folder / "empty")
    commands = [
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", f"size={_DISKS * _DISK_MB}m,mode=0700", "tmpfs", str(folder)],
        ["truncate", "-s", f"{_DISK_MB}M", empty],
        ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", empty],  # lazily: written after mounting
        ["mkdir", str(folder / "mount")],
        ["mount", "-o", _OPTIONS, empty, str(folder / "mount")],
        ["umount", str(folder / "mount")],
    ]
    try:
        if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
            return False
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
    except (AttributeError, OSError, subprocess.CalledProcessError):  # no unshare, no such program, no rights
        return False
    return True


def _cut(folder: Path, cuts: int, chance: random.Random, *, quiet: bool) -> Kills:
    found = Kills()
    windows = windows_of_a_whole_life(folder / "whole", found.all_points)
    with tqdm(total=cuts, desc="power cuts", unit="cut", disable=quiet) as bar:
        while found.kills < cuts:
            with _Disk(folder) as disk:
                live_often(disk.root / "home", found, chance, windows, disk.run)
            found.conversations += 1
            bar.update(found.kills - bar.n)
    return found


class _Disk:
    """An ext4 in a file, mounted at `root` while it is open."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk"
        self.root = folder / "mount"
        shutil.copyfile(folder / "empty", self._image)

    def __enter__(self) -> _Disk:
        subprocess.run(["mount", "-o", _OPTIONS, str(self._image), str(self.root)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.root)], check=True)

    def run(self, home: Path, point: Point) -> tuple[bool, Told]:
        """Have a process live until the power is cut; whether it was, and what had been acknowledged by then."""
        child, pipe = fork_piped(lambda pipe: live_to(home, point, pipe, signal.SIGSTOP))
        if isinstance(point, float):
            time.sleep(point)
            os.kill(child, signal.SIGSTOP)
        return self.is_cut(child), told_in(pipe)

    def is_cut(self, child: int) -> bool:
        """Wait until the child is stopped, and cut the power; False when it ends instead."""
        _, status = os.waitpid(child, os.WUNTRACED)  # a system call that was begun has ended by then
        if os.WIFSTOPPED(status):
            self._cut(child)
        elif status:
            raise RuntimeError("a process failed by itself")
        return os.WIFSTOPPED(status)

    def _cut(self, child: int) -> None:
        """Put in this disk's place what it would hold had the power been cut while the child is stopped."""
        copy = self._image.with_name("copy")
        try:
            shutil.copyfile(self._image, copy)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.__exit__()
        copy.replace(self._image)
        self.__enter__()
