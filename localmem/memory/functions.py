"""The paper's function set, bound to one agent's memory, and narrowed by that memory's state.

`choices` makes the schemas of one step: only labels that exist and can be written, only lines that are there, only
pages that exist, no function of an empty store. So a call that parses can also be carried out. Results are sized in
tokens, with truthful totals: "results 6-10 of 23, page 2 of 5".
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache, lru_cache, partial
from typing import Any, Literal

from localmem.calls.frame import HEARTBEAT, THOUGHT, Thought
from localmem.calls.grammar import NOT_BLANK, ROOM, FunctionChoice, Schema
from localmem.calls.spec import FunctionSpec
from localmem.errors import InvalidArguments, Unconfirmed, WorkingContextFull
from localmem.kernel.messages import SAVING, SPOKEN_KINDS, FunctionCall, Message, newest_exchange
from localmem.kernel.tokens import Tokenizer, can_write, clean, count, cut, fits
from localmem.memory.archival import Archival, Passage
from localmem.memory.recall import Recall
from localmem.memory.search import Page
from localmem.memory.signs import says_anew, terms
from localmem.memory.user_text import hands_over, statements, told
from localmem.memory.working_context import PERSONA, Block, WorkingContext, says
from localmem.storage.edit_log import Attribution

NOTHING = "nothing_to_save"
"""The answer to a memory-pressure warning that has nothing to add: forced to save, a small model makes facts up."""

_ENDS = {"send_message", NOTHING}
"""What ends an event cannot be closed."""

Phase = Literal["all", "edits", "promised", "last"]
"""Which functions a step offers: all, those that save before messages leave, those that make a promise true, or only
the answer."""

_TO_SAVE: tuple[Phase, ...] = ("edits", "promised")

PAGE_SIZE = 5  # paper: pages of five results
_FACT_CHARACTERS = 240
_NOTE_CHARACTERS = 1_200
_MESSAGE_CHARACTERS = 1_500
_QUERY_CHARACTERS = 80
_THOUGHT_CHARACTERS = 120
_MOST_SAID = 24  # statements a memory-pressure step chooses from
_MOST_READ = 4  # searches of one function that can be read on
_LINES_KNOWN = 256  # that the vocabulary can spell or not: more than the blocks hold
_LINE_BREAK = 2  # tokens a new line may take beside its text
_LEAST_TOLD = 3  # telling words of what is kept as it was said
_LEAST_ROOM = 8  # tokens: a block with less is not offered for appending


_PAGE, _QUERY = "page", "query"
_OTHER_STORE = {
    "conversation_search": "archival_memory_search",
    "archival_memory_search": "conversation_search",
}
_PAGES = re.compile(r"^Results .* page \d+ of (\d+):", re.MULTILINE)
_NOTHING_FOUND = "Nothing found"
_OTHER_WORDS = "Try other or fewer words"


class MemoryFunctions:
    """The built-in functions of one agent: those of the paper's set that are declared. Of what is `closed` the model is
    told, but cannot call it."""

    def __init__(
        self,
        *,
        declarations: Mapping[str, tuple[str, Schema]],
        closed: Collection[str],
        working_context: Callable[[], WorkingContext],
        recall: Recall,
        archival: Archival,
        tokenizer: Tokenizer,
        result_tokens: int,
        text_tokens: int,
        visible: Callable[[], Sequence[Message]],
        call_of: Callable[[Message], FunctionCall | None],
        has_timers: Callable[[], bool],
        pause_timers: Callable[[int], None],
        now: Callable[[], datetime],
        by: Callable[[], Attribution],
    ) -> None:
        self._working_context = working_context
        self._recall = recall
        self._archival = archival
        self._tokenizer = tokenizer
        self._result_tokens = result_tokens
        self._text_tokens = text_tokens
        self._visible = visible
        self._call_of = call_of
        self._has_timers = has_timers
        self._pause_timers = pause_timers
        self._now = now
        self._by = by
        # The same lines are asked about in every step.
        self._can_write = lru_cache(_LINES_KNOWN)(partial(can_write, tokenizer))
        runs: dict[str, Callable[..., object]] = {
            "send_message": self.send_message,
            "core_memory_append": self.core_memory_append,
            "core_memory_replace": self.core_memory_replace,
            "conversation_search": self.conversation_search,
            "conversation_search_date": self.conversation_search_date,
            "archival_memory_insert": self.archival_memory_insert,
            "archival_memory_search": self.archival_memory_search,
            "pause_heartbeats": self.pause_heartbeats,
            NOTHING: self.nothing_to_save,
        }
        self.specs = {
            name: FunctionSpec(name, *declarations[name], run, takes_heartbeat=name in (*SAVING, "pause_heartbeats"))
            for name, run in runs.items()
            if name in declarations
        }
        self._open = self.specs.keys() - (set(closed) - _ENDS)
        self._asked: tuple[str, str, str] | None = None
        self._overflows = "archival_memory_insert" in self._open  # what a block has no room for goes there

    def shown(self) -> list[FunctionSpec]:
        """The functions the model is told of: pausing timers only while there are timers, `nothing_to_save` by the
        warning itself."""
        hidden = {NOTHING} if self._has_timers() else {NOTHING, "pause_heartbeats"}
        return [spec for name, spec in self.specs.items() if name not in hidden]

    def forget_question(self) -> None:
        """An edit that was to be confirmed no longer is: another event has come."""
        self._asked = None

    # -- what a step may call ------------------------------------------------------------------------------------

    def choices(
        self,
        phase: Phase,
        *,
        own: Sequence[FunctionSpec] = (),
        without: Collection[str] = (),
        heartbeat: bool = True,
        thought: Thought = "none",
    ) -> tuple[FunctionChoice, ...]:
        """The functions of a step, in the order they are declared; `own` are the user's."""
        offered = [
            (self.specs[name], schema)
            for name, narrow in {**self._narrowings(), **(self._saving(phase) if phase in _TO_SAVE else {})}.items()
            if name in self._open
            and _in_phase(name, phase)
            and name not in without
            and (schema := narrow()) is not None
        ]
        if phase == "all":
            offered += [(spec, spec.parameters) for spec in own]
        return tuple(
            FunctionChoice(
                spec.name, _with_extras(schema, heartbeat=heartbeat and spec.takes_heartbeat, thought=thought)
            )
            for spec, schema in offered
        )

    def _narrowings(self) -> dict[str, Callable[[], Schema | None]]:
        """Each function's schema as the state allows it; None where it cannot be called."""
        is_evicted, told_now = cache(self.is_anything_evicted), cache(self._told)  # asked twice, looked up once
        return {
            "send_message": lambda: _object(message=_text(_MESSAGE_CHARACTERS)),
            "core_memory_append": lambda: self._append_schema(partial(self._told_content, told_now())),
            "core_memory_replace": lambda: self._replace_schema(told_now()),
            "conversation_search": lambda: self._search_schema("conversation_search") if is_evicted() else None,
            "conversation_search_date": lambda: self._dates_schema() if is_evicted() else None,
            "archival_memory_insert": self._insert_schema,
            "archival_memory_search": self._archival_schema,
            "pause_heartbeats": self._pause_schema,
            NOTHING: _object,
        }

    def _saving(self, phase: Phase) -> dict[str, Callable[[], Schema | None]]:
        """The schemas of a step that is to save. What can be added is what the user said, word for word: asked to write
        freely, a small model makes facts up."""
        said = self.unsaved_statements() if phase == "edits" else self._newest_told()
        return {
            "core_memory_append": lambda: self._append_schema(partial(self._said_content, said)),
            "core_memory_replace": lambda: None,
            "archival_memory_insert": lambda: _object(content={"enum": said}) if said else None,
        }

    def unsaved_statements(self) -> list[str]:
        """What the user stated in the older half of the queue and no block holds yet, oldest first."""
        queue = self._visible()
        return self._unsaved(queue[: len(queue) // 2 + 1])

    def newest_statements(self) -> list[str]:
        """What the user stated last and no block holds yet."""
        spoken = [message for message in self._visible() if message.kind == "user_message"]
        return self._unsaved(spoken[-1:])

    def _newest_told(self) -> list[str]:
        """The newest statements, as one text first where it is short enough."""
        stated = self.newest_statements()
        spoken = [clean(message.text) for message in self._visible() if message.kind == "user_message"]
        whole = told(spoken[-1], _FACT_CHARACTERS)[:1] if stated else []
        return list(dict.fromkeys([*filter(self._can_write, whole), *stated]))

    def _unsaved(self, messages: Sequence[Message]) -> list[str]:
        known = [line for block in self._working_context().blocks for line in block.lines]
        sentences = dict.fromkeys(
            sentence
            for message in messages
            if message.kind == "user_message"
            for sentence in statements(message.text)
            if len(sentence) <= _FACT_CHARACTERS and self._can_write(sentence)
        )
        return [sentence for sentence in sentences if not any(says(line, sentence) for line in known)][:_MOST_SAID]

    def _told(self) -> list[str] | None:
        """What the message in hand tells, in the user's words, without what a block holds already; None where that
        means little by itself ("58", "Yes, that one") or is no user's: then the model writes.

        Asked to put a fact into its own words, a small model gets one in three wrong (measured: docs/design.md).
        """
        queue = self._visible()
        event = queue[newest_exchange(queue)] if queue else None
        if event is None or event.kind != "user_message":
            return None
        found = [text for text in told(clean(event.text), _FACT_CHARACTERS) if self._can_write(text)]
        if not any(len(terms(text)) >= _LEAST_TOLD for text in found):
            return None
        lines = [line for block in self._working_context().blocks for line in block.lines]
        return [text for text in found if not any(says(line, text) for line in lines)]

    def _append_schema(self, content_of: Callable[[int], Schema | None]) -> Schema | None:
        """One alternative a block that may be written: its label, then what `content_of` its room in tokens gives."""
        alternatives = [
            _object(label={"const": block.label}, content=content)
            for block in self._working_context().blocks
            if not block.read_only
            and (content := content_of(self._working_context().room(block.label) - _LINE_BREAK)) is not None
        ]
        return _one_of(alternatives)

    def _told_content(self, told: Sequence[str] | None, room: int) -> Schema | None:
        """What the message in hand tells: all of it, where archival memory takes what has no room; else what fits, or,
        where nothing does or nothing was told in so many words (None), what the model makes of it."""
        if content := self._said_content(told or (), self._text_tokens if self._overflows else room):
            return content
        is_new = told is None or len(told) > 0
        return {**_text(_FACT_CHARACTERS), ROOM: room} if is_new and room >= _LEAST_ROOM else None

    def _said_content(self, said: Sequence[str], room: int) -> Schema | None:
        """One of the texts that have room."""
        fitting = [text for text in said if fits(self._tokenizer, text, room)]
        return {"enum": fitting} if fitting else None

    def _replace_schema(self, words: Sequence[str] | None) -> Schema | None:
        """One alternative a block: its label, then one of the lines it really holds, then what may take its place."""
        alternatives: list[Schema] = []
        stated = self.newest_statements() if words else []
        for block in self._working_context().blocks:
            lines = [] if block.read_only else self._writable_lines(block)
            room = self._working_context().room(block.label) - _LINE_BREAK
            free: Schema = {"type": "string", "maxLength": _FACT_CHARACTERS, ROOM: room}
            news = {line: self._in_place_of(block.label, line, stated, words or (), free) for line in lines}
            told = {line: new for line, new in news.items() if new is not None and new is not free}
            alternatives += [_replacement(block.label, [line], new) for line, new in told.items()]
            if others := [line for line, new in news.items() if new is free]:
                alternatives.append(_replacement(block.label, others, free))
        return _one_of(alternatives)

    def _in_place_of(
        self, label: str, line: str, stated: Sequence[str], words: Sequence[str], free: Schema
    ) -> Schema | None:
        """What may take a line's place: what the user said, word for word.

        That is a statement that says the line anew, or else `words`. A line that shares no word with them may be the
        wrong one, or the block has no room for another: it stays, as does one of several sentences, and the words come
        behind it, or, where they do not fit, nothing may take its place. What the model makes of the line (`free`) may,
        where nothing was said in so many words, or what was said of it is too long for the room.
        """
        own, held = label == PERSONA, terms(line)
        met = own or not words or any(held & terms(text) for text in words)
        texts = [] if own else [text for text in stated if says_anew(line, text)]
        if not texts:
            stays = len(statements(line)) > 1
            texts = [f"{line} {text}" if stays or not (own or held & terms(text)) else text for text in words]
        room = free[ROOM] + count(self._tokenizer, line)
        fitting = [text for text in texts if fits(self._tokenizer, text, room)]
        if fitting:
            return {"enum": fitting}
        return free if met else None

    def _writable_lines(self, block: Block) -> list[str]:
        """The block's lines that the model's vocabulary can spell: one it cannot would be a dead end of the grammar."""
        return [line for line in dict.fromkeys(block.lines) if self._can_write(line)]

    def _archival_schema(self) -> Schema | None:
        if self._archival.is_empty:
            return None
        return self._search_schema("archival_memory_search")

    def _insert_schema(self) -> Schema:
        """The user's very message, where it hands over a text to keep: a small model shortens it to a line about it.
        Once it is kept, and otherwise, what the model writes."""
        queue = self._visible()
        exchange = queue[newest_exchange(queue) :]
        handed = clean(exchange[0].text) if exchange and exchange[0].kind == "user_message" else ""
        calls = (self._call_of(message) for message in exchange if message.kind == "call")
        if (
            hands_over(handed)
            and not any(call is not None and call.name == "archival_memory_insert" for call in calls)
            and fits(self._tokenizer, handed, self._text_tokens)
            and self._can_write(handed)
        ):
            return _object(content={"const": handed})
        return _object(content=_text(_NOTE_CHARACTERS))

    def _search_schema(self, function: str) -> Schema:
        return self._paged(function, query=_text(_QUERY_CHARACTERS))

    def _pause_schema(self) -> Schema | None:
        if not self._has_timers():
            return None
        return _object(minutes={"type": "integer", "minimum": 1, "maximum": 360})

    def _dates_schema(self) -> Schema:
        """Days that exist, of the years in which anything was said."""
        now = self._now().astimezone()
        first = min(self._recall.first_year() or now.year, now.year)
        day = {"type": "string", "pattern": days_of(first, now.year)}
        return self._paged("conversation_search_date", start_date=day, end_date=day)

    def _paged(self, function: str, **arguments: Schema) -> Schema:
        """The pages there are: of a search whose result is in the queue as many as it says, of any other the first."""
        going_on = [
            (searched, pages)
            for searched, pages in self._read(function)
            if pages > 1 and searched.keys() == arguments.keys() and all(map(self._can_write, searched.values()))
        ][-_MOST_READ:]
        known = [
            _object(
                **{name: {"const": value} for name, value in searched.items()},
                page={"type": "integer", "minimum": 1, "maximum": pages},
            )
            for searched, pages in going_on
        ]
        if going_on and _QUERY in arguments:
            queries = [searched[_QUERY] for searched, _ in going_on]
            arguments = {**arguments, _QUERY: {**arguments[_QUERY], "not": {"enum": queries}}}
        first = _object(**arguments, page={"type": "integer", "minimum": 1, "maximum": 1})
        return {"anyOf": [*known, first]} if known else first

    def _read(self, function: str) -> list[tuple[dict[str, str], int]]:
        """What was searched with the function in the queue, each once, the newest last, and the pages it then had.

        A search that found nothing and was widened is the other store's: there it goes on.
        """
        queue = self._visible()
        read: dict[str, tuple[dict[str, str], int]] = {}
        for message, result in zip(queue, queue[1:], strict=False):
            found = _PAGES.search(result.text) if message.kind == "call" and result.kind == "result" else None
            call = self._call_of(message) if found is not None else None
            if call is None or found is None:
                continue
            widened = result.text.startswith(_NOTHING_FOUND)
            if (_OTHER_STORE.get(call.name) if widened else call.name) == function:
                searched = {name: str(value) for name, value in call.arguments.items() if name != _PAGE}
                read.pop(str(searched), None)
                read[str(searched)] = searched, int(found[1])
        return list(read.values())

    def is_anything_evicted(self) -> bool:
        """False while everything ever said is still in the window: there is nothing to search for."""
        spoken = sum(message.kind in SPOKEN_KINDS for message in self._visible())
        return self._recall.spoken_count() > spoken

    # -- what they do --------------------------------------------------------------------------------------------

    def send_message(self, message: str) -> str:
        del message  # the agent yields the step; saying it is the interface's part
        return "Sent."

    def core_memory_append(self, label: str, content: str) -> str:
        try:
            added = self._working_context().append(label, content)
        except WorkingContextFull:
            if not self._overflows:
                raise
            return self.archival_memory_insert(content)  # said to be full, a model tells the user that it cannot save
        return "Saved." if added else f"{label} says that already; nothing changed."

    def core_memory_replace(self, label: str, old_content: str, new_content: str) -> str:
        edit, asked, self._asked = (label, old_content, new_content), self._asked, None
        try:
            changed = self._working_context().replace(*edit, confirmed=edit == asked)
        except Unconfirmed:
            self._asked = edit
            raise
        if not changed:
            return f"{label} says that already; nothing changed."
        return "Saved." if new_content.strip() else "Deleted."

    def archival_memory_insert(self, content: str) -> str:
        known = self._archival.near_duplicate(content)
        if known is not None:
            return f"Archival memory says nearly that already: {cut(self._tokenizer, known.text, 60)}"
        self._archival.insert(clean(content), by=self._by())
        return f"Stored. Archival memory holds {self._archival.count()} passages."

    def archival_memory_search(self, query: str, page: int = 1) -> str:
        found = self._archival.search(query, page=max(0, page - 1), page_size=PAGE_SIZE)
        if found.total:
            return self._show(found, [_passage_row(passage) for passage in found.items], query)
        nothing = f"Nothing found for {query!r} in {self._archival.found_in()} passages."
        if "conversation_search" not in self._open:
            return f"{nothing} {_OTHER_WORDS}."
        # A search is widened here: to look in the other store is more than a small model thinks of.
        older = self._recall.search(query, page_size=PAGE_SIZE, exclude=self._visible_ids())
        if older.total:
            return f"{nothing} In older messages:\n{self._show(older, list(map(_message_row, older.items)), query)}"
        return f"{nothing} {_OTHER_WORDS}, or conversation_search."

    def conversation_search(self, query: str, page: int = 1) -> str:
        found = self._recall.search(query, page=max(0, page - 1), page_size=PAGE_SIZE, exclude=self._visible_ids())
        if found.total:
            return self._show(found, [_message_row(message) for message in found.items], query)
        nothing = f"Nothing found for {query!r} in older messages."
        if "archival_memory_search" not in self._open:
            return f"{nothing} {_OTHER_WORDS}."
        stored = self._archival.search(query, page_size=PAGE_SIZE)
        if stored.total:
            return f"{nothing} In archival memory:\n{self._show(stored, list(map(_passage_row, stored.items)), query)}"
        return f"{nothing} {_OTHER_WORDS}, or archival_memory_search."

    def conversation_search_date(self, start_date: str, end_date: str, page: int = 1) -> str:
        since, until = sorted((_day(start_date), _day(end_date)))  # a model may name them in either order
        found = self._recall.search("", since=since, until=until, page=max(0, page - 1), page_size=PAGE_SIZE)
        if not found.total:
            return f"No messages from {start_date} to {end_date}. Try other days, or conversation_search."
        return self._show(found, [_message_row(message) for message in found.items], "")

    def _visible_ids(self) -> list[int]:
        return [message.id for message in self._visible() if message.id is not None]

    def nothing_to_save(self) -> str:
        return "Good."

    def pause_heartbeats(self, minutes: int) -> str:
        self._pause_timers(minutes)
        until = self._now().astimezone() + timedelta(minutes=minutes)
        return f"Timed events are held back until {until:%H:%M}."

    def _show(self, page: Page[Any], rows: Sequence[tuple[str, str]], query: str) -> str:  # Any: both kinds of item
        """A page of results in at most `result_tokens`, each row cut round what was searched for."""
        if not rows:
            return f"There is no page {page.page + 1}: {page.counted} results, {page.pages} pages."
        first = page.page * PAGE_SIZE + 1
        header = f"Results {first}-{first + len(rows) - 1} of {page.counted}, page {page.page + 1} of {page.pages}:"
        share = (self._result_tokens - count(self._tokenizer, header)) // len(rows) - 4
        lines = [_row(self._tokenizer, head, text, query, share) for head, text in rows]
        return "\n".join([header, *lines])


def _in_phase(name: str, phase: Phase) -> bool:
    if phase == "last":
        return name == "send_message"
    if phase in _TO_SAVE:
        return name in SAVING or name == NOTHING
    return name != NOTHING


def _with_extras(schema: Schema, *, heartbeat: bool, thought: Thought) -> Schema:
    """The runtime's own arguments: a thought before or after the function's own, and request_heartbeat at the end."""
    if "anyOf" in schema:
        return {"anyOf": [_with_extras(s, heartbeat=heartbeat, thought=thought) for s in schema["anyOf"]]}
    thinking = {THOUGHT: {"type": "string", "maxLength": _THOUGHT_CHARACTERS}}
    properties = {
        **(thinking if thought == "first" else {}),
        **schema.get("properties", {}),
        **(thinking if thought == "last" else {}),
        **({HEARTBEAT: {"type": "boolean"}} if heartbeat else {}),
    }
    return {**schema, "properties": properties, "required": list(properties)}


def _replacement(label: str, lines: Sequence[str], new: Schema) -> Schema:
    return _object(label={"const": label}, old_content={"enum": list(lines)}, new_content=new)


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _one_of(alternatives: Sequence[Schema]) -> Schema | None:
    if not alternatives:
        return None
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": list(alternatives)}


def _text(characters: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": characters, "pattern": NOT_BLANK}


def days_of(first: int, last: int) -> str:
    """A regular expression for the days of those years, as YYYY-MM-DD; the 29th of February where there was one.

    >>> re.fullmatch(days_of(2023, 2024), "2024-02-29") is not None, re.fullmatch(days_of(2023, 2024), "2023-02-29")
    (True, None)
    """
    years = [f"{year:04}" for year in range(first, last + 1)]
    leap = [year for year in years if isleap(int(year))]
    any_year = (
        f"(?:{'|'.join(years)})-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
        "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    )
    return f"^(?:{any_year}|(?:{'|'.join(leap)})-02-29)$" if leap else f"^(?:{any_year})$"


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidArguments(f"{text!r} is no date; write YYYY-MM-DD, a day that exists") from error


def _message_row(message: Message) -> tuple[str, str]:
    who = "User" if message.kind == "user_message" else "You"
    return f"[{message.created_at.astimezone():%Y-%m-%d %H:%M}] {who}: ", message.text


def _passage_row(passage: Passage) -> tuple[str, str]:
    owner = f" of {passage.owner}" if passage.owner else ""
    source = f" {passage.source}" if passage.source else ""
    return f"[{passage.created_at.astimezone():%Y-%m-%d}{owner}{source}] ", passage.text


def _row(tokenizer: Tokenizer, head: str, text: str, query: str, limit: int) -> str:
    room = max(8, limit - count(tokenizer, head))
    line, characters = text.replace("\n", " "), room * 6
    shown = excerpt(line, query, characters)
    while characters > 8 and not fits(tokenizer, shown, room):  # a script of few characters a token
        characters = characters * 3 // 4
        shown = excerpt(line, query, characters)
    return head + cut(tokenizer, shown, room)


def excerpt(text: str, query: str, characters: int) -> str:
    """The part of a long text round the first of the query's words that it holds.

    >>> excerpt("a" * 50 + " needle " + "b" * 50, "needle", 20)
    '…aaaa needle bbbbbbbb…'
    """
    if len(text) <= characters:
        return text
    folded = text.casefold()
    words = sorted((word for word in query.casefold().split() if len(word) > 2), key=len, reverse=True)
    place = next((found for word in words if (found := folded.find(word)) >= 0), 0)
    start = max(0, min(place - characters // 4, len(text) - characters))
    shown = text[start : start + characters]
    return f"{'…' if start else ''}{shown}{'…' if start + characters < len(text) else ''}"
