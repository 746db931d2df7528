"""Settings: precedence, where each value came from, and what is said of a mistake."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest

from localmem.config import KEYS, Settings, ensure_home, load_settings, parse_option
from localmem.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def load(home: Path, toml: str | bytes = "", environ: dict[str, str] | None = None, **flags: object) -> Settings:
    (home / "config.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return load_settings(flags=flags, environ={"LOCALMEM_HOME": str(home)} | (environ or {}))


def test_defaults_need_no_file_and_create_nothing(tmp_path: Path):
    home = tmp_path / "not" / "there"
    settings = load_settings(environ={"LOCALMEM_HOME": str(home)})
    assert (settings.model, settings.window, settings.reserve) == ("qwen2.5-coder-1.5b-instruct", 4096, 512)
    assert (settings.warning, settings.flush, settings.evict) == (0.7, 1.0, 0.5)
    assert (settings.gpu_layers, settings.type_k, settings.type_v) == (-1, "f16", "f16")
    assert (settings.flash_attention, settings.kv_shift, settings.snapshots_mb) == ("auto", False, 1000)
    assert settings.idle
    assert settings.origin["window"] == "default"
    assert not home.parent.exists()


def test_home_holds_everything(home: Path):
    settings = load(home)
    assert settings.database == home / "localmem.db"
    assert settings.models_dir == home / "models"
    assert settings.config_file == home / "config.toml"
    assert settings.state_dir == home
    assert settings.origin["home"] == "environment LOCALMEM_HOME"


def test_weights_and_database_can_lie_elsewhere(home: Path, tmp_path: Path):
    environ = {"LOCALMEM_MODELS": str(tmp_path / "weights"), "LOCALMEM_DATABASE": str(tmp_path / "other.db")}
    settings = load(home, environ=environ)
    assert settings.models_dir == tmp_path / "weights"
    assert settings.database == tmp_path / "other.db"
    assert settings.origin["models_dir"] == "environment LOCALMEM_MODELS"


def test_without_a_home_the_directories_are_the_users_own():
    settings = load_settings(environ={})
    assert settings.home.name == "localmem"
    assert settings.config_file.name == "config.toml"
    assert settings.models_dir == settings.home / "models"


def test_file_beats_default(home: Path):
    settings = load(home, 'model = "a"\n[budget]\nwindow = 2048\n[embedder]\nname = "hash"\n')
    assert (settings.model, settings.window, settings.embedder) == ("a", 2048, "hash")
    assert settings.origin["window"] == "config.toml"
    assert settings.origin["reserve"] == "default"


def test_file_sets_cache_and_idle_work(home: Path):
    backend = '[backend]\ntype_k = "q8_0"\ntype_v = "q4_0"\nflash_attention = "on"\nkv_shift = true\nsnapshots_mb = 0\n'
    settings = load(home, f"{backend}[agent]\nidle = false\n")
    assert (settings.type_k, settings.type_v, settings.flash_attention) == ("q8_0", "q4_0", "on")
    assert (settings.kv_shift, settings.snapshots_mb, settings.idle) == (True, 0, False)


def test_file_chooses_what_holds_a_call_to_its_grammar(home: Path):
    assert load(home).constraint == "llguidance"
    assert load(home, '[backend]\nconstraint = "gbnf"\n').constraint == "gbnf"


def test_environment_beats_file(home: Path):
    settings = load(home, 'model = "a"\n', {"LOCALMEM_MODEL": "b"})
    assert settings.model == "b"
    assert settings.origin["model"] == "environment LOCALMEM_MODEL"


def test_flag_beats_environment(home: Path):
    settings = load(home, 'model = "a"\n', {"LOCALMEM_MODEL": "b"}, model="c", window=None)
    assert settings.model == "c"
    assert settings.origin["model"] == "flag"
    assert settings.origin["window"] == "default"


def test_empty_environment_variable_is_not_set(home: Path):
    assert load(home, 'model = "a"\n', {"LOCALMEM_MODEL": ""}).model == "a"


def test_unknown_key_names_file_key_and_nearest(home: Path):
    with pytest.raises(ConfigError) as caught:
        load(home, "[budget]\nwindwo = 1\n")
    assert str(home / "config.toml") in caught.value.message
    assert "budget.windwo" in caught.value.message
    assert caught.value.hint == "Did you mean budget.window?"


def test_known_key_in_the_wrong_place_is_put_right(home: Path):
    with pytest.raises(ConfigError, match="Did you mean agent.max_steps"):
        load(home, "max_steps = 3\n")


def test_unknown_key_near_nothing_lists_what_there_is(home: Path):
    with pytest.raises(ConfigError, match="Known keys: .*budget.window"):
        load(home, "[zzzzqqqq]\nxxxx = 1\n")


def test_bad_value_says_what_is_valid(home: Path):
    with pytest.raises(ConfigError) as caught:
        load(home, '[embedder]\nname = "bert"\n')
    assert "embedder.name = 'bert' is not valid" in caught.value.message
    assert caught.value.hint == "Valid is one of all-MiniLM-L6-v2, hash, none."


@pytest.mark.parametrize(
    "toml",
    [
        "[budget]\nwindow = -1\n",
        "[budget]\nwindow = 1.5\n",
        "[budget]\nwarning = 70\n",
        "[budget]\nevict = nan\n",
        '[agent]\nmax_steps = "many"\n',
        "[sampling]\nseed = -1\n",
        "model = 7\n",
        "model = { name = 'a' }\n",
        "budget = 4096\n",
        "[backend]\ntype_k = 'q5_1'\n",
        "[backend]\nflash_attention = true\n",
        "[backend]\nconstraint = 'outlines'\n",
        "[backend]\nkv_shift = 'perhaps'\n",
        "[backend]\nsnapshots_mb = -1\n",
        "[backend]\ngpu_layers = -2\n",
        "[agent]\nidle = 2\n",
    ],
)
def test_bad_value_is_an_error(home: Path, toml: str):
    with pytest.raises(ConfigError, match="config.toml"):
        load(home, toml)


def test_bad_environment_value_names_the_variable(home: Path):
    with pytest.raises(ConfigError, match="LOCALMEM_DATABASE"):
        load(home, environ={"LOCALMEM_DATABASE": "~nobody-of-that-name/x.db"})


def test_numbers_that_do_not_fit_together_are_an_error(home: Path):
    with pytest.raises(ConfigError, match="reserve"):
        load(home, "[budget]\nwindow = 1024\nreserve = 2000\n")


@pytest.mark.parametrize("type_v", ["q8_0", "q4_0"])
def test_quantised_values_without_flash_attention_are_an_error(home: Path, type_v: str):
    with pytest.raises(ConfigError, match="needs flash attention") as caught:
        load(home, '[backend]\nflash_attention = "off"\n', type_v=type_v)
    assert f"backend.type_v = '{type_v}' (from flag)" in caught.value.message
    assert "'off' (from config.toml)" in caught.value.message


def test_quantised_keys_and_whole_values_need_no_flash_attention(home: Path):
    settings = load(home, flash_attention="off", type_k="q8_0", type_v="bf16")
    assert (settings.type_k, settings.type_v) == ("q8_0", "bf16")


def test_window_of_the_model_card_waits_for_the_card(home: Path):
    assert load(home, "[budget]\nwindow = 0\nreserve = 2000\n").window == 0


def test_unreadable_toml_names_the_line(home: Path):
    with pytest.raises(ConfigError, match=r"config.toml is not valid TOML: .*line 2"):
        load(home, 'model = "a"\nwindow = = 3\n')


def test_brackets_without_end_are_not_valid(home: Path):
    with pytest.raises(ConfigError, match="config.toml is not valid TOML"):
        load(home, "model = " + "[" * 9_999)


def test_toml_that_is_not_text_names_the_line(home: Path):
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(line 2\)"):
        load(home, b'model = "a"\n# \xff\n')


def test_config_that_is_a_folder_is_an_error(tmp_path: Path):
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(environ={"LOCALMEM_HOME": str(tmp_path)})


def test_unknown_flag_is_an_error(home: Path):
    with pytest.raises(ConfigError, match="command line: unknown key windo\nDid you mean window"):
        load(home, windo=1)


def test_option_takes_field_and_toml_name():
    assert parse_option("budget.window", "2048") == ("window", 2048)
    assert parse_option("temperature", "0.5") == ("temperature", 0.5)
    assert parse_option("backend.type_v", "q8_0") == ("type_v", "q8_0")
    assert parse_option("agent.idle", "false") == ("idle", False)
    assert parse_option("kv_shift", "on") == ("kv_shift", True)


def test_unknown_option_and_bad_option_are_errors():
    with pytest.raises(ConfigError, match="Did you mean budget.evict"):
        parse_option("budget.evikt", "1")
    with pytest.raises(ConfigError, match="Valid is a number of steps"):
        parse_option("max_steps", "many")


def test_every_setting_can_be_given_as_an_option():
    places = {"home", "config_file", "state_dir", "origin"}
    assert {field.name for field in dataclasses.fields(Settings)} - places == {key.field for key in KEYS}


def test_an_option_that_was_parsed_can_be_given_as_a_flag(home: Path):
    settings = load(home, **dict([parse_option("models_dir", "weights")]))
    assert settings.models_dir == Path("weights").absolute()


def test_ensure_home_makes_directories_for_their_owner_only(tmp_path: Path):
    settings = load_settings(environ={"LOCALMEM_HOME": str(tmp_path / "home")})
    ensure_home(settings)
    ensure_home(settings)
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(settings.models_dir.stat().st_mode) == 0o700


def test_a_home_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    settings = load_settings(environ={"LOCALMEM_HOME": str(tmp_path / "file" / "home")})
    with pytest.raises(ConfigError, match="LOCALMEM_HOME"):
        ensure_home(settings)
