"""Idle work: what an agent does while the user reads and types, so that the next turn costs its new tokens only.

One worker thread. The next event preempts it: whatever it was doing stops within an operation of the model's graph,
changes nothing, and is done later; what was read into the KV cache until then stays read. Queue, summary and rendering
change only when the window they lead to has been read whole, so the user never pays for work that was begun here.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

from localmem.backend.base import Backend
from localmem.errors import Interrupted, LocalmemError
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.queue_manager import QueueManager
from localmem.memory.archival import Archival
from localmem.memory.recall import Recall
from localmem.memory.working_context import WorkingContext
from localmem.storage.embedder import Embedder

logger = logging.getLogger(__name__)

_TOKENS_AN_EDIT = 200
"""What an edited line is worth in tokens read again. Until then, or until the next flush, the edit stands in the queue;
a laptop need not burn half a minute of two cores for each."""

_EMBED_AT_ONCE = 4  # messages between two looks at the cancellation
_WORTH_SAVING = 500  # vectors that are not in an index's file yet: writing a large one takes half a second
_LOOK_S = 0.02


class IdleWork:
    """The idle work of one agent."""

    def __init__(
        self,
        *,
        backend: Backend,
        owner: str,
        queue_manager: QueueManager,
        working_context: Callable[[], WorkingContext],
        recall: Recall,
        archival: Archival,
        embedder: Embedder | None,
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._queue_manager = queue_manager
        self._working_context = working_context
        self._recall = recall
        self._archival = archival
        self._embedder = embedder
        self._cancellation = Cancellation()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it is at work already."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._cancellation.clear()
        # A daemon, stopped at exit: a program that ends without closing its agent waits for no summary.
        atexit.register(self.preempt)
        self._thread = threading.Thread(target=self._work, name="localmem idle work", daemon=True)
        self._thread.start()

    def preempt(self) -> None:
        """Stop it, and wait until it has stopped."""
        if self._thread is not None:
            self._cancellation.cancel()
            self.finish()

    def finish(self) -> None:
        """Wait until everything is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.preempt)

    def _work(self) -> None:
        if self._embedder is not None:
            self._embedder.load_in_background()
        jobs = (self._flush_ahead, self._render_afresh, self._read_window, self._embed)
        try:
            for job in jobs:
                if self._cancellation.cancelled:
                    return
                job()
        except Interrupted:
            return
        except LocalmemError as error:
            # Nobody waits for this. What is really wrong is said where the same thing is needed in a turn.
            logger.warning("idle work stopped: %s", error.message)

    def _flush_ahead(self) -> None:
        """Flush before the next exchange has to wait for it."""
        if self._queue_manager.flush_near:
            flush = self._queue_manager.plan_flush(self._cancellation)
            if self._backend.read_ahead(flush.window, owner=self._owner, cancellation=self._cancellation):
                self._queue_manager.carry_out(flush)

    def _render_afresh(self) -> None:
        """Show edited blocks as they are, once the edits are worth what has to be read again for it."""
        context, rendered = self._queue_manager.main_context, self._working_context().render()
        edited = set(context.context_text.split("\n")) ^ set(rendered.split("\n"))
        if not edited:
            return
        window = context.window(context=rendered)
        unread = window.tokens - self._backend.reusable(window, sequence="ahead")
        if unread <= _TOKENS_AN_EDIT * len(edited) and self._backend.read_ahead(
            window, owner=self._owner, cancellation=self._cancellation
        ):
            self._queue_manager.render(rendered)

    def _read_window(self) -> None:
        """After a flush in a turn, or an opening: read what the next turn will begin with. Make main what was read."""
        window = self._queue_manager.main_context.window()
        if self._backend.read_ahead(window, owner=self._owner, cancellation=self._cancellation):
            self._backend.take_over(window, owner=self._owner)

    def _embed(self) -> None:
        """Give what was said its place in meaning, and save the indexes when much is new."""
        if self._embedder is None:
            return
        while not self._embedder.ready:  # it is loading; a search in a turn would wait for it
            if self._cancellation.cancelled:
                return
            time.sleep(_LOOK_S)
        while not self._cancellation.cancelled:
            if not self._recall.embed_pending(_EMBED_AT_ONCE):
                break
        for storage in (self._recall, self._archival):
            if not self._cancellation.cancelled:
                storage.save_index(at_least=_WORTH_SAVING)
