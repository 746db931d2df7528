"""The arithmetic of a window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.errors import ConfigError
from localmem.kernel.budget import Budget


def test_defaults_are_the_papers():
    budget = Budget(window=4096, reserve=512)
    assert (budget.limit, budget.warning_tokens, budget.flush_tokens) == (3584, 2508, 3584)
    assert budget.evict_tokens(1000) == 500


@given(
    window=st.integers(256, 200_000),
    reserve=st.integers(16, 250),
    warning=st.floats(0.1, 0.8),
    flush=st.floats(0.85, 1.0),
)
def test_warning_comes_before_the_flush_and_the_flush_before_the_end(
    window: int, reserve: int, warning: float, flush: float
):
    budget = Budget(window, reserve, warning, flush)
    assert 0 <= budget.warning_tokens <= budget.flush_tokens <= budget.limit == window - reserve


@given(queue_tokens=st.integers(0, 10_000), evict=st.floats(0.05, 1.0))
def test_something_is_always_evicted(queue_tokens: int, evict: float):
    assert Budget(evict=evict).evict_tokens(queue_tokens) >= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 255},
        {"window": 512, "reserve": 512},
        {"reserve": 15},
        {"warning": 0.05},
        {"warning": 0.9, "flush": 0.9},
        {"flush": 1.01},
        {"evict": 0.04},
        {"evict": 1.5},
    ],
    ids=str,
)
def test_impossible_budget_is_refused_with_the_way_out(wrong: dict[str, float]):
    with pytest.raises(ConfigError) as caught:
        Budget(**wrong)  # type: ignore[arg-type]
    assert caught.value.hint
