"""The governor of thread counts: down on collapse, back when it has passed, and never astray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.threads import Kind, ThreadGovernor, candidates

QUIET_S = 0.015  # a token with one thread on two busy cores, and
COLLAPSED_S = 4.128  # with two

seconds = st.floats(min_value=1e-4, max_value=1e4)


def writing(governor: ThreadGovernor, steps: Iterable[float]) -> list[int]:
    """The thread count after each step."""
    return [governor.record("writing", step) or governor.writing for step in steps]


def run(governor: ThreadGovernor, steps: int, takes: Callable[[int], float], kind: Kind = "writing") -> list[int]:
    """The thread counts `steps` steps ran with, on a machine where a step with n threads takes `takes(n)`."""
    used: list[int] = []
    for _ in range(steps):
        used.append(getattr(governor, kind))
        governor.record(kind, takes(used[-1]))
    return used


def busy(threads: int) -> float:
    return COLLAPSED_S if threads > 1 else QUIET_S


def quiet(threads: int) -> float:
    return QUIET_S / threads


@pytest.mark.parametrize(
    ("cores", "counts"), [(0, [1]), (1, [1]), (2, [1, 2]), (3, [1, 3]), (4, [1, 2, 4]), (8, [1, 4, 8])]
)
def test_probe_tries_one_half_and_all(cores: int, counts: list[int]):
    assert candidates(cores) == counts


def test_two_collapsed_steps_halve_the_threads():
    governor = ThreadGovernor(reading=2, writing=2)
    assert writing(governor, [0.01] * 4 + [4.0, 4.0]) == [2, 2, 2, 2, 2, 1]
    assert (governor.reading, governor.writing) == (2, 1)


def test_one_slow_step_changes_nothing():
    governor = ThreadGovernor(reading=2, writing=2)
    assert set(writing(governor, ([0.01] * 8 + [3600.0]) * 10)) == {2}


def test_slowness_without_history_changes_nothing():
    assert set(writing(ThreadGovernor(reading=2, writing=2), [0.01, 4.0, 4.0, 4.0])) == {2}


def test_a_window_that_fills_is_no_collapse():
    steps = [0.01 * 1.01**step for step in range(400)]
    assert set(writing(ThreadGovernor(reading=4, writing=4), steps)) == {4}


def test_reading_and_writing_have_paces_of_their_own():
    governor = ThreadGovernor(reading=2, writing=4)
    run(governor, 8, lambda _: 0.001, "reading")
    assert set(run(governor, 8, lambda _: 0.03)) == {4}
    assert [governor.record("reading", 1.0), governor.record("reading", 1.0)] == [None, 1]
    assert governor.writing == 4


def test_one_thread_stays_one():
    assert set(writing(ThreadGovernor(reading=1, writing=1), [0.01] * 8 + [100.0] * 500)) == {1}


def test_a_collapse_at_every_count_goes_straight_down_to_one():
    governor = ThreadGovernor(reading=8, writing=8)
    run(governor, 8, quiet)
    assert run(governor, 8, busy) == [8, 8, 4, 4, 2, 2, 1, 1]


def test_threads_come_back_when_the_cores_are_free_again():
    governor = ThreadGovernor(reading=8, writing=8)
    run(governor, 8, quiet)
    run(governor, 50, busy)
    assert governor.writing == 1
    run(governor, 500, quiet)
    assert governor.writing == 8


def test_more_threads_are_tried_for_one_step_ever_more_rarely():
    governor = ThreadGovernor(reading=2, writing=2)
    run(governor, 8, quiet)
    used = run(governor, 2 + 64 + 1 + 128 + 1 + 256 + 1 + 10, busy)
    tries = [step - 2 for step, count in enumerate(used) if count == 2][2:]
    assert tries == [64, 64 + 1 + 128, 64 + 1 + 128 + 1 + 256]
    assert governor.writing == 1


def test_a_try_that_succeeds_only_to_fail_again_makes_the_next_one_wait_longer():
    governor = ThreadGovernor(reading=2, writing=2)
    run(governor, 8, quiet)
    run(governor, 2 + 64, busy)
    assert run(governor, 2, quiet) == [2, 2]
    assert set(run(governor, 2, busy)) == {2}
    assert set(run(governor, 128, busy)) == {1}
    assert run(governor, 1, busy) == [2]


def test_a_collapse_long_after_the_last_one_is_a_new_one():
    governor = ThreadGovernor(reading=2, writing=2)
    run(governor, 8, quiet)
    run(governor, 2 + 64 + 1 + 128, busy)
    run(governor, 200, quiet)
    assert set(run(governor, 2, busy)) == {2}
    assert run(governor, 65, busy) == [1] * 64 + [2]


def test_a_collapse_is_one_warning_and_the_return_is_told_those_who_ask(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="localmem")
    governor = ThreadGovernor(reading=2, writing=2)
    run(governor, 8, quiet)
    run(governor, 2 + 64, busy)
    run(governor, 10, quiet)
    run(governor, 2, busy)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    warning, back, _ = (record.getMessage() for record in caplog.records)
    assert warning.startswith("writing slowed down from 8 to 4128 ms a token with 2 threads")
    assert warning.endswith("going on with 1, and trying 2 again later")
    assert back == "writing with 2 threads again: 8 ms a token, 15 ms with 1"


@given(start=st.integers(1, 64), steps=st.lists(st.tuples(st.sampled_from(["reading", "writing"]), seconds)))
def test_threads_stay_between_one_and_the_start(start: int, steps: list[tuple[Kind, float]]):
    governor = ThreadGovernor(reading=start, writing=start)
    counts = [governor.record(kind, step) for kind, step in steps]
    assert all(count is None or 1 <= count <= start for count in counts)
    assert 1 <= governor.reading <= start
    assert 1 <= governor.writing <= start


@given(steps=st.lists(seconds, max_size=300), start=st.integers(2, 16))
def test_the_change_that_is_told_is_the_whole_change(steps: list[float], start: int):
    governor = ThreadGovernor(reading=start, writing=start)
    changes = [(governor.writing, governor.record("writing", step), governor.writing) for step in steps]
    assert all(before == after for before, told, after in changes if told is None)
    assert all(before != told == after for before, told, after in changes if told is not None)


@given(start=st.integers(2, 64), history=st.integers(4, 50), pace=seconds)
def test_permanent_collapse_ends_at_one_and_its_passing_at_the_start(start: int, history: int, pace: float):
    governor = ThreadGovernor(reading=start, writing=start)
    run(governor, history, lambda threads: pace / threads)
    run(governor, 20, lambda threads: pace if threads == 1 else 1000 * pace)
    assert governor.writing == 1
    run(governor, 6 * 70, lambda threads: pace / threads)
    assert governor.writing == start
