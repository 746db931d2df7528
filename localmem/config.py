"""Settings: every value a user can turn, where each came from, and the directories localmem writes to.

Precedence is flag > environment > config.toml > default; a model card's values come between the last two
and are applied by the runtime, which looks at `Settings.origin`. Reading settings creates nothing on disk:
`ensure_home` does.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import platformdirs
from pydantic import Field, TypeAdapter, ValidationError

from localmem.errors import ConfigError
from localmem.kernel.budget import Budget
from localmem.storage.private import make_private_folder

Origin = str  # "flag", "environment LOCALMEM_MODEL", "config.toml" or "default"
EmbedderName = Literal["all-MiniLM-L6-v2", "hash", "none"]
CacheType = Literal["f16", "q8_0", "q4_0", "f32", "bf16"]
FlashAttention = Literal["auto", "on", "off"]
ConstraintName = Literal["llguidance", "gbnf"]

DEFAULT_MODEL = "qwen2.5-coder-1.5b-instruct"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, resolved. Tokens are the model's own; shares are of window minus reserve."""

    home: Path  # database, index and, by default, weights
    models_dir: Path  # weights and the user's own model cards
    database: Path
    config_file: Path  # where config.toml is looked for; it need not exist
    state_dir: Path  # logs and traces
    model: str = DEFAULT_MODEL
    window: int = 4096  # tokens; 0 = the model card's
    reserve: int = 512  # tokens kept free for the completion
    warning: float = 0.70  # paper, section 2.2
    flush: float = 1.0  # paper, section 2.2
    evict: float = 0.5  # paper, section 2.2
    max_steps: int = 8
    max_tokens_per_event: int = 2048
    summary_tokens: int = 300
    idle: bool = True  # work while the user reads and types
    embedder: EmbedderName = "all-MiniLM-L6-v2"
    threads: int = 0  # 0 = chosen by a probe
    gpu_layers: int = -1  # -1 = all where llama.cpp can and memory allows; 0 = none
    type_k: CacheType = "f16"  # of the KV cache's keys
    type_v: CacheType = "f16"  # and of its values; a quantised one needs flash attention
    flash_attention: FlashAttention = "auto"
    constraint: ConstraintName = "llguidance"  # what holds a call to its grammar; gbnf is llama.cpp's own sampler
    kv_shift: bool = False  # after a flush shift the KV cache instead of reading the kept messages again: approximate
    snapshots_mb: int = 1000  # disk the KV snapshots may take; 0 = none are kept
    temperature: float = 0.0
    seed: int = 0
    origin: Mapping[str, Origin] = field(default_factory=dict[str, Origin])


@dataclass(frozen=True, slots=True)
class Key:
    """One setting as outsiders write it."""

    field: str  # of Settings
    toml: str  # in config.toml, in errors and in `config show`
    type: Any  # what pydantic is to check: a type form, which the type system cannot name
    valid: str  # what an error says would have been right
    environment: str | None = None


_Share = Annotated[float, Field(gt=0, le=1)]
_SHARE = "a share of the window, over 0 and at most 1"
_SWITCH = "true or false"
_CACHE_TYPE = f"one of {', '.join(get_args(CacheType))}"

KEYS: tuple[Key, ...] = (
    Key(
        "model",
        "model",
        Annotated[str, Field(min_length=1)],
        "a model's name or a .gguf file",
        "LOCALMEM_MODEL",
    ),
    Key("database", "database", Path, "a path to a file", "LOCALMEM_DATABASE"),
    Key("models_dir", "models_dir", Path, "a path to a folder", "LOCALMEM_MODELS"),
    Key("window", "budget.window", Annotated[int, Field(ge=0)], "a number of tokens, or 0 for the model's own"),
    Key("reserve", "budget.reserve", Annotated[int, Field(ge=16)], "a number of tokens, at least 16"),
    Key("warning", "budget.warning", _Share, _SHARE),
    Key("flush", "budget.flush", _Share, _SHARE),
    Key("evict", "budget.evict", _Share, _SHARE),
    Key("max_steps", "agent.max_steps", Annotated[int, Field(ge=1, le=1000)], "a number of steps, 1 to 1000"),
    Key(
        "max_tokens_per_event",
        "agent.max_tokens_per_event",
        Annotated[int, Field(ge=64)],
        "a number of tokens, at least 64",
    ),
    Key(
        "summary_tokens",
        "agent.summary_tokens",
        Annotated[int, Field(ge=32)],
        "a number of tokens, at least 32",
    ),
    Key("idle", "agent.idle", bool, _SWITCH),
    Key("embedder", "embedder.name", EmbedderName, "one of all-MiniLM-L6-v2, hash, none"),
    Key(
        "threads",
        "backend.threads",
        Annotated[int, Field(ge=0, le=1024)],
        "a number, or 0 to let a probe choose",
    ),
    Key("gpu_layers", "backend.gpu_layers", Annotated[int, Field(ge=-1)], "a number of layers, or -1 for all"),
    Key("type_k", "backend.type_k", CacheType, _CACHE_TYPE),
    Key("type_v", "backend.type_v", CacheType, _CACHE_TYPE),
    Key("flash_attention", "backend.flash_attention", FlashAttention, f"one of {', '.join(get_args(FlashAttention))}"),
    Key("constraint", "backend.constraint", ConstraintName, f"one of {', '.join(get_args(ConstraintName))}"),
    Key("kv_shift", "backend.kv_shift", bool, _SWITCH),
    Key(
        "snapshots_mb",
        "backend.snapshots_mb",
        Annotated[int, Field(ge=0)],
        "a number of megabytes, or 0 for none",
    ),
    Key("temperature", "sampling.temperature", Annotated[float, Field(ge=0, le=5)], "a number from 0 to 5"),
    Key(
        "seed",
        "sampling.seed",
        Annotated[int, Field(ge=0, lt=1 << 32)],
        "a whole number from 0 to 4294967295",
    ),
)
_QUANTISED: frozenset[CacheType] = frozenset({"q8_0", "q4_0"})
_BY_FIELD: Mapping[str, Key] = {key.field: key for key in KEYS}
_BY_TOML: Mapping[str, Key] = {key.toml: key for key in KEYS}
_SECTIONS = frozenset(key.toml.split(".")[0] for key in KEYS if "." in key.toml)
_NO_FLAGS: Mapping[str, object] = {}


def load_settings(*, flags: Mapping[str, object] = _NO_FLAGS, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force, each with its origin.

    `flags` are fields of `Settings`; one that is None was not given. Raises ConfigError for an unknown key
    (with the nearest known one), a value that is not valid (with what would be) and a config.toml that cannot
    be read (with the line).
    """
    given_flags = {name: value for name, value in flags.items() if value is not None}
    home, config_file, state_dir, home_origin = _directories(given_flags.pop("home", None), environ)
    values: dict[str, Any] = {}  # Any: each value was checked against its key's type, which pyright cannot see
    origin: dict[str, Origin] = {"home": home_origin, **dict.fromkeys(_BY_FIELD, "default")}
    for name, value in _from_file(config_file).items():
        values[name], origin[name] = value, "config.toml"
    for key in KEYS:
        if key.environment and environ.get(key.environment):
            values[key.field] = _checked(key, environ[key.environment], place=f"environment {key.environment}")
            origin[key.field] = f"environment {key.environment}"
    for name, value in given_flags.items():
        values[name] = _checked(_known(name, _BY_FIELD, place="command line"), value, place="command line")
        origin[name] = "flag"
    values.setdefault("models_dir", home / "models")
    values.setdefault("database", home / "localmem.db")
    settings = Settings(home=home, config_file=config_file, state_dir=state_dir, origin=origin, **values)
    if settings.window:  # a window of 0 is known only with the model
        Budget(settings.window, settings.reserve, settings.warning, settings.flush, settings.evict)
    _check_cache_types(settings)
    return settings


def parse_option(key: str, text: str) -> tuple[str, object]:
    """The field of `Settings` that `-o key text` sets, and its value; `key` is that field or its TOML name.

    >>> parse_option("budget.window", "2048")
    ('window', 2048)

    Raises ConfigError for an unknown key or a value that is not valid.
    """
    known = _known(key, {**_BY_FIELD, **_BY_TOML}, place="command line")
    return known.field, _checked(known, text, place="command line")


def ensure_home(settings: Settings) -> None:
    """Create the directories localmem writes to, for their owner only; those that exist stay as they are.

    Raises ConfigError when one cannot be created.
    """
    for directory in (settings.home, settings.models_dir, settings.database.parent, settings.state_dir):
        try:
            make_private_folder(directory)
        except OSError as error:
            raise ConfigError(
                f"The directory {directory} cannot be created: {error.strerror}",
                "Choose one you may write to: LOCALMEM_HOME, LOCALMEM_MODELS, LOCALMEM_DATABASE.",
            ) from error


def _check_cache_types(settings: Settings) -> None:
    """llama.cpp reads quantised values only inside flash attention, and says so too late, when the model is loaded."""
    if settings.flash_attention == "off" and settings.type_v in _QUANTISED:
        raise ConfigError(
            f"backend.type_v = {settings.type_v!r} (from {settings.origin['type_v']}) needs flash attention, and "
            f"backend.flash_attention = 'off' (from {settings.origin['flash_attention']})",
            "Set flash_attention to auto or on, or type_v to f16.",
        )


def _directories(flag: object, environ: Mapping[str, str]) -> tuple[Path, Path, Path, Origin]:
    """Home, config.toml, state directory, and where the home came from."""
    chosen = flag if flag is not None else environ.get("LOCALMEM_HOME")
    if chosen:
        origin = "environment LOCALMEM_HOME" if flag is None else "flag"
        home = _absolute(Path(str(chosen)), place=origin)
        return home, home / "config.toml", home, origin
    return (
        platformdirs.user_data_path("localmem", appauthor=False),
        platformdirs.user_config_path("localmem", appauthor=False) / "config.toml",
        platformdirs.user_state_path("localmem", appauthor=False),
        "default",
    )


def _absolute(path: Path, *, place: str) -> Path:
    try:
        if "\0" in str(path):
            raise RuntimeError("it holds a NUL")
        return path.expanduser().absolute()
    except RuntimeError as error:  # also expanduser's, for "~name" of a user who does not exist
        raise ConfigError(f"{place}: {path} is not a path: {error}", "Write it out in full.") from error


def _from_file(config_file: Path) -> dict[str, object]:
    """Fields of `Settings` as config.toml gives them; empty when there is no such file."""
    place = str(config_file)
    found = ((_known(name, _BY_TOML, place=place), value) for name, value in _flat(_parsed(config_file), place=place))
    return {key.field: _checked(key, value, place=place) for key, value in found}


def _parsed(config_file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(config_file.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):  # `ensure_home` says what is wrong with the home
        return {}
    except OSError as error:
        raise ConfigError(f"{config_file} cannot be read: {error.strerror}", "Make it a readable file.") from error
    except UnicodeDecodeError as error:
        line = bytes(error.object[: error.start]).count(b"\n") + 1
        raise ConfigError(f"{config_file} is not UTF-8 text (line {line})", "Save it as UTF-8.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # its text ends in "(at line 2, column 5)"
        raise ConfigError(
            f"{config_file} is not valid TOML: {error}", 'Write key = value, text in "quotes".'
        ) from error


def _flat(table: Mapping[str, object], *, place: str) -> Iterable[tuple[str, object]]:
    """`[budget] window = 1` as ("budget.window", 1), one section deep."""
    for key, value in table.items():
        if key in _SECTIONS:
            if not isinstance(value, dict):
                raise ConfigError(f"{place}: {key} is a section, not a value", f"Write [{key}] and its keys below.")
            section = cast(dict[str, object], value)  # a TOML table's keys are always strings
            yield from ((f"{key}.{name}", inner) for name, inner in section.items())
        else:
            yield key, value


def _known(name: str, keys: Mapping[str, Key], *, place: str) -> Key:
    if name in keys:
        return keys[name]
    # A right name in the wrong section is the likeliest mistake, so the last parts are compared too.
    by_last_part = {known.rpartition(".")[2]: known for known in keys}
    near = difflib.get_close_matches(name, keys, n=1) or [
        by_last_part[part] for part in difflib.get_close_matches(name.rpartition(".")[2], by_last_part, n=1)
    ]
    hint = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(sorted(keys))}."
    raise ConfigError(f"{place}: unknown key {name}", hint)


def _checked(key: Key, value: object, *, place: str) -> object:
    try:
        checked = TypeAdapter[object](key.type).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{place}: {key.toml} = {value!r} is not valid", f"Valid is {key.valid}.") from error
    return _absolute(checked, place=place) if isinstance(checked, Path) else checked
