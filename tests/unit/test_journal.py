"""JSON lines: what was cut off is passed over and takes nothing with it."""

from __future__ import annotations

from pathlib import Path

from localmem.bench.journal import JsonLines


def as_it_is(value: object) -> object:
    return value


def test_a_line_of_another_version_is_passed_over(tmp_path: Path):
    lines = JsonLines(tmp_path / "run.jsonl")
    for value in ({"case": "a"}, {"other": 1}, 7, {"case": "b"}):
        lines.append(value)
    assert list(lines.read(lambda record: record["case"])) == ["a", "b"]


def test_lines_come_back_in_order(tmp_path: Path):
    lines = JsonLines(tmp_path / "new" / "run.jsonl")
    values = [{"a": 1}, ["b", None], "two\nlines \u2028 and \u0085 more"]
    for value in values:
        lines.append(value)
    assert list(JsonLines(lines.path).read(as_it_is)) == values


def test_what_was_cut_off_is_passed_over_and_the_next_line_is_whole(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    lines = JsonLines(path)
    lines.append("first")
    lines.append("second, in é")
    path.write_bytes(path.read_bytes()[:-3])  # in the middle of a character
    again = JsonLines(path)
    assert list(again.read(as_it_is)) == ["first"]
    again.append("third")
    again.append("fourth")
    assert list(JsonLines(path).read(as_it_is)) == ["first", "third", "fourth"]


def test_without_a_path_nothing_is_kept():
    lines = JsonLines(None)
    lines.append(1)
    assert list(lines.read(as_it_is)) == []
