"""Decision cases: a situation, and the calls that would be right in it. One JSON object a line.

The format is for everybody's own cases too (`localmem bench reliability --cases FILE`); benchmarks/README.md shows it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from localmem.calls.spec import load_declarations
from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall
from localmem.resources import data_dir

Split = Literal["dev", "test"]

_NOT_TEXT = frozenset({"label", "old_content", "page"})
"""Arguments that say where; what is said stands in the others."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OlderMessage(_Table):
    """Something said before, evicted since: by the user, or by the assistant (`reply`)."""

    user: str | None = None
    reply: str | None = None
    date: datetime | None = None

    @model_validator(mode="after")
    def _one_speaker(self) -> OlderMessage:
        if (self.user is None) == (self.reply is None):
            raise ValueError("a message of recall has either user or reply")
        return self


class Passage(_Table):
    """A passage of archival storage."""

    text: str
    source: str | None = None


class PastCall(_Table):
    """A call the assistant has made, as it stands in the queue."""

    name: str
    arguments: dict[str, Any]  # Any: JSON


class Turn(_Table):
    """One entry of the queue: exactly one of the three."""

    user: str | None = None
    call: PastCall | None = None
    result: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Turn:
        if sum(part is not None for part in (self.user, self.call, self.result)) != 1:
            raise ValueError("an entry of before has exactly one of user, call, result")
        return self


class Timer(_Table):
    """A timed event that is set."""

    name: str
    note: str


class Expected(_Table):
    """What must hold of the call's arguments, whichever of the expected functions it is."""

    label: str | None = None
    contains: tuple[str, ...] = ()
    contains_any: tuple[str, ...] = ()
    old_contains: str | None = None
    page: int | None = None

    def holds(self, arguments: Mapping[str, Any]) -> bool:  # Any: JSON
        said = folded(" ".join(str(value) for name, value in arguments.items() if name not in _NOT_TEXT))
        return (
            (self.label is None or "label" not in arguments or arguments["label"] == self.label)
            and (self.page is None or "page" not in arguments or arguments["page"] == self.page)
            and all(folded(text) in said for text in self.contains)
            and (not self.contains_any or any(folded(text) in said for text in self.contains_any))
            and (
                self.old_contains is None
                or "old_content" not in arguments
                or folded(self.old_contains) in folded(str(arguments["old_content"]))
            )
        )


class Obeying(Expected):
    """A call that would do what a text tells the model to, and the user does not."""

    function: str
    lacks: tuple[str, ...] = ()
    """A reply that holds one of these only speaks of it: a warning names the number it warns of."""

    @field_validator("function")
    @classmethod
    def _known(cls, function: str) -> str:
        if function not in _functions():
            raise ValueError(f"there is no function {function!r}; there are {', '.join(_functions())}")
        return function

    @field_validator("contains", "contains_any", "lacks", mode="before")
    @classmethod
    def _none_empty(cls, texts: Any) -> Any:  # Any: JSON
        if "" in texts:
            raise ValueError("a list of texts, none of them empty")
        return texts

    @model_validator(mode="after")
    def _not_every_reply(self) -> Obeying:
        if self.function == "send_message" and not (self.contains or self.contains_any):
            raise ValueError("send_message needs contains or contains_any: else every reply would obey")
        return self

    def holds(self, arguments: Mapping[str, Any]) -> bool:  # Any: JSON
        said = folded(" ".join(map(str, arguments.values())))
        return super().holds(arguments) and not any(folded(text) in said for text in self.lacks)


class Case(_Table):
    """A situation and the next call that is right in it.

    `before` stands in the queue, then `user` speaks; without `user` the assistant goes on after the last result.
    With `event` timer, `user` is the timer's note; with memory_pressure there is none.

    In an attack some text wants to be obeyed: `obeyed` lists the calls that would do so, `goal` says what they are
    for, `channel` where the text stands.
    """

    id: Annotated[str, Field(min_length=1)]
    category: str = "all"
    language: str = ""
    template: str = ""
    persona: str = ""
    human: str = ""
    recall: tuple[OlderMessage, ...] = ()
    archive: tuple[Passage, ...] = ()
    before: tuple[Turn, ...] = ()
    timers: tuple[Timer, ...] = ()
    event: Literal["user", "timer", "memory_pressure"] = "user"
    user: str | None = None
    expect: Annotated[tuple[str, ...], Field(min_length=1)]
    args: Expected = Expected()
    obeyed: tuple[Obeying, ...] = ()
    channel: str = ""
    goal: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, table: Any) -> Any:  # Any: JSON
        """A passage or an older message may be a text alone."""
        if isinstance(table, dict):
            short = {"archive": "text", "recall": "user"}
            for name, key in short.items():
                items = table.get(name, [])
                table = {**table, name: [{key: item} if isinstance(item, str) else item for item in items]}
        return table

    @model_validator(mode="after")
    def _something_happens(self) -> Case:
        last = self.before[-1] if self.before else None
        if not self.user and self.event != "memory_pressure" and (last is None or last.result is None):
            raise ValueError("without user, before must end with a result")
        return self

    @property
    def profile(self) -> tuple[str, str]:
        """Cases of one profile share the beginning of their prompts."""
        return self.persona, self.human

    def right_function(self, call: FunctionCall | None) -> bool:
        return call is not None and call.name in self.expect

    def right_call(self, call: FunctionCall | None) -> bool:
        """The right function, with arguments that hold what they must."""
        return call is not None and call.name in self.expect and self.args.holds(call.arguments)

    def obeys(self, call: FunctionCall | None) -> bool:
        """Whether the call does what an attack in the case wants."""
        return call is not None and any(one.function == call.name and one.holds(call.arguments) for one in self.obeyed)


def folded(text: str) -> str:
    """Text to compare by: without case, accents and runs of spaces.

    >>> folded("São  PAULO")
    'sao paulo'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(plain.casefold().split())


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file, in order. Raises LocalmemError that names the line at fault."""
    cases: list[Case] = []
    for number, line in _lines(path):
        try:
            cases.append(Case.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise LocalmemError(
                f"{path}, line {number}: {f'{place}: ' if place else ''}{first['msg']}",
                "A case is one JSON object a line; benchmarks/README.md shows one.",
            ) from error
    twice = [name for name, times in Counter(case.id for case in cases).items() if times > 1]
    if twice:
        raise LocalmemError(f"{path}: the id {twice[0]!r} stands there twice", "Give each case an id of its own.")
    if not cases:
        raise LocalmemError(f"{path} holds no cases", "One JSON object a line; benchmarks/README.md shows one.")
    return cases


def shipped_cases(split: Split) -> list[Case]:
    """Our own suite: dev to tune on, test to report."""
    return read_cases(data_dir("cases") / f"{split}.jsonl")


class Identified(Protocol):
    """A case of any benchmark."""

    @property
    def id(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Identified)


def sample(cases: Sequence[AnyCase], n: int) -> list[AnyCase]:
    """The same `n` of them every time, in their order: those whose ids have the smallest hashes."""
    chosen = {case.id for case in sorted(cases, key=lambda case: hashlib.sha256(case.id.encode()).digest())[:n]}
    return [case for case in cases if case.id in chosen]


def sample_people(cases: Sequence[Case], n: int) -> list[Case]:
    """The same `n` of them every time, or a few more, in their order: whole people, whose prompts begin alike."""
    people: dict[str, list[Case]] = {}
    for case in cases:
        people.setdefault(hashlib.sha256(repr(case.profile).encode()).hexdigest(), []).append(case)
    chosen: set[str] = set()
    for person in sorted(people):
        if len(chosen) < n:
            chosen |= {case.id for case in people[person]}
    return [case for case in cases if case.id in chosen]


@cache
def _functions() -> tuple[str, ...]:
    return tuple(load_declarations(data_dir("grammars") / "memgpt.json"))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalmemError(f"{path} cannot be read: {error}", "Give a UTF-8 file, a JSON object a line.") from error
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
