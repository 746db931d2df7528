"""The guide of one completion: at the tokens where a call's name or block is chosen, calibration has its say.

It works on text, not on token ids, so it does not care how a vocabulary cuts a name. What it does not know (a user's
own functions and blocks) keeps the probability the model gives it; the rest is dealt out anew among what it knows.
Where a line to replace is chosen, lines that share words with the message weigh more: a model chooses by a line's first
token, and what it is about comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from localmem.backend.constraint import Logits
from localmem.calls.calibration import Choice, Guidance, Vector, beginnings, replaceable
from localmem.calls.grammar import CallGrammar

_MOST_TOKENS = 512  # that may come next where a name is chosen; inside a text it is the whole vocabulary

Leads = Mapping[int, frozenset[Choice]]
"""Token -> the choices that a completion can still become with it."""


class Guide:
    """Chooses among the calls of a grammar. `piece` gives a token's bytes."""

    def __init__(
        self,
        guidance: Guidance,
        grammar: CallGrammar,
        piece: Callable[[Sequence[int]], bytes],
        opening: Sequence[int] = (),
    ) -> None:
        self._guidance = guidance
        offered = {choice.name for choice in grammar.choices}
        self._plain = Choice(grammar.frame.plain) if grammar.frame.plain in offered else None
        self._opening = opening
        self._piece = piece
        self._texts = {choice: text.encode() for choice, text in beginnings(grammar).items()}
        self._lines = {line: [text.encode() for text in texts] for line, texts in replaceable(grammar).items()}
        self._scores: Mapping[Choice, float] = {}
        self._chosen: Choice | None = None
        self._model_heard = False

    def see(self, hidden: Vector) -> None:
        """Take note of the hidden state in front of the choice."""
        self._scores = self._guidance.scores(hidden)

    def concerns(self, written: bytes) -> bool:
        """Whether more than one choice could still follow what is written."""
        return _open(written, self._texts.values()) > 1 or _open(written, self._line_texts()) > 1

    def weigh(self, written: bytes, logits: Logits, *, greedy: bool) -> None:
        """Change masked logits, in place, where the next token decides between choices that are known."""
        if not written and self._plain is not None:
            self._weigh_reply(self._plain, logits, greedy=greedy)
            return
        model = log_probabilities(logits)
        if not 1 < len(model) <= _MOST_TOKENS:
            return
        leads = {token: self.follow(written + self._piece([token])) for token in model}
        if all(leads.values()) and len(set(leads.values())) == 1 and _open(written, self._texts.values()) == 0:
            self._weigh_lines(written, model, logits)
            return
        known = {token: frozenset(choices & self._scores.keys()) for token, choices in leads.items()}
        known = {token: choices for token, choices in known.items() if choices}
        if not known or (len(known) == len(model) and len(set(known.values())) == 1):
            return
        ours = self._opinion(known, model)
        share = float(np.logaddexp.reduce([model[token] for token in known]))
        if greedy:
            self._settle(known, ours, share, model, logits)
        else:
            _deal_out(known, ours, share, model, logits)

    def _weigh_reply(self, plain: Choice, logits: Logits, *, greedy: bool) -> None:
        """A plain reply against every call: a call begins with one token, a reply with nearly any other."""
        if not self._opening or plain not in self._scores or any(c not in self._scores for c in self._texts):
            return  # with a user's own functions among the calls, the model alone decides whether to call
        towards = self.outlook(logits)
        raw = {c: self._scores[c] + self._guidance.calibration.trust * value for c, value in towards.items()}
        self._model_heard = True
        call = self._opening[0]
        if greedy:
            self._chosen = max(raw, key=lambda choice: raw[choice])
            if self._chosen == plain:
                logits[call] = -np.inf
            else:
                logits[np.arange(len(logits)) != call] = -np.inf
            return
        called = np.logaddexp.reduce([value for choice, value in raw.items() if choice != plain])
        wanted, model = called - raw[plain], next(v for c, v in towards.items() if c != plain) - towards[plain]
        logits[call] += wanted - model

    def outlook(self, logits: Logits) -> dict[Choice, float]:
        """At the very beginning, where a reply may be plain: the model's log-probability of each choice so far."""
        assert self._plain is not None
        finite = logits[np.isfinite(logits)].astype(np.float64)
        call = float(logits[self._opening[0]] - np.logaddexp.reduce(finite))
        call = min(call, -1e-9)
        return {**dict.fromkeys(self._texts, call), self._plain: float(np.log(-np.expm1(call)))}

    def _weigh_lines(self, written: bytes, model: Mapping[int, float], logits: Logits) -> None:
        weights = self._guidance.lines
        for token, value in model.items():
            text = written + self._piece([token])
            ahead = [weights.get(line, 0.0) for line, texts in self._lines.items() if _open(text, texts, whole=True)]
            if ahead:
                logits[token] = value + max(ahead)

    def _line_texts(self) -> list[bytes]:
        return [text for texts in self._lines.values() for text in texts]

    def follow(self, written: bytes) -> frozenset[Choice]:
        """The choices that a completion beginning so can still become, or has become."""
        return frozenset(
            choice for choice, text in self._texts.items() if text.startswith(written) or written.startswith(text)
        )

    def _opinion(self, known: Leads, model: Mapping[int, float]) -> dict[Choice, float]:
        """Log-probabilities of the known choices that are still open; together they are one."""
        trust = 0.0 if self._model_heard else self._guidance.calibration.trust  # it was fitted with the first fork's
        self._model_heard = True
        heard = best_towards(known, model)
        raw = {choice: self._scores[choice] + trust * value for choice, value in heard.items()}
        total = np.logaddexp.reduce(list(raw.values()))
        return {choice: float(value - total) for choice, value in raw.items()}

    def _settle(
        self, known: Leads, ours: Mapping[Choice, float], share: float, model: Mapping[int, float], logits: Logits
    ) -> None:
        """Greedy: the likeliest choice as a whole, which need not be the likeliest next token, and no other.

        A function of the user's own may be likelier, as the model sees it; then none of ours may come.
        """
        chosen = self._chosen if self._chosen in ours else max(ours, key=lambda choice: ours[choice])
        assert chosen is not None
        rival = max((value for token, value in model.items() if token not in known), default=-np.inf)
        if share + ours[chosen] < rival:
            logits[list(known)] = -np.inf
            return
        self._chosen = chosen
        for token in model:
            if chosen not in known.get(token, frozenset()):
                logits[token] = -np.inf


def _open(written: bytes, texts: Iterable[bytes], *, whole: bool = False) -> int:
    """How many of `texts` go on from what is written; with `whole`, those that it holds already count too."""
    return sum(
        (len(text) > len(written) and text.startswith(written)) or (whole and written.startswith(text))
        for text in texts
    )


def _deal_out(
    known: Leads, ours: Mapping[Choice, float], share: float, model: Mapping[int, float], logits: Logits
) -> None:
    """Sampling: each set of choices gets its probability, divided among its spellings as the model would."""
    for token, value in model.items():
        logits[token] = value
    for token, choices in known.items():
        spellings = np.logaddexp.reduce([model[other] for other, others in known.items() if others == choices])
        wanted = np.logaddexp.reduce([ours[choice] for choice in choices])
        logits[token] = share + wanted + model[token] - spellings


def best_towards(leads: Leads, model: Mapping[int, float]) -> dict[Choice, float]:
    """The log-probability of the likeliest token towards each choice."""
    best: dict[Choice, float] = {}
    for token, choices in leads.items():
        for choice in choices:
            best[choice] = max(best.get(choice, -np.inf), model[token])
    return best


def log_probabilities(logits: Logits) -> dict[int, float]:
    """Token -> log-probability, of those that may come next; nothing when it could be nearly any."""
    tokens = np.flatnonzero(logits > -np.inf)
    if len(tokens) > _MOST_TOKENS:
        return {}
    values = logits[tokens].astype(np.float64)
    values -= np.logaddexp.reduce(values)
    return {int(token): float(value) for token, value in zip(tokens, values, strict=True)}
