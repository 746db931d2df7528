"""BFCL's own checker, without the vendors' packages that its model table would import."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.bfcl.data import Question
from benchmarks.bfcl.functions import as_taken

_TABLE = "bfcl_eval.constants.model_config"
_NAME = "localmem"

# What the checker raises where a value is of a kind its authors did not think of, and what 400 digits raise where they
# are to be a float: then the call is wrong.
_CHECKER_FAULTS = (TypeError, ValueError, AttributeError, LookupError, OverflowError)

Call = tuple[str, Mapping[str, object]]
"""A function's name and its arguments."""


@dataclass(frozen=True, slots=True)
class Checker:
    """`check_call` and `check_reply` are functions of the wheel."""

    check_call: Callable[..., Mapping[str, Any]]
    check_reply: Callable[..., Mapping[str, Any]]
    python: object
    """Their name for the language whose types are checked."""

    def right_call(self, question: Question, call: Call | None) -> bool:
        """Whether a call is a right one, as BFCL sees it; with no call, whether none was wanted."""
        if call is None or question.answer is None:
            return call is None and question.answer is None
        name, arguments = call
        functions = [dict(document) for document in question.functions]
        parameters = next((one["parameters"] for one in functions if one["name"] == name), {})
        try:
            made = [{name: as_taken(dict(arguments), parameters)}]
            found = self.check_call(
                functions, made, [dict(answer) for answer in question.answer], self.python, question.category, _NAME
            )
        except _CHECKER_FAULTS:
            return False
        return bool(found["valid"])

    def right_reply(self, reply: str, answers: Sequence[str]) -> bool:
        """Whether a reply holds one of the answers, as a word of its own; case and punctuation do not count."""
        return bool(self.check_reply(reply, list(answers))["valid"])


def load_checker(folder: Path) -> Checker:
    """The checker of the wheel that is unpacked in `folder`."""
    with _importable(folder):
        calls = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        replies = importlib.import_module("bfcl_eval.eval_checker.agentic_eval.agentic_checker")
        enums = importlib.import_module("bfcl_eval.constants.enums")
    return Checker(calls.ast_checker, replies.agentic_checker, enums.Language.PYTHON)


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """The wheel's modules can be imported, with a table of one model in place of theirs; afterwards they cannot."""
    table = ModuleType(_TABLE)
    table.MODEL_CONFIG_MAPPING = {_NAME: SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "bfcl_eval"}
    root = os.environ.get("BFCL_PROJECT_ROOT")
    with tempfile.TemporaryDirectory() as scratch:  # its constants make folders for results as they are imported
        os.environ["BFCL_PROJECT_ROOT"] = scratch
        sys.path.insert(0, str(folder))
        sys.modules[_TABLE] = table
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
                del sys.modules[name]
            sys.modules.update(before)
            os.environ.pop("BFCL_PROJECT_ROOT", None)
            if root is not None:
                os.environ["BFCL_PROJECT_ROOT"] = root
