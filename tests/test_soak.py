"""The soak in small, without a model: it holds out, and what breaks, overflows or grows is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults import hostile
from benchmarks.faults.soak import Soak, WatchedBackend, resident_bytes, soak
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.prompt import Prompt
from localmem.config import Settings, load_settings
from localmem.memory.archival import Archival


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {"home": tmp_path, "window": 16_384, "reserve": 512, "embedder": "hash", "idle": False}
    return load_settings(flags=flags, environ={})


def test_a_conversation_with_hostile_texts_holds_out(settings: Settings):
    found = soak(ScriptedBackend(window=16_384), settings, 260, seed=1)

    assert found.exceptions == []
    assert found.overflows == 0
    assert (found.turns, found.steps > 260, found.flushes > 3, found.hostile > 20) == (260, True, True, True)
    assert 8_000 < found.longest_prompt <= 16_384 - 512
    assert found.growth is not None


def test_every_hostile_text_can_be_sent(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.faults.soak._HOSTILE_SHARE", 1.0)
    found = soak(ScriptedBackend(window=16_384), settings, 3 * len(hostile.TEXTS), seed=2)
    assert (found.hostile, found.exceptions) == (3 * len(hostile.TEXTS), [])


def test_what_raises_is_an_exception_and_the_soak_goes_on(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    def breaks(*_: object, **__: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(Archival, "insert_many", breaks)
    monkeypatch.setattr("benchmarks.faults.soak._HOSTILE_SHARE", 0.5)
    found = soak(ScriptedBackend(window=16_384), settings, 60, seed=1)
    assert found.turns == 60
    assert found.exceptions
    assert all("ValueError: broken" in one for one in found.exceptions)


def test_a_prompt_over_the_limit_is_counted():
    found = Soak()
    watched = WatchedBackend(ScriptedBackend(), 10, found)
    for length in (10, 11):
        watched.complete(Prompt(tuple(range(length))), grammar=None, sampling=None, max_tokens=8)
    assert (found.overflows, found.longest_prompt) == (1, 11)


def test_growth_is_counted_from_the_turn_at_which_all_is_settled():
    found = Soak(resident={100: 50, 200: 100, 210: 104, 220: 110, 230: 90})
    assert found.growth == pytest.approx(0.10)
    assert replace(found, resident={100: 50, 200: 100}).growth is None
    assert resident_bytes() > 10_000_000
