"""`localmem schedule`: timed events. They fire while a chat is open, those that were missed when it opens."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import click

from localmem.errors import LocalmemError
from localmem.interfaces.cli.common import (
    AGENT,
    JSON,
    YES,
    Shared,
    confirm,
    one_line,
    open_row,
    print_json,
    print_table,
    read_text,
    shared,
    when,
)

_NAME_CHARACTERS = 64


@click.group()
def schedule() -> None:
    """Wake the agent at set times."""


@schedule.command()
@click.argument("name")
@click.argument("at", metavar="SCHEDULE")
@click.argument("note")
@shared(AGENT, JSON)
def add(shared: Shared, name: str, at: str, note: str) -> None:
    """Tell the agent NOTE at the times of SCHEDULE: a cron expression, or "every 2h". A known NAME is changed."""
    from localmem.kernel.scheduler import next_due
    from localmem.kernel.tokens import clean
    from localmem.runtime import utc_now
    from localmem.storage.agent_store import TimerRow
    from localmem.storage.edit_log import Attribution

    if not name.strip() or len(name) > _NAME_CHARACTERS:
        raise click.UsageError(f"NAME must have 1 to {_NAME_CHARACTERS} characters.")
    now = utc_now()
    timer = TimerRow(one_line(clean(name)), at.strip(), clean(read_text(note)), next_due(at, now), now)
    with open_row(shared) as (store, row):
        stored = store.put_timer(row.id, timer, Attribution("user", now))
    if shared.as_json:
        print_json(asdict(stored))
    else:
        shared.say(f"{stored.name}: first due {when(stored.next_due_at)}")


@schedule.command("list")
@shared(AGENT, JSON)
def list_timers(shared: Shared) -> None:
    """Timed events, the next one due first."""
    with open_row(shared) as (store, row):
        timers = store.timers(row.id)
    if shared.as_json:
        print_json([asdict(timer) for timer in timers])
        return
    if row.timers_paused_until is not None:
        shared.say(f"Held back until {when(row.timers_paused_until)}.")
    if not timers:
        shared.say("Nothing is scheduled.")
    print_table(
        ("name", "schedule", "next due", "note"),
        [(timer.name, timer.schedule, when(timer.next_due_at), one_line(timer.note, 60)) for timer in timers],
    )


@schedule.command()
@click.argument("name")
@shared(AGENT, YES)
def delete(shared: Shared, name: str, yes: bool) -> None:
    """Drop the timed event NAME."""
    from localmem.runtime import utc_now
    from localmem.storage.edit_log import Attribution

    confirm(f"Delete the timed event {name!r}?", yes=yes)
    with open_row(shared) as (store, row):
        found = store.delete_timer(row.id, name, Attribution("user", utc_now()))
    if not found:
        raise LocalmemError(f"nothing is scheduled as {name!r}", "localmem schedule list shows what is.")
    shared.say(f"Deleted {name}.")


@schedule.command()
@click.argument("minutes", type=click.IntRange(min=0, max=60 * 24 * 365))
@shared(AGENT)
def pause(shared: Shared, minutes: int) -> None:
    """Hold all timed events back for MINUTES; 0 lets them run again."""
    from localmem.runtime import utc_now
    from localmem.storage.edit_log import Attribution

    until = utc_now() + timedelta(minutes=minutes) if minutes else None
    with open_row(shared) as (store, row):
        store.pause_timers(row.id, until, Attribution("user", utc_now()))
    shared.say("Timed events run." if until is None else f"Timed events are held back until {when(until)}.")
