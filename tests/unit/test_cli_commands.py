"""The commands that look at and change what is stored: none of them loads a model."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import COMMAND, environment, localmem
from support import say

from localmem import runtime
from localmem.backend.scripted import ScriptedBackend
from localmem.config import load_settings
from localmem.interfaces.cli import run
from localmem.interfaces.cli.common import one_line, page_note, plain
from localmem.memory.search import Page
from localmem.storage.embedder import HashEmbedder
from localmem.storage.lock import agent_lock

HASH = ["-o", "embedder", "hash"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALMEM_HOME", str(folder))
    monkeypatch.setenv("LOCALMEM_MODELS", str(tmp_path / "no-weights-here"))
    monkeypatch.delenv("LOCALMEM_MODEL", raising=False)
    monkeypatch.delenv("LOCALMEM_DATABASE", raising=False)
    return folder


class Shell:
    """Runs commands in this process and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str) -> str:
        self._capsys.readouterr()
        self.code = run(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *arguments: str) -> object:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def hold_a_conversation() -> None:
    """The default agent, having said a few things with a model that follows a script."""
    settings = load_settings(flags={"embedder": "hash", "window": 16_384})
    backend = ScriptedBackend([say("A beagle, lovely."), say("Happy birthday!")])
    with runtime.open(settings=settings, backend=backend) as agent:
        list(agent.send("My dog Rex is a beagle."))
        list(agent.send("My birthday is today."))


# -- agents


def test_there_are_no_agents_at_first(shell: Shell):
    assert shell.json("agents", "list") == []
    assert shell("agents", "list") == ""
    assert "no agents yet" in shell.err


def test_agent_is_created_listed_shown_and_deleted(shell: Shell):
    shell("agents", "create", "bob", "-m", "smollm2")
    assert shell.code == 0
    assert [(row["name"], row["model"]) for row in shell.json("agents", "list")] == [("bob", "smollm2")]  # type: ignore[union-attr]
    assert "bob" in shell("agents", "list")
    shown = shell.json("agents", "show", "bob")
    assert (shown["messages"], shown["blocks"], shown["last_seen_at"]) == (0, 2, None)  # type: ignore[index]
    assert "messages      0" in shell("agents", "show", "bob")
    shell("agents", "delete", "bob", "--yes")
    assert shell.json("agents", "list") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agents", "create", "a b"], "cannot be the name of an agent"),
        (["agents", "create", "bob", "-m", "qwen9"], "No model is called 'qwen9'"),
        (["agents", "show", "nobody"], "no agent is named 'nobody'"),
        (["agents", "delete", "nobody", "--yes"], "no agent is named 'nobody'"),
        (["memory", "show", "-a", "nobody"], "no agent is named 'nobody'"),
        (["recall", "search", "x", "-a", "nobody", *HASH], "no agent is named 'nobody'"),
        (["archival", "delete", "7", "--yes", *HASH], "there is no passage 7"),
        (["archival", "reindex", "-o", "embedder", "none"], "there is no embedder"),
        (["schedule", "add", "x", "now and then", "note"], "is no schedule"),
        (["schedule", "delete", "x", "--yes"], "nothing is scheduled as 'x'"),
        (["trace", "show", "7"], "has no step 7"),
        (["models", "show", "qwen9"], "No model is called 'qwen9'"),
        (["models", "path", "smollm2"], "are not on this machine"),
        (["models", "check", "smollm2"], "are not on this machine"),
        (["models", "add", "/nowhere/x.gguf"], "cannot be read"),
        (["context"], "are not on this machine"),
        (["send", "hi"], "localmem models pull"),
        (["send", "hi", "-m", "smollm2", "--ctx-size", "512"], "budget.reserve is 512 tokens in a window of 512"),
        (["send", "hi", "-o", "budgt.window", "1"], "unknown key budgt.window"),
        (["config", "show", "-o", "seed", "many"], "is not valid"),
        (["grammar", "check", "/nowhere/x.lark"], "cannot be read"),
        (["memory", "show", "-d", "/dev/null/x.db"], "/dev/null"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_exit_1_and_one_error(shell: Shell, arguments: list[str], said: str):
    assert shell(*arguments) == ""
    assert shell.code == 1
    assert said in shell.err
    assert shell.err.count("Error:") == 1
    assert "Traceback" not in shell.err


def test_name_is_taken_once(shell: Shell):
    shell("agents", "create", "bob")
    shell("agents", "create", "bob")
    assert (shell.code, "already" in shell.err) == (1, True)


def test_nothing_is_deleted_without_a_yes(home: Path):
    localmem(["agents", "create", "bob"], home=home)
    refused = localmem(["agents", "delete", "bob"], home=home, stdin=b"n\n")
    unanswered = localmem(["agents", "delete", "bob"], home=home)
    assert (refused.returncode, unanswered.returncode) == (1, 1)
    assert "bob" in localmem(["agents", "list"], home=home).stdout
    assert localmem(["agents", "delete", "bob"], home=home, stdin=b"y\n").returncode == 0
    assert localmem(["agents", "list"], home=home).stdout == ""


def test_agent_in_use_is_not_deleted(shell: Shell, home: Path):
    shell("memory", "show")
    with agent_lock(home / "locks", "default"):
        shell("agents", "delete", "default", "--yes")
    assert shell.code == 1
    assert "in use" in shell.err
    assert "default" in shell("agents", "list")


# -- memory


def test_default_agent_has_its_blocks_before_it_was_ever_used(shell: Shell):
    assert "[human] What you know about the user.\n  (empty)" in shell("memory", "show")
    assert [block["label"] for block in shell.json("memory", "show")] == ["persona", "human"]  # type: ignore[union-attr]


def test_history_says_who_wrote_what(shell: Shell):
    shell("memory", "show")
    assert "1 persona, by import:\n  + I am" in shell("memory", "history", "persona")
    assert [entry["item"] for entry in shell.json("memory", "history", "persona")] == ["persona"]  # type: ignore[union-attr]


# -- recall and trace


def test_said_messages_are_found(shell: Shell):
    hold_a_conversation()
    assert "user: My dog Rex is a beagle." in shell("recall", "search", "beagle", *HASH)
    assert "results 1-" in shell.err
    page = shell.json("recall", "search", "birthday", *HASH)
    assert page["items"][0]["text"] == "My birthday is today."  # type: ignore[index]


def test_search_for_nothing_there_says_so(shell: Shell):
    hold_a_conversation()
    assert shell("recall", "search", '"zx -AND (', *HASH) == ""
    assert (shell.code, shell.err) == (0, "nothing found\n")


def test_dates_lists_in_the_order_it_was_said(shell: Shell):
    hold_a_conversation()
    today = datetime.now().astimezone().date()
    shown = shell("recall", "dates", "--since", str(today - timedelta(days=1)), "--until", str(today), *HASH)
    assert [line.split("] ")[1] for line in shown.splitlines()] == [
        "user: My dog Rex is a beagle.",
        "agent: A beagle, lovely.",
        "user: My birthday is today.",
        "agent: Happy birthday!",
    ]
    assert shell("recall", "dates", "--until", "2001-01-01", *HASH) == ""


def test_page_past_the_end_says_how_many_there_are(shell: Shell):
    hold_a_conversation()
    assert shell("recall", "dates", "--page", "9", *HASH) == ""
    assert shell.err == "there is no page 9: 4 results on 1 pages\n"


def test_trace_shows_each_inference_and_its_prompt(shell: Shell):
    hold_a_conversation()
    listed = shell.json("trace", "list")
    assert [entry["phase"] for entry in listed] == ["step", "step"]  # type: ignore[union-attr]
    assert "prompt" not in listed[0]  # type: ignore[index]
    step = str(listed[0]["step_id"])  # type: ignore[index]
    assert "Happy birthday!" in shell("trace", "show", step)
    assert "My birthday is today." not in shell.out
    assert "My birthday is today." in shell("trace", "show", step, "--prompt")
    inference = str(listed[0]["id"])  # type: ignore[index]
    assert "Happy birthday!" in shell("trace", "show", inference, "--inference")
    assert "user_message" in shell("trace", "list", "-n", "1")


# -- archival


def test_passage_is_added_found_listed_and_deleted(shell: Shell):
    [added] = shell.json("archival", "add", "Ines was born in May.", "--tag", "family", "--source", "me", *HASH)  # type: ignore[misc]
    found = shell.json("archival", "search", "Ines", "--tag", "family", *HASH)
    assert [item["id"] for item in found["items"]] == [added["id"]]  # type: ignore[index]
    assert "me #family: Ines was born in May." in shell("archival", "list", *HASH)
    assert shell("archival", "search", "Ines", "--source", "other", *HASH) == ""
    shell("archival", "delete", str(added["id"]), "--yes", *HASH)
    assert shell.json("archival", "list", *HASH)["total"] == 0  # type: ignore[index]


def test_long_text_from_stdin_becomes_several_passages_and_loses_nothing(home: Path):
    text = "".join(f"Sentence number {number} about foxes. " for number in range(200))
    added = localmem(["archival", "add", "-", "--json", *HASH], home=home, stdin=text.encode())
    pieces = [passage["text"] for passage in json.loads(added.stdout)]
    assert len(pieces) > 1
    assert "".join(pieces) == text


def test_other_embedders_passages_are_told_of_and_reindexed(shell: Shell):
    shell("archival", "add", "Ines was born in May.", "-o", "embedder", "none")
    shell("archival", "search", "Ines", *HASH)
    assert "localmem archival reindex" in shell.err
    shell("archival", "reindex", *HASH)
    assert "1 passages have their vectors" in shell.err
    shell("archival", "search", "Ines", *HASH)
    assert "reindex" not in shell.err


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe\x00rubbish", "is not UTF-8 text"), (b"a\x00b", "holds NULs"), (b" \n", "is empty")],
)
def test_file_that_is_no_text_is_refused_before_anything_is_stored(
    shell: Shell, tmp_path: Path, content: bytes, said: str
):
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("# Good\n")
    bad.write_bytes(content)
    shell("archival", "load", str(good), str(bad), *HASH)
    assert shell.code == 1
    assert said in shell.err
    assert shell.json("archival", "list", *HASH)["total"] == 0  # type: ignore[index]


# -- schedule


def test_timed_event_is_set_listed_paused_and_dropped(shell: Shell):
    timer = shell.json("schedule", "add", "water", "every 2h", "Remind them to drink.")
    due = datetime.fromisoformat(timer["next_due_at"])  # type: ignore[index]
    assert timedelta(hours=1, minutes=59) < due - datetime.now(UTC) <= timedelta(hours=2)
    shell("schedule", "pause", "10")
    assert "every 2h" in shell("schedule", "list")
    assert "Held back until" in shell.err
    shell("schedule", "pause", "0")
    shell("schedule", "list")
    assert "Held back" not in shell.err
    shell("schedule", "delete", "water", "--yes")
    assert shell.json("schedule", "list") == []


# -- models and settings


def test_models_are_listed_with_the_one_in_force_marked(shell: Shell):
    shown = shell("models", "list").splitlines()
    assert [line.split()[1] for line in shown if line.startswith("*")] == ["qwen2.5-coder-1.5b-instruct"]
    assert {"name", "sha256", "sources", "path"} <= set(shell.json("models", "list")[0])  # type: ignore[index]
    assert "Apache-2.0" in shell("models", "show", "smollm2")


def test_settings_are_shown_with_their_origin(shell: Shell, home: Path):
    home.mkdir()
    (home / "config.toml").write_text("[sampling]\nseed = 7\n")
    rows = {row["key"]: (row["value"], row["origin"]) for row in shell.json("config", "show", "--ctx-size", "2048")}  # type: ignore[union-attr]
    assert rows["sampling.seed"] == (7, "config.toml")
    assert rows["budget.window"] == (2048, "flag")
    assert rows["home"] == (str(home), "environment LOCALMEM_HOME")
    assert rows["agent.max_steps"][1] == "default"
    assert shell("config", "path") == f"{home / 'config.toml'}\n"


@pytest.mark.parametrize("arguments", [["agents", "list"], ["chat"], ["doctor"]], ids=" ".join)
def test_unknown_key_in_config_toml_is_told_with_the_nearest(shell: Shell, home: Path, arguments: list[str]):
    home.mkdir()
    (home / "config.toml").write_text("[budget]\nwindw = 1\n")
    shell(*arguments)
    assert shell.code == 1
    assert "unknown key budget.windw" in shell.err
    assert "Did you mean budget.window?" in shell.err


# -- databases that cannot be used


def test_database_that_is_none_is_told_of_and_left_as_it_is(shell: Shell, tmp_path: Path):
    path = tmp_path / "bad.db"
    path.write_bytes(b"rubbish" * 1000)
    shell("memory", "show", "-d", str(path))
    assert (shell.code, "is not an SQLite database" in shell.err) == (1, True)
    assert path.read_bytes() == b"rubbish" * 1000


def test_database_of_a_newer_version_is_told_of(shell: Shell, home: Path):
    shell("memory", "show")
    with sqlite3.connect(home / "localmem.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    shell("recall", "search", "x", *HASH)
    assert (shell.code, "was written by a newer localmem" in shell.err) == (1, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_full_disk_is_told_of(home: Path):
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "config", "path"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(home))
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_reader_that_has_gone_is_no_traceback(home: Path):
    command = [*COMMAND, "models", "list", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home)) as gone:
        assert gone.stdout is not None
        assert gone.stderr is not None
        gone.stdout.close()
        assert gone.stderr.read() == b""


# -- doctor


def test_doctor_finds_what_is_broken(shell: Shell):
    shown = shell("doctor", *HASH)
    assert shell.code == 1
    assert "broken  model: The weights of qwen2.5-coder-1.5b-instruct are not on this machine" in shown
    assert "ok      python" in shown
    findings = {finding["check"]: finding["state"] for finding in shell.json("doctor", *HASH)}  # type: ignore[union-attr]
    assert findings["database"] == "ok"


def checks(shell: Shell) -> dict[str, tuple[str, str]]:
    found = shell.json("doctor", *HASH)
    return {finding["check"]: (finding["state"], finding["text"]) for finding in found}  # type: ignore[union-attr]


def test_doctor_mends_what_is_a_cache_a_leftover_or_a_permission(shell: Shell, home: Path):
    shell("archival", "add", "The boat is blue.", "-o", "embedder", "none")
    home.chmod(0o755)
    (home / "localmem.db").chmod(0o644)
    (home / "index").mkdir(exist_ok=True)
    (home / "index" / "passage-99-hash-256.hnsw").write_bytes(b"x")
    part = home / "agent-snapshots" / "default" / "a.localmem.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    fresh = part.with_name("b.localmem.part")
    fresh.write_bytes(b"x")
    os.utime(part, (0, 0))

    found = checks(shell)
    assert {found[name][0] for name in ("privacy", "leftovers", "index")} == {"note"}
    assert "2 files" in found["leftovers"][1]
    assert part.exists(), "looking changes nothing"
    shown = shell("doctor", "--mend", *HASH)
    assert shown.count("mended:") == 3
    found = checks(shell)
    assert {found[name][0] for name in ("privacy", "leftovers", "index")} == {"ok"}
    assert (home.stat().st_mode & 0o777, (home / "localmem.db").stat().st_mode & 0o777) == (0o700, 0o600)
    assert (part.exists(), fresh.exists()) == (False, True)


def test_doctor_finds_a_history_that_was_changed_and_a_row_of_nobodys(shell: Shell, home: Path):
    write_blocks("Ana sails.")
    assert checks(shell)["history"] == ("ok", "every edit is as it was written")
    with sqlite3.connect(home / "localmem.db") as connection:
        connection.execute("DROP TRIGGER edit_is_final")
        connection.execute("UPDATE edit SET author = 'user' WHERE number = 1")
        connection.execute("INSERT INTO queue VALUES (1, 77, 4711)")
    found = checks(shell)
    assert found["history"] == ("broken", "changed from outside (default: edit 1)")
    assert found["database"][0] == "broken"
    assert "a row of queue belongs to no row of message" in found["database"][1]


def test_doctor_creates_nothing(shell: Shell, home: Path):
    shell("doctor", *HASH)
    assert not home.exists()


# -- output


def test_plain_text_keeps_lines_and_loses_control_characters():
    assert plain("a\tb\nc\x1b[0m\x00\x7f") == "a\tb\nc[0m"


def test_one_line_is_cut_at_its_width():
    assert one_line("a\n b   c\r\nd", 5) == "a b …"
    assert one_line("x" * 1_000_000, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (Page((), 0, 0, 0), "nothing found"),
        (Page(tuple("x" * 10), 1, 3, 23), "results 11-20 of 23, page 2 of 3"),
        (Page(tuple("x" * 10), 1, 50, 500, more=True), "results 11-20 of 500+, page 2 of 50"),
        (Page((), 8, 3, 23), "there is no page 9: 23 results on 3 pages"),
    ],
)
def test_page_note_counts_from_one(found: Page[str], note: str):
    assert page_note(found, found.page + 1) == note


# -- what was done, and taken back


def test_edits_of_a_block_are_undone_redone_and_compared(shell: Shell, home: Path):
    write_blocks("Ana sails.", "Ana sails.\nShe has a dog.")

    assert shell("memory", "diff", "human").splitlines()[3:] == [" Ana sails.", "+She has a dog."]
    assert "+  She" not in shell("memory", "diff", "human", "--since", "3")
    assert "Undone: [" in shell("memory", "undo")
    assert shell.out.endswith("human, by user:\n  + She has a dog.\n")
    assert "[human] What you know about the user.\n  Ana sails.\n" in shell("memory", "show")
    assert [edit["reverts"] for edit in shell.json("memory", "history", "-n", "2")] == [4, None]  # type: ignore[union-attr]
    shell("memory", "undo", "human")
    shell("memory", "undo", "human")
    assert shell.code == 1
    assert "nothing to undo" in shell.err
    shell("memory", "redo", "human")
    assert "Done again: [" in shell("memory", "redo")
    assert "She has a dog." in shell("memory", "show")
    assert shell.json("memory", "undo", "--edit", "8")[0]["number"] == 8  # type: ignore[index]
    assert "She has a dog." not in shell("memory", "show")


def write_blocks(*values: str) -> None:
    """Edits of the default agent's block human, as the user's."""
    settings = load_settings()
    with runtime.open(settings=settings, backend=ScriptedBackend(), embedder=HashEmbedder()) as agent:
        for value in values:
            agent.set_block("human", value)


def test_an_undo_waits_for_who_has_the_agent(shell: Shell, home: Path):
    write_blocks("Ana sails.")
    with agent_lock(home / "locks", "default"):
        shell("memory", "undo")
        assert shell.code == 1
        assert "in use" in shell.err
        assert "+ Ana sails." in shell("memory", "history")


def test_passages_are_undone_redone_and_purged(shell: Shell):
    shell("archival", "add", "The boat is blue.", *HASH)
    shell("archival", "add", "The sea is green.", *HASH)
    shell("archival", "delete", "1", "--yes", *HASH)

    assert "passage 1 deleted" in shell("archival", "history", *HASH)
    assert "Undone" in shell("archival", "undo", *HASH)
    assert "The boat is blue." in shell("archival", "search", "boat", *HASH)
    shell("archival", "redo", *HASH)
    assert "boat" not in shell("archival", "list", *HASH)
    shell("archival", "purge", "--yes", *HASH)
    assert "1 deleted passages are forgotten" in shell.err
    shell("archival", "undo", *HASH)
    assert (shell.code, "purged" in shell.err) == (1, True)
    shell("archival", "undo", "--edit", "4", *HASH)
    assert "sea" not in shell("archival", "list", *HASH)


def test_everything_done_to_an_agent_is_listed_and_undone(shell: Shell):
    shell("schedule", "add", "tea", "every 2h", "Drink tea.")
    shell("schedule", "delete", "tea", "--yes")

    assert "timer tea, by user:\n  nothing -> every 2h, Drink tea.\n" in shell("agents", "history", *HASH)
    shell("agents", "undo", *HASH)
    assert "Drink tea." in shell("schedule", "list")
    shell("agents", "redo", "default", *HASH)
    assert "Drink tea." not in shell("schedule", "list")


def test_there_is_nothing_to_compare_in_a_block_that_is_none(shell: Shell):
    shell("memory", "show")
    shell("memory", "diff", "nobody")
    assert "Nothing was done to it." in shell.err


# -- an agent as a file


def test_an_agent_is_exported_and_imported(shell: Shell, tmp_path: Path):
    write_blocks("Ana sails.")
    shell("archival", "add", "The boat is blue.", *HASH)
    file = tmp_path / "ana.localmem"

    shell("agents", "export", "default", str(file))
    assert "rows" in shell.err
    assert "not encrypted" in shell.err
    shell("agents", "export", "default", str(file))
    assert (shell.code, "--force" in shell.err) == (1, True)
    shell("agents", "import", str(file))
    assert (shell.code, "--name" in shell.err) == (1, True)
    assert shell.json("agents", "import", str(file), "--name", "ana")["name"] == "ana"  # type: ignore[index, call-overload]
    assert "Ana sails." in shell("memory", "show", "-a", "ana")
    assert "The boat is blue." in shell("archival", "search", "boat", "-a", "ana", *HASH)
    shell("memory", "undo", "-a", "ana")
    assert "Ana sails." in shell("memory", "show"), "the other is another"


def test_a_file_that_is_no_export_is_one_error(shell: Shell, tmp_path: Path):
    (tmp_path / "x.localmem").write_text("hello")
    shell("agents", "import", str(tmp_path / "x.localmem"))
    assert (shell.code, "is refused: it is no export" in shell.err) == (1, True)
    assert shell.json("agents", "list") == []


def test_an_agent_is_put_back_to_a_snapshot_and_forward_again(shell: Shell, home: Path):
    write_blocks("Ana sails.")
    first = shell.json("agents", "snapshot")["snapshot"]  # type: ignore[index, call-overload]
    write_blocks("Eva flies.")

    shell("agents", "restore", "default", str(first), "--yes")
    assert "Ana sails." in shell("memory", "show")
    kept = shell.json("agents", "snapshots")
    assert [one["snapshot"] for one in kept][1] == first  # type: ignore[index, union-attr]
    assert str(first) in shell("agents", "snapshots")
    shell("agents", "restore", "default", "--yes")
    assert "Eva flies." in shell("memory", "show")
    with agent_lock(home / "locks", "default"):
        shell("agents", "restore", "default", "--yes")
        assert (shell.code, "in use" in shell.err) == (1, True)
    shell("agents", "restore", "default", "never", "--yes")
    assert (shell.code, "no snapshot 'never'" in shell.err) == (1, True)
    shell("agents", "restore", "nobody", "--yes")
    assert (shell.code, "nothing is kept of 'nobody'" in shell.err) == (1, True)
    shell("agents", "delete", "default", "--yes")
    assert shell.json("agents", "snapshots") == []


def test_a_name_cannot_lead_out_of_the_folder_of_snapshots(shell: Shell):
    shell("agents", "restore", "../../x", "--yes")
    assert shell.code == 1
    assert "cannot be the name" in shell.err
