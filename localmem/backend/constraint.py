"""Constraint engines: which token may come next.

`Constraint` is what the decode loop asks. `GuidanceConstraint` (llguidance) is the engine of the product;
`GbnfConstraint` (llama.cpp's own sampler) is for where llguidance cannot be had; `OutlinesConstraint` (outlines_core)
is a third, independent one, kept to compare with. The only file that imports llguidance and outlines_core.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from localmem.backend.base import Backend
from localmem.backend.llama_library import GrammarSampler, LlamaModel
from localmem.backend.tokenizer import Attribute, Vocabulary
from localmem.calls.frame import Frame
from localmem.calls.gbnf import written
from localmem.calls.grammar import CallGrammar, FunctionChoice, Schema, closed
from localmem.calls.schema import fixed_values, references
from localmem.calls.spec import FunctionSpec
from localmem.errors import BackendError, LocalmemError
from localmem.kernel.tokens import can_write

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Constraint(Protocol):
    """The state of one constrained completion."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. Changes nothing."""
        ...

    def mask(self, logits: Logits) -> None:
        """Set the logits of every token that may not come next to -inf, in place."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """Move on past `tokens`. Raises BackendError if one is not allowed."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next, if any: they need no sampling."""
        ...

    @property
    def finished(self) -> bool:
        """True when nothing more may come."""
        ...


_MOST_COMPILED = 16  # grammars kept: a step's differs from the last one's only after an edit or a search


class GuidanceEngine:
    """Compiles grammars for one vocabulary with llguidance. Making it takes about a second on 152k words."""

    def __init__(self, vocabulary_handle: Any, size: int) -> None:  # Any: an opaque C pointer
        from llguidance.llamacpp import lltokenizer_from_vocab

        with warnings.catch_warnings():  # it asks for each token's attributes by a name llama.cpp has since changed
            warnings.simplefilter("ignore", DeprecationWarning)
            self._tokenizer = lltokenizer_from_vocab(vocabulary_handle)
        self.size = size
        self._compiled: dict[str, Any] = {}  # Any: LLMatcher's stubs are partial

    def start(self, lark: str) -> GuidanceConstraint:
        """A fresh matcher for a Lark grammar. Raises BackendError if the grammar is not valid."""
        matcher = self._compiled.pop(lark, None) or self._compile(lark)
        self._compiled[lark] = matcher  # last: the one used longest ago goes first
        if len(self._compiled) > _MOST_COMPILED:
            del self._compiled[next(iter(self._compiled))]
        return GuidanceConstraint(matcher.deep_copy(), self.size)

    def _compile(self, lark: str) -> Any:  # Any: LLMatcher's stubs are partial
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, lark, log_level=0)
        if matcher.is_error():
            raise BackendError(
                f"the grammar was refused: {matcher.get_error().strip().splitlines()[0]}",
                "`localmem grammar show` prints it; a function's types are the usual cause.",
            )
        return matcher


class GuidanceConstraint:
    """llguidance's matcher behind our protocol."""

    def __init__(self, matcher: Any, size: int) -> None:  # Any: LLMatcher's stubs are partial
        from llguidance.numpy import allocate_token_bitmask

        self._matcher = matcher
        self._size = size
        self._bits = allocate_token_bitmask(1, size)

    def allows(self, token: int) -> bool:
        return int(self._matcher.validate_tokens([token])) == 1

    def mask(self, logits: Logits) -> None:
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._bits, 0)
        allowed = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")[: len(logits)]
        logits[allowed == 0] = -np.inf

    def accept(self, tokens: Sequence[int]) -> None:
        if not self._matcher.consume_tokens(list(tokens)):
            problem = self._matcher.get_error().strip().splitlines()[0]  # the rest is a dump of the parser
            raise BackendError(
                f"the constraint refused its own tokens: {problem}",
                "This is a defect of localmem or llguidance with this model's vocabulary; please report it.",
            )

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    @property
    def finished(self) -> bool:
        return bool(self._matcher.is_stopped())


class GbnfEngine:
    """Holds completions to a grammar with llama.cpp's own sampler.

    Every token is sampled: it cannot tell which one is forced. A mask asks about each word of the vocabulary, which
    takes some milliseconds, one token some hundredths of one.
    """

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary) -> None:
        self._model = model
        self._eos = vocabulary.eos
        # llama.cpp reads a control token as its text, which any string of JSON may hold.
        self._tokens = np.array(
            [
                token
                for token, attribute in enumerate(vocabulary.attributes)
                if token == vocabulary.eos or not attribute & (Attribute.CONTROL | Attribute.UNKNOWN)
            ],
            np.int32,
        )

    def start(self, text: str) -> GbnfConstraint:
        """A fresh sampler for a GBNF. Raises BackendError if it is not safe."""
        return GbnfConstraint(GrammarSampler(self._model, text), self._tokens, self._eos)


class GbnfConstraint:
    """llama.cpp's grammar sampler behind our protocol."""

    def __init__(self, sampler: GrammarSampler, tokens: np.ndarray[Any, np.dtype[np.int32]], eos: int) -> None:
        self._sampler = sampler
        self._tokens = tokens
        self._eos = eos

    def allows(self, token: int) -> bool:
        return self._is_text(token) and self._sampler.allows(token)

    def _is_text(self, token: int) -> bool:
        place = int(np.searchsorted(self._tokens, token))
        return place < len(self._tokens) and int(self._tokens[place]) == token

    def mask(self, logits: Logits) -> None:
        kept = np.zeros(len(self._tokens), np.float32)
        self._sampler.mask(kept, self._tokens)
        allowed = np.zeros(len(logits), dtype=bool)
        allowed[self._tokens[np.isfinite(kept)]] = True
        logits[~allowed] = -np.inf

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self._is_text(token):
                raise BackendError(f"the constraint refused token {token}: it is a control token")
            self._sampler.accept(token)

    def forced(self) -> list[int]:
        return []

    @property
    def finished(self) -> bool:
        return self._sampler.allows(self._eos)  # nothing of a call can follow its end


class OutlinesEngine:
    """Compiles a call grammar with outlines_core: JSON Schema -> regular expression -> token index.

    Slower to compile by orders of magnitude and blind to a value's length beyond small ones; it is here so that two
    engines can be held against each other.
    """

    def __init__(self, vocabulary: Vocabulary, pieces: Sequence[bytes]) -> None:
        from outlines_core import Vocabulary as OutlinesVocabulary

        words: dict[bytes, list[int]] = {}
        for token, (piece, attribute) in enumerate(zip(pieces, vocabulary.attributes, strict=True)):
            if attribute & (Attribute.NORMAL | Attribute.BYTE) and piece:
                words.setdefault(piece, []).append(token)
        self._eos = vocabulary.eos
        self._vocabulary = OutlinesVocabulary(vocabulary.eos, words)

    def start(self, grammar: CallGrammar) -> OutlinesConstraint:
        """A fresh guide for the union of the grammar's bare calls."""
        from outlines_core import Guide, Index, json_schema

        expression = json_schema.build_regex_from_schema(json.dumps(grammar.json_schema()), "")
        return OutlinesConstraint(Guide(Index(expression, self._vocabulary)), self._eos)


class OutlinesConstraint:
    """outlines_core's guide behind our protocol."""

    def __init__(self, guide: Any, eos: int) -> None:  # Any: outlines_core ships partial stubs
        self._guide = guide
        self._eos = eos

    def allows(self, token: int) -> bool:
        return token in self._guide.get_tokens()

    def mask(self, logits: Logits) -> None:
        allowed = np.zeros(len(logits), dtype=bool)
        allowed[self._guide.get_tokens()] = True
        logits[~allowed] = -np.inf

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.allows(token):
                raise BackendError(f"the constraint refused token {token}")
            self._guide.advance(token, return_tokens=False)

    def forced(self) -> list[int]:
        allowed = self._guide.get_tokens()
        return allowed if len(allowed) == 1 and allowed[0] != self._eos else []

    @property
    def finished(self) -> bool:
        return bool(self._guide.is_finished()) and self._guide.get_tokens() in ([], [self._eos])


_ANY_FRAME = Frame('{"name": "', '", "arguments": ', "}")


def check_enforceable(function: FunctionSpec, backend: Backend) -> None:
    """Raises LocalmemError, naming the parameter, for a function's schema that a completion could not be held to.

    llguidance compiles each parameter, over single bytes, which needs no model; the vocabulary must spell each value
    that is given, for one it cannot is a dead end; and the backend writes the whole as it would hold a call to it.
    Where llguidance cannot be had, the last two decide alone.
    """
    for parameter, schema in function.parameters.get("properties", {}).items():
        where = f"function {function.name!r}, parameter {parameter!r}"
        whole = {**_definitions(function.parameters), **schema}
        problem = _problem_of(whole)
        if problem is not None:
            raise LocalmemError(
                f"{where}: no grammar can hold a call to it: {problem}",
                "Say it with Literal, an Enum, a range, a pattern or a pydantic model, and check the rest in the "
                "function.",
            )
        for value in fixed_values(_reached(schema, function.parameters)):
            if not can_write(backend.tokenizer, written(value)):
                raise LocalmemError(f"{where}: this model cannot spell {value!r}", "Use other characters for it.")
    backend.write_grammar(CallGrammar(_ANY_FRAME, (FunctionChoice(function.name, function.parameters),)))


def _reached(schema: Schema, parameters: Schema) -> list[Schema]:
    """A parameter's schema and the definitions it leads to."""
    reached: dict[str, Schema] = {}
    todo = references(schema)
    while todo:
        label = todo.pop()
        if label not in reached:
            reached[label] = parameters["$defs"][label]
            todo |= references(reached[label])
    return [schema, *reached.values()]


def _definitions(parameters: Schema) -> Mapping[str, Any]:  # Any: JSON
    return {"$defs": parameters["$defs"]} if "$defs" in parameters else {}


def _problem_of(schema: Schema) -> str | None:
    """What llguidance has against a schema; None when it has nothing, or is not there."""
    try:
        from llguidance import LLMatcher, LLTokenizer
    except ImportError:
        return None
    matcher = LLMatcher(LLTokenizer("byte"), f"start: %json {json.dumps(closed(schema))}\n", log_level=0)
    if not matcher.is_error():
        return None
    said = matcher.get_error().strip().splitlines()
    # An error of a pattern is told at its end: the lines before show where.
    told = next((line for line in said if line.startswith("error: ")), said[0])
    return told.removeprefix("error: ").removeprefix("at 1(8): failed to compile JSON schema: ")
