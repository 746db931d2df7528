"""The embedders: unit rows, the same every time, and never the network."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from localmem.errors import LocalmemError
from localmem.storage.embedder import HashEmbedder, SentenceTransformerEmbedder


@pytest.fixture(scope="module")
def minilm():
    return SentenceTransformerEmbedder()


def test_hash_rows_are_unit_and_repeatable():
    texts = ["my dog is called Rex", "", "🎉", "a \udc00", "the", "x" * 100_000]

    rows = HashEmbedder().embed(texts)

    assert rows.shape == (6, 64)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(rows, HashEmbedder().embed(texts))


def test_hash_is_the_same_in_every_process():
    row = HashEmbedder(8).embed(["dog"])[0]

    assert (row > 0).tolist() == [True, False] * 4


def test_hash_puts_shared_words_near():
    dog, dogs, weather = HashEmbedder().embed(["the dog walked", "walking dogs", "rain tomorrow in Oslo"])

    assert dog @ dogs > 0.9
    assert dog @ weather < 0.3


def test_hash_of_other_dimensions_is_another_embedder():
    assert HashEmbedder(10).embed(["a dog"]).shape == (1, 10)
    assert HashEmbedder(10).name != HashEmbedder().name


def test_no_texts_give_no_rows(minilm):
    assert HashEmbedder().embed([]).shape == (0, 64)
    assert minilm.embed([]).shape == (0, 384)


def test_minilm_knows_synonyms(minilm):
    rows = minilm.embed(["I own a puppy", "He has a young dog", "Interest rates rose"])

    assert (minilm.name, minilm.dimension) == ("all-MiniLM-L6-v2", 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert rows[0] @ rows[1] > 0.4 > rows[0] @ rows[2]


def test_minilm_takes_any_text(minilm):
    rows = minilm.embed(["", "a\udc00\0b", "word " * 200_000, "日本語"])

    assert np.isfinite(rows).all()


def test_unknown_models_are_refused_at_once(tmp_path):
    with pytest.raises(LocalmemError, match="no sentence-transformers model"):
        SentenceTransformerEmbedder(str(tmp_path))
    with pytest.raises(LocalmemError, match="no sentence-transformers model"):
        SentenceTransformerEmbedder("sentence-transformers/all-mpnet-base-v2")


def test_a_damaged_model_is_said_so(tmp_path):
    (tmp_path / "modules.json").write_text("[")
    embedder = SentenceTransformerEmbedder(str(tmp_path))

    with pytest.raises(LocalmemError, match="cannot load"):
        embedder.embed(["a dog"])


OFFLINE = """
import os, socket, sys
def refuse(*_):
    raise SystemExit("asked the network")
socket.socket.connect = socket.getaddrinfo = refuse
from localmem.storage.embedder import SentenceTransformerEmbedder
assert "torch" not in sys.modules, "loaded too early"
SentenceTransformerEmbedder().embed(["a dog"])
import huggingface_hub.constants
assert "HF_HUB_OFFLINE" not in os.environ
assert not huggingface_hub.constants.HF_HUB_OFFLINE, "later downloads are broken"
"""


def test_loading_asks_no_network_says_nothing_and_leaves_no_trace():
    kept_out = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in kept_out}
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=False, env=environment)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_loading_in_the_background_changes_nothing_but_when(minilm):
    embedder = SentenceTransformerEmbedder()

    embedder.load_in_background()
    embedder.load_in_background()
    loading = [thread for thread in threading.enumerate() if thread.name == "embedder"]
    rows = embedder.embed(["a dog"])
    embedder.load_in_background()

    assert len(loading) == 1
    assert embedder.dimension == 384
    np.testing.assert_array_equal(rows, minilm.embed(["a dog"]))


def test_an_error_in_the_background_is_raised_where_the_embedder_is_needed(tmp_path, capfd):
    (tmp_path / "modules.json").write_text("[")
    embedder = SentenceTransformerEmbedder(str(tmp_path))

    embedder.load_in_background()
    with pytest.raises(LocalmemError, match="cannot load"):
        embedder.embed(["a dog"])
    with pytest.raises(LocalmemError, match="cannot load"):
        _ = embedder.dimension

    assert "modules.json" not in capfd.readouterr().err


def test_there_is_nothing_to_load_for_hashes():
    embedder = HashEmbedder()
    embedder.load_in_background()
    assert embedder.embed(["a dog"]).shape == (1, 64)


EXIT = """
import sys, threading, time
from localmem.storage.embedder import SentenceTransformerEmbedder
SentenceTransformerEmbedder().load_in_background()
while not {moment} and threading.active_count() > 1:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "moment",
    ["True", "'torch' in sys.modules", "hasattr(sys.modules.get('sentence_transformers'), 'SentenceTransformer')"],
    ids=["at once", "in torch", "in the weights"],
)
def test_a_process_that_ends_while_it_loads_ends_cleanly(moment):
    code = EXIT.format(moment=moment)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
