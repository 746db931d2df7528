"""Every error that can leave localmem, on one screen.

Two audiences. `LocalmemError` is for the person at the keyboard: a message that says what was found, and a hint
that says what to do. `FunctionError` is for the model: its text becomes a function result, so it is short and says
what would work instead.
"""


class LocalmemError(Exception):
    """An error the user can act on: `message` says what happened, `hint` the way out."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ConfigError(LocalmemError):
    """A setting cannot be used: unknown key, bad value, unreadable file."""


class ModelError(LocalmemError):
    """A model file or card cannot be used."""


class ModelNotFound(ModelError):
    """No card or file of that name; the hint lists near names and the places searched."""


class ModelCorrupt(ModelError):
    """The file is not the model it claims to be: truncated, damaged or not GGUF."""


class ModelUnavailable(ModelError):
    """No source could deliver the model; the message names each one that was tried."""


class ContextTooSmall(ModelError):
    """System instructions, working context, summary and reserve leave no room for a queue."""


class BackendError(LocalmemError):
    """llama.cpp could not load, decode or constrain."""


class StorageError(LocalmemError):
    """The database cannot be read or written."""


class SchemaTooNew(StorageError):
    """The database was written by a newer localmem."""


class DatabaseBusy(StorageError):
    """Another process holds the database or the agent."""


class AgentNotFound(LocalmemError):
    """No agent of that name in this home."""


class ChainLimit(LocalmemError):
    """An event used up its steps without an answer; the steps so far are stored."""


class Interrupted(Exception):
    """The user stopped work that had nothing to show yet; it leaves no trace and is done when it is next needed."""


class FunctionError(Exception):
    """A call could not be carried out; its text is fed back to the model."""


class UnknownFunction(FunctionError):
    """The model named a function that does not exist."""


class InvalidArguments(FunctionError):
    """The arguments do not fit the function's schema."""


class FunctionFailed(FunctionError):
    """The function itself raised."""


class WorkingContextFull(FunctionError):
    """The edit would take a block over its limit; the block is unchanged."""


class Unconfirmed(FunctionError):
    """The edit would lose much; it is made when the same call comes again."""


class BlockNotFound(FunctionError):
    """No block has that label."""
