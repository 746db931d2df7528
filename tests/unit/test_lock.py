"""Two processes, one agent."""

import signal
import subprocess
import sys

import pytest

from localmem.errors import DatabaseBusy, StorageError
from localmem.storage.lock import agent_lock

HOLD = """
import sys
from pathlib import Path
from localmem.storage.lock import agent_lock
sys.argv[0] = "/usr/bin/localmem"
held = agent_lock(Path(sys.argv[2]), "ana")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "chat", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_another_process_is_named(tmp_path, holder):
    with pytest.raises(DatabaseBusy) as caught:
        agent_lock(tmp_path, "ana")

    assert caught.value.message == f"agent 'ana' is in use by process {holder.pid} (localmem chat)"
    assert "Close it" in caught.value.hint


def test_another_agent_is_free(tmp_path, holder):
    with agent_lock(tmp_path, "bea"):
        pass


def test_a_killed_process_blocks_nobody(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    with agent_lock(tmp_path, "ana"):
        pass


def test_the_same_process_is_refused_too(tmp_path):
    with agent_lock(tmp_path, "ana"), pytest.raises(DatabaseBusy, match="in use by process"):
        agent_lock(tmp_path, "ana")


def test_a_refused_request_does_not_break_the_lock(tmp_path):
    held = agent_lock(tmp_path, "ana")
    with pytest.raises(DatabaseBusy):
        agent_lock(tmp_path, "ana")

    with pytest.raises(DatabaseBusy):
        agent_lock(tmp_path, "ana")
    held.release()
    held.release()
    with agent_lock(tmp_path, "ana"):
        pass


def test_an_unreadable_owner_is_another_process(tmp_path):
    with agent_lock(tmp_path, "ana"):
        (tmp_path / "ana.owner.json").write_text("[1")
        with pytest.raises(DatabaseBusy, match="another process"):
            agent_lock(tmp_path, "ana")


def test_a_folder_that_is_a_file_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="cannot lock"):
        agent_lock(tmp_path / "file", "ana")
