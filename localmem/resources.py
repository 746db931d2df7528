"""Where the data that ships with localmem lies: model cards and grammars.

The two folders stand at the top of the repository and are packed into `localmem/data/` of a wheel. This file
knows both places and nothing of what is in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["models", "grammars"]


def data_dir(kind: Kind) -> Path:
    """The folder of shipped `kind` files: in the installed package, else at the top of the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / kind
    return installed if installed.is_dir() else package.parent / kind
