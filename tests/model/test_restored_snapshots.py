"""Snapshots of a real model: what is restored is bit for bit what was read, and llama.cpp never sees a damaged file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from localmem.backend.llama_library import LlamaContext, LlamaModel
from localmem.backend.snapshots import Snapshot, SnapshotStore

pytestmark = pytest.mark.model

WINDOW = 1024
TEXT = "The harbour was asleep when Ana rowed out. " + "She counted the boats: one, two, three, and a red one. " * 40


@pytest.fixture(scope="module")
def model(smollm_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(smollm_path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def ids(model: LlamaModel) -> list[int]:
    return model.tokenize(TEXT.encode(), special=False)[:540]  # two batches


@pytest.fixture
def fresh(model: LlamaModel) -> Iterator[LlamaContext]:
    context = LlamaContext(model, n_ctx=WINDOW, sequences=2)
    yield context
    context.close()


@pytest.fixture(scope="module")
def cold(model: LlamaModel, ids: list[int]) -> Iterator[LlamaContext]:
    """A context that has read the ids itself. Its users truncate it to them again."""
    context = LlamaContext(model, n_ctx=WINDOW, sequences=2)
    read(context, ids)
    yield context
    context.close()


@pytest.fixture(scope="module")
def short(model: LlamaModel, ids: list[int]) -> Iterator[LlamaContext]:
    """A context that has read the first 64 ids, and is only saved from."""
    context = LlamaContext(model, n_ctx=WINDOW, sequences=2)
    read(context, ids[:64])
    yield context
    context.close()


@pytest.fixture
def store(tmp_path: Path, smollm_path: Path) -> SnapshotStore:
    return open_store(tmp_path, smollm_path)


def open_store(folder: Path, model: Path, *, type_k: str = "f16", n_ctx: int = WINDOW) -> SnapshotStore:
    parameters: dict[str, str | int] = {"n_ctx": n_ctx, "type_k": type_k}
    return SnapshotStore(folder / "snapshots", model=model, parameters=parameters, limit_bytes=1 << 30)


def read(context: LlamaContext, ids: Sequence[int], *, position: int = 0) -> None:
    for start in range(0, len(ids), context.batch_size):
        context.decode(ids[start : start + context.batch_size], position=position + start, sequence=0)


def greedy(context: LlamaContext, token: int, *, position: int, count: int) -> tuple[list[int], list[np.ndarray]]:
    """`count` tokens after `token`, each the likeliest, and the logits each was chosen from."""
    tokens, logits = [token], []
    for step in range(count):
        context.decode(tokens[-1:], position=position + step, sequence=0)
        logits.append(context.logits())
        tokens.append(int(logits[-1].argmax()))
    return tokens[1:], logits


def save(store: SnapshotStore, context: LlamaContext, ids: Sequence[int]) -> Snapshot:
    assert store.save("ana", ids, lambda path: context.save_sequence(path, 0, ids))
    snapshot = store.best(ids, least=len(ids))
    assert snapshot is not None
    return snapshot


class Loader:
    """Loads into sequence 0 of a context, and counts how often it was asked to."""

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self.calls = 0

    def __call__(self, path: Path) -> list[int]:
        self.calls += 1
        return self.context.load_sequence(path, 0)


def test_restored_sequence_goes_on_exactly_as_the_one_that_was_read(
    store: SnapshotStore, cold: LlamaContext, fresh: LlamaContext, ids: list[int]
):
    cold.truncate(0, len(ids) - 1)
    snapshot = save(store, cold, ids[:-1])
    assert store.load(snapshot, Loader(fresh)) == tuple(ids[:-1])
    expected, expected_logits = greedy(cold, ids[-1], position=len(ids) - 1, count=20)
    tokens, logits = greedy(fresh, ids[-1], position=len(ids) - 1, count=20)
    assert tokens == expected
    assert np.array_equal(logits, expected_logits)  # one thread, same cells: the very same sums


def test_restored_sequence_can_be_cut_to_a_common_beginning(
    store: SnapshotStore, cold: LlamaContext, fresh: LlamaContext, ids: list[int], model: LlamaModel
):
    cold.truncate(0, len(ids) - 1)
    save(store, cold, ids[:-1])
    prompt = [*ids[:300], *model.tokenize(b"Then it began to rain, and", special=False)]
    snapshot = store.best(prompt, least=100)
    assert snapshot is not None
    assert store.load(snapshot, Loader(fresh)) == tuple(ids[:-1])
    assert fresh.truncate(0, 300)
    assert cold.truncate(0, 300)
    read(fresh, prompt[300:], position=300)
    read(cold, prompt[300:], position=300)
    assert np.array_equal(fresh.logits(), cold.logits())
    assert cold.truncate(0, 300)
    read(cold, ids[300:], position=300)


def flipped(place: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        index = int(place * (len(content) - 1))
        return content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "bit in the header": flipped(0),
    "bit in the ids": flipped(0.0001),
    "bit in the middle": flipped(0.5),
    "bit at the end": flipped(1),
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "empty": lambda _: b"",
    "another file's": lambda content: os.urandom(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_payload_never_reaches_the_library(
    store: SnapshotStore,
    short: LlamaContext,
    fresh: LlamaContext,
    ids: list[int],
    damage: Callable[[bytes], bytes],
):
    snapshot = save(store, short, ids[:64])
    snapshot.path.write_bytes(damage(snapshot.path.read_bytes()))
    loader = Loader(fresh)
    assert store.load(snapshot, loader) == ()
    assert loader.calls == 0
    assert store.best(ids, least=1) is None
    read(fresh, ids[:8])  # the context is as good as new


def test_payload_of_other_context_parameters_is_not_offered(
    tmp_path: Path, smollm_path: Path, model: LlamaModel, ids: list[int]
):
    context = LlamaContext(model, n_ctx=WINDOW, sequences=2, type_k="q8_0", flash_attention="on")
    read(context, ids[:64])
    snapshot = save(open_store(tmp_path, smollm_path, type_k="q8_0"), context, ids[:64])
    context.close()
    ours = open_store(tmp_path, smollm_path)
    assert ours.best(ids, least=1) is None
    assert ours.load(snapshot, lambda _: pytest.fail("it was read")) == ()
    assert open_store(tmp_path, smollm_path, type_k="q8_0", n_ctx=2048).best(ids, least=1) is None


def test_snapshot_longer_than_the_window_is_refused_by_the_library(
    store: SnapshotStore, cold: LlamaContext, model: LlamaModel, ids: list[int]
):
    cold.truncate(0, len(ids) - 1)
    snapshot = save(store, cold, ids[:-1])
    small = LlamaContext(model, n_ctx=256, sequences=1)
    assert store.load(snapshot, Loader(small)) == ()
    read(small, ids[:8])
    small.close()


# What llama.cpp does with a file of the wrong kind, in a process of its own, for it may abort.
LOADED_ANYWAY = """
import json, os, resource, sys
from pathlib import Path
from localmem.backend.llama_library import LlamaContext, LlamaModel

path, weights, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
model = LlamaModel(weights)
ids = model.tokenize(b"She counted the boats: one, two, three. " * 9, special=False)[:64]

def context(**options):
    return LlamaContext(model, n_ctx=256, sequences=2, **options)

written = context(type_k="q8_0", flash_attention="on") if kind == "q8_0" else context()
written.decode(ids, position=0, sequence=0)
if kind == "full disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
saved = written.save_sequence(path, 0, ids)
if kind == "cut":
    os.truncate(path, 100_000)
loaded = context(flash_attention="on").load_sequence(path, 0) if kind != "full disk" else []
json.dump([saved, len(loaded)], sys.stdout)
"""


def load_anyway(tmp_path: Path, weights: Path, kind: str) -> subprocess.CompletedProcess[str]:
    arguments = [str(tmp_path / "payload"), str(weights), kind]
    return subprocess.run(
        [sys.executable, "-c", LOADED_ANYWAY, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )


def test_library_refuses_a_payload_of_another_cache_type(tmp_path: Path, smollm_path: Path):
    done = load_anyway(tmp_path, smollm_path, "q8_0")
    assert done.returncode == 0, done.stderr[-300:]
    assert json.loads(done.stdout)[1] == 0


def test_library_reports_a_full_disk(tmp_path: Path, smollm_path: Path):
    done = load_anyway(tmp_path, smollm_path, "full disk")
    assert done.returncode == 0, done.stderr[-300:]
    assert json.loads(done.stdout)[0] != (tmp_path / "payload").stat().st_size  # and so the store keeps nothing


def test_library_refuses_a_cut_payload_or_takes_the_process_with_it(tmp_path: Path, smollm_path: Path):
    done = load_anyway(tmp_path, smollm_path, "cut")
    assert done.returncode != 0 or json.loads(done.stdout)[1] == 0
