"""A long conversation with a real model in a 4,096-token window: facts told, changed, evicted, asked for.

python -m benchmarks.long_conversation [--model NAME] [--transcript docs/transcript.md] [--json]

The script of the user's side is `data/long_conversation.toml`. A reply counts as right when it contains one of the
expected words, case and accents ignored. Clock and seed are fixed, temperature is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tqdm import tqdm

from benchmarks.common import HERE, commit, machine, save
from localmem.config import load_settings
from localmem.kernel.agent import Agent
from localmem.kernel.messages import Step, Usage
from localmem.memory.archival import split_text
from localmem.runtime import load_backend, make_embedder
from localmem.runtime import open as open_agent

DATA = HERE / "data"


@dataclass
class Clock:
    """A clock that only the script moves."""

    now: datetime = datetime(2026, 11, 2, 18, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Log:
    """What happened, and what is counted."""

    lines: list[str] = field(default_factory=list)
    questions: list[tuple[str, str, bool, int]] = field(default_factory=list)  # question, reply, right, turn
    usage: Usage = Usage()
    steps: int = 0
    failed_calls: int = 0
    turns: int = 0
    restarts: int = 0
    warnings: int = 0
    flushes: list[int] = field(default_factory=list)  # the turns in which they happened
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    turns = tomllib.loads((DATA / "long_conversation.toml").read_text(encoding="utf-8"))["turn"]
    with tempfile.TemporaryDirectory() as home:
        flags = {"model": arguments.model, "home": Path(home), "models_dir": arguments.models, "seed": 0}
        settings = load_settings(flags=flags)
        backend, embedder, clock, log = load_backend(settings), make_embedder(settings), Clock(), Log()

        def open_again() -> Agent:
            agent = open_agent("marta", settings=settings, backend=backend, embedder=embedder, now=clock)
            agent.log_in()
            return agent

        agent = open_again()
        for turn in tqdm(turns, desc="turns", unit="turn", file=sys.stderr):
            if turn.get("restart"):
                agent.close()
                clock.now += timedelta(hours=turn["hours"])
                log.restarts += 1
                log.lines.append(f"\n*— the program is closed, and opened again {turn['hours']} hours later —*\n")
                agent = open_again()
            elif "upload" in turn:
                _upload(agent, turn["upload"], log)
            else:
                clock.now += timedelta(seconds=90)
                _say(agent, turn["say"], turn.get("expect", []), log)
        figures = _figures(log, agent)
        memory = agent.working_context.render()
        summary = agent.main_context.summary_text
        agent.close()
    written_by = commit()  # before the result files, which change the checkout, are written
    path = save("long_conversation", arguments.model, figures, wrong=[q for q in log.questions if not q[2]])
    if arguments.transcript:
        _write_transcript(Path(arguments.transcript), arguments.model, written_by, log, figures, memory, summary)
    print(json.dumps(figures) if arguments.json else _table(figures) + f"\n{path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--models", type=Path, default=load_settings().models_dir, help="folder of the weights")
    parser.add_argument("--transcript", help="write the conversation to this Markdown file")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _upload(agent: Agent, name: str, log: Log) -> None:
    passages = split_text((DATA / name).read_text(encoding="utf-8"), max_chars=500)
    agent.upload(name, passages)
    log.lines.append(f"\n*— the user uploads {name}: {len(passages)} passages —*\n")


def _say(agent: Agent, text: str, expect: list[str], log: Log) -> None:
    log.turns += 1
    log.lines.append(f"**{log.turns}. Marta:** {text}  ")
    started, reply = time.perf_counter(), ""
    summaries = len(agent.summaries())
    for step in agent.send(text):
        if step.reply is not None:
            reply = step.reply
            log.seconds.append(time.perf_counter() - started)
        _count(step, log)
    if len(agent.summaries()) > summaries:
        log.flushes.append(log.turns)
        log.lines.append("*(flush: the oldest messages left the window and went into the summary)*  ")
    if expect:
        right = any(_fold(word) in _fold(reply) for word in expect)
        log.questions.append((text, reply, right, log.turns))
        log.lines.append(f"*({'right' if right else 'WRONG: expected ' + ' or '.join(expect)})*  ")


def _count(step: Step, log: Log) -> None:
    log.steps += 1
    log.usage += step.usage
    log.failed_calls += not step.result.could_run
    if step.reply is not None:
        log.lines.append(f"**localmem:** {step.reply}  ")
    elif step.call is not None:
        arguments = ", ".join(f"{k}={v!r}" for k, v in step.call.arguments.items())
        result = step.result.text.replace("\n", " / ")
        log.lines.append(f"`{step.call.name}({arguments})` → {result[:240]}  ")


def _figures(log: Log, agent: Agent) -> dict[str, object]:
    early = [q for q in log.questions if log.flushes and q[3] > log.flushes[0]]
    return {
        "turns": log.turns,
        "flushes": len(log.flushes),
        "flushes_in_turns": log.flushes,
        "restarts": log.restarts,
        "questions": len(log.questions),
        "right": sum(q[2] for q in log.questions),
        "questions_after_first_flush": len(early),
        "right_after_first_flush": sum(q[2] for q in early),
        "steps": log.steps,
        "failed_calls": log.failed_calls,
        "preamble_tokens": agent.main_context.preamble_tokens,
        "messages_in_recall": agent.recall.count(),
        "prompt_tokens": log.usage.prompt_tokens,
        "reused_tokens": log.usage.reused_tokens,
        "reuse_share": round(log.usage.reused_tokens / max(1, log.usage.prompt_tokens), 4),
        "seconds_to_reply_median": round(sorted(log.seconds)[len(log.seconds) // 2], 2),
        "seconds_to_reply_worst": round(max(log.seconds), 2),
    }


def _fold(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))


def _table(figures: dict[str, object]) -> str:
    return "\n".join(f"{name:30} {value}" for name, value in figures.items())


def _write_transcript(
    path: Path, model: str, written_by: str, log: Log, figures: dict[str, object], memory: str, summary: str
) -> None:
    wrong = [f"- turn {turn}: “{question}” → “{reply}”" for question, reply, right, turn in log.questions if not right]
    text = [
        "# A long conversation in a 4,096-token window",
        f"Model: {model}. Commit: {written_by}. Machine: {machine()}.",
        "Made by `make transcript` (`python -m benchmarks.long_conversation --transcript docs/transcript.md`); nothing "
        "was edited by hand. The user's side is a script; calls and their results are shown as code.",
        "```\n" + _table(figures) + "\n```",
        f"Right: {figures['right']} of {figures['questions']}. Wrong:\n\n" + ("\n".join(wrong) or "- none"),
        "## The conversation",
        "\n".join(log.lines),
        "## Core memory at the end",
        f"```\n{memory}\n```",
        "## The recursive summary at the end",
        f"> {summary}".replace("\n", "\n> "),
    ]
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
