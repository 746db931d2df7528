"""Work in the background: its result, its error, and an exit that does not trip over it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from localmem.storage.background import BackgroundWork


def test_result_is_waited_for_and_stays():
    go = threading.Event()
    work = BackgroundWork(lambda: (go.wait(), 7)[1], name="seven")
    threading.Timer(0.05, go.set).start()
    assert work.result() == 7
    assert work.result() == 7


def test_error_is_raised_by_the_result_and_written_nowhere(capfd: pytest.CaptureFixture[str]):
    work = BackgroundWork(lambda: 1 // 0, name="division")
    with pytest.raises(ZeroDivisionError):
        work.result()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill would end the process")
def test_ctrl_c_ends_the_waiting_and_not_the_work():
    go = threading.Event()
    work = BackgroundWork(go.wait, name="waiting")
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        work.result()
    go.set()
    assert work.result()


def test_finders_of_modules_are_left_as_they_were():
    before = list(sys.meta_path)
    BackgroundWork(lambda: None, name="nothing").result()
    assert sys.meta_path == before


ENDLESS = """
import threading
from localmem.storage.background import BackgroundWork

def work():
    begun.set()
    while True:
        try:
            import nowhere
        except ImportError:
            pass

begun = threading.Event()
background = BackgroundWork(work, name="endless")
begun.wait()
"""


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("raise SystemExit(3)", 3), ("background.stop()", 0)])
def test_process_ends_while_work_goes_on_and_says_nothing(ending: str, code: int):
    done = subprocess.run([sys.executable, "-c", ENDLESS + ending], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
