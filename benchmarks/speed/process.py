"""What the process around the model costs: how soon `--help` answers, how fast it counts, how much memory is its own.

python -m benchmarks.speed.process [--model NAME] [--models FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

from benchmarks.common import HERE
from localmem.config import load_settings

ROOT = HERE.parent
HELP_RUNS = 10
REPEATS = 5
KIND_CHARS = 600_000  # of each kind of text
PIECE_CHARS = 2_000  # a long message
WINDOW = 3_072
THREADS = 2
CODE = ("inspect.py", "typing.py", "argparse.py", "tarfile.py", "turtle.py", "datetime.py")
MOST_TURNS = 60
SAID = (
    "Hi, I'm Marta. I have just moved to Lisbon from Kraków, and I'm still looking for a good bakery near my flat.",
    "I work as a restorer of old maps. At the moment I have a Portuguese sea chart of 1587 on my table, with two small "
    "holes in the middle of the Atlantic and a coffee stain somewhere near the Azores.",
    "My sister Ines will visit me in May. She is allergic to nuts, so I must be careful with the cakes I buy for her.",
    "What did I tell you about my sister?",
    "Yesterday I walked along the river to Belém and back, eleven kilometres, and my left knee has been hurting since. "
    "The doctor says that I should swim instead of running for the next three weeks at least.",
    "I have a dog, a grey whippet called Sardine, who is afraid of trams, of pigeons and of her own shadow.",
    "Can you suggest what I could cook tonight? I have two aubergines, a tin of chickpeas, rice and half a lemon.",
    "I read a novel by Olga Tokarczuk last week and liked it more than I had expected, most of all the chapter where "
    "nothing happens except that snow falls on a village and somebody counts the dogs.",
    "What is the name of my dog?",
    "My neighbour plays the trombone every evening at seven. He is getting better, slowly; today it was nearly a tune.",
    "On Friday I have to give a talk about iron gall ink, why it eats the paper and what one can do about that. There "
    "will be forty people, and I am nervous, because I have never spoken in Portuguese before so many.",
    "Thank you. What should I remember to do before my sister comes?",
)


def figures(model: str, models_dir: Path) -> dict[str, float]:
    """All of this file's figures."""
    return {"help_s": help_s(), **tokenizer_figures(model, models_dir), **memory_figures(model, models_dir)}


# -- help ------------------------------------------------------------------------------------------------------


def help_s() -> float:
    """Median seconds of `localmem --help` in a process of its own, after one run that fills the disk cache."""
    command = [str(Path(sys.executable).with_name("localmem")), "--help"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return round(median(_seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True), HELP_RUNS)), 3)


def _seconds(work: Callable[[], object], runs: int) -> list[float]:
    times: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


# -- tokenizer -------------------------------------------------------------------------------------------------


def tokenizer_figures(model: str, models_dir: Path) -> dict[str, float]:
    """MB/s of our tokenizer and of llama.cpp's on the same pieces of text, and the one over the other.

    Both as the runtime calls them: text in, a list of ids out. Ours and theirs take turns, so that a busy moment hits
    both, and the medians of their times are compared. Raises ValueError when one id differs.
    """
    from localmem.backend.llama_library import open_vocabulary
    from localmem.backend.tokenizer import build_tokenizer

    pieces = [
        text[start : start + PIECE_CHARS] for text in texts().values() for start in range(0, len(text), PIECE_CHARS)
    ]
    with open_vocabulary(_weights(model, models_dir)) as library:
        tokenizer = build_tokenizer(
            library.vocabulary(), lambda text, special: library.tokenize(text, special=special), library.piece
        )

        def ours() -> list[list[int]]:
            return [tokenizer.encode(piece) for piece in pieces]

        def llama() -> list[list[int]]:
            return [library.tokenize(piece.encode(), special=False) for piece in pieces]

        if ours() != llama():
            raise ValueError(f"the tokenizers disagree on a text of the benchmark ({model})")
        pairs = [(_seconds(ours, 1)[0], _seconds(llama, 1)[0]) for _ in range(REPEATS)]
    megabytes = sum(len(piece.encode()) for piece in pieces) / 1e6
    ours_mb_s, llama_mb_s = (megabytes / median(times) for times in zip(*pairs, strict=True))
    return {
        "tokenizer_mb_s": round(ours_mb_s, 2),
        "llama_tokenizer_mb_s": round(llama_mb_s, 2),
        "tokenizer_over_llama": round(ours_mb_s / llama_mb_s, 2),
        "tokenizer_text_mb": round(megabytes, 2),
    }


def texts() -> Mapping[str, str]:
    """The same few megabytes everywhere this Python is: prose, code, JSON, and fifteen languages."""
    topics = importlib.import_module("pydoc_data.topics").topics
    paths = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    documents = [path.read_text(encoding="utf-8") for path in paths]
    prose = "\n".join([*documents, *topics.values()])
    library = Path(sysconfig.get_path("stdlib"))
    code = "".join((library / name).read_text(encoding="utf-8") for name in CODE)
    rows = [{"label": name, "line": at, "content": line} for name, text in topics.items() for at, line in _lines(text)]
    return {
        "prose": prose[:KIND_CHARS],
        "code": code[:KIND_CHARS],
        "json": json.dumps(rows)[:KIND_CHARS],
        "languages": _languages()[:KIND_CHARS],
    }


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line)


def _languages() -> str:
    """Article 1 of the Declaration of Human Rights over and over, its words in another order each time."""
    sentences = (HERE / "data" / "languages.txt").read_text(encoding="utf-8").splitlines()
    source, paragraphs, characters = random.Random(0), list[str](), 0
    while characters < KIND_CHARS:
        words = source.choice(sentences).split(" ")
        paragraphs.append(" ".join(source.sample(words, len(words))))
        characters += len(paragraphs[-1]) + 1
    return "\n".join(paragraphs)


def _weights(model: str, models_dir: Path) -> Path:
    from localmem import models

    settings = load_settings(flags={"model": model, "models_dir": models_dir})
    return models.locate(models.find_card(model, models.load_cards(settings.models_dir)), settings)


# -- memory ----------------------------------------------------------------------------------------------------


def memory_figures(model: str, models_dir: Path) -> dict[str, float]:
    """What a process that runs an agent keeps in memory beyond llama.cpp's own buffers, in MB (10^6 bytes).

    Two fresh processes, both with two threads, on the CPU. One opens an agent with the embedder "hash" in a window of
    3,072 tokens and talks until its queue has been flushed, and a dozen turns at least. The other only makes the same
    model and the same context, and reads tokens in the same chunks until the context is as full: what its resident
    memory grows by, from the moment before the weights are opened, is llama.cpp's share, mapped weights, repacked
    weights, KV cache and compute buffers. Everything else of the first process is ours: the interpreter, every
    imported package and shared library, vocabularies, the constraint engine, SQLite's pages, the conversation.

    Loading and talking are compared apart, each by its own peak (VmHWM, which is set back between the two), so that
    nothing of ours hides under a peak of llama.cpp's loading; the greater difference counts.
    Raises ValueError where the system has no /proc.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise ValueError("resident memory is read from /proc, which this system does not have")
    with tempfile.TemporaryDirectory() as home:
        agent = _measured(f"_agent_memory({model!r}, {str(models_dir)!r}, {home!r})")
    llama = _measured(f"_llama_memory({str(_weights(model, models_dir))!r}, {agent['filled']})")
    phases = {phase: agent[phase] - (llama[phase] - llama["before"]) for phase in ("loading", "talking")}
    return {
        "extra_rss_mb": round(max(phases.values()), 1),
        "extra_rss_loading_mb": round(phases["loading"], 1),
        "extra_rss_talking_mb": round(phases["talking"], 1),
        "agent_peak_rss_mb": round(max(agent["loading"], agent["talking"]), 1),
        "llama_rss_mb": round(llama["talking"] - llama["before"], 1),
    }


def _measured(call: str) -> dict[str, float]:
    """What a function of this file prints, run in a process of its own."""
    code = f"import json; from benchmarks.speed import process; print(json.dumps(process.{call}))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _agent_memory(model: str, models_dir: str, home: str) -> dict[str, float]:
    """Peaks of an agent's process in MB, and the most tokens a prompt had."""
    from localmem.runtime import load_backend
    from localmem.runtime import open as open_agent

    flags = {"model": model, "models_dir": models_dir, "home": home, "window": WINDOW, "seed": 0}
    settings = load_settings(flags={**flags, "threads": THREADS, "gpu_layers": 0, "embedder": "hash"})
    backend = load_backend(settings)
    loading = _peak_mb()
    _forget_peak()
    filled, turns = 0, 0
    with open_agent("marta", settings=settings, backend=backend) as agent:
        while turns < len(SAID) or (not agent.summaries() and turns < MOST_TURNS):
            for step in agent.send(SAID[turns % len(SAID)]):
                filled = max(filled, step.usage.prompt_tokens + step.usage.generated_tokens)
            turns += 1
        flushed = bool(agent.summaries())
    talking = _peak_mb()
    backend.close()
    if not flushed:
        raise ValueError(f"the queue was never flushed in {turns} turns")
    return {"loading": loading, "talking": talking, "filled": filled}


def _llama_memory(path: str, filled: int) -> dict[str, float]:
    """Resident MB before the weights are opened, and the peaks of llama.cpp alone."""
    from localmem.backend.llama import READ_CHUNK, LlamaOptions, flash_attention_for, make_context
    from localmem.backend.llama_library import LlamaModel, _library

    options = LlamaOptions(threads=THREADS, gpu_layers=0)
    _library()  # before the first look: the shared libraries are counted as ours
    before = _resident_mb()
    model = LlamaModel(Path(path))
    context = make_context(model, WINDOW, options, flash_attention=flash_attention_for(options, 0))
    context.set_threads(THREADS, THREADS)
    loading = _peak_mb()
    _forget_peak()
    for position in range(0, filled, READ_CHUNK):
        context.decode([0] * READ_CHUNK, position=position, sequence=0)
    return {"before": before, "loading": loading, "talking": _peak_mb()}


def _peak_mb() -> float:
    return _status_mb("VmHWM")


def _resident_mb() -> float:
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:"))


def _forget_peak() -> None:
    """Begin the peak again from what is resident now (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# -- command line ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--models", type=Path, default=load_settings().models_dir, help="folder of the weights")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = figures(arguments.model, arguments.models)
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:24}{value:>10}" for name, value in found.items()))


if __name__ == "__main__":
    main()
