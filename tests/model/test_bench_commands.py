"""`localmem bench` and `localmem models tune` with the real small model, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import localmem

from localmem.bench.cases import sample, shipped_cases

pytestmark = pytest.mark.model
MODEL = ("-m", "smollm2-135m-instruct", "-t", "1")


@pytest.fixture
def weights(smollm_path: Path) -> Path:
    return smollm_path.parent


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A dozen English development cases in a file of one's own."""
    english = [case for case in shipped_cases("dev") if case.language == "en"]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(case.model_dump_json() for case in sample(english, 12)), encoding="utf-8")
    return path


def test_reliability_tells_every_arm_and_leaves_files_where_asked(tmp_path: Path, weights: Path):
    command = ["bench", "reliability", *MODEL, "--limit", "2", "--json", "--out", str(tmp_path / "out")]
    done = localmem(command, home=tmp_path, models=weights)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["arm"] for one in found] == ["free", "schema", "state", "tuned"]
    for one in found:
        assert {"model", "n", "valid", "executable", "right_function", "right_call", "restraint"} <= set(one)
        assert {"tokens_per_call", "seconds_per_call", "by_category"} <= set(one)
    assert (found[2]["valid"], found[2]["executable"]) == (1.0, 1.0)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"reliability-smollm2-135m-instruct.json", "reliability.md", "reliability.svg"}
    (told,) = (tmp_path / "bench").glob("*.jsonl")
    assert told.name.endswith(".done.jsonl"), "a whole run is not gone on with; what was called can be read"
    assert len(told.read_text(encoding="utf-8").splitlines()) == 8


def test_the_guarantee_is_kept(tmp_path: Path, weights: Path):
    done = localmem(["bench", "reliability", *MODEL, "--calls", "6", "--json"], home=tmp_path, models=weights)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    for temperature in ("temperature_0", "temperature_1"):
        tally = record[temperature]
        assert tally["calls"] == tally["parsed"] == tally["valid"] == tally["executable"] == tally["finished"] >= 6


def test_tune_writes_a_card_whose_calibration_is_used(tmp_path: Path, weights: Path, cases: Path):
    command = ["models", "tune", "smollm2-135m-instruct", "--cases", str(cases), "--trials", "0", "-t", "1", "--json"]
    done = localmem([*command, "--out", str(tmp_path / "cards")], home=tmp_path, models=weights)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["calibration"]["used"]
    assert told["calibration"]["right"] > told["calibration"]["right_without"]
    names = {path.name for path in (tmp_path / "cards").iterdir()}
    assert names == {"smollm2-135m-instruct.toml", "smollm2-135m-instruct.calibration.json"}

    looks = tmp_path / "bench" / "smollm2-135m-instruct.looks.jsonl"
    seen = looks.read_text(encoding="utf-8")
    looks.write_text(seen[: len(seen) // 2], encoding="utf-8")  # as though it had been stopped
    again = localmem([*command, "--out", str(tmp_path / "again")], home=tmp_path, models=weights)
    assert again.returncode == 0, again.stderr
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "cards" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "none.jsonl"], "cannot be read"),
        (["-m", "no-such-model", "--limit", "1"], "No model is called"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_bad_input_is_told_with_the_way_out(arguments: list[str], said: str, tmp_path: Path, weights: Path):
    done = localmem(["bench", "reliability", *arguments], home=tmp_path, models=weights)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
