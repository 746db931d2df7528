"""The fuzzer in small: nothing crashes, and what crashes, hangs or ends the process is found out."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults import fuzz as fuzzing
from benchmarks.faults.fuzz import Fuzzed, fuzz, fuzz_chunk, mutated
from benchmarks.faults.targets import TARGETS
from localmem.errors import LocalmemError

BY_NAME = {target.name: target for target in TARGETS}


@pytest.mark.parametrize("name", BY_NAME)
def test_nothing_crashes(name: str):
    found = fuzz_chunk(name, 7, 150)
    assert found.crashes == []
    assert found.inputs == 150


@pytest.mark.parametrize("name", [name for name, target in BY_NAME.items() if target.seeds])
def test_sound_inputs_are_taken(name: str, tmp_path: Path):
    """Else only refusals would be tried."""
    target = BY_NAME[name]
    with target.opened(tmp_path) as run:
        for data in target.seeds:
            run(data)


def test_inputs_are_changed_and_the_same_again_for_the_same_seed():
    target = BY_NAME["config"]
    made = [[mutated(target, chance) for _ in range(50)] for chance in (random.Random("a"), random.Random("a"))]
    assert made[0] == made[1]
    assert len(set(made[0])) > 40


def aimed_at(monkeypatch: pytest.MonkeyPatch, run: Callable[[bytes], None]) -> Fuzzed:
    """What comes of a target that does `run`."""

    @contextmanager
    def opened(_: Path) -> Generator[Callable[[bytes], None]]:
        yield run

    monkeypatch.setattr(fuzzing, "TARGETS", (replace(BY_NAME["config"], opened=opened),))
    return fuzz_chunk("config", 0, 5)


def test_a_crash_is_found_out_with_its_input(monkeypatch: pytest.MonkeyPatch):
    def crash(data: bytes) -> None:
        raise KeyError(len(data))

    found = aimed_at(monkeypatch, crash)
    assert (found.inputs, found.refused, found.crashed, len(found.crashes)) == (5, 0, 5, 5)
    assert found.crashes[0].startswith("b'")
    assert "KeyError" in found.crashes[0]


def test_a_refusal_is_no_crash(monkeypatch: pytest.MonkeyPatch):
    def refuse(data: bytes) -> None:
        raise LocalmemError(f"{len(data)} bytes are refused")

    found = aimed_at(monkeypatch, refuse)
    assert (found.refused, found.crashes) == (5, [])


def test_no_answer_is_a_crash(monkeypatch: pytest.MonkeyPatch):
    def hang(data: bytes) -> None:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001  # what handles every error must not hide it
            return

    monkeypatch.setattr(fuzzing, "_LONGEST_S", 0.02)
    found = aimed_at(monkeypatch, hang)
    assert len(found.crashes) == 5
    assert "no answer" in found.crashes[0]


def ending(name: str, number: int, count: int) -> Fuzzed:
    if number == 1:
        os._exit(9)
    return Fuzzed(name, count)


def test_the_end_of_a_process_is_a_crash_and_the_others_go_on():
    [found] = fuzz(20_000, ["config"], work=ending)
    assert found.inputs == 20_000
    assert found.crashes == ["the process ended in chunk 1"]


def test_each_target_gets_its_share():
    [gguf, queries] = fuzz(53, ["gguf", "queries"])
    assert (gguf.target, gguf.inputs, queries.inputs) == ("gguf", 45, 8)
    assert gguf.crashes == queries.crashes == []
