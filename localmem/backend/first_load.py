"""The first load of a model file happens in a process of its own: what crashes llama.cpp must not take us along.

`check_gguf` reads a header; what llama.cpp makes of a vocabulary, a tokenizer or the weights only it knows. So a file
that this llama.cpp has not loaded yet, as it is now, is first loaded and run for two tokens by a child process.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from localmem.errors import LocalmemError, ModelCorrupt, ModelNotFound
from localmem.gguf import check_gguf
from localmem.storage.file_memory import FileMemory, identity

MEMORY_NAME = "loaded.json"
"""Files that were loaded, and by which llama.cpp: in the folder of the models."""

_CHILD = "import sys; from localmem.backend.first_load import load_and_run; sys.exit(load_and_run(sys.argv[1]))"
_LONGEST_S = 600
_REFUSED = 3
_TOKENS = 2
_WAY_OUT = "Get another copy of the file, or a model with: localmem models pull NAME"


def ensure_loadable(path: Path, models_dir: Path) -> None:
    """Raise ModelCorrupt unless llama.cpp can load the file and run it, without having crashed here to find out.

    Costs a load and two tokens the first time, a tenth of a second later on. A file that is not there is ModelNotFound.
    """
    check_gguf(path)
    memory = FileMemory(models_dir / MEMORY_NAME)
    library = f"llama-cpp-python {version('llama-cpp-python')}"
    try:
        if memory.get(path) == library:
            return
        as_of = identity(path)
        _try(path)
        memory.put(path, library, as_of)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}", "Check the path.") from error


def _try(path: Path) -> None:
    command = [sys.executable, "-P", "-c", _CHILD, str(path.absolute())]
    try:
        child = subprocess.run(command, capture_output=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        raise ModelCorrupt(f"llama.cpp did not load {path} within {_LONGEST_S} seconds", _WAY_OUT) from None
    if child.returncode == _REFUSED:
        raise ModelCorrupt(child.stdout.decode("utf-8", "replace").strip(), _WAY_OUT)
    if child.returncode:
        raise ModelCorrupt(f"llama.cpp crashes when it loads {path} ({_how(child.returncode)})", _WAY_OUT)


def _how(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def load_and_run(name: str) -> int:
    """Load the file and read two tokens with it: the child's work. Its exit status; what is wrong goes to stdout."""
    from localmem.backend.llama_library import LlamaContext, LlamaModel

    _leave_no_core()
    try:
        model = LlamaModel(Path(name))
        model.vocabulary()
        model.tokenize(b"Hello, world", special=True)
        context = LlamaContext(model, n_ctx=256, sequences=1)
        context.decode([0] * _TOKENS, position=0, sequence=0)
        highest = float(context.logits().max())
        if not math.isfinite(highest):
            raise ModelCorrupt(f"{name} computes no numbers: its weights are damaged")
        context.close()
        model.close()
    except LocalmemError as error:
        sys.stdout.write(str(error))
        return _REFUSED
    return 0


def _leave_no_core() -> None:
    """A crash is an answer here, and no file of a gigabyte should tell of it."""
    with suppress(ImportError):  # Windows has none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
