"""The constrained decode loop: one completion, token by token.

Until the call is whole: forced tokens go through the model in one batch; any other token is sampled first and tested
after, and the whole vocabulary is masked only when that one token is refused. Where a function is chosen, the guide
weighs what is allowed first. As the token budget ends, and where a text has run into a loop, only closing tokens are
chosen, so that no call is ever cut off and none goes on without end.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from localmem.backend.base import FinishReason, OnText, Sampling
from localmem.backend.constraint import Constraint, Logits
from localmem.backend.guide import Guide
from localmem.backend.text_room import TextRoom
from localmem.kernel.cancellation import Cancellation

CLOSING_TOKENS = 48
"""With this many tokens left of a completion's budget only closing tokens are chosen: enough for the rest of a call
whose every string is ended at once."""

_LAST_TOKENS = 1  # a token may bring more than one of those that are counted in the end

_LONGEST_LOOP = 32  # tokens
_LOOP_ROUNDS = 6
_LOOP_TOKENS = 16
"""A loop is the same tokens over and over, so many times and so many of them: "hahaha" and a table's line are none."""


class Processor(Protocol):
    """What the loop needs of a model."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ...

    @property
    def closers(self) -> tuple[int, ...]:
        """Tokens that end a string, a list or an object, the most final first."""
        ...

    def feed(self, ids: Sequence[int]) -> None:
        """Read `ids` at the end of the sequence."""
        ...

    def logits(self) -> Logits:
        """The logits after the last token fed, control tokens masked; a copy."""
        ...

    def text_of(self, ids: Sequence[int]) -> bytes: ...


class DecodeLoop:
    """One completion in the making. `head` is what the grammar forces before anything is chosen."""

    def __init__(
        self,
        processor: Processor,
        constraint: Constraint | None,
        sampling: Sampling,
        max_tokens: int,
        *,
        guide: Guide | None = None,
        room: TextRoom | None = None,
        on_text: OnText | None = None,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._processor = processor
        self._constraint = constraint
        self._guide = guide
        self._room = room
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._max_tokens = max_tokens
        self._on_text = on_text
        self._cancellation = cancellation
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = b""
        self.ids: list[int] = []
        self.text = ""
        self.head = () if constraint is None else tuple(self._forced(constraint))

    def run(self) -> FinishReason:
        """Write on from where prompt and head were read."""
        self._emit(self.head)
        reason: FinishReason = "stop"
        while not self._finished:
            if len(self.ids) >= self._max_tokens:
                reason = "length"
                break
            if self._cancellation is not None and self._cancellation.cancelled:
                return "cancelled"
            tokens = self._next()
            if not tokens:
                break
            self._emit(tokens)
            # What ends a completion need not be read: it is read with the next prompt, if there is one.
            if not self._finished and len(self.ids) < self._max_tokens:
                self._processor.feed(tokens)
        self._add(self._decoder.decode(b"", final=True))
        return reason

    @property
    def _finished(self) -> bool:
        return self._constraint is not None and self._constraint.finished

    def _next(self) -> list[int]:
        """The next tokens: the forced ones, or one sampled; empty at the end of the turn."""
        if self._constraint is None:
            if in_a_loop(self.ids):
                return []
            token = self._sample(self._processor.logits())
            return [] if token in self._processor.end_tokens else [token]
        forced = self._forced(self._constraint)
        if forced:
            return forced
        token = self._choose(self._constraint)
        if token in self._processor.end_tokens:
            return []
        self._constraint.accept([token])
        return [token]

    def _forced(self, constraint: Constraint) -> list[int]:
        forced = constraint.forced()[: self._max_tokens - len(self.ids)]
        if forced:
            constraint.accept(forced)
        return forced

    def _choose(self, constraint: Constraint) -> int:
        if self._max_tokens - len(self.ids) <= CLOSING_TOKENS or self._is_full() or in_a_loop(self.ids):
            ends = (*self._processor.end_tokens, *self._processor.closers)  # a plain reply ends with its turn
            closer = next((t for t in ends if constraint.allows(t)), None)
            if closer is not None:
                return closer
        logits = self._processor.logits()
        if self._guide is not None and self._guide.concerns(self._written):
            constraint.mask(logits)
            self._guide.weigh(self._written, logits, greedy=self._sampling.temperature <= 0)
            return self._sample(logits)
        token = self._sample(logits)
        if constraint.allows(token):
            return token
        constraint.mask(logits)
        return self._sample(logits)

    def _is_full(self) -> bool:
        """Whether the text that is being written must end here, to fit where it is going."""
        left = None if self._room is None else self._room.left(self.text)
        return left is not None and left <= _LAST_TOKENS

    def _sample(self, logits: Logits) -> int:
        if self._sampling.temperature <= 0:
            return int(logits.argmax())
        return _draw(logits, self._sampling, self._random)

    def _emit(self, tokens: Sequence[int]) -> None:
        self.ids.extend(tokens)
        text = self._processor.text_of(tokens)
        self._written += text
        self._add(self._decoder.decode(text))

    def _add(self, piece: str) -> None:
        self.text += piece
        if piece and self._on_text is not None:
            self._on_text(piece)


def in_a_loop(ids: Sequence[int]) -> bool:
    """Whether what was written last is the same few tokens over and over, as small models do without end.

    >>> in_a_loop([5, 1, 2] + [7] * 16), in_a_loop([1, 2, 3] * 6), in_a_loop([1, 2, 3] * 5)
    (True, True, False)
    """
    for period in range(1, min(_LONGEST_LOOP, len(ids) // _LOOP_ROUNDS) + 1):
        length = max(_LOOP_ROUNDS * period, -(-_LOOP_TOKENS // period) * period)
        if len(ids) >= length and ids[-length:-period] == ids[period - length :]:
            return True
    return False


def closing_tokens(encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """Single tokens that end something, the most final first."""
    # The colon ends the scheme of an unfinished URI; in any other string the quote, which stands before it, is allowed.
    texts = ('"}}\n', '"}}', '"}', '"', "}}\n", "}}", "}", "]", " null", "null", " false", "false", ":", " 0", "0")
    found = [ids[0] for ids in map(encode, texts) if len(ids) == 1]
    return tuple(dict.fromkeys(found))


def _draw(logits: Logits, sampling: Sampling, random: np.random.Generator) -> int:
    """One token by temperature, then min_p, then top_p."""
    scaled = (logits - logits.max()) / sampling.temperature
    order = np.argsort(-scaled)[:1000]  # the tail beyond a thousand never survives top_p
    weights = np.exp(scaled[order])
    weights[weights < sampling.min_p * weights[0]] = 0.0
    weights /= weights.sum()
    inside = np.concatenate(([True], np.cumsum(weights)[:-1] < sampling.top_p))
    weights = np.where(inside, weights, 0.0)
    return int(random.choice(order, p=weights / weights.sum()))
