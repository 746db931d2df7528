"""The queue manager (MemGPT, section 2.2): what stands in the FIFO queue, and when it leaves.

Every message goes to recall storage and to the queue in one transaction. Over `warning_tokens` the agent is due one
memory-pressure warning; over `flush_tokens` the oldest exchanges leave, are folded into the recursive summary, and
stay in recall storage. A flush is strictly decreasing and always ends under the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from localmem.calls.prompt import Prompt
from localmem.errors import ContextTooSmall
from localmem.kernel.budget import Budget
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.events import moment
from localmem.kernel.messages import FAILURE, OPENS_EXCHANGE, Kind, Message, Role, newest_exchange
from localmem.kernel.tokens import clean, cut
from localmem.memory.main_context import MainContext
from localmem.memory.recall import Recall
from localmem.memory.summary import Summarizer
from localmem.memory.working_context import WorkingContext
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution

LARGEST_SHARE = 0.25
"""No single message takes more of the window than this; a longer one is kept whole in recall storage, shown cut."""

_LEAST_QUEUE = 256  # tokens a queue needs to hold one exchange
_SUMMARY_HEADER_TOKENS = 80  # generous: the header's length differs from vocabulary to vocabulary
_STAMP_AFTER = timedelta(minutes=60)


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush that has been thought out and changes nothing yet: which messages leave, and what stands after it."""

    evicted: tuple[Message, ...]
    cut: tuple[int, int]
    summary: str
    rendered: str
    window: Prompt


class QueueManager:
    """The FIFO queue of one agent, in memory and on disk."""

    def __init__(
        self,
        *,
        database: Database,
        store: AgentStore,
        agent_id: int,
        recall: Recall,
        main_context: MainContext,
        working_context: Callable[[], WorkingContext],
        summarizer: Summarizer,
        budget: Budget,
        ids_of_written: Callable[[str], tuple[int, ...] | None],
        now: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._store = store
        self._agent_id = agent_id
        self._recall = recall
        self._summarizer = summarizer
        self._working_context = working_context
        self._ids_of_written = ids_of_written
        self._now = now
        self.main_context = main_context
        self.budget = budget
        self.warned = False
        self._summarised: tuple[str, tuple[Message, ...], str] | None = None

    def restore(self, *, rendered_context: str, warned: bool) -> None:
        """Bring back the window as it stood at the last step. Raises ContextTooSmall when it can hold no queue."""
        summary = self._store.current_summary(self._agent_id)
        self.main_context.set_context(rendered_context or self._working_context().render())
        self.main_context.set_summary(self._summarizer.shorten(summary.text) if summary else "")
        self.main_context.evict(0, len(self.main_context.queue))
        for message in self._recall.get(self._store.queue_ids(self._agent_id)):
            if message.role == "assistant" and message.token_ids is None:
                message = replace(message, token_ids=self._ids_of_written(message.content))
            # Counted afresh: another model may read it now.
            self.main_context.append(replace(message, tokens=self.main_context.measure(message)))
        self.warned = warned
        if not rendered_context:
            self._store.set_rendered_context(self._agent_id, self.main_context.context_text)
        self.check_room()

    def append(
        self,
        role: Role,
        kind: Kind,
        text: str,
        *,
        content: str | None = None,
        token_ids: tuple[int, ...] | None = None,
        step_id: int | None = None,
    ) -> Message:
        """Write a message to recall storage and the queue. `text` is what was said, `content` what is read."""
        shown = self._shorten(clean(text if content is None else content))
        if token_ids is None:
            shown = self._stamp(kind) + shown
        message = Message(role, kind, text, shown, self._now(), token_ids=token_ids)
        message = replace(message, tokens=self.main_context.measure(message))
        with self._database.transaction():
            stored = self._recall.insert(message, step_id=step_id)
            assert stored.id is not None
            self._store.append_to_queue(self._agent_id, stored.id)
        self.main_context.append(stored)
        return stored

    def forget_failures(self) -> None:
        """Take the newest event's failed calls and their results out of the queue; recall storage keeps them.

        They have served: a model that goes on seeing them copies them. Only the end of the window is read again.
        """
        queue = self.main_context.queue
        start = newest_exchange(queue)
        failed = [
            i
            for i in range(start, len(queue) - 1)
            if queue[i].kind == "call" and queue[i + 1].kind == "result" and queue[i + 1].text.startswith(FAILURE)
        ]
        if not failed:
            return
        gone = [message.id for i in failed for message in queue[i : i + 2] if message.id is not None]
        self._store.remove_from_queue(self._agent_id, gone)
        for i in reversed(failed):
            self.main_context.evict(i, i + 2)

    @property
    def warning_due(self) -> bool:
        """The window is past the warning share and the model has not been told since the last flush."""
        return not self.warned and self.main_context.tokens >= self.budget.warning_tokens

    def set_warned(self, warned: bool) -> None:
        self._store.set_warned(self._agent_id, warned)
        self.warned = warned

    def relieve_pressure(self, cancellation: Cancellation | None = None) -> bool:
        """Flush if the prompt is over the limit; True if it did. Raises Interrupted when it is cancelled."""
        if self.main_context.tokens <= self.budget.flush_tokens:
            return False
        self.flush(cancellation)
        return True

    def flush(self, cancellation: Cancellation | None = None) -> None:
        """Evict the oldest exchanges, fold them into the summary, render the working context afresh."""
        while self.main_context.queue:
            # The summary is made before anything is changed: an interruption here leaves all as it was.
            self.carry_out(self.plan_flush(cancellation))
            if self.main_context.tokens <= self.budget.flush_tokens:
                return
        self.check_room()

    @property
    def flush_near(self) -> bool:
        """Past the warning share, and another exchange as long as the longest in the queue would go over the limit."""
        tokens = self.main_context.tokens
        return tokens >= self.budget.warning_tokens and tokens + self._longest_exchange() > self.budget.flush_tokens

    def plan_flush(self, cancellation: Cancellation | None = None) -> Flush:
        """What a flush would do now, its summary made. The queue must not be empty. Raises Interrupted."""
        start, stop = self._cut()
        evicted = tuple(self.main_context.queue[start:stop])
        before = self.main_context.summary_text
        if self._summarised is None or self._summarised[:2] != (before, evicted):
            read = self.main_context.read_until(stop).ids
            summary = self._summarizer.fold(before, evicted, window=read, cancellation=cancellation)
            self._summarised = (before, evicted, summary)
        summary, rendered = self._summarised[2], self._working_context().render()
        window = self.main_context.window(without=(start, stop), context=rendered, summary=summary)
        return Flush(evicted, (start, stop), summary, rendered, window)

    def carry_out(self, flush: Flush) -> None:
        """Change queue, summary and rendering in one transaction."""
        with self._database.transaction():
            self._store.remove_from_queue(self._agent_id, [m.id for m in flush.evicted if m.id is not None])
            previous = self._store.current_summary(self._agent_id)
            total = len(flush.evicted) + (previous.evicted_messages if previous else 0)
            self._store.add_summary(self._agent_id, flush.summary, total, Attribution("model", self._now()))
            self._store.set_rendered_context(self._agent_id, flush.rendered)
            self._store.set_warned(self._agent_id, False)
        self.main_context.evict(*flush.cut)
        self.main_context.set_summary(flush.summary)
        self.main_context.set_context(flush.rendered)
        self.warned = False
        self._summarised = None

    def render(self, rendered: str) -> None:
        """Show the working context as `rendered` from now on."""
        self._store.set_rendered_context(self._agent_id, rendered)
        self.main_context.set_context(rendered)

    def _longest_exchange(self) -> int:
        """Tokens of the longest exchange in the queue, and a tenth of the limit at least."""
        longest = tokens = 0
        for message in self.main_context.queue:
            tokens = message.tokens if message.kind in OPENS_EXCHANGE else tokens + message.tokens
            longest = max(longest, tokens)
        return max(longest, self.budget.limit // 10)

    def _cut(self) -> tuple[int, int]:
        """Which messages to evict, as a range of the queue: never empty, whole exchanges where there are any.

        Inside one long chain the message that opened it stays, so that the model still knows what it was asked, and
        the cut stands before a call, so that no result loses its call.
        """
        queue = self.main_context.queue
        target = self.budget.evict_tokens(self.main_context.queue_tokens)
        openings = [i for i, message in enumerate(queue) if i and message.kind in OPENS_EXCHANGE]
        if openings:
            return 0, _first_freeing(queue, 0, openings, target)
        first = 1 if queue[0].kind in OPENS_EXCHANGE and len(queue) > 2 else 0
        calls = [i for i, message in enumerate(queue) if i > first and message.role == "assistant"]
        if calls:
            return first, _first_freeing(queue, first, calls, target)
        return 0, max(1, len(queue) - 1)

    def check_room(self) -> None:
        """Raises ContextTooSmall when core memory and summary, full, leave no room for a queue."""
        if self._queue_room < _LEAST_QUEUE:
            preamble, core = self.main_context.preamble_tokens, self._core_memory_room
            raise ContextTooSmall(
                f"a window of {self.budget.window} tokens is too small: instructions and functions take {preamble}, "
                f"core memory up to {core}, the summary up to {self._summary_room}, the reserve {self.budget.reserve}",
                f"Use a window of at least {self.budget.window + _LEAST_QUEUE - self._queue_room} tokens "
                "(-o window N), a smaller reserve, or smaller blocks.",
            )

    @property
    def _queue_room(self) -> int:
        """Tokens the queue has when core memory and summary are as large as they may be."""
        context = self.main_context
        fixed = context.preamble_tokens + context.answer_tokens + self._core_memory_room + self._summary_room
        return self.budget.flush_tokens - fixed

    @property
    def _core_memory_room(self) -> int:
        return self._working_context().most_tokens() + self.main_context.encoder.overhead("system")

    @property
    def _summary_room(self) -> int:
        return self._summarizer.limit + self.main_context.encoder.overhead("system") + _SUMMARY_HEADER_TOKENS

    def largest_message(self) -> int:
        """Tokens a message may take in the window; a longer one is shown cut."""
        return max(32, min(int(self.budget.limit * LARGEST_SHARE), self._queue_room // 2))

    def _shorten(self, content: str) -> str:
        marker = " [… cut: the whole text is in recall memory …] "
        return cut(self.main_context.encoder.tokenizer, content, self.largest_message(), marker=marker)

    def _stamp(self, kind: Kind) -> str:
        """The time, when an hour has passed since the last message: once, a few tokens."""
        if kind != "user_message" or not self.main_context.queue:
            return ""
        passed = self._now() - self.main_context.queue[-1].created_at
        return f"[{moment(self._now().astimezone())}] " if passed >= _STAMP_AFTER else ""


def _first_freeing(queue: Sequence[Message], start: int, stops: Sequence[int], target: int) -> int:
    """The first of `stops` that frees `target` tokens from `start` on, or the last of them."""
    freed = 0
    for index in range(start, len(queue)):
        if index in stops and freed >= target:
            return index
        freed += queue[index].tokens
    return stops[-1]
