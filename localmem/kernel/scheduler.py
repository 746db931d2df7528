"""Timed events: when they are due, from a clock that is passed in (MemGPT, section 2.3).

A schedule is a cron expression ("0 9 * * mon-fri", "@daily") in local time, or an interval ("every 90m"). An event that
came due several times while the program was off or the agent busy fires once, and says how often it was missed. The
only file that imports croniter.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from localmem.errors import LocalmemError

_INTERVAL = re.compile(r"every\s+(\d+)\s*(s|m|h|d)\w*", re.IGNORECASE)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MOST_COUNTED = 1_000  # missed times are counted up to here: a minute timer after a year off must not take a while


def next_due(schedule: str, after: datetime) -> datetime:
    """The first moment of `schedule` after `after`. Raises LocalmemError for what is no schedule."""
    interval = _INTERVAL.fullmatch(schedule.strip())
    if interval:
        try:
            due = after + timedelta(**{_UNITS[interval[2].lower()]: int(interval[1])})
        except (OverflowError, ValueError) as error:  # past the year 9999
            raise _no_schedule(schedule) from error
        if due == after:
            raise _no_schedule(schedule)
        return due
    from croniter import croniter
    from croniter.croniter import CroniterError

    try:
        return croniter(schedule, after.astimezone()).get_next(datetime)
    except (CroniterError, ValueError, KeyError, AttributeError) as error:
        raise _no_schedule(schedule) from error


def missed_until(schedule: str, first: datetime, now: datetime) -> int:
    """How often a timer due at `first` came due again by `now`."""
    missed, due = 0, next_due(schedule, first)
    while due <= now and missed < _MOST_COUNTED:
        missed, due = missed + 1, next_due(schedule, due)
    return missed


def _no_schedule(schedule: str) -> LocalmemError:
    return LocalmemError(
        f"{schedule!r} is no schedule", "Write a cron expression such as '0 9 * * mon-fri', or 'every 90m', 'every 2h'."
    )
