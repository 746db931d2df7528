"""The speed benchmarks at their smallest: they run, and give the figures of the result file. No time is asserted."""

from __future__ import annotations

import pytest
from support import SMOLLM

from benchmarks.speed import __main__ as speed
from benchmarks.speed import decoding, growth, preemption, restore, storage, window


def test_storage_gives_its_figures():
    found = storage.figures(messages=300, passages=300, quick=True)
    assert {"recall_search_ms", "archival_search_ms", "archival_recall_at_10"} <= set(found)
    assert found["archival_recall_at_10"] == 1.0, "below 2,000 vectors the search is exact"


def test_growth_gives_its_figures():
    assert growth.figures(turns=40)["growth_tokens"] > 0


@pytest.mark.model
def test_window_counts_what_a_turn_reads(smollm_path: object):
    found = window.figures(SMOLLM, turns=3)
    assert found["turns"] == 3
    assert found["reuse_share"] > 0.9
    assert found["extra_tokens_p95"] < 64


@pytest.mark.model
def test_restored_window_is_measured_against_a_cold_one(smollm_path: object):
    found = restore.figures(SMOLLM, tokens=800, rounds=1)
    assert found["window_tokens"] >= 800
    assert found["restored_s"] > 0


@pytest.mark.model
def test_preemption_is_measured_reading_and_writing(smollm_path: object):
    assert preemption.figures(SMOLLM, rounds=1, tokens=900)["preempt_ms_worst"] > 0


@pytest.mark.model
def test_all_three_arms_of_decoding_write_calls(smollm_path: object):
    found = decoding.figures(SMOLLM, messages=("My dog is called Rex.",), repeats=1)
    assert {"constrained_over_free", "constrained_over_llama_gbnf", "mask_ms_per_token"} <= set(found)
    assert 0 < found["forced_share"] < 1


def test_every_target_is_a_figure_of_some_part():
    assert set(speed.TARGETS) >= {"growth", "help_s", "reuse_share"}
    assert speed._meets(1.4, *speed.TARGETS["constrained_over_free"])
    assert not speed._meets(0.06, *speed.TARGETS["restore_over_cold"])
