"""Looks kept on disk: what was seen is not looked at again, what was cut off is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from localmem.bench.looks import Looks
from localmem.calls.calibration import Choice, Outlook

SEEN = Outlook(
    np.array([0.5, -2.0, 31.25], np.float32), {Choice("send_message"): -0.25, Choice("core_memory_append", "human"): -4}
)


def test_a_look_outlives_the_run(tmp_path: Path):
    path = tmp_path / "bench" / "looks.jsonl"
    Looks(path).add("a", SEEN)
    Looks(path).add("b", SEEN)
    again = Looks(path).known("a")
    assert again is not None
    assert again.hidden.tolist() == SEEN.hidden.tolist()
    assert again.towards == SEEN.towards
    assert Looks(path).known("c") is None


def test_a_line_that_was_cut_off_is_looked_at_again(tmp_path: Path):
    path = tmp_path / "looks.jsonl"
    looks = Looks(path)
    looks.add("a", SEEN)
    looks.add("b", SEEN)
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert Looks(path).known("a") is not None
    assert Looks(path).known("b") is None


def test_a_look_is_the_same_in_the_run_that_took_it_and_in_the_next(tmp_path: Path):
    path = tmp_path / "looks.jsonl"
    fine = Outlook(np.array([1 / 3, 1e-4], np.float32), {Choice("send_message"): -1 / 7})
    now, later = Looks(path).add("a", fine), Looks(path).known("a")
    assert later is not None
    assert now.hidden.tolist() == later.hidden.tolist() != fine.hidden.tolist()
    assert now.towards == later.towards


def test_without_a_file_looks_last_as_long_as_the_run():
    looks = Looks(None)
    assert looks.add("a", SEEN) is looks.known("a")
