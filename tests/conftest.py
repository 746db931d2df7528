"""Fixtures of all tests. The doubles are real classes of the package; nothing is patched."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import SMOLLM, Clock, model_path

from localmem.backend.constraint import GuidanceEngine
from localmem.backend.llama import LlamaBackend, LlamaOptions
from localmem.backend.llama_library import LlamaModel
from localmem.storage.database import Database

# A process that a script starts in the background ignores Ctrl-C, and so do its children: the tests send it to both.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples of a property: more of them with LOCALMEM_MAX_EXAMPLES=500. No deadline: a test asserts no time.
settings.register_profile(
    "localmem",
    max_examples=int(os.environ.get("LOCALMEM_MAX_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("localmem")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "file"])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database in memory, and one in a file: the tests that use it run on both."""
    with Database(":memory:" if request.param == "memory" else tmp_path / "localmem.db") as database:
        yield database


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    path = model_path(SMOLLM)
    if path is None:
        pytest.skip(f"the weights of {SMOLLM} are not here; `localmem models pull {SMOLLM}` fetches them")
    return path


@pytest.fixture(scope="session")
def smollm_vocabulary(smollm_path: Path) -> Iterator[LlamaModel]:
    """SmolLM2's real vocabulary, without its weights."""
    model = LlamaModel(smollm_path, vocabulary_only=True)
    yield model
    model.close()


@pytest.fixture(scope="session")
def smollm_counting(smollm_path: Path) -> Iterator[LlamaBackend]:
    """A backend that counts and renders with SmolLM2, and cannot complete."""
    backend = LlamaBackend(smollm_path, window=2048, counting_only=True)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def guidance(smollm_vocabulary: LlamaModel) -> GuidanceEngine:
    return GuidanceEngine(smollm_vocabulary.vocabulary_handle, len(smollm_vocabulary.vocabulary().texts))


@pytest.fixture(scope="session")
def smollm(smollm_path: Path) -> Iterator[LlamaBackend]:
    """The real small model, shared by all model tests: what one leaves in its KV cache the next must not see."""
    backend = LlamaBackend(smollm_path, window=2048, options=LlamaOptions(threads=1))
    yield backend
    backend.close()
