"""The faults benchmark in small: it finds nothing wrong, and what is wrong it finds."""

import os

import pytest

from benchmarks.faults import processes, statements
from benchmarks.faults.disk import fill_often
from benchmarks.faults.kills import kill_often
from benchmarks.faults.power import cut_often, left_of
from benchmarks.faults.processes import run_two
from localmem.storage.database import Database
from localmem.storage.in_place import put_in_place
from localmem.storage.vector_index import VectorIndex


def test_killed_processes_lose_nothing():
    found = kill_often(12, seed=3, quiet=True)

    assert found.kills >= 12
    assert (found.lost, found.duplicates, found.failed_opens, found.reruns, found.differences) == ([], [], [], [], [])
    assert found.compared > 0
    assert found.points <= found.all_points | found.points
    assert len(found.all_points) > 50


def test_a_database_that_does_not_commit_together_is_found_out(monkeypatch):
    """Every statement by itself, as though there were no transactions."""

    def each_alone(self):
        self._depth += 1

    def end(self):
        self._depth -= 1

    monkeypatch.setattr(Database, "_begin", each_alone)
    monkeypatch.setattr(Database, "_end", end)
    monkeypatch.setattr(Database, "_undo", end)
    monkeypatch.setattr(Database, "_run", lambda self, sql, params: self._connection.execute(sql, list(params)))

    found = kill_often(60, seed=1, quiet=True)

    assert [*found.lost, *found.duplicates, *found.failed_opens, *found.reruns, *found.differences]


def cut(times, *, seed):
    found = cut_often(times, seed=seed, quiet=True)
    return found or pytest.skip("no file can be mounted here")


def test_power_cuts_lose_nothing():
    found = cut(8, seed=1)

    assert found.kills >= 8
    assert (found.lost, found.duplicates, found.failed_opens, found.reruns, found.differences) == ([], [], [], [], [])
    assert found.compared > 0


def test_what_was_acknowledged_and_never_synced_is_found_out(monkeypatch):
    prepare = Database._prepare

    def prepare_without_syncs(self):
        prepare(self)
        self._connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(Database, "_prepare", prepare_without_syncs)
    assert cut(4, seed=1).lost


def test_index_files_that_were_never_synced_fail_no_open(monkeypatch):
    """Graphs of a few vectors, for they are files; half of them are empty after the power was cut."""
    monkeypatch.setitem(VectorIndex.__init__.__kwdefaults__, "exact_limit", 8)
    found = cut(8, seed=4)
    assert (found.lost, found.failed_opens, found.differences) == ([], [], [])


def test_a_file_that_was_put_in_place_is_there_after_a_power_cut():
    def write(folder):
        (folder / "part").write_text("whole")
        put_in_place(folder / "part", folder / "file")

    assert read_of_the_folder(write) == {"file": "whole"}


def test_a_file_that_was_only_renamed_is_found_out():
    def write(folder):
        (folder / "part").write_text("whole")
        (folder / "part").replace(folder / "file")
        os.fsync(os.open(folder, os.O_RDONLY))  # as another program's writing does sooner or later

    assert read_of_the_folder(write) == {"file": ""}


def read_of_the_folder(write):
    left = left_of(write, lambda folder: {path.name: path.read_text() for path in folder.iterdir() if path.is_file()})
    return pytest.skip("no file can be mounted here") if left is None else left


def test_a_full_disk_loses_nothing():
    full = fill_often(6, seed=1)
    if full.times is None:
        pytest.skip("no tmpfs can be mounted here")
    assert full.times == 6
    assert (full.lost, full.other_errors) == ([], [])


def test_two_processes_on_one_home_lose_and_cross_nothing():
    found = run_two(120, seed=2)
    assert (found.lost, found.crossed, found.shared) == ([], [], 0)


def test_what_crosses_is_found_out(monkeypatch):
    monkeypatch.setattr(processes, "NAMES", ("ana", "bea"))
    real = processes._work

    def writes_for_the_other(home, name, operations, seed):
        written = real(home, name, operations, seed)
        written.messages.append("of another")
        return written

    monkeypatch.setattr(processes, "_work", writes_for_the_other)
    assert run_two(20).lost == ["of another", "of another"]


@pytest.mark.parametrize(
    ("sql", "shape"),
    [
        ("SELECT  a FROM b\n WHERE c = 'it''s' AND d = 12", "SELECT a FROM b WHERE c = ? AND d = ?"),
        ("INSERT INTO x VALUES (1.5, x'00ff', -3)", "INSERT INTO x VALUES (?, ?, ?)"),
    ],
)
def test_a_statement_is_told_by_its_shape(sql, shape):
    assert statements.shape(sql) == shape
