"""Where the data that ships with localmem lies: model cards, grammars and the decision cases of the benchmark.

The folders stand in the repository and are packed into `localmem/data/` of a wheel. This file knows both places and
nothing of what is in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["models", "grammars", "cases"]


_IN_CHECKOUT = {"cases": "benchmarks/cases"}


def data_dir(kind: Kind) -> Path:
    """The folder of shipped `kind` files: in the installed package, else in the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / kind
    return installed if installed.is_dir() else package.parent / _IN_CHECKOUT.get(kind, kind)
