"""`localmem` with the real small model, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from command_line import COMMAND, QUICK, environment, localmem

from localmem.calls.gbnf_check import check_gbnf

pytestmark = pytest.mark.model


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def weights(smollm_path: Path) -> Path:
    return smollm_path.parent


def test_pipe_gives_one_line_a_message_and_remembers_in_the_next_process(home: Path, weights: Path):
    first = localmem(["chat", *QUICK], home=home, models=weights, stdin=b"Hello there!\nHow are you?\n")
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.splitlines()) == 2
    second = localmem(["chat", *QUICK], home=home, models=weights, stdin=b"Hello again!")
    assert second.returncode == 0, second.stderr
    assert len(second.stdout.splitlines()) == 1
    shown = localmem(["recall", "dates", "--json", *QUICK[2:]], home=home, models=weights)
    texts = [item["text"] for item in json.loads(shown.stdout)["items"] if item["kind"] == "user_message"]
    assert texts == ["Hello there!", "How are you?", "Hello again!"]


def test_send_json_gives_one_object_a_step_the_last_with_the_reply(home: Path, weights: Path):
    done = localmem(["send", "-", "--json", "-a", "bob", *QUICK], home=home, models=weights, stdin=b"Hello there!\n")
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert steps[-1]["reply"]
    assert steps[-1]["usage"]["prompt_tokens"] > 0


def test_an_agent_of_lettas_is_imported_as_far_as_it_goes(home: Path, weights: Path, tmp_path: Path):
    told = {
        "agents": [
            {"name": "Sam Sailor", "block_ids": ["b"], "messages": [{"role": "user", "content": "My boat is blue."}]}
        ],
        "blocks": [{"id": "b", "label": "human", "value": "Name: Chad", "description": "The user."}],
        "tools": [{"name": "x"}],
    }
    file = tmp_path / "sam.af"
    file.write_text(json.dumps(told), encoding="utf-8")
    where = {"home": home, "models": weights}
    done = localmem(["agents", "import", str(file), *QUICK[2:]], **where)
    assert done.returncode == 0, done.stderr
    assert "blocks: 1, messages: 1, passages: 0\nleft out: tools (1)\nImported." in done.stderr
    assert "Name: Chad" in localmem(["memory", "show", "-a", "Sam-Sailor"], **where).stdout
    assert "My boat is blue." in localmem(["recall", "search", "boat", "-a", "Sam-Sailor", *QUICK[2:]], **where).stdout
    again = localmem(["agents", "import", str(file)], **where)
    assert (again.returncode, "already" in again.stderr) == (1, True)
    file.write_text("{}")
    assert "no agent file" in localmem(["agents", "import", str(file)], **where).stderr
    assert json.loads(localmem(["agents", "list", "--json"], **where).stdout)[0]["name"] == "Sam-Sailor"


def test_what_is_another_agents_is_attached_shown_and_detached(home: Path, weights: Path):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return localmem([*words], home=home, models=weights)

    def reads() -> list[str]:
        return json.loads(run("agents", "show", "bea", "--json").stdout)["reads"]

    for name in ("ana", "bea"):
        run("agents", "create", name)
    run("memory", "set", "human", "Sails a boat.", "-a", "ana")
    assert "bea reads ana/human." in run("agents", "attach", "bea", "ana", "--block", "human").stderr
    assert "bea reads ana." in run("agents", "attach", "bea", "ana", "--archive").stderr
    shown = run("memory", "show", "-a", "bea").stdout
    assert "[ana/human] What you know about the user. (read-only)\n  Sails a boat." in shown
    blocks = json.loads(run("memory", "show", "-a", "bea", "--json").stdout)
    assert [block["owner"] for block in blocks] == [None, None, "ana"]
    assert "ana, ana/human" in run("agents", "show", "bea").stdout
    assert "nothing of others" in run("agents", "show", "ana").stdout

    assert "bea no longer reads ana/human." in run("agents", "detach", "bea", "ana", "--block", "human").stderr
    assert reads() == ["ana"]
    run("agents", "undo", "bea")
    assert reads() == ["ana", "ana/human"]
    assert "is ana's, and is changed there" in run("memory", "set", "ana/human", "x", "-a", "bea").stderr
    for words, said in (
        (("bea", "ana"), "Say what of OWNER's"),
        (("bea", "ana", "--block", "human", "--archive"), "Say what of OWNER's"),
        (("bea", "nobody", "--archive"), "no agent is named 'nobody'"),
        (("bea", "ana", "--block", "cats"), "ana has no block 'cats'"),
        (("nobody", "ana", "--archive"), "no agent is named 'nobody'"),
    ):
        done = run("agents", "attach", *words)
        assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr


def test_context_adds_up(home: Path, weights: Path):
    shown = localmem(["context", "--json"], home=home, models=weights)
    use = json.loads(shown.stdout)
    assert set(use) == {"window", "reserve", "used", "free", "parts"}
    assert set(use["parts"]) == {"system", "functions", "working_context", "summary", "queue"}
    assert sum(use["parts"].values()) == use["used"]
    assert use["window"] - use["reserve"] - use["used"] == use["free"]
    assert use["parts"]["system"] > 0
    assert use["parts"]["functions"] > 0
    assert "window" in localmem(["context"], home=home, models=weights).stdout


def test_memory_is_edited_within_its_limit(home: Path, weights: Path):
    assert localmem(["memory", "set", "human", "Her name is Ines."], home=home, models=weights).returncode == 0
    added = localmem(["memory", "add", "pets", "--description", "Animals.", "--limit", "20"], home=home, models=weights)
    assert added.returncode == 0, added.stderr
    full = localmem(["memory", "set", "pets", "-"], home=home, models=weights, stdin=b"dog " * 100)
    assert full.returncode == 1
    assert "of 20 tokens" in full.stderr
    locked = localmem(["memory", "add", "human", "--read-only"], home=home, models=weights)
    assert locked.returncode == 0, locked.stderr
    unknown = localmem(["memory", "set", "nope", "x"], home=home, models=weights)
    assert (unknown.returncode, "there is no block 'nope'" in unknown.stderr) == (1, True)
    blocks = json.loads(localmem(["memory", "show", "--json"], home=home).stdout)
    assert [(block["label"], block["value"], block["read_only"]) for block in blocks[1:]] == [
        ("human", "Her name is Ines.", True),
        ("pets", "", False),
    ]


def test_documents_are_loaded_and_the_agent_is_told(home: Path, weights: Path, tmp_path: Path):
    document = tmp_path / "rex.md"
    document.write_text("# Rex\n\nRex is a beagle.\n\n# Food\n\nHe eats fish.\n")
    load = ["archival", "load", str(document), *QUICK[2:]]
    assert localmem(load, home=home, models=weights).returncode == 0
    again = localmem(load, home=home, models=weights)
    assert (again.returncode, "stored already" in again.stderr) == (1, True)
    assert localmem([*load, "--replace"], home=home, models=weights).returncode == 0
    listed = localmem(["archival", "list", "--json", *QUICK[2:]], home=home)
    assert {item["source"] for item in json.loads(listed.stdout)["items"]} == {"rex.md"}
    assert json.loads(listed.stdout)["total"] == 2
    queue = localmem(["agents", "show", "--json"], home=home)
    assert json.loads(queue.stdout)["queue"] == 2  # one event a load


def test_grammar_is_shown_and_checked(home: Path, weights: Path, tmp_path: Path):
    shown = localmem(["grammar", "show"], home=home, models=weights).stdout
    assert shown.startswith("start: ")
    grammar = tmp_path / "shown.lark"
    grammar.write_text(shown)
    assert localmem(["grammar", "check", str(grammar)], home=home, models=weights).returncode == 0
    schema = tmp_path / "shown.json"
    schema.write_text(localmem(["grammar", "show", "--format", "schema"], home=home, models=weights).stdout)
    assert "send_message" in schema.read_text()
    assert localmem(["grammar", "check", str(schema)], home=home, models=weights).returncode == 0
    twin = localmem(["grammar", "show", "--format", "gbnf"], home=home, models=weights).stdout
    check_gbnf(twin)
    assert "send_message" in twin
    chosen = localmem(["grammar", "show", "-o", "constraint", "gbnf"], home=home, models=weights).stdout
    assert chosen == twin
    grammar.write_text("start: nothing\n")
    refused = localmem(["grammar", "check", str(grammar)], home=home, models=weights)
    assert (refused.returncode, "refused" in refused.stderr) == (1, True)


def test_second_process_on_an_agent_is_refused_and_may_look(home: Path, weights: Path):
    with subprocess.Popen(
        [*COMMAND, "chat", *QUICK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, weights),
    ) as first:
        assert first.stderr is not None
        _wait_for(first.stderr, b"Ctrl-D ends")
        refused = localmem(["send", "hi", *QUICK], home=home, models=weights)
        looked = localmem(["context", "--json"], home=home, models=weights)
        first.communicate(b"")
    assert (refused.returncode, "is in use by process" in refused.stderr) == (1, True)
    assert looked.returncode == 0, looked.stderr
    assert first.returncode == 0


def test_interrupt_stops_a_reply_and_the_next_line_is_answered(home: Path, weights: Path):
    with subprocess.Popen(
        [*COMMAND, "chat", *QUICK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, weights),
    ) as chat:
        assert chat.stdin is not None
        assert chat.stderr is not None
        _wait_for(chat.stderr, b"Ctrl-D ends")
        chat.stdin.write(b"Tell me a long story.\n")
        chat.stdin.flush()
        time.sleep(1.0)  # it reads the window for seconds, so this is in the middle of the event
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate(b"Hello!\n", timeout=100)
    assert chat.returncode == 0, err
    assert b"(stopped)" in err
    assert out.count(b"\n") == 1


def test_interrupted_send_is_exit_130(home: Path, weights: Path):
    with subprocess.Popen(
        [*COMMAND, "send", "Tell me a long story.", *QUICK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, weights),
    ) as send:
        time.sleep(2.5)
        send.send_signal(signal.SIGINT)
        _, err = send.communicate(timeout=100)
    assert send.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.parametrize(("size_bytes", "said"), [(0, "is empty"), (4, "cut off"), (5_000_000, "needs 98,362,432")])
def test_part_of_a_model_is_refused(home: Path, smollm_path: Path, tmp_path: Path, size_bytes: int, said: str):
    part = tmp_path / "part.gguf"
    with smollm_path.open("rb") as whole:
        part.write_bytes(whole.read(size_bytes))
    sent = localmem(["send", "hi", "-m", str(part), *QUICK], home=home)
    added = localmem(["models", "add", str(part)], home=home)
    assert (sent.returncode, added.returncode) == (1, 1)
    assert said in sent.stderr
    assert said in added.stderr
    assert "Traceback" not in sent.stderr + added.stderr


def test_added_model_can_be_named(home: Path, smollm_path: Path, tmp_path: Path):
    file = tmp_path / "My Model.gguf"
    file.symlink_to(smollm_path)
    added = localmem(["models", "add", str(file)], home=home)
    assert (added.returncode, added.stdout) == (0, "my-model\n"), added.stderr
    assert localmem(["models", "path", "my-model"], home=home).stdout == f"{file}\n"
    assert localmem(["context", "-m", "my-model"], home=home).returncode == 0
    assert localmem(["context", "-m", str(file)], home=home).returncode == 0


def test_file_whose_name_is_no_text_is_refused(home: Path, smollm_path: Path, tmp_path: Path):
    file = tmp_path / "odd\udcff.gguf"
    file.symlink_to(smollm_path)
    added = localmem(["models", "add", str(file)], home=home)
    assert (added.returncode, "is not plain text" in added.stderr) == (1, True)
    assert "Traceback" not in added.stderr


def test_window_smaller_than_the_preamble_is_refused_with_the_size_that_would_do(home: Path, weights: Path):
    refused = localmem(["send", "hi", "--ctx-size", "1024", *QUICK], home=home, models=weights)
    assert refused.returncode == 1
    assert "a window of 1024 tokens is too small" in refused.stderr
    assert "at least" in refused.stderr


def test_doctor_finds_nothing_broken(home: Path, weights: Path):
    done = localmem(["doctor", "--json", *QUICK[2:]], home=home, models=weights)
    states = {finding["check"]: finding["state"] for finding in json.loads(done.stdout)}
    assert (done.returncode, states["model"], states["template"]) == (0, "ok", "ok")


def _wait_for(stream: Iterable[bytes], mark: bytes) -> None:
    """Read lines until one holds `mark`."""
    for line in stream:
        if mark in line:
            return
    raise AssertionError(f"{mark!r} never came")
