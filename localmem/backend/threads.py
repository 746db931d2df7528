"""How many threads llama.cpp gets: what a probe at load should try, and when to step down and up again later.

ggml's workers spin while they wait for each other. Where another program keeps the cores busy, two threads on two
cores took 4,128 ms a token, one thread 15 ms. So the pace of every step is watched. Pure logic: seconds come in,
thread counts go out, and nothing here looks at a clock.
"""

from __future__ import annotations

import logging
from collections import deque
from statistics import median
from typing import Literal

logger = logging.getLogger(__name__)

Kind = Literal["reading", "writing"]
"""Reading: a batch of a prompt. Writing: a single token."""

LEAST_BATCH = 64
"""Tokens a batch must have to be recorded as reading: a token costs several times more in a batch of two or three."""

_COLLAPSE = 5  # times slower than the median; a longer window or a busy hour makes it two or three
_IN_A_ROW = 2  # a single slow step may be a page fault, or a laptop that slept
_LEAST_HISTORY = 4  # steps, before a median means anything
_MOST_HISTORY = 32  # steps the median is of
_FIRST_WAIT: dict[Kind, int] = {"writing": 64, "reading": 4}  # steps before more threads are tried again
_MOST_DOUBLINGS = 6


def candidates(cores: int) -> list[int]:
    """The thread counts a probe at load should try, ascending.

    >>> candidates(8)
    [1, 4, 8]
    """
    return sorted({1, max(1, cores // 2), max(1, cores)})


class ThreadGovernor:
    """The thread counts to use from here on, given how long each step took.

    It starts with the counts of the probe and never goes above them nor below 1. Two steps in a row that are five
    times slower than the recent ones halve the count. After a while one step is tried with the higher count again, and
    that count is kept where it is faster; where it is not, the next try waits twice as long.

    >>> governor = ThreadGovernor(reading=2, writing=2)
    >>> [governor.record("writing", s) for s in (0.01, 0.01, 0.01, 0.01, 4.0, 4.0)]
    [None, None, None, None, None, 1]
    """

    def __init__(self, *, reading: int, writing: int) -> None:
        self._paces: dict[Kind, _Pace] = {"reading": _Pace("reading", reading), "writing": _Pace("writing", writing)}

    @property
    def reading(self) -> int:
        """Threads for a batch."""
        return self._paces["reading"].threads

    @property
    def writing(self) -> int:
        """Threads for a single token."""
        return self._paces["writing"].threads

    def record(self, kind: Kind, seconds_per_token: float) -> int | None:
        """Note one finished step; gives the thread count for the next step of that kind when it is another one.

        Only whole steps count: not a decode that was aborted, and as reading only batches of `LEAST_BATCH` tokens.
        """
        pace = self._paces[kind]
        before = pace.threads
        pace.record(seconds_per_token)
        return pace.threads if pace.threads != before else None


class _Pace:
    """One kind of step: the counts it may use, which one it uses, and how fast it has been with it."""

    def __init__(self, kind: Kind, most: int) -> None:
        self._kind: Kind = kind
        self._counts = _halvings(most)
        self._at = 0  # index into the counts
        self._trying = False  # whether the running step tries the next higher count
        self._recent: deque[float] = deque(maxlen=_MOST_HISTORY)
        self._expected: float | None = None  # seconds a token, until this count has a history of its own
        self._slow_in_a_row = 0
        self._steps = 0  # with this count
        self._first_wait = self._wait = _FIRST_WAIT[kind]
        self._came_back = False  # whether this count was reached from below

    @property
    def threads(self) -> int:
        return self._counts[self._at - 1 if self._trying else self._at]

    def record(self, seconds: float) -> None:
        if self._trying:
            self._judge_trial(seconds)
            return
        self._steps += 1
        if self._is_slow(seconds):
            self._slow_in_a_row += 1
        else:
            self._slow_in_a_row = 0
            self._recent.append(seconds)
        if self._slow_in_a_row == _IN_A_ROW:
            self._step_down(seconds)
        elif self._at > 0 and self._steps >= self._wait and self._recent:
            self._trying = True

    def _usual(self) -> float | None:
        """Seconds a token takes with this count, as far as that is known."""
        return median(self._recent) if len(self._recent) >= _LEAST_HISTORY else self._expected

    def _is_slow(self, seconds: float) -> bool:
        usual = self._usual()
        can_step_down = self._at < len(self._counts) - 1
        return can_step_down and usual is not None and seconds > _COLLAPSE * usual

    def _step_down(self, seconds: float) -> None:
        usual = self._usual()
        assert usual is not None, "no step is slow without a usual pace"
        again = self._came_back and self._steps < self._wait
        if self._came_back:  # back too early, or a trouble of its own
            self._wait = min(2 * self._wait, self._first_wait << _MOST_DOUBLINGS) if again else self._first_wait
        before, after = self._counts[self._at : self._at + 2]
        # One warning for one trouble: the rest of the way down, and each relapse, is for those who ask.
        level = logging.INFO if again or self._at > 0 else logging.WARNING
        logger.log(
            level,
            "%s slowed down from %.0f to %.0f ms a token with %d threads: something else keeps the processor busy; "
            "going on with %d, and trying %d again later",
            *(self._kind, usual * 1000, seconds * 1000, before, after, before),
        )
        self._change(self._at + 1, expected=usual * before / after, came_back=False)

    def _judge_trial(self, seconds: float) -> None:
        self._trying = False
        usual = median(self._recent)
        if seconds >= usual:
            self._wait = min(2 * self._wait, self._first_wait << _MOST_DOUBLINGS)
            self._steps = 0
            return
        logger.info(
            "%s with %d threads again: %.0f ms a token, %.0f ms with %d",
            *(self._kind, self._counts[self._at - 1], seconds * 1000, usual * 1000, self._counts[self._at]),
        )
        self._change(self._at - 1, expected=usual, came_back=True)

    def _change(self, at: int, *, expected: float, came_back: bool) -> None:
        self._at, self._expected, self._came_back = at, expected, came_back
        self._recent.clear()
        self._slow_in_a_row = self._steps = 0


def _halvings(most: int) -> tuple[int, ...]:
    """`most` and its halves down to 1."""
    counts = [max(1, most)]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return tuple(counts)
