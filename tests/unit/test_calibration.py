"""Calibration and the guide: which call is due, from a hidden state and signs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localmem.backend.base import Sampling
from localmem.backend.decode_loop import DecodeLoop
from localmem.backend.guide import Guide, log_probabilities
from localmem.calls.calibration import Calibration, Choice, Evidence, Guidance, beginnings, read_calibration
from localmem.calls.chat_format import BARE
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.errors import LocalmemError
from localmem.models import Profile

TEXT = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
LABELLED = {
    "type": "object",
    "properties": {"label": {"enum": ["human", "persona", "work"]}, "content": {"type": "string"}},
    "required": ["label", "content"],
}
GRAMMAR = CallGrammar(
    BARE,
    (
        FunctionChoice("send_message", TEXT),
        FunctionChoice("core_memory_append", LABELLED),
        FunctionChoice("own_function", TEXT),
    ),
)
HEAD = b'{"name": "'
SEND, HUMAN, PERSONA = (
    Choice("send_message"),
    Choice("core_memory_append", "human"),
    Choice("core_memory_append", "persona"),
)


def guide_for(scores: dict[Choice, float], *, trust: float = 0.0) -> Guide:
    """A guide over bytes whose calibration gives these scores whatever it sees."""
    bias = np.array(list(scores.values()), np.float32)
    calibration = Calibration(tuple(scores), np.zeros((len(scores), 3), np.float32), bias, trust, "p")
    guide = Guide(Guidance(calibration, np.zeros(1, np.float32)), GRAMMAR, bytes)
    guide.see(np.zeros(2, np.float32))
    return guide


def next_logits(allowed: bytes, *, liked: bytes = b"") -> np.ndarray:
    """Logits over bytes: those allowed at 0, those liked at 3."""
    logits = np.full(256, -np.inf, np.float32)
    logits[list(allowed)] = 0.0
    logits[list(liked)] = 3.0
    return logits


def test_scores_are_rows_times_features():
    weights = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], np.float32)
    calibration = Calibration((SEND, HUMAN), weights, np.array([0.5, 0.0], np.float32), 1.0, "p")
    scores = calibration.scores(np.array([2.0, 3.0], np.float32), np.array([0.25], np.float32))
    assert scores == {SEND: 3.0, HUMAN: 3.0}


def test_beginnings_name_function_and_block():
    found = beginnings(GRAMMAR)
    assert found[SEND] == '{"name": "send_message", "arguments":'
    assert found[HUMAN] == '{"name": "core_memory_append", "arguments": {"label": "human"'
    assert Choice("core_memory_append", "work") in found
    assert Choice("core_memory_append") not in found


def test_greedy_takes_the_likeliest_call_as_a_whole():
    """send_message is likelier than either block, though core_memory_append is likelier than send_message."""
    guide = guide_for({SEND: np.log(0.4), HUMAN: np.log(0.35), PERSONA: np.log(0.25)})
    logits = next_logits(b"sc", liked=b"c")
    guide.weigh(HEAD, logits, greedy=True)
    assert int(logits.argmax()) == ord("s")
    assert np.isfinite(logits).sum() == 1


def test_the_block_follows_the_choice_whatever_the_model_likes():
    guide = guide_for({SEND: -5.0, HUMAN: 0.0, PERSONA: 1.0})
    logits = next_logits(b"sc")
    guide.weigh(HEAD, logits, greedy=True)
    assert int(logits.argmax()) == ord("c")
    written = b'{"name": "core_memory_append", "arguments": {"label": "'
    assert guide.concerns(written)
    logits = next_logits(b"hpw", liked=b"h")
    guide.weigh(written, logits, greedy=True)
    assert int(logits.argmax()) == ord("p")


def test_what_it_does_not_know_keeps_the_models_probability():
    guide = guide_for({SEND: 0.0, HUMAN: 5.0})
    logits = next_logits(b"sco")
    guide.weigh(HEAD, logits, greedy=False)
    after = log_probabilities(logits)
    assert after[ord("o")] == pytest.approx(np.log(1 / 3))
    assert np.exp(after[ord("s")]) + np.exp(after[ord("c")]) == pytest.approx(2 / 3)
    assert after[ord("c")] - after[ord("s")] == pytest.approx(5.0, abs=1e-5)


def test_a_function_of_the_users_own_can_win():
    guide = guide_for({SEND: 0.0, HUMAN: 0.1})
    logits = next_logits(b"sco", liked=b"o")
    guide.weigh(HEAD, logits, greedy=True)
    assert int(logits.argmax()) == ord("o")


def test_trust_lets_the_model_be_heard():
    logits = next_logits(b"sc", liked=b"s")
    guide_for({SEND: 0.0, HUMAN: 1.0}, trust=1.0).weigh(HEAD, logits, greedy=True)
    assert int(logits.argmax()) == ord("s")
    logits = next_logits(b"sc", liked=b"s")
    guide_for({SEND: 0.0, HUMAN: 1.0}, trust=0.0).weigh(HEAD, logits, greedy=True)
    assert int(logits.argmax()) == ord("c")


def test_nothing_is_weighed_inside_a_text():
    guide = guide_for({SEND: 0.0, HUMAN: 1.0})
    assert not guide.concerns(b'{"name": "send_message", "arguments": {"message": "core_')


def test_lines_that_share_words_with_the_message_weigh_more():
    lines = ["Her dog is two.", "Her dentist is in Faro.", "Name: Ines."]
    schema = {
        "type": "object",
        "properties": {"label": {"const": "human"}, "old_content": {"enum": lines}, "new_content": {"type": "string"}},
        "required": ["label", "old_content", "new_content"],
    }
    grammar = CallGrammar(BARE, (FunctionChoice("core_memory_replace", schema), FunctionChoice("send_message", TEXT)))
    calibration = Calibration((SEND,), np.zeros((1, 3), np.float32), np.zeros(1, np.float32), 0.0, "p")
    guide = Guide(Guidance(calibration, np.zeros(1, np.float32), {lines[1]: 4.0}), grammar, bytes)
    guide.see(np.zeros(2, np.float32))
    written = b'{"name": "core_memory_replace", "arguments": {"label": "human", "old_content": "'
    assert guide.concerns(written)
    logits = next_logits(b"HN", liked=b"N")
    guide.weigh(written, logits, greedy=True)
    assert int(logits.argmax()) == ord("H")
    written += b"Her d"
    logits = next_logits(b"oe", liked=b"o")
    guide.weigh(written, logits, greedy=True)
    assert int(logits.argmax()) == ord("e")
    assert not guide.concerns(written + b"en")


class Bytes:
    """A processor over bytes that likes every byte alike."""

    end_tokens = frozenset[int]()
    closers = (ord('"'), ord("}"))

    def feed(self, ids: object) -> None:
        del ids

    def logits(self) -> np.ndarray:
        return np.zeros(256, np.float32)

    def text_of(self, ids: list[int]) -> bytes:
        return bytes(ids)


class Spelled:
    """A constraint that knows the three calls of GRAMMAR with fixed arguments, byte by byte."""

    TEXTS = (
        BARE.write("send_message", '{"message": "a"}').encode(),
        BARE.write("core_memory_append", '{"label": "human", "content": "a"}').encode(),
        BARE.write("core_memory_append", '{"label": "persona", "content": "a"}').encode(),
    )

    def __init__(self) -> None:
        self.written = b""

    def _next(self) -> set[int]:
        return {t[len(self.written)] for t in self.TEXTS if t.startswith(self.written) and len(t) > len(self.written)}

    def allows(self, token: int) -> bool:
        return token in self._next()

    def mask(self, logits: np.ndarray) -> None:
        logits[[t for t in range(256) if t not in self._next()]] = -np.inf

    def accept(self, tokens: list[int]) -> None:
        self.written += bytes(tokens)

    def forced(self) -> list[int]:
        forced: list[int] = []
        start = self.written
        while len(self._next()) == 1:
            forced += self._next()
            self.written += bytes(self._next())
        self.written = start
        return forced

    @property
    def finished(self) -> bool:
        return self.written in self.TEXTS


@pytest.mark.parametrize("wanted", [SEND, HUMAN, PERSONA])
def test_the_loop_writes_the_call_the_guide_chooses(wanted: Choice):
    guide = guide_for({choice: float(choice == wanted) for choice in (SEND, HUMAN, PERSONA)})
    loop = DecodeLoop(Bytes(), Spelled(), Sampling(), 400, guide=guide)  # type: ignore[arg-type]
    assert loop.run() == "stop"
    call = BARE.parse(loop.text)
    assert (call.name, call.arguments.get("label", "")) == (wanted.function, wanted.label)


def test_sampling_follows_the_guides_probabilities():
    found = []
    for seed in range(200):
        guide = guide_for({SEND: np.log(0.8), HUMAN: np.log(0.15), PERSONA: np.log(0.05)})
        sampling = Sampling(temperature=1.0, top_p=1.0, min_p=0.0, seed=seed)
        loop = DecodeLoop(Bytes(), Spelled(), sampling, 400, guide=guide)  # type: ignore[arg-type]
        loop.run()
        found.append(BARE.parse(loop.text).name)
    assert 0.7 < found.count("send_message") / len(found) < 0.9


def test_it_is_written_and_read_again(tmp_path: Path):
    random = np.random.default_rng(1)
    weights, bias = random.normal(size=(2, 5)).astype(np.float32), np.ones(2, np.float32)
    made = Calibration((SEND, HUMAN), weights, bias, 0.5, "abc", Evidence(758, 0.7061, 0.354))
    made.write(tmp_path / "m.calibration.json")
    again = read_calibration(tmp_path / "m.calibration.json")
    assert (again.choices, again.trust, again.prompt, again.features) == (made.choices, 0.5, "abc", 5)
    np.testing.assert_allclose(again.weights, made.weights, atol=2e-3)
    assert again.evidence == made.evidence
    assert str(again.evidence) == (
        "70.6% right choices of people left out of the fitting, 35.4% without, in 758 decisions"
    )


def test_a_fingerprint_is_of_the_numbers_too():
    made = Calibration((SEND, HUMAN), np.ones((2, 5), np.float32), np.ones(2, np.float32), 0.5, "abc")
    other = replace(made, bias=np.zeros(2, np.float32))
    assert made.fingerprint == replace(made).fingerprint != other.fingerprint
    assert Profile(calibration=made).fingerprint != Profile(calibration=other).fingerprint != Profile().fingerprint


@pytest.mark.parametrize(
    "text", ["", "{}", '{"prompt": "", "trust": 1, "choices": ["a"], "bias": [0, 1], "features": 2, "weights": []}']
)
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "m.calibration.json"
    path.write_text(text)
    with pytest.raises(LocalmemError, match="is no calibration"):
        read_calibration(path)
