"""JSON lines: what was cut off is passed over and takes nothing with it."""

from __future__ import annotations

from pathlib import Path

from localmem.bench.journal import Journal, JsonLines


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


def numbers(path: Path | None) -> Journal[int]:
    return Journal(path, read=int, write=str)


def test_records_come_back_by_their_key(tmp_path: Path):
    journal = numbers(tmp_path / "run.jsonl")
    assert [journal.add("a", 1), journal.add("b", 2), journal.add("a", 3)] == [1, 2, 3]
    again = numbers(tmp_path / "run.jsonl")
    assert [again.known(key) for key in "abc"] == [3, 2, None]


def test_what_is_forgotten_or_put_away_is_not_known(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    numbers(path).add("a", 1)
    numbers(path).put_away()
    assert numbers(path).known("a") is None
    assert numbers(path.with_suffix(".done.jsonl")).known("a") == 1
    journal = numbers(path)
    journal.add("b", 2)
    journal.forget()
    assert (journal.known("b"), path.exists()) == (None, False)
    journal.forget()


def test_a_journal_without_a_path_keeps_in_memory():
    journal = numbers(None)
    journal.add("a", 1)
    assert journal.known("a") == 1
    journal.put_away()
    assert journal.known("a") is None
