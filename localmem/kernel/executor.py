"""The function executor (MemGPT, section 2.3): a completion becomes a call, the call a result.

Never raises for what a model did: text that is no call, an unknown name, arguments that do not fit and a function
that raises are all results with `ok=False`, in words that say what would work. The one place with `except Exception`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from localmem.backend.base import Completion
from localmem.calls.frame import Frame
from localmem.calls.spec import FunctionSpec
from localmem.errors import (
    BackendError,
    FunctionError,
    FunctionFailed,
    InvalidArguments,
    StorageError,
    Unconfirmed,
    UnknownFunction,
)
from localmem.kernel.messages import FAILURE, FunctionCall, FunctionResult

logger = logging.getLogger(__name__)


def parse(completion: Completion, frame: Frame) -> FunctionCall:
    """The call a completion holds. Raises InvalidArguments, in words for the model."""
    if completion.finish_reason == "length":
        raise InvalidArguments(f"that was cut off after {len(completion.ids)} tokens; write less")
    return frame.parse(completion.text)


def execute(call: FunctionCall, functions: Mapping[str, FunctionSpec], *, allowed: Collection[str]) -> FunctionResult:
    """Run `call`; `allowed` are the names that may be called now."""
    try:
        return FunctionResult(True, _run(call, functions, allowed))
    except FunctionError as error:
        return FunctionResult(False, f"{FAILURE}{error}", unconfirmed=isinstance(error, Unconfirmed))


def _run(call: FunctionCall, functions: Mapping[str, FunctionSpec], allowed: Collection[str]) -> str:
    spec = functions.get(call.name)
    if spec is None:
        raise UnknownFunction(f"there is no function {call.name!r}; call one of {', '.join(allowed)}")
    if call.name not in allowed:
        raise UnknownFunction(f"{call.name} cannot be called now; call one of {', '.join(allowed)}")
    _check(call, spec)
    try:
        result = spec.run(**call.arguments)
        return "Done." if result is None else str(result)
    except (FunctionError, BackendError, StorageError):
        raise
    except Exception as error:
        logger.info("function %s raised", call.name, exc_info=True)
        raise FunctionFailed(f"{call.name} failed: {type(error).__name__}: {error}") from error


def _check(call: FunctionCall, spec: FunctionSpec) -> None:
    """Raises InvalidArguments naming the argument that does not fit the schema."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(dict(spec.parameters)).iter_errors(dict(call.arguments)):
        where = ".".join(str(part) for part in error.absolute_path)
        wanted = ", ".join(spec.parameters.get("properties", {}))
        raise InvalidArguments(
            f"{call.name}{f', argument {where}' if where else ''}: {error.message}; it takes {wanted}"
        )
