"""localmem: an assistant that manages its own memory, on a local model in a small window.

>>> import localmem
>>> agent = localmem.open("ana")                        # doctest: +SKIP
>>> for step in agent.send("My dog is called Rex."):    # doctest: +SKIP
...     print(step.reply or step.call.name)

Everything here is loaded when it is first used: importing localmem costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localmem.config import Settings, load_settings
    from localmem.errors import LocalmemError
    from localmem.kernel.agent import Agent
    from localmem.kernel.messages import Step
    from localmem.kernel.rules import ToolRules
    from localmem.runtime import open

__all__ = ["Agent", "LocalmemError", "Settings", "Step", "ToolRules", "load_settings", "open"]

__version__ = "0.1.0"

_HOME = {
    "Agent": "localmem.kernel.agent",
    "LocalmemError": "localmem.errors",
    "Settings": "localmem.config",
    "Step": "localmem.kernel.messages",
    "ToolRules": "localmem.kernel.rules",
    "load_settings": "localmem.config",
    "open": "localmem.runtime",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'localmem' has no attribute {name!r}")
