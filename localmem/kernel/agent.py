"""The agent: the loop that runs the processor on an event until it yields (MemGPT, sections 2.3 and 2.4).

One event at a time. A step is one inference, the call it made, and what came of it, written in one transaction. The
loop goes on after a failed call, after a search, when the model asks (`request_heartbeat`), and always until a user's
message is answered: with one step left only `send_message` can be called.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from localmem.backend.base import Backend, Completion, Sampling
from localmem.backend.constraint import check_enforceable
from localmem.calls.calibration import Calibration, Guidance, fingerprint
from localmem.calls.examples import ExampleExchange, encode_examples
from localmem.calls.frame import Frame, Thought
from localmem.calls.grammar import CallGrammar
from localmem.calls.names import OWN_NAMES, Names
from localmem.calls.prefix import opening
from localmem.calls.spec import FunctionSpec, from_python
from localmem.calls.stream import ReplyStream
from localmem.errors import ChainLimit, ContextTooSmall, FunctionError, Interrupted, LocalmemError
from localmem.kernel.budget import Budget
from localmem.kernel.cancellation import Cancellation
from localmem.kernel.chain import Chain
from localmem.kernel.events import DocumentUploaded, Event, Login, MemoryPressure, TimerFired, UserMessage
from localmem.kernel.executor import execute, parse
from localmem.kernel.idle import IdleWork
from localmem.kernel.messages import (
    FAILURE,
    SAVING,
    SEARCHES,
    FunctionCall,
    FunctionResult,
    Kind,
    Message,
    Role,
    Step,
    Usage,
    newest_exchange,
)
from localmem.kernel.queue_manager import QueueManager
from localmem.kernel.rules import ToolRules
from localmem.kernel.scheduler import missed_until, next_due
from localmem.kernel.tokens import clean
from localmem.memory.archival import Archival
from localmem.memory.functions import NOTHING, MemoryFunctions, Phase
from localmem.memory.history import History
from localmem.memory.main_context import MainContext, Prefix
from localmem.memory.recall import Recall
from localmem.memory.signs import SIGNS, Vector, line_weights, signs
from localmem.memory.summary import Summarizer
from localmem.memory.user_text import asked_in, is_question, statements
from localmem.memory.working_context import PERSONA, Block, WorkingContext
from localmem.storage.agent_store import AgentRow, AgentStore, BlockRow, InferenceRow, SummaryRow, TimerRow
from localmem.storage.attachments import ARCHIVE, Attachment, Attachments
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, Author, Edit, EditKind
from localmem.storage.embedder import Embedder

OnReply = Callable[[str], None]

_CALL_TOKENS = 96  # of the answer's reserve: what a call takes beside a long text in it
_RESULT_SHARE = 0.12  # of the window: what a function's result may take
_PRESSURE_STEPS = 3  # what a memory-pressure warning may cost
_WAKING: tuple[Kind, ...] = ("user_message", "timer", "memory_pressure")  # other events are noted, and wait for one
_PROMISED = (
    "You told the user that it is saved, but you have called no function that saves. Save now what the user said, or "
    "call nothing_to_save."
)
_ECHOED = "You have only said back what the user told you, and saved nothing. Save it now."
_INTERRUPTED = (
    f"{FAILURE}this was interrupted; whether it was carried out is not known. It is not done again by itself."
)
_RULE = "You answer with one call and nothing else:"
_RULE_PLAIN = "You answer in plain words, or call one so:"
_STOPPED = " […]"  # ends a reply the user interrupted


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is run with, beside its memory. Texts are prompt templates."""

    budget: Budget
    instructions: str
    summary_instructions: str
    summary_request: str
    declarations: Mapping[str, tuple[str, Mapping[str, object]]]
    frames: Mapping[str, Frame]
    examples: tuple[ExampleExchange, ...] = ()
    frame: str = "native"
    names: Names = OWN_NAMES
    thought: Thought = "none"
    plain_reply: bool = False
    calibration: Calibration | None = None
    rules: ToolRules = ToolRules()
    summary_tokens: int = 300
    max_steps: int = 8
    max_tokens_per_event: int = 2048
    sampling: Sampling = Sampling()
    idle: bool = True


class Agent:
    """One agent with its memory, on one backend. Made by `localmem.open`."""

    def __init__(
        self,
        row: AgentRow,
        *,
        backend: Backend,
        database: Database,
        recall: Recall,
        archival: Archival,
        options: AgentOptions,
        now: Callable[[], datetime],
        owner: str = "",
        embedder: Embedder | None = None,
    ) -> None:
        self.name = row.name
        self.owner = owner
        self.id = row.id
        self.backend = backend
        self.recall = recall
        self.archival = archival
        self.options = options
        self._database = database
        self._store = AgentStore(database)
        self._attachments = Attachments(database)
        self._history = History(database, row.id, archival)
        self._now = now
        self._closers: list[Callable[[], None]] = []
        self._busy = threading.Lock()
        self._cancellation = Cancellation()
        self._own_functions: dict[str, FunctionSpec] = {}
        self._runs_own = False
        self._event_kind = ""
        self._step_id: int | None = None
        self._author: Author = "user"
        self.working_context = self._load_working_context()
        self._timers_known = bool(self._store.timers(self.id))
        self._memory_functions = self._bind_functions()
        self.main_context = MainContext(self._prefix())
        self.queue_manager = self._make_queue_manager()
        self._idle_work = IdleWork(
            backend=backend,
            owner=owner,
            queue_manager=self.queue_manager,
            working_context=lambda: self.working_context,
            recall=recall,
            archival=archival,
            embedder=embedder,
        )
        self._restore(row)

    # -- what a program uses -------------------------------------------------------------------------------------

    def send(self, text: str, *, rules: ToolRules | None = None, on_reply: OnReply | None = None) -> Iterator[Step]:
        """Give the agent a user's message; yields its steps. `on_reply` gets the reply as it is written, `rules` stand
        in for the agent's own this once."""
        return self.handle(UserMessage(text), rules=rules, on_reply=on_reply)

    def handle(
        self, event: Event, *, rules: ToolRules | None = None, on_reply: OnReply | None = None
    ) -> Iterator[Step]:
        """Run the processor on `event` until it yields; `rules` stand in for the agent's own this once.

        Raises ChainLimit when the steps are used up without an answer, LocalmemError when another event is being
        handled, BackendError and StorageError as they come; everything written so far is kept.
        """
        with self._one_at_a_time():
            self._look_at_attached()
            self.note(event)
            yield from self._run(Chain(event.kind, event.text, rules or self.options.rules), on_reply)

    def resume(self, *, on_reply: OnReply | None = None) -> Iterator[Step]:
        """Go on with the newest event where its steps were cut short; no steps when it is dealt with.

        Raises as `handle` does.
        """
        with self._one_at_a_time():
            self._close_open_call()
            chain = self._unfinished()
            if chain is not None:
                self._event_kind = chain.kind
                yield from self._run(chain, on_reply)

    def note(self, event: Event) -> None:
        """Put an event into the queue without running the processor: it is read with the next one."""
        self.wake()
        self._close_open_call()
        self._event_kind = event.kind
        with self._undone_together():
            if isinstance(event, UserMessage):
                self.queue_manager.append(event.role, event.kind, event.text)
                self._store.touch(self.id, self._now())
            else:
                self._tell(event.role, event.kind, event.text)

    def recount(self, call: FunctionCall, result: str) -> None:
        """Put a past call and its result into the queue, as though it had been made; nothing is carried out.

        For whoever brings a conversation from elsewhere. A reply (`send_message`) has no result.
        """
        self.wake()
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        said = str(call.arguments.get("message", "")) if call.name == "send_message" else None
        with self._undone_together():
            self.queue_manager.append(
                "assistant",
                "call" if said is None else "reply",
                _written(call) if said is None else said,
                content=self.frame.write(call.name, arguments),
                token_ids=self._ids_of_call(call.name, arguments),
            )
            if said is None:
                self._append_result(call, result)

    def log_in(self) -> None:
        """Tell the agent that the user is here, and since when they were away."""
        row = self._store.get(self.name)
        self.note(Login(self._now().astimezone(), row.last_seen_at))
        self._store.touch(self.id, self._now())

    def rest(self) -> None:
        """Work ahead in the background until the next event, unless idle work is off: summary, rendering, reading,
        vectors, indexes."""
        if self.options.idle and not self._busy.locked():
            self._idle_work.start()

    def wake(self) -> None:
        """Stop working ahead. Everything that changes the agent does this by itself; who looks at it must."""
        self._idle_work.preempt()

    def finish_idle_work(self) -> None:
        """Wait until there is nothing left to do ahead."""
        self._idle_work.finish()

    def cancel(self) -> None:
        """Stop the running event soon; safe from any thread and from a signal handler."""
        self._cancellation.cancel()

    def function(self, function: Callable[..., object]) -> Callable[..., object]:
        """Decorator: let the model call a typed Python function; its docstring says what it is for.

        Raises LocalmemError for what a model cannot call, ContextTooSmall when it leaves no room for a queue.
        """
        spec = from_python(function)
        if spec.name in {*self._memory_functions.specs, *self.options.names.known_as.values()}:
            raise LocalmemError(f"{spec.name!r} is a function of localmem itself", "Give yours another name.")
        check_enforceable(spec, self.backend)
        self.wake()
        before = dict(self._own_functions)
        self._own_functions[spec.name] = spec
        self.main_context.set_prefix(self._prefix())
        try:
            self.queue_manager.check_room()
        except ContextTooSmall:
            self._own_functions = before
            self.main_context.set_prefix(self._prefix())
            raise
        return function

    def upload(self, name: str, texts: list[str], *, progress: Callable[[int], None] | None = None) -> None:
        """Store a document's passages and tell the agent."""
        self.archival.insert_many(texts, source=name, by=self.attribution(), progress=progress)
        self.note(DocumentUploaded(name, len(texts)))

    def schedule(self, name: str, schedule: str, note: str) -> datetime:
        """Set a timed event; gives when it is first due. Raises LocalmemError for what is no schedule."""
        due = next_due(schedule, self._now())
        self._store.put_timer(self.id, TimerRow(name, schedule, clean(note), due, self._now()), self.attribution())
        self._look_at_timers()
        return due

    def unschedule(self, name: str) -> bool:
        """Drop a timed event; False when there is none of that name."""
        found = self._store.delete_timer(self.id, name, self.attribution())
        self._look_at_timers()
        return found

    def timers(self) -> list[TimerRow]:
        return self._store.timers(self.id)

    def summaries(self) -> list[SummaryRow]:
        """Every state the recursive summary has had, oldest first: one a flush."""
        return self._store.summaries(self.id)

    def inferences(self) -> list[InferenceRow]:
        """What every inference cost, newest first; the latest with prompt and completion."""
        return self._store.inferences(self.id, -1)

    def next_timer(self) -> datetime | None:
        """When the next timed event is due, pauses counted in; None without timers."""
        paused = self._store.get(self.name).timers_paused_until
        due = [timer.next_due_at for timer in self.timers()]
        if not due:
            return None
        return max(min(due), paused) if paused else min(due)

    def run_timers(self, *, on_reply: OnReply | None = None) -> Iterator[Step]:
        """Handle every timed event that is due, each once however often it was missed; none while the agent is busy."""
        if self._busy.locked():
            return  # what is due stays due
        paused = self._store.get(self.name).timers_paused_until
        if paused is not None and paused > self._now():
            return
        for timer in self.timers():
            now = self._now()
            if timer.next_due_at > now:
                continue
            missed = missed_until(timer.schedule, timer.next_due_at, now)
            # Moved on before it runs: an event that fails must not fire again and again.
            self._store.set_timer_due(self.id, timer.name, next_due(timer.schedule, now))
            yield from self.handle(TimerFired(timer.name, timer.note, now.astimezone(), missed), on_reply=on_reply)

    def grammar(self, phase: Phase = "all", *, heartbeat: bool = False, without: Collection[str] = ()) -> CallGrammar:
        """What may be called now, `without` some; `heartbeat` lets the model ask to be run again."""
        choices = self._memory_functions.choices(
            phase,
            own=[spec for name, spec in self._own_functions.items() if name not in without],
            without=without,
            heartbeat=heartbeat,
            thought=self.options.thought,
        )
        return CallGrammar(self.frame, choices)

    def signs(self) -> Vector:
        """What is to be seen of the next decision without a model."""
        queue = self.main_context.queue
        start = newest_exchange(queue)
        text = queue[start].text
        memory = {block.label: block.value for block in self.working_context.blocks}
        passage = older = None
        if not self.archival.is_empty:
            found = self.archival.search(text, page_size=1, by_words_only=True).items
            passage = found[0].text if found else ""
        if self._memory_functions.is_anything_evicted():
            visible = [message.id for message in queue if message.id is not None]
            said = self.recall.search(text, page_size=1, exclude=visible, by_words_only=True).items
            older = said[0].text if said else ""
        return signs(
            queue[start:],
            queue[:start],
            core_memory="\n".join(memory.values()),
            persona=memory.get(PERSONA, ""),
            passage=passage,
            older=older,
            stated=statements(text) if queue[start].kind == "user_message" else (),
            unsaved=self._memory_functions.unsaved_statements() if queue[start].kind == "memory_pressure" else (),
        )

    def set_block(self, label: str, value: str) -> None:
        """Rewrite a block as the user. Raises BlockNotFound or WorkingContextFull."""
        self.wake()
        with self._undone_together():
            self.working_context.set(label, value)
            self._render_afresh()

    def add_block(self, block: Block) -> None:
        """Add a block of the user's own to the working context, or change its description, limit and flag.

        Raises WorkingContextFull or ContextTooSmall, and then nothing has changed.
        """
        self.wake()
        with self._undone_together():
            self.working_context.add(block)
            self.queue_manager.check_room()
            self._render_afresh()

    def attach(self, owner: str, label: str = ARCHIVE) -> Attachment:
        """Let the agent read a block of another's, or without a label its archive; see `storage.attachments`.

        Raises AgentNotFound, ContextTooSmall, or LocalmemError for what cannot be attached; then nothing has changed.
        """
        self.wake()
        with self._undone_together():
            attached = self._attachments.add(self.id, owner, label, self.attribution())
            self._look_at_attached()
            self.queue_manager.check_room()
        return attached

    def detach(self, owner: str, label: str = ARCHIVE) -> None:
        """Take away what was attached. Raises LocalmemError when it is not."""
        self.wake()
        with self._undone_together():
            self._attachments.remove(self.id, owner, label, self.attribution())
            self._look_at_attached()

    def attached(self) -> list[Attachment]:
        """What the agent may read of others."""
        return self._attachments.of(self.id)

    @contextmanager
    def made_by(self, author: Author) -> Generator[None]:
        """What is changed in here is that author's doing; else it is the user's."""
        before, self._author = self._author, author
        try:
            yield
        finally:
            self._author = before

    def attribution(self) -> Attribution:
        """Whose a change is that is made now."""
        return Attribution(self._author, self._now(), self._step_id)

    def history(self, kind: EditKind | None = None, item: str | None = None) -> list[Edit]:
        """What was done to the agent's memory, newest first: to its blocks, passages, summary and settings, or to those
        of one kind, or to one (a block's label)."""
        return self._history.edits(kind, item)

    def undo(self, kind: EditKind | None = None, item: str | None = None) -> list[Edit]:
        """Take back the newest edit that stands; what was taken back. Raises LocalmemError when there is none."""
        return self._turn_back(lambda: self._history.undo(self.attribution(), kind, item))

    def redo(self, kind: EditKind | None = None, item: str | None = None) -> list[Edit]:
        """Take back the newest undo, unless something was done after it. Raises LocalmemError when there is none."""
        return self._turn_back(lambda: self._history.redo(self.attribution(), kind, item))

    def _turn_back(self, change: Callable[[], list[Edit]]) -> list[Edit]:
        with self._one_at_a_time():
            edits = change()
            self._restore(self._store.get(self.name))
            if any(edit.kind == "setting" for edit in edits):
                self._look_at_timers()
        return edits

    def close(self) -> None:
        """Save what is cached and let go of the agent."""
        self.wake()
        window, static_tokens = self.main_context.window(), self.main_context.static_tokens
        try:
            self.backend.keep(window, owner=self.owner, static_tokens=static_tokens)
            self.recall.save_index()
            self.archival.save_index()
        finally:  # a cache that cannot be written must not keep the agent locked
            closers, self._closers = self._closers, []
            for closer in closers:
                closer()

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when the agent is closed."""
        self._closers.append(closer)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the loop ------------------------------------------------------------------------------------------------

    def _run(self, chain: Chain, on_reply: OnReply | None) -> Iterator[Step]:
        """The steps of an event that stands in the queue, and of the memory-pressure warning when that is due."""
        self._memory_functions.forget_question()
        yield from (
            self._save_what_matters(chain) if chain.kind == "memory_pressure" else self._deal_with(chain, on_reply)
        )
        self.queue_manager.forget_failures()
        if self.queue_manager.warning_due and not self._cancellation.cancelled:
            yield from self._warn()
            self.queue_manager.forget_failures()

    @contextmanager
    def _one_at_a_time(self) -> Generator[None]:
        """The agent is busy in here. Raises LocalmemError when it is already."""
        self.wake()
        if not self._busy.acquire(blocking=False):
            raise LocalmemError("the agent is busy with another event", "Wait until its steps have been read.")
        self._cancellation.clear()
        try:
            yield
        finally:
            self._cancellation.clear()  # a flush outside an event must not find it set
            self._busy.release()

    def _unfinished(self) -> Chain | None:
        """The newest event, when it wakes the processor and nothing, or a result, is the last thing that came of it."""
        queue = self.main_context.queue
        start = newest_exchange(queue)
        if not queue or queue[start].kind not in _WAKING or (queue[-1].kind != "result" and len(queue) > start + 1):
            return None
        chain = Chain(queue[start].kind, queue[start].text, self.options.rules)
        for message, following in zip(queue[start:], queue[start + 1 :], strict=False):
            if message.kind == "call" and following.kind == "result":
                result = FunctionResult(not following.text.startswith(FAILURE), following.text)
                chain.add(self._call_of(message), result)
        return chain

    def _call_of(self, message: Message) -> FunctionCall | None:
        """The call a message of the queue holds; None when what was written was no call."""
        try:
            return self.frame.parse(message.content)
        except FunctionError:
            return None

    def _deal_with(self, chain: Chain, on_reply: OnReply | None) -> Iterator[Step]:
        """Steps until the event is dealt with."""
        must_answer = chain.kind == "user_message"
        barred = set(SAVING) if must_answer and is_question(chain.text) else set[str]()  # a question: nothing to save
        spent = 0
        last = False
        while chain.steps < self.options.max_steps:
            last = last or chain.steps == self.options.max_steps - 1 or spent >= self.options.max_tokens_per_event
            step = self._step(
                chain,
                "last" if last and must_answer else "all",
                # A user's message is always run on until it is answered: there is nothing for the model to ask for.
                heartbeat=not must_answer,
                without=barred,
                on_reply=on_reply,
            )
            spent += step.usage.generated_tokens
            chain.add(step.call, step.result)
            yield step
            if self._cancellation.cancelled:
                return
            if step.reply is not None:
                if must_answer and chain.broken_promise(step.reply):
                    yield from self._save_after_all(chain, _PROMISED)
                elif must_answer and not barred and chain.is_echoed(step.reply):
                    yield from self._save_after_all(chain, _ECHOED, without=(NOTHING,))
                return
            if not must_answer and (last or not _goes_on(step)):
                return
            last = last or chain.repeats_a_failure
        if must_answer:
            raise ChainLimit(
                f"{self.options.max_steps} steps brought no answer",
                "Everything so far is kept; say it again, or raise max_steps.",
            )

    def _save_after_all(self, chain: Chain, why: str, *, without: Collection[str] = ()) -> Iterator[Step]:
        """The reply should not have come before something was saved: one more step, to do so."""
        if not self._memory_functions.newest_statements() or not self.grammar("promised", without=without).choices:
            return  # there is nothing to save, or nothing that saves
        self._tell("system", "system_message", why)
        step = self._step(chain, "promised", heartbeat=False, without=without)
        chain.add(step.call, step.result)
        yield step

    def _warn(self) -> Iterator[Step]:
        """The memory-pressure event: the model saves what matters, before anything has to leave."""
        context, budget = self.main_context, self.queue_manager.budget
        with self._undone_together():
            self.queue_manager.set_warned(True)
            self.note(MemoryPressure(context.tokens, budget.flush_tokens))
        yield from self._save_what_matters(Chain("memory_pressure", ""))

    def _save_what_matters(self, chain: Chain) -> Iterator[Step]:
        for _ in range(_PRESSURE_STEPS):
            step = self._step(chain, "edits", heartbeat=True)
            chain.add(step.call, step.result)
            yield step
            if self._cancellation.cancelled or not step.result.ok or not _goes_on(step):
                return

    def _step(
        self,
        chain: Chain,
        phase: Phase,
        *,
        heartbeat: bool,
        without: Collection[str] = (),
        on_reply: OnReply | None = None,
    ) -> Step:
        """One inference, its call carried out, all of it written in one transaction."""
        try:
            self.queue_manager.relieve_pressure(self._cancellation)
        except Interrupted:
            return Step(None, FunctionResult(False, "Stopped by the user."), Usage())
        grammar = self.grammar(phase, heartbeat=heartbeat, without=without)
        grammar = replace(grammar, choices=chain.narrow(grammar.choices))
        allowed = [choice.name for choice in grammar.choices]
        stream = ReplyStream(self.frame, on_reply) if on_reply is not None else None
        prompt = self.main_context.prompt()
        completion = self.backend.complete(
            prompt,
            grammar=grammar,
            sampling=self.options.sampling,
            max_tokens=self.options.budget.reserve,
            guidance=self._guidance(chain),
            on_text=stream.feed if stream is not None else None,
            owner=self.owner,
            cancellation=self._cancellation,
        )
        try:
            with self._undone_together():
                self._step_id = self._store.add_step(self.id, self._event_kind, self._now())
                self._trace("step", completion, prompt.ids)
                step = self._carry_out(completion, allowed)
            if isinstance(step, FunctionCall):
                step = self._run_own(step, completion, allowed)
        finally:
            self._step_id = None
        if stream is not None and step.reply is not None and on_reply is not None:
            on_reply(step.reply[len(stream.sent) :])
        return step

    def _guidance(self, chain: Chain) -> Guidance | None:
        if self.calibration is None:
            return None
        lines = [line for block in self.working_context.blocks for line in block.lines]
        return Guidance(self.calibration, self.signs(), line_weights(chain.text, lines))

    def _carry_out(self, completion: Completion, allowed: list[str]) -> Step | FunctionCall:
        """The step, or, of a function of the user's own, the call that is still to be run."""
        if completion.finish_reason == "cancelled":
            return self._stop(completion)
        try:
            call = parse(completion, self.frame)
        except FunctionError as error:
            return self._fail(completion, FunctionResult(False, f"{FAILURE}{error}"))
        if call.name in self._own_functions:
            self._append_call("call", _written(call), completion)
            return call
        with self.made_by("model"):
            result = execute(call, self._memory_functions.specs, allowed=allowed)
        step = Step(call, result, completion.usage, self._step_id or 0)
        said = step.reply
        text = said if said is not None else _written(call)
        kind = "reply" if said is not None else "call"
        self._append_call(kind, text, completion)
        if said is None:
            self._append_result(call, result.text)
        return step

    def _run_own(self, call: FunctionCall, completion: Completion, allowed: list[str]) -> Step:
        """Run a function of the user's own. What it does outside of the database cannot be rolled back, so its call is
        on disk before it runs: where the process ends in it, that it was called is known (`_close_open_call`)."""
        self._runs_own = True
        try:
            with self.made_by("model"):
                result = execute(call, self._own_functions, allowed=allowed)
        finally:
            self._runs_own = False
        with self._undone_together():
            self._append_result(call, result.text)
        return Step(call, result, completion.usage, self._step_id or 0)

    def _close_open_call(self) -> None:
        """Tell the model of a call whose result never came, because the process ended or the disk was full."""
        queue = self.main_context.queue
        if not queue or queue[-1].kind != "call" or self._runs_own:
            return
        with self._undone_together():
            self._tell("function", "result", _INTERRUPTED)

    def _append_result(self, call: FunctionCall, text: str) -> None:
        """What came of a call. Behind what a search found stands the user's question once more: by then it is far away,
        and a small model takes up the last thing it has read."""
        queue = self.main_context.queue
        event = queue[newest_exchange(queue)]
        asked = asked_in(event.text) if event.kind == "user_message" else ""
        self._tell("function", "result", text, repeated=asked if call.name in SEARCHES else "")

    def _tell(self, role: Role, kind: Kind, text: str, *, repeated: str = "") -> None:
        """Put a text of the runtime's into the queue: functions by the model's names of them, what is `repeated` behind
        it."""
        told = self.options.names.in_text(text)
        content = f"{told}\n{repeated}" if repeated else told
        self.queue_manager.append(role, kind, text, content=content, step_id=self._step_id)

    def _append_call(self, kind: str, text: str, completion: Completion) -> None:
        self.queue_manager.append(
            "assistant",
            "reply" if kind == "reply" else "call",
            text,
            content=completion.text,
            token_ids=completion.ids,
            step_id=self._step_id,
        )

    def _fail(self, completion: Completion, result: FunctionResult) -> Step:
        """A completion that holds no call: what was written stays in the queue, with what is wrong about it."""
        if completion.ids:
            self._append_call("call", completion.text, completion)
        self._tell("function", "result", result.text)
        return Step(None, result, completion.usage, self._step_id or 0)

    def _stop(self, completion: Completion) -> Step:
        """The user interrupted: keep what was said so far, as said."""
        parts: list[str] = []
        ReplyStream(self.frame, parts.append).feed(completion.text)
        said = "".join(parts)
        if said:
            call = FunctionCall("send_message", {"message": said + _STOPPED})
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            ids = self._ids_of_call(call.name, arguments)
            whole = Completion(self.frame.write(call.name, arguments), ids, "stop", completion.usage)
            self._append_call("reply", said + _STOPPED, whole)
            return Step(call, FunctionResult(True, "Stopped by the user."), completion.usage, self._step_id or 0)
        return Step(None, FunctionResult(False, "Stopped by the user."), completion.usage, self._step_id or 0)

    def _ids_of_call(self, name: str, arguments: str) -> tuple[int, ...]:
        """A call as ids: only the frame may hold control tokens, never what was said in it."""
        if name == self.frame.plain:
            return tuple(self.backend.tokenizer.encode(self.frame.write(name, arguments)))
        return self._ids_in_frame(self.frame.head(name), arguments)

    def _ids_in_frame(self, head: str, arguments: str) -> tuple[int, ...]:
        encode = self.backend.tokenizer.encode
        return (*encode(head, special=True), *encode(arguments), *encode(self.frame.after, special=True))

    def _ids_of_written(self, text: str) -> tuple[int, ...] | None:
        """A call that another model, or this one elsewhere, wrote in the same frame, as ids; None for what is none.

        Its text stays what it is, to the byte: what is tokenized anew can have other ids, never another text.
        """
        try:
            head = self.frame.head(self.frame.parse(text).name)
        except FunctionError:
            return None
        after = self.frame.after
        if not text.startswith(head) or not text.endswith(after):
            return None
        return self._ids_in_frame(head, text[len(head) : len(text) - len(after)])

    # -- putting it together -------------------------------------------------------------------------------------

    def _load_working_context(self) -> WorkingContext:
        rows = [*(("", row) for row in self._store.blocks(self.id)), *self._attachments.blocks(self.id)]
        blocks = [
            Block(row.label, row.description, row.value, row.limit_tokens, row.read_only, owner) for owner, row in rows
        ]
        return WorkingContext(blocks, self.backend.tokenizer, self._save_block)

    def _attach_archives(self) -> None:
        self.archival.attach((one.owner, one.owner_id) for one in self.attached() if one.label == ARCHIVE)

    def _look_at_attached(self) -> None:
        """See what others have changed in what is attached, and what is attached by now."""
        self._attach_archives()
        loaded = self._load_working_context()
        if loaded.blocks != self.working_context.blocks:
            self.working_context = loaded
            self._render_afresh()

    def _save_block(self, block: Block) -> None:
        labels = [row.label for row in self._store.blocks(self.id)]
        position = labels.index(block.label) if block.label in labels else len(labels)
        row = BlockRow(block.label, block.description, block.value, block.limit, block.read_only, position)
        self._store.put_block(self.id, row, self.attribution())

    def _bind_functions(self) -> MemoryFunctions:
        return MemoryFunctions(
            declarations=self.options.declarations,
            closed={name for name, times in self.options.rules.at_most.items() if not times},
            working_context=lambda: self.working_context,
            recall=self.recall,
            archival=self.archival,
            tokenizer=self.backend.tokenizer,
            result_tokens=int(self.options.budget.limit * _RESULT_SHARE),
            text_tokens=self.options.budget.reserve - _CALL_TOKENS,
            visible=lambda: self.main_context.queue,
            call_of=self._call_of,
            has_timers=lambda: self._timers_known,
            pause_timers=self._pause_timers,
            now=self._now,
            by=self.attribution,
        )

    def _prefix(self) -> Prefix:
        """Instructions, functions and examples in the model's own chat format."""
        plain = "send_message" if self.options.plain_reply else ""
        names = self.options.names
        told = [spec for spec in self._memory_functions.shown() if spec.name != plain]
        shown = [replace(spec, name=names.of(spec.name)) for spec in told]
        chosen = None if self.options.frame == "native" else self.options.frames[self.options.frame]
        start = opening(
            self.backend,
            [*shown, *self._own_functions.values()],
            names.in_text(self.options.instructions),
            frame=chosen,
            rule=_RULE_PLAIN if plain else _RULE,
        )
        self.frame = replace(start.frame, plain=plain, names=names)
        self.notes = start.notes
        self.calibration = self._fitting_calibration()
        examples = encode_examples(self.options.examples, start.encoder, self.frame)
        return Prefix(start.encoder, start.ids, examples)

    def prompt_fingerprint(self) -> str:
        """What the built-in prompt of this agent's profile is made of; a calibration belongs to one."""
        options = self.options
        examples = [repr(exchange) for exchange in options.examples]
        parts = [options.instructions, repr(self.frame), options.thought, *examples, *SIGNS]
        return fingerprint(parts, options.declarations)

    def _fitting_calibration(self) -> Calibration | None:
        """The profile's calibration, if it was fitted on this very prompt."""
        calibration = self.options.calibration
        if calibration is None or calibration.prompt in ("", self.prompt_fingerprint()):
            return calibration
        self.notes += ("the calibration was fitted on another prompt and is not used; localmem models tune fits it",)
        return None

    def _make_queue_manager(self) -> QueueManager:
        summarizer = Summarizer(
            self.backend,
            self.main_context.encoder,
            frame=self.frame,
            instructions=self.options.summary_instructions,
            request=self.options.summary_request,
            limit=self.options.summary_tokens,
            on_inference=lambda phase, completion: self._trace(phase, completion, ()),
        )
        return QueueManager(
            database=self._database,
            store=self._store,
            agent_id=self.id,
            recall=self.recall,
            main_context=self.main_context,
            working_context=lambda: self.working_context,
            summarizer=summarizer,
            budget=self.options.budget,
            ids_of_written=self._ids_of_written,
            now=self._now,
        )

    @contextmanager
    def _undone_together(self) -> Generator[None]:
        """One transaction; when it fails, memory follows the disk, where nothing of it happened."""
        try:
            with self._database.transaction():
                yield
        except BaseException:
            if not self._database.in_transaction:
                self._restore(self._store.get(self.name))
            raise

    def _restore(self, row: AgentRow) -> None:
        self._attach_archives()
        self.working_context = self._load_working_context()
        self.queue_manager.restore(rendered_context=row.rendered_context, warned=row.warned)

    def _render_afresh(self) -> None:
        self.queue_manager.render(self.working_context.render())

    def _look_at_timers(self) -> None:
        """The model is told of pause_heartbeats only while there is something to pause."""
        self.wake()
        self._timers_known = bool(self._store.timers(self.id))
        self.main_context.set_prefix(self._prefix())

    def _pause_timers(self, minutes: int) -> None:
        self._store.pause_timers(self.id, self._now() + timedelta(minutes=minutes), self.attribution())

    def _trace(self, phase: str, completion: Completion, prompt: tuple[int, ...]) -> None:
        text = self.backend.tokenizer.decode_bytes(prompt, special=True).decode("utf-8", "replace") or None
        usage = completion.usage
        self._store.add_inference(
            InferenceRow(
                agent_id=self.id,
                step_id=self._step_id,
                event=self._event_kind,
                phase=phase,
                prompt_tokens=usage.prompt_tokens,
                reused_tokens=usage.reused_tokens,
                evaluated_tokens=usage.evaluated_tokens,
                generated_tokens=usage.generated_tokens,
                read_seconds=usage.read_seconds,
                write_seconds=usage.write_seconds,
                created_at=self._now(),
                completion=completion.text,
                prompt=text,
            )
        )


def _goes_on(step: Step) -> bool:
    """Whether the runtime runs the model again of its own accord: after a failure, a search, or when asked."""
    if not step.result.ok or step.call is None:
        return True
    return step.call.request_heartbeat or step.call.name in SEARCHES


def _written(call: FunctionCall) -> str:
    """A call as people read it: name(argument=value, ...)."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
    return f"{call.name}({arguments})"
